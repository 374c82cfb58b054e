"""The environment file as types: what a platform engineer writes, before any rule has looked at it.

Only shapes live here (types, closed sets, patterns, ranges). What makes a combination impossible is a rule
(`infra.config.rules`), so that one run reports every fault of a file.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from infra.catalog import Software
from infra.catalog.ami import AmiType
from infra.catalog.instances import EfaLayout, Transport
from infra.config import forms

PoolRole = Literal["system", "trainer", "rollout", "environment", "buffer"]
CapacityType = Literal["on_demand", "spot", "reservation", "capacity_block"]
Effect = Literal["NO_SCHEDULE", "NO_EXECUTE", "PREFER_NO_SCHEDULE"]

Name = Annotated[str, StringConstraints(pattern=forms.NAME.pattern, max_length=24)]
AccountId = Annotated[str, StringConstraints(pattern=forms.ACCOUNT.pattern)]
Region = Annotated[str, StringConstraints(pattern=forms.REGION.pattern)]
Zone = Annotated[str, StringConstraints(pattern=forms.ZONE.pattern)]
Cidr = Annotated[str, StringConstraints(pattern=forms.CIDR.pattern)]
Arn = Annotated[str, StringConstraints(pattern=forms.PRINCIPAL_ARN.pattern)]
SecretArn = Annotated[str, StringConstraints(pattern=forms.SECRET_ARN.pattern)]
ReservationId = Annotated[str, StringConstraints(pattern=forms.RESERVATION.pattern)]
ImageId = Annotated[str, StringConstraints(pattern=forms.IMAGE_ID.pattern)]
Release = Annotated[str, StringConstraints(pattern=forms.RELEASE.pattern)]
Version = Annotated[str, StringConstraints(pattern=forms.VERSION.pattern)]
Email = Annotated[str, StringConstraints(pattern=forms.EMAIL.pattern)]
VulnerabilityId = Annotated[str, StringConstraints(pattern=forms.VULNERABILITY.pattern)]
Reason = Annotated[str, StringConstraints(min_length=10, pattern=forms.ONE_LINE.pattern)]
CudaArch = Annotated[str, StringConstraints(pattern=forms.CUDA_ARCH.pattern)]
FlagName = Annotated[str, StringConstraints(pattern=forms.FLAG.pattern, max_length=100)]
VariableName = Annotated[str, StringConstraints(pattern=forms.VARIABLE.pattern, max_length=256)]
Nodes = Annotated[int, Field(strict=True, ge=1, le=5000)]
"""5,000 nodes are what Kubernetes is tested up to."""
Ranks = Annotated[int, Field(strict=True, ge=1, le=40_000)]
"""The GPUs of 5,000 nodes."""
Steps = Annotated[int, Field(strict=True, ge=1, le=100_000_000)]


class Part(BaseModel):
    """Base of every part of the file: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class Bootstrap(Part):
    qualifier: Annotated[str, StringConstraints(pattern=forms.QUALIFIER.pattern)] = "moerl"
    """Qualifier of the CDK bootstrap stack; `moerl` keeps this package's roles apart from others in the account."""
    permissions_boundary: Annotated[str, StringConstraints(pattern=forms.POLICY_NAME.pattern)] | None = None
    """Name of an IAM managed policy that bounds every role created; none when absent."""


class PublicEndpoint(Part):
    public_cidrs: tuple[Cidr, ...] = Field(examples=[["203.0.113.0/24"]])
    """Networks that may reach the public API endpoint; the private endpoint stays on."""


class Kubernetes(Part):
    version: Annotated[str, StringConstraints(pattern=forms.KUBERNETES_VERSION.pattern)] = Field(examples=["1.35"])
    """Minor version of the cluster, in quotes; 1.31 is the floor."""
    node_release: Release | None = None
    """AMI release of every managed pool, for example 1.35.2-20260917; from the lock file when absent."""
    endpoint: Literal["private"] | PublicEndpoint = "private"
    """`private`: the API server answers inside the VPC only."""
    admins: tuple[Arn, ...] = Field(default=(), examples=[["arn:aws:iam::123456789012:role/platform-admin"]])
    """IAM principals that get cluster-admin through an access entry."""


class Network(Part):
    cidr: Cidr = Field(default="10.0.0.0/16", examples=["10.0.0.0/16"])
    """Address range of the VPC, /16 to /18; every subnet is a fixed share of it."""
    zones: tuple[Zone, ...] = Field(examples=[["us-west-2a", "us-west-2b", "us-west-2c"]])
    """Two or three zones for the control plane; their order decides the subnets' shares, so append only."""
    accelerator_zone: Zone = Field(examples=["us-west-2b"])
    """The zone in which nodes talk over EFA: the reservation's own."""
    egress: Literal["nat", "none"] = "nat"
    """`nat`: one NAT gateway per zone in use. `none`: no way out; images and charts must be mirrored."""


class OnDemand(Part):
    type: Literal["on_demand"]


class Spot(Part):
    type: Literal["spot"]


class Reservation(Part):
    type: Literal["reservation"]
    id: ReservationId = Field(examples=["cr-0123456789abcdef0"])
    """Targeted on-demand capacity reservation (ODCR)."""
    placement_group: str | None = None
    """Name of the cluster placement group that the reservation was made in; none when absent."""


class CapacityBlock(Part):
    type: Literal["capacity_block"]
    id: ReservationId = Field(examples=["cr-0123456789abcdef0"])
    starts: AwareDatetime = Field(examples=["2026-12-07T11:30:00Z"])
    """Start of the block, from the reservation; the pool scales up one minute later."""
    ends: AwareDatetime = Field(examples=["2026-12-21T11:30:00Z"])
    """End of the block; save signal 90 minutes before it, scale down 60 minutes before it."""


Capacity = Annotated[OnDemand | Spot | Reservation | CapacityBlock, Field(discriminator="type")]


class NodeRange(Part):
    min: Annotated[int, Field(strict=True, ge=0, le=5000)] = 0
    """Nodes that are always there."""
    max: Nodes = Field(examples=[32])
    """Most nodes; addresses, quotas and cost are checked against it."""


class Ami(Part):
    """The pool's machine image; every field absent means the EKS AMI of the pool's role at `kubernetes.node_release`."""

    id: ImageId | None = None
    """A custom AMI: the node group carries no AMI type and gets a complete NodeConfig."""
    type: AmiType | None = None
    """EKS AMI type; the NVIDIA one for GPU pools, the standard one otherwise when absent."""
    release: Release | None = None
    """AMI release of this pool alone; `kubernetes.node_release` when absent."""
    efa_driver: Version | None = None
    """Declared EFA kernel driver of a custom AMI; GPU-direct transport needs 3.3.0."""
    gdrdrv: Version | None = None
    """Declared gdrdrv module of a custom AMI; DeepEP needs 2.5."""
    baked: bool = False
    """True: `id` came out of this package's own bake (`images.bake_ami`), so drivers and modules are known."""


class Taint(Part):
    key: str
    value: str = ""
    effect: Effect = "NO_SCHEDULE"


class Pool(Part):
    role: PoolRole = Field(examples=["rollout"])
    """What runs there; exactly one trainer pool, one or more rollout pools; a system pool is implied."""
    instance_types: tuple[str, ...] = Field(min_length=1, examples=[["p5en.48xlarge"]])
    """EC2 types of one interface layout; several give Spot more to choose from."""
    nodes: Nodes | NodeRange = Field(examples=[16, {"min": 0, "max": 32}])
    """A number is a fixed pool (min = desired = max); a range is scaled from outside CloudFormation."""
    capacity: Capacity = Field(examples=[{"type": "on_demand"}])
    """How the nodes are bought."""
    zone: Zone | None = Field(default=None, examples=["us-west-2b"])
    """One zone, since nodes that talk over EFA never span zones; `network.accelerator_zone` when absent. The system
    pool alone spans every zone."""
    ami: Ami = Ami()
    transport: Transport | None = None
    """Derived from instance type, stack and AMI when absent; asked for and impossible is refused."""
    efa_layout: EfaLayout = "efa-only"
    """`efa-only`: one plain primary interface, EFA-only ones beside it. `classic`: ENA+EFA on every card, an address each."""
    efa: bool = True
    """False leaves the EFA interfaces out: everything between nodes goes over TCP."""
    placement_group: str | None = None
    """`cluster` creates one for this pool, any other name joins an existing one; none when absent."""
    labels: dict[str, str] = {}
    """Further node labels, under prefixes of your own."""
    taints: tuple[Taint, ...] = ()
    """Further taints; the package's own DaemonSets tolerate all."""
    user_data: str | None = None
    """Extra user data: a bare shell script or a MIME multipart document, merged as further parts."""
    fast_image_pull: bool | None = None
    """nodeadm's FastImagePull: layers are downloaded in chunks and unpacked side by side. On for GPU pools with an EKS or a
    baked image when absent."""
    root_volume_gib: Annotated[int, Field(strict=True, ge=50, le=16384)] | None = None
    """300 GiB for GPU pools, 100 GiB otherwise when absent."""


class Checkpoints(Part):
    retain_last: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 5
    """Complete checkpoints that pruning keeps."""
    scratch: Literal["fsx", "nvme"] = "nvme"
    """Where a save lands before it is uploaded: FSx for Lustre, shared by all trainer nodes, or their own NVMe."""
    scratch_gib: Annotated[int, Field(strict=True, ge=1200, le=2_400_000)] = 19_200
    """Size of the FSx file system, in GiB: 1200, 2400 or a multiple of 2400."""
    bucket: str | None = None
    """Adopts an existing bucket; one is created and retained when absent."""
    removal: Literal["retain", "destroy"] = "retain"
    """What becomes of the checkpoint bucket when its stack is deleted."""
    confirm_destroy: bool = False
    """Must be true beside `removal: destroy`; checkpoints are then lost with the stack."""


class Kv(Part):
    backend: Literal["mooncake", "nixl"]
    """What would move KV caches from one engine to another."""
    protocol: Literal["efa", "rdma", "tcp"] = "efa"
    """What it would move them over; EFA has no verbs for `rdma`."""


class TrainerWorkload(Part):
    tensor_parallel: Ranks = 1
    """Ranks that share each layer; within a node."""
    pipeline_parallel: Ranks = 1
    """Pipeline stages."""
    context_parallel: Ranks = 1
    """Ranks that share a sequence."""
    expert_parallel: Ranks = 1
    """Ranks that share the experts; above a node's GPUs, tokens cross EFA."""
    expert_tensor_parallel: Ranks = 1
    """Ranks that share each expert."""
    dispatcher: Literal["alltoall", "deepep", "deepep_v2"] | None = None
    """MoE token dispatcher; the software stack's own when absent."""
    save_optimizer: bool = True
    """False makes checkpoints that cannot be resumed."""
    gates: bool = True
    """False lets a run end well whose last batches all repeat, are cut off or have no reward above the lowest."""
    prove_fabric: bool = True
    """False starts a run on links between its nodes that nobody has tried: each worker otherwise waits for the others and
    proves NCCL, and DeepEP where it crosses nodes, over EFA first."""
    flags: dict[FlagName, bool | int | float | str] = {}
    """Further flags of the RL framework, without dashes: learning rate, batch, losses. `true` is a bare flag, `false` takes
    a default one away; flags that follow from the rest of this file are refused, and those that cannot work here, as routing
    replay: samples carry no expert routes. `rollout-batch-size` is large enough to keep every engine of the pools' maximum
    busy when absent."""
    variables: dict[VariableName, str] = {}
    """Extra environment variables of the trainer."""


class RolloutWorkload(Part):
    precision: Literal["fp8", "bf16"] = "bf16"
    """Precision of the engines' weights."""
    gpus_per_engine: Ranks = 8
    """GPUs of one SGLang engine (its tensor-parallel world)."""
    expert_parallel: Ranks = 1
    """Ranks that share the experts: 1, or all GPUs of the engine."""
    backend: Literal["none", "deepep", "deepep_v2", "mooncake"] | None = None
    """All-to-all backend of the MoE layers; derived from stack and expert parallelism when absent."""
    kv_transfer: Kv | None = None
    """Changes nothing, and a warning says so: it is for engines that split prefill and decode, and engines here do both. What
    could not work on EFA is refused."""
    router: bool = False
    """Engines behind one address, a router, for clients that need one; on stable capacity only."""
    drain_on_rebalance: bool = False
    """True: an engine on Spot also drains at EC2's rebalance recommendation, and is idle until its node is replaced. False
    leaves that to EKS, which starts a replacement first and then drains the node, and with it the agent. At a Spot notice
    agents drain either way."""
    variables: dict[VariableName, str] = {}
    """Extra environment variables of the engines."""


class Workload(Part):
    model: str = Field(examples=["Qwen/Qwen3-235B-A22B"])
    """Hugging Face name of a model whose shape the catalog knows."""
    hub_token_secret_arn: SecretArn | None = Field(
        default=None, examples=["arn:aws:secretsmanager:us-west-2:123456789012:secret:hub-token-AbCdEf"]
    )
    """Secrets Manager secret with the hub token that a gated model needs; the prepare job alone reads it."""
    trainer: TrainerWorkload = TrainerWorkload()
    rollout: RolloutWorkload = RolloutWorkload()
    steps: Steps = Field(examples=[1000])
    """Training steps of the run."""
    save_interval: Steps = Field(examples=[20])
    """Steps between checkpoints; at most `steps`."""
    load: str | None = None
    """Checkpoint path to resume from; must equal the save path, which the Plan sets, when given."""
    no_checkpoint: bool = False
    """True lets a run end without a checkpoint; nothing can be resumed."""


class Images(Part):
    cuda_archs: tuple[CudaArch, ...] | None = None
    """Architectures the image is built for; those of the GPU pools when absent."""
    accepted_vulnerabilities: dict[VulnerabilityId, Reason] = Field(
        default={}, examples=[{"CVE-2026-12345": "in a tool that no process of a run starts"}]
    )
    """Critical findings that do not stop an image build, each with its reason in a line; any other one does."""
    docker_hub_secret_arn: SecretArn | None = Field(
        default=None, examples=["arn:aws:secretsmanager:us-west-2:123456789012:secret:docker-hub-AbCdEf"]
    )
    """Secrets Manager secret, `{"username": ..., "token": ...}`, with which image builds pull base images from Docker Hub;
    anonymous when absent, under a limit that all users of CodeBuild's addresses share."""
    bake_ami: bool = False
    """True adds a stack that bakes an AMI from the EKS one: newer EFA driver, gdrdrv, driver option, huge pages, Lustre."""


class Alerts(Part):
    emails: tuple[Email, ...] = Field(default=(), examples=[["ml-platform@example.com"]])
    """Addresses that alarms and the budget write to."""


class Budget(Part):
    monthly_usd: Annotated[float, Field(gt=0, le=1_000_000_000)] = Field(examples=[2500000])
    """Spending per month at which people are told; nothing is stopped."""


class Environment(Part):
    """One environment: an account, a region, a cluster and its run."""

    name: Name
    """Name of the environment, and of its cluster, stacks, queues and buckets; once in an account, since its dashboard and
    its budget are the same in every region."""
    account: AccountId = Field(examples=["123456789012"])
    """AWS account id, in quotes: YAML reads a bare one as a number."""
    region: Region = Field(examples=["us-west-2"])
    """AWS region of everything in the file."""
    bootstrap: Bootstrap = Bootstrap()
    protected: bool = True
    """Deletion protection of stacks with state and of the cluster; write false and deploy before a teardown."""
    kubernetes: Kubernetes
    network: Network
    software: Software = "efa-gda"
    """Software stack of the image; what a stack cannot do is refused with the reason."""
    pools: dict[Name, Pool]
    """Node pools by name."""
    checkpoints: Checkpoints = Checkpoints()
    workload: Workload
    images: Images = Images()
    alerts: Alerts = Alerts()
    budget: Budget | None = None
    tags: dict[str, str] = {}
    """Tags of every resource; instances get them by `moerl pool tag`."""


def block_window(pool: Pool) -> tuple[datetime, datetime] | None:
    """Start and end of the pool's capacity block, or None for other capacity."""
    if isinstance(pool.capacity, CapacityBlock):
        return pool.capacity.starts, pool.capacity.ends
    return None
