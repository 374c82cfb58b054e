"""EKS add-ons of every cluster, in the order in which they must be installed."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType

from infra.catalog.facts import Source, Unresolved


@dataclass(frozen=True, slots=True, kw_only=True)
class Addon:
    """One managed add-on.

    `service_account` is the one that an IAM role is associated with, None where the add-on needs none of its own.
    `needs_identity` says that it calls AWS with that role, so its Pod Identity association comes first. `after_nodes`
    says that it has pods that need a node, so it waits for the system node group. `order` is unique, over both groups.
    `fsx_only` add-ons are installed only in environments with FSx. `managed_policy` is the AWS managed policy that EKS
    names for the role; a narrower one may be enough.
    """

    name: str
    namespace: str
    service_account: str | None
    after_nodes: bool
    order: int
    needs_identity: bool
    managed_policy: str | None = None
    fsx_only: bool = False
    version: Unresolved
    source: Source


# The copies carry no date. Given is the earliest that their content allows.
_EKS_LIST = Source(
    title="Amazon EKS user guide, AWS add-ons (names, namespaces, service accounts, policies)",
    url="https://github.com/awsdocs/amazon-eks-user-guide/blob/027430e09023d12ec3beccce4c646a11a270a5cb/latest/ug/workloads/workloads-add-ons-available-eks.adoc",
    as_of=date(2025, 7, 1),
)
_COMMUNITY_LIST = Source(
    title="Amazon EKS user guide, community add-ons (metrics-server: kube-system, no service account of its own)",
    url="https://github.com/awsdocs/amazon-eks-user-guide/blob/013856044148d6eeed4723027a45aa2180536bcb/latest/ug/workloads/community-addons.adoc",
    as_of=date(2025, 11, 26),
)

VPC_CNI_FLOOR_FOR_EFA_ONLY = "1.18.5"
"""Lowest VPC CNI that leaves EFA-only interfaces alone; an older one fails on an interface without an address."""


def _version(addon: str) -> Unresolved:
    return Unresolved(
        what=f"version of the EKS add-on {addon}",
        command=(
            f"aws eks describe-addon-versions --region <region> --addon-name {addon} --kubernetes-version <version>"
            " --query 'addons[0].addonVersions[?compatibilities[?defaultVersion]].addonVersion | [0]' --output text"
        ),
    )


def _addon(
    name: str,
    order: int,
    *,
    after_nodes: bool,
    service_account: str | None = None,
    managed_policy: str | None = None,
    fsx_only: bool = False,
    namespace: str = "kube-system",
    source: Source = _EKS_LIST,
) -> Addon:
    return Addon(
        name=name,
        namespace=namespace,
        service_account=service_account,
        after_nodes=after_nodes,
        order=order,
        needs_identity=service_account is not None,
        managed_policy=managed_policy,
        fsx_only=fsx_only,
        version=_version(name),
        source=source,
    )


ADDONS: Mapping[str, Addon] = MappingProxyType(
    {
        addon.name: addon
        for addon in (
            _addon(
                "vpc-cni",
                1,
                after_nodes=False,
                service_account="aws-node",
                managed_policy="arn:aws:iam::aws:policy/AmazonEKS_CNI_Policy",
            ),
            _addon("kube-proxy", 2, after_nodes=False),
            # Uses the node role's eks-auth permission: it hands out identities and cannot be given one itself.
            _addon("eks-pod-identity-agent", 3, after_nodes=False),
            _addon("coredns", 4, after_nodes=True),
            _addon("metrics-server", 5, after_nodes=True, source=_COMMUNITY_LIST),
            _addon(
                "aws-ebs-csi-driver",
                6,
                after_nodes=True,
                service_account="ebs-csi-controller-sa",
                managed_policy="arn:aws:iam::aws:policy/service-role/AmazonEBSCSIDriverPolicy",
            ),
            _addon("eks-node-monitoring-agent", 7, after_nodes=True),
            _addon(
                "aws-fsx-csi-driver",
                8,
                after_nodes=True,
                service_account="fsx-csi-controller-sa",
                managed_policy="arn:aws:iam::aws:policy/AmazonFSxFullAccess",
                fsx_only=True,
            ),
            # Container logs and Container Insights; the alarm on GPU nodes without work reads the latter.
            _addon(
                "amazon-cloudwatch-observability",
                9,
                after_nodes=True,
                service_account="cloudwatch-agent",
                managed_policy="arn:aws:iam::aws:policy/CloudWatchAgentServerPolicy",
                namespace="amazon-cloudwatch",
            ),
        )
    }
)
