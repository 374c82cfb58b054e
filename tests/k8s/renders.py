"""Complete renders of the shipped environments, once a process."""

from __future__ import annotations

from functools import cache

from infra.config.outputs import Outputs
from infra.config.plan import Plan
from k8s.render import Rendered, manifests
from tests.shipped import IMAGE, plan_of


@cache
def rendered(name: str) -> Rendered:
    """Everything of a shipped environment, as after its deploy."""
    plan = plan_of(name)
    return manifests(plan, image=IMAGE, outputs=outputs_of(plan))


def outputs_of(plan: Plan) -> Outputs:
    fsx = plan.storage.scratch == "fsx"
    return Outputs(
        cluster_endpoint="https://0123456789ABCDEF0123456789ABCDEF.gr7.us-west-2.eks.amazonaws.com",
        data_key_arn="arn:aws:kms:us-west-2:123456789012:key/00000000-0000-0000-0000-000000000000",
        repository_uri=IMAGE.partition("@")[0],
        file_system_id="fs-0123456789abcdef0" if fsx else None,
        file_system_mount_name="abcdefgh" if fsx else None,
        node_groups={pool.name: f"{pool.name}-0123456789ab" for pool in plan.pools if pool.role != "system"},
    )
