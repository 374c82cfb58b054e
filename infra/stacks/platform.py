"""All stacks of one plan, wired together. The CDK entry, the renderer and the tests build the same tree from here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import aws_cdk as cdk

from infra.config.plan import Plan
from infra.stacks.access import AccessStack
from infra.stacks.ami import AmiStack
from infra.stacks.budget import BudgetStack
from infra.stacks.cluster import ClusterStack
from infra.stacks.images import ImagesStack
from infra.stacks.network import NetworkStack
from infra.stacks.observability import ObservabilityStack
from infra.stacks.pool import PoolStack
from infra.stacks.queue import QueueStack
from infra.stacks.storage import StorageStack

FEATURE_FLAGS: dict[str, object] = json.loads((Path(__file__).parents[2] / "cdk.json").read_text(encoding="utf-8"))[
    "context"
]
"""The CDK's recommended set, as cdk.json has it for the CLI, so that every way to synthesize gives the same templates.
Among them weak references: a consumer reads the producer's output at deploy time, and no export in use ever blocks a
change of the producer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The stacks of one environment."""

    network: NetworkStack
    storage: StorageStack
    queue: QueueStack
    cluster: ClusterStack
    pools: tuple[PoolStack, ...]
    access: AccessStack
    images: ImagesStack
    ami: AmiStack | None
    observability: ObservabilityStack
    budget: BudgetStack | None


def build_app(*, outdir: Path | None = None, validate: bool = False) -> cdk.App:
    """An empty CDK app with this package's feature flags.

    `validate` runs CDK's built-in CloudFormation checks during synth, about five seconds.
    """
    return cdk.App(
        context=dict(FEATURE_FLAGS),
        outdir=str(outdir) if outdir else None,
        builtin_cloud_formation_validation=validate,
        analytics_reporting=False,
    )


def build_platform(app: cdk.App, plan: Plan) -> Platform:
    """Instantiates every stack of the plan under `app`."""
    network = NetworkStack(app, plan)
    storage = StorageStack(app, plan, network=network)
    queue = QueueStack(app, plan)
    cluster = ClusterStack(app, plan, network=network, storage=storage, queue=queue)
    pools = tuple(
        PoolStack(app, plan, pool, network=network, cluster=cluster) for pool in plan.pools if pool.role != "system"
    )
    access = AccessStack(app, plan, network=network, cluster=cluster)
    images = ImagesStack(app, plan)
    ami = AmiStack(app, plan, plan.bake, network=network) if plan.bake else None
    observability = ObservabilityStack(app, plan, network=network, queue=queue, cluster=cluster, pools=pools)
    budget = BudgetStack(app, plan, topic=observability.alerts) if plan.budget_monthly_usd else None
    return Platform(
        network=network,
        storage=storage,
        queue=queue,
        cluster=cluster,
        pools=pools,
        access=access,
        images=images,
        ami=ami,
        observability=observability,
        budget=budget,
    )
