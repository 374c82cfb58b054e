"""What every EKS control plane must be."""

from __future__ import annotations

from collections.abc import Iterator

from infra.config.faults import Finding
from infra.config.plan import Plan
from infra.policy.stacks import Resource, Stack, resources

LOGS = frozenset({"api", "audit", "authenticator", "controllerManager", "scheduler"})


def control_plane(stack: Stack, plan: Plan) -> Iterator[Finding]:
    for cluster in resources(stack, "AWS::EKS::Cluster"):
        yield from _endpoint(cluster, plan)
        yield from _logs(cluster)
        yield from _secrets(cluster)
        yield from _access(cluster)
        if plan.protected and cluster.properties.get("DeletionProtection") is not True:
            yield cluster.finding(
                "cluster.deletion-protection",
                "DeletionProtection",
                cluster.properties.get("DeletionProtection"),
                "one API call deletes the cluster",
                "Set it to true, or write `protected: false` in the environment.",
            )


def _endpoint(cluster: Resource, plan: Plan) -> Iterator[Finding]:
    network = cluster.properties.get("ResourcesVpcConfig", {})
    where = "ResourcesVpcConfig"
    if network.get("EndpointPrivateAccess") is not True:
        yield cluster.finding(
            "cluster.private-endpoint",
            f"{where}.EndpointPrivateAccess",
            network.get("EndpointPrivateAccess"),
            "nodes would reach the API server over the internet",
            "Set it to true.",
        )
    # EKS opens the endpoint to the world when the property is absent.
    public = network.get("EndpointPublicAccess", True)
    cidrs = network.get("PublicAccessCidrs") or ()
    if public is not False and not plan.kubernetes.public_cidrs:
        yield cluster.finding(
            "cluster.public-endpoint",
            f"{where}.EndpointPublicAccess",
            network.get("EndpointPublicAccess"),
            "the environment asks for a private endpoint",
            "Set it to false, or write `endpoint: {public_cidrs: [...]}` in the environment.",
        )
    elif public is not False and sorted(cidrs) != sorted(plan.kubernetes.public_cidrs):
        yield cluster.finding(
            "cluster.public-endpoint",
            f"{where}.PublicAccessCidrs",
            list(cidrs),
            f"the environment opens the endpoint to {', '.join(plan.kubernetes.public_cidrs)} and nobody else",
            "Take the list from the Plan.",
        )


def _logs(cluster: Resource) -> Iterator[Finding]:
    enabled = cluster.properties.get("Logging", {}).get("ClusterLogging", {}).get("EnabledTypes", ())
    missing = LOGS - {kind["Type"] for kind in enabled}
    if missing:
        yield cluster.finding(
            "cluster.logs",
            "Logging.ClusterLogging.EnabledTypes",
            sorted(LOGS - missing),
            f"{', '.join(sorted(missing))} would leave no trace",
            "Enable all five.",
        )


def _secrets(cluster: Resource) -> Iterator[Finding]:
    encrypted = cluster.properties.get("EncryptionConfig", ())
    if not any("secrets" in entry.get("Resources", ()) and entry.get("Provider") for entry in encrypted):
        yield cluster.finding(
            "cluster.secrets-key",
            "EncryptionConfig",
            encrypted,
            "Kubernetes secrets have no key of their own, and adding one later replaces the cluster",
            "Encrypt `secrets` under a customer key.",
        )


def _access(cluster: Resource) -> Iterator[Finding]:
    access = cluster.properties.get("AccessConfig", {})
    if access.get("AuthenticationMode") != "API":
        yield cluster.finding(
            "cluster.access-entries",
            "AccessConfig.AuthenticationMode",
            access.get("AuthenticationMode"),
            "the aws-auth config map can grant access that no template shows",
            "Set it to API.",
        )
    if access.get("BootstrapClusterCreatorAdminPermissions") is not False:
        yield cluster.finding(
            "cluster.creator-admin",
            "AccessConfig.BootstrapClusterCreatorAdminPermissions",
            access.get("BootstrapClusterCreatorAdminPermissions"),
            "the deploy role would stay administrator of the cluster",
            "Set it to false and name administrators by access entries.",
        )
