"""The Plan: every derived number of an environment, once. Every rendering (CloudFormation, manifests, jobs, preflight)
reads its numbers here and computes none of its own.

`build_plan` is a pure function of the environment, its pins and the catalog. Same input, same Plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import Any, Literal

from infra.catalog import CATALOG, Catalog, Software
from infra.catalog.kubernetes import support
from infra.config.bake_plan import BakePlan, bake_plan
from infra.config.environment import Environment, PublicEndpoint
from infra.config.faults import Finding
from infra.config.names import Names, checkpoint_path, names, partition, queue_url
from infra.config.needs_plan import ImageNeeds, image_needs
from infra.config.pins import UNRESOLVED_TEXT, Kubectl, Pins
from infra.config.pool_plan import PoolPlan, pool_plans
from infra.config.quotas import Cost, QuotaNeed, cost, quota_needs
from infra.config.subnets import Subnet, service_cidr, subnet
from infra.config.workload_plan import WorkloadPlan, workload_plan

TASK_VISIBILITY_SECONDS = 120
"""First lease of a task; agents extend it while they work (SQS allows 12 h in all)."""
QUEUE_RETENTION_SECONDS = 14 * 24 * 3600
MAX_RECEIVE_COUNT = 1000
"""SQS's own maximum: the agent tells poison from interruption and moves poison itself."""

NAT_GIB_PER_NODE_HOUR = 4
"""What a node may move through NAT hour after hour: images that ECR does not have, packages, calls of AWS without an
endpoint. The run's own image (18 GB), a copy of the weights or a node's share of a checkpoint is several times as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesPlan:
    version: str
    support_type: Literal["STANDARD", "EXTENDED"]
    public_cidrs: tuple[str, ...]
    """Networks that may reach the public endpoint; empty means the endpoint is private only."""
    admins: tuple[str, ...]
    service_cidr: str
    """Addresses of Kubernetes services; never inside the VPC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    cidr: str
    zones: tuple[str, ...]
    accelerator_zones: tuple[str, ...]
    """Zones that a pool names, in the file's order of zones; each gets one accelerator subnet."""
    subnets: tuple[Subnet, ...]
    egress: Literal["nat", "none"]
    nat_gib_per_hour: Mapping[str, int]
    """By zone, what its nodes at their maximum may move through its NAT gateway, both ways; empty without NAT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePlan:
    adopt_checkpoint_bucket: bool
    retain_last: int
    scratch: Literal["fsx", "nvme"]
    scratch_gib: int
    destroy_checkpoints: bool
    checkpoint_path: str
    """Directory on scratch that a run both saves to and loads from."""
    checkpoint_prefix: str = "checkpoints/"
    """Prefix in the checkpoint bucket."""
    weights_prefix: str = "weights/"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlan:
    task_url: str
    result_url: str
    dead_letter_url: str
    visibility_seconds: int
    retention_seconds: int
    max_receive_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddonPlan:
    name: str
    version: str | None
    """None while unresolved; deploys refuse it."""
    namespace: str
    service_account: str | None
    after_nodes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    name: str
    account: str
    region: str
    partition: str
    as_of: date
    software: Software
    image: ImageNeeds
    qualifier: str
    permissions_boundary: str | None
    protected: bool
    """Termination protection of stateful stacks and deletion protection of the cluster."""
    kubernetes: KubernetesPlan
    network: NetworkPlan
    storage: StoragePlan
    queue: QueuePlan
    names: Names
    tags: Mapping[str, str]
    bake: BakePlan | None
    """The AMI that an environment asks to have baked; None when it asks for none."""
    pools: tuple[PoolPlan, ...]
    """In the file's order, the implied system pool first."""
    workload: WorkloadPlan
    addons: tuple[AddonPlan, ...]
    kubectl: Kubectl | None
    images: Mapping[str, str]
    """Third-party images by name, as REPOSITORY:TAG@DIGEST; the digest reads `unresolved` until it is pinned, which no
    node can pull."""
    docker_hub_secret_arn: str | None
    accepted_vulnerabilities: Mapping[str, str]
    """Critical findings, with their reasons, that do not stop an image build."""
    charts: Mapping[str, str]
    """SHA-256 of the Helm chart of each controller, or `unresolved`."""
    emails: tuple[str, ...]
    budget_monthly_usd: float | None
    quotas: tuple[QuotaNeed, ...]
    cost: Cost
    unresolved: tuple[str, ...]
    """Pins that nobody has looked up yet; `moerl lock` does."""
    fixture_pins: bool
    """True when the pins are made up for a test: only an embedded AWS accepts them."""
    warnings: tuple[Finding, ...]

    def pool(self, name: str) -> PoolPlan:
        """The pool of that name. KeyError, listing the names, when there is none."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise KeyError(f"no pool {name!r}; the plan has {', '.join(pool.name for pool in self.pools)}")

    def document(self) -> dict[str, Any]:
        """Plain data for plan.json, the image and `--json`."""
        return dict(_plain(asdict(self)), warnings=[finding.document() for finding in self.warnings])


def build_plan(
    environment: Environment, pins: Pins, warnings: tuple[Finding, ...] = (), catalog: Catalog = CATALOG
) -> Plan:
    """Every derived number of a valid environment. Call it on what `load` returned: rules have then had their say."""
    known = names(environment)
    pools = pool_plans(environment, pins, catalog)
    addons = _addons(environment, pins, catalog)
    kubernetes = environment.kubernetes
    version = catalog.kubernetes_versions[kubernetes.version]
    endpoint = kubernetes.endpoint
    return Plan(
        name=environment.name,
        account=environment.account,
        region=environment.region,
        partition=partition(environment.region),
        as_of=catalog.as_of,
        software=environment.software,
        image=image_needs(catalog.software[environment.software]),
        qualifier=environment.bootstrap.qualifier,
        permissions_boundary=environment.bootstrap.permissions_boundary,
        protected=environment.protected,
        kubernetes=KubernetesPlan(
            version=kubernetes.version,
            support_type="STANDARD" if support(version, catalog.as_of) == "standard" else "EXTENDED",
            public_cidrs=endpoint.public_cidrs if isinstance(endpoint, PublicEndpoint) else (),
            admins=kubernetes.admins,
            service_cidr=service_cidr(environment.network.cidr),
        ),
        network=_network(environment, pools),
        storage=StoragePlan(
            adopt_checkpoint_bucket=environment.checkpoints.bucket is not None,
            retain_last=environment.checkpoints.retain_last,
            scratch=environment.checkpoints.scratch,
            scratch_gib=environment.checkpoints.scratch_gib,
            destroy_checkpoints=environment.checkpoints.removal == "destroy",
            checkpoint_path=checkpoint_path(environment),
        ),
        queue=QueuePlan(
            task_url=queue_url(environment.region, environment.account, known.task_queue),
            result_url=queue_url(environment.region, environment.account, known.result_queue),
            dead_letter_url=queue_url(environment.region, environment.account, known.dead_letter_queue),
            visibility_seconds=TASK_VISIBILITY_SECONDS,
            retention_seconds=QUEUE_RETENTION_SECONDS,
            max_receive_count=MAX_RECEIVE_COUNT,
        ),
        names=known,
        tags={"moerl:environment": environment.name, **environment.tags},
        bake=bake_plan(environment, pins),
        pools=pools,
        workload=workload_plan(environment, pools, catalog),
        addons=addons,
        kubectl=pins.kubectl,
        images=_images(environment, pins, catalog),
        docker_hub_secret_arn=environment.images.docker_hub_secret_arn,
        accepted_vulnerabilities=dict(sorted(environment.images.accepted_vulnerabilities.items())),
        charts={name: pins.charts.get(name, UNRESOLVED_TEXT) for name in _charts(catalog)},
        emails=environment.alerts.emails,
        budget_monthly_usd=environment.budget.monthly_usd if environment.budget else None,
        quotas=quota_needs(pools, catalog),
        cost=cost(environment.region, pools, catalog),
        unresolved=_unresolved(environment, pins, pools, addons, catalog),
        fixture_pins=pins.fixture,
        warnings=warnings,
    )


def _network(environment: Environment, pools: tuple[PoolPlan, ...]) -> NetworkPlan:
    network = environment.network
    named = {zone for pool in pools if pool.role != "system" for zone in pool.zones}
    accelerator_zones = tuple(zone for zone in network.zones if zone in named)
    subnets = [subnet(network.cidr, "private", zone, network.zones) for zone in network.zones]
    if network.egress == "nat":
        subnets += [subnet(network.cidr, "public", zone, network.zones) for zone in network.zones]
    subnets += [subnet(network.cidr, "accelerator", zone, network.zones) for zone in accelerator_zones]
    return NetworkPlan(
        cidr=network.cidr,
        zones=network.zones,
        accelerator_zones=accelerator_zones,
        subnets=tuple(subnets),
        egress=network.egress,
        nat_gib_per_hour={
            zone: NAT_GIB_PER_NODE_HOUR * sum(pool.size.max for pool in pools if zone in pool.zones)
            for zone in network.zones
            if network.egress == "nat"
        },
    )


def _addons(environment: Environment, pins: Pins, catalog: Catalog) -> tuple[AddonPlan, ...]:
    wanted = sorted(catalog.addons.values(), key=lambda addon: addon.order)
    return tuple(
        AddonPlan(
            name=addon.name,
            version=pins.addons.get(addon.name),
            namespace=addon.namespace,
            service_account=addon.service_account,
            after_nodes=addon.after_nodes,
        )
        for addon in wanted
        if not addon.fsx_only or environment.checkpoints.scratch == "fsx"
    )


def _images(environment: Environment, pins: Pins, catalog: Catalog) -> dict[str, str]:
    version, region = environment.kubernetes.version, environment.region
    return {
        name: f"{image.repository_in(region)}:{image.tag_for(version)}@{pins.images.get(name, UNRESOLVED_TEXT)}"
        for name, image in catalog.images.items()
    }


def _charts(catalog: Catalog) -> tuple[str, ...]:
    return tuple(name for name, controller in catalog.controllers.items() if controller.helm)


def _unresolved(
    environment: Environment,
    pins: Pins,
    pools: tuple[PoolPlan, ...],
    addons: tuple[AddonPlan, ...],
    catalog: Catalog,
) -> tuple[str, ...]:
    missing = [f"AMI release of pool {pool.name}" for pool in pools if pool.ami.type and not pool.ami.release]
    missing += [f"version of add-on {addon.name}" for addon in addons if addon.version is None]
    missing += [f"digest of image {name}" for name in catalog.images if name not in pins.images]
    missing += [f"digest of chart {name}" for name in _charts(catalog) if name not in pins.charts]
    if pins.kubectl is None:
        missing.append(f"kubectl build for {environment.kubernetes.version}")
    return tuple(missing)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, date | datetime):
        return value.isoformat()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return value
