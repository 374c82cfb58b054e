"""What only a render would refuse of a file, found before anything is paid for.

For `load(..., further=)`: it plans the environment and makes its Kubernetes objects with stand-ins for what a deploy and an
image build give. No CDK, no jsii: a few hundredths of a second.
"""

from __future__ import annotations

from collections.abc import Iterator

from infra.config.environment import Environment
from infra.config.faults import EnvironmentFault, Finding
from infra.config.node_data import too_long
from infra.config.outputs import Outputs
from infra.config.pins import Pins
from infra.config.plan import Plan, build_plan
from infra.config.rules.identity import TAGS_MAX
from k8s.checks.check import check
from k8s.flags.rendered import engine_flag_names
from k8s.render import manifests

_EKS_GROUP_TAGS = 5
"""eks:cluster-name, eks:nodegroup-name, kubernetes.io/cluster/NAME, k8s.io/cluster-autoscaler/enabled and /NAME."""
_IMAGE = "image.invalid/run@sha256:" + "0" * 64


def rendered_faults(environment: Environment, pins: Pins) -> tuple[Finding, ...]:
    """Every fault that a render of the environment would end with."""
    plan = build_plan(environment, pins)
    found = (*too_long(plan), *_tags(plan))
    try:
        engine_flag_names(plan)
    except ValueError as error:
        refused = Finding(
            rule="workload.engine-flags",
            key="workload.rollout",
            value="engines",
            why=str(error),
            fix="Change what it names.",
        )
        return (*found, refused)
    try:
        rendered = manifests(plan, image=_IMAGE, outputs=_outputs(plan))
    except EnvironmentFault as fault:
        return (*found, *fault.findings)
    return (*found, *check(rendered, plan))


def _tags(plan: Plan) -> Iterator[Finding]:
    """Auto Scaling groups carry the file's tags, and one for each label and taint that the autoscaler must know of."""
    for pool in plan.pools:
        number = len({**pool.scaler_tags, **plan.tags}) + _EKS_GROUP_TAGS
        if number > TAGS_MAX:
            yield Finding(
                rule="identity.group-tags",
                key=f"pools.{pool.name}",
                value=f"{number} tags",
                why=f"an Auto Scaling group has at most {TAGS_MAX}: the file's, one for each label and taint of the pool,"
                f" and those of EKS, {_EKS_GROUP_TAGS}",
                fix=f"Write {number - TAGS_MAX} fewer tags, labels or taints.",
            )


def _outputs(plan: Plan) -> Outputs:
    fsx = plan.storage.scratch == "fsx"
    return Outputs(
        cluster_endpoint="https://cluster.invalid",
        data_key_arn=f"arn:aws:kms:{plan.region}:{plan.account}:key/00000000-0000-0000-0000-000000000000",
        repository_uri="image.invalid/run",
        file_system_id="fs-00000000000000000" if fsx else None,
        file_system_mount_name="standin" if fsx else None,
        node_groups={pool.name: pool.name for pool in plan.pools if pool.role != "system"},
    )
