"""What only a render would refuse of a file, found before anything is paid for.

For `load(..., further=)`: it plans the environment and makes its Kubernetes objects with stand-ins for what a deploy and an
image build give. No CDK, no jsii: a few hundredths of a second.
"""

from __future__ import annotations

from infra.config.environment import Environment
from infra.config.faults import EnvironmentFault, Finding
from infra.config.node_data import too_long
from infra.config.outputs import Outputs
from infra.config.pins import Pins
from infra.config.plan import Plan, build_plan
from k8s.checks.check import check
from k8s.flags.rendered import engine_flag_names
from k8s.render import manifests

_IMAGE = "image.invalid/run@sha256:" + "0" * 64


def rendered_faults(environment: Environment, pins: Pins) -> tuple[Finding, ...]:
    """Every fault that a render of the environment would end with."""
    plan = build_plan(environment, pins)
    found = tuple(too_long(plan))
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
