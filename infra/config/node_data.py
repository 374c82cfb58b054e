"""A pool's whole user data, and whether EC2 takes it."""

from __future__ import annotations

from collections.abc import Iterator

from infra.config.faults import Finding
from infra.config.plan import Plan
from infra.config.pool_plan import PoolPlan
from infra.config.user_data import JoinData, node_config, user_data

MAX_BYTES = 16_384
"""EC2's limit for user data, before base64 (EC2 user guide, "Run commands when you launch an EC2 instance")."""
_LONGEST_JOIN = JoinData(
    cluster="c" * 100, endpoint="https://" + "e" * 92, certificate_authority="A" * 1_700, service_cidr="172.20.0.0/16"
)
"""Stands for what a deploy fills in, or EKS adds as a NodeConfig of its own: a cluster's certificate takes about 1,500 bytes."""


def pool_user_data(pool: PoolPlan, join: JoinData | None) -> str:
    """The user data of the pool's launch template; `join` for a custom AMI alone."""
    configuration = node_config(
        max_pods=pool.max_pods,
        raid0=pool.raid0,
        labels=dict(pool.labels),
        taints=tuple(f"{taint.key}={taint.text()}" for taint in pool.taints),
        join=join,
        fast_image_pull=pool.host.fast_image_pull,
    )
    return user_data(
        configuration,
        pool.extra_user_data,
        gpu_direct=pool.gpu_direct_driver,
        driver_sources=pool.load_gdrdrv,
        huge_pages=pool.host.huge_pages,
        lustre_client=pool.host.lustre_client,
    )


def too_long(plan: Plan) -> Iterator[Finding]:
    """Pools whose nodes EC2 would refuse to launch."""
    for pool in plan.pools:
        size = len(pool_user_data(pool, _LONGEST_JOIN).encode())
        if size <= MAX_BYTES:
            continue
        theirs = len((pool.extra_user_data or "").encode())
        yield Finding(
            rule="ami.user-data-size",
            key=f"pools.{pool.name}.{'user_data' if theirs else 'labels'}",
            value=f"{theirs} bytes" if theirs else f"{len(pool.labels)} labels",
            why=f"EC2 takes {MAX_BYTES} bytes of user data, and with what this package and EKS add, {size - theirs}"
            f" bytes, it would be {size}: no node would launch",
            fix=f"Write at most {max(0, MAX_BYTES - size + theirs)} bytes, for example a script that fetches another."
            if theirs
            else "Write fewer labels and taints.",
        )
