"""The three software stacks an image can be built from, and what each of them cannot do."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import Literal

from infra.catalog.facts import Pin, Source, Unresolved, commit_of, merge_of
from infra.catalog.instances import Transport

Software = Literal["baseline", "aws-reference", "efa-gda"]

RolloutAllToAll = Literal["none", "deepep_v2"]
"""SGLang's --moe-a2a-backend that a rollout engine of the stack may use across nodes."""

TrainerDispatcher = Literal["alltoall", "deepep_v2"]

Capability = Literal["gda", "proxy", "rollout-deepep-v2", "trainer-deepep-v2", "blackwell", "miles-engine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Something a stack cannot do, as a reason that can stand in an error message."""

    capability: Capability
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepEp:
    """The DeepEP sources of a stack.

    `ref` is a commit, never a branch: both repositories move their API, and the fork rewrites its history.
    `archs_fixed` are the CUDA architectures on which this ref is known to compile its kernels with the stack's CUDA.
    They are compiled at the first dispatch, so a wrong pair passes the image build and dies with the first token.
    `contexts` are the GIN contexts, which are queue pairs, to allocate between nodes; 0 where this ref itself chooses a
    number that EFA serves.
    """

    repository: str
    ref: Pin
    version: str
    archs_fixed: tuple[str, ...]
    contexts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImage:
    """What an image is built on. The tag says which build is meant; a build takes the digest alone."""

    repository: str
    tag: str
    digest: Pin


def _base_image(repository: str, tag: str) -> BaseImage:
    named = f"{repository}:{tag}"
    return BaseImage(
        repository=repository,
        tag=tag,
        digest=Unresolved(
            what=f"digest of base image {named}",
            command=f"docker buildx imagetools inspect {named} --format '{{{{.Manifest.Digest}}}}'",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareStack:
    """Pins and capabilities of one image.

    `transports` is what expert parallelism can use at best, best first; NCCL's own collectives go over EFA under all
    three. `cuda_archs` is the list the image is built for. `max_expert_parallel` is the largest group over EFA that any
    published run supports, in GPUs; None where the stack has no expert parallelism over EFA. `framework_ref` and
    `sglang_ref` are commits: a stock SGLang wheel lacks the routes that Miles calls.
    """

    name: Software
    base_image: BaseImage
    cuda: str
    torch: Pin
    nccl: str
    efa_installer: str | None
    aws_ofi_nccl: str | None
    libfabric: str | None
    gdrcopy: str | None
    deepep: DeepEp | None
    nvshmem: str | None
    sglang: str
    sglang_ref: Pin
    framework: Literal["miles", "slime"]
    framework_version: str
    framework_ref: Pin
    cuda_archs: tuple[str, ...]
    transports: tuple[Transport, ...]
    rollout_a2a: RolloutAllToAll
    trainer_dispatcher: TrainerDispatcher
    max_expert_parallel: int | None
    min_kubernetes: str
    limits: tuple[Limit, ...]
    source: Source


_BASELINE = SoftwareStack(
    name="baseline",
    # The image that slime built from this very release (its docker/version.txt): engine, trainer and Megatron, patched.
    base_image=_base_image("docker.io/slimerl/slime", "nightly-dev-20260329a"),
    cuda="12.9",
    torch="2.9.1",
    nccl="2.27.5",
    efa_installer="1.49.0",
    aws_ofi_nccl="1.20.0",
    libfabric="2.4.0amzn5.0",
    gdrcopy=None,
    deepep=None,
    nvshmem=None,
    sglang="0.5.9",
    # Without slime's patch (docker/patch/latest/sglang.patch), which its image has applied on top.
    sglang_ref="bbe9c7eeb520b0a67e92d133dfc137a3688dc7f2",
    framework="slime",
    framework_version="0.2.4",
    framework_ref="bd217a63f113d74488170914e4d39e68c12e8cf0",
    cuda_archs=("9.0", "10.0"),
    transports=("none",),
    rollout_a2a="none",
    trainer_dispatcher="alltoall",
    max_expert_parallel=None,
    min_kubernetes="1.31",
    limits=(
        Limit(
            capability="gda",
            reason="baseline has no DeepEP and NCCL 2.27.5, which has no EFA GPU-direct networking (first in 2.31)",
        ),
        Limit(
            capability="proxy",
            reason="baseline has no DeepEP over EFA: expert groups stay inside a node or use NCCL all-to-all",
        ),
        Limit(capability="rollout-deepep-v2", reason="SGLang 0.5.9 has no deepep_v2 backend; it came with 0.5.19"),
        Limit(
            capability="trainer-deepep-v2",
            reason="slime 0.2.4 has DeepEP v1 only, whose internode path needs InfiniBand verbs",
        ),
    ),
    source=Source(
        title="slime v0.2.4 docker/Dockerfile; METADATA of the sglang 0.5.9 wheel (torch 2.9.1)",
        url="https://github.com/THUDM/slime/blob/bd217a63f113d74488170914e4d39e68c12e8cf0/docker/Dockerfile",
        as_of=date(2026, 3, 29),
    ),
)

_AWS_REFERENCE = SoftwareStack(
    name="aws-reference",
    base_image=_base_image("docker.io/lmsysorg/sglang", "v0.5.17"),
    cuda="13.0",
    torch="2.12.1",
    nccl="2.31.2",
    efa_installer="1.49.0",
    aws_ofi_nccl="1.20.0",
    libfabric="2.4.0amzn5.0",
    # The published image adds none; proxy networking does not start without it.
    gdrcopy="2.5.2",
    deepep=DeepEp(
        repository="https://github.com/deepseek-ai/DeepEP",
        ref="b306af06afd412c88e51e71802951606e40b7358",
        version="2.0.0",
        archs_fixed=("9.0",),
        # Left to itself it asks for 129 (deep_ep/buffers/elastic.py), and aws-ofi-nccl refuses more than 16 since 1.20.0
        # (nccl_ofi_gin_api.cpp, createContext). 2 is what ran on p5: deepseek-ai/DeepEP pull request 612, 2026-05-05.
        contexts=2,
    ),
    nvshmem="3.4.5",
    sglang="0.5.17",
    sglang_ref=commit_of("commit of SGLang tag v0.5.17", "https://github.com/sgl-project/sglang", "refs/tags/v0.5.17"),
    framework="miles",
    framework_version="0.1.0",
    framework_ref="78527b9102b3a5f15891128cbec3ac6c2dc4089e",
    cuda_archs=("9.0", "10.0", "10.3", "12.0"),
    transports=("proxy",),
    rollout_a2a="none",
    trainer_dispatcher="alltoall",
    max_expert_parallel=64,
    min_kubernetes="1.31",
    limits=(
        Limit(
            capability="gda",
            reason="EFA installer 1.49.0 carries aws-ofi-nccl 1.20.0, whose GIN exports end at v13; GPU-direct needs "
            "the v14 export of 1.21 (EFA installer 1.50.0)",
        ),
        Limit(
            capability="rollout-deepep-v2",
            reason="SGLang 0.5.17 has no deepep_v2 backend (it came with 0.5.19), and its legacy DeepEP backend calls "
            "InfiniBand verbs that EFA does not have",
        ),
        Limit(
            capability="trainer-deepep-v2",
            reason="the recipes of Miles 0.1.0 know DeepEP v1 only, whose internode path needs InfiniBand verbs",
        ),
        Limit(
            capability="miles-engine",
            reason="stock SGLang 0.5.17 lacks the weight-update routes that Miles 0.1.0 calls; they are in the "
            "sglang-miles branch",
        ),
        Limit(
            capability="blackwell",
            reason="no run of DeepEP 2.0.0 (b306af0) on B200 or B300 under CUDA 13.0 is published, and later pins "
            "fail there without CUDA 13.1 or the 64-bit st.bulk fix",
        ),
    ),
    source=Source(
        title="AWS Machine Learning Blog, scaling MoE RL on EKS with EFA and DeepEP (pins read from a shortened copy)",
        url="https://aws.amazon.com/blogs/machine-learning/scaling-moe-reinforcement-learning-on-amazon-eks-with-efa-and-deepep-with-40-more-throughput",
        as_of=date(2026, 9, 25),
    ),
)

_EFA_GDA = SoftwareStack(
    name="efa-gda",
    # What Miles builds on since it moved to 0.5.19 (its docker/Dockerfile); its own images of main are deleted in time.
    base_image=_base_image("docker.io/lmsysorg/sglang", "v0.5.19"),
    cuda="13.0",
    torch="2.13.0",
    # torch 2.13.0 pins 2.29.7 and every later pip step pulls that back; the image has to force this one last.
    nccl="2.31.2",
    efa_installer="1.50.0",
    aws_ofi_nccl="1.21.1",
    libfabric="2.6.0amzn1.0",
    gdrcopy="2.5.2",
    deepep=DeepEp(
        repository="https://github.com/amazon-contributing/DeepEP",
        # main of 2026-09-03: has the 64-bit st.bulk fix (e3fd4361), so CUDA 13.0 is enough on Blackwell.
        ref="97d8f9bcc1be31e9036db2ab591ef9b9f4e38619",
        version="2.1.0",
        archs_fixed=("9.0", "10.0", "10.3"),
        # It allocates 11 on EFA.
        contexts=0,
    ),
    # Linked by DeepEP's legacy sources; no kernel of v2 calls it.
    nvshmem="3.4.5",
    sglang="0.5.19",
    sglang_ref=commit_of(
        "head of the sglang-miles branch on v0.5.19",
        "https://github.com/sgl-project/sglang",
        "refs/heads/sglang-miles-v0.5.19-final",
    ),
    framework="miles",
    framework_version="main with SGLang 0.5.19 (pull request 3124)",
    framework_ref=merge_of("commit of Miles main that moved to SGLang 0.5.19", "radixark/miles", 3124),
    cuda_archs=("9.0", "10.0", "10.3"),
    transports=("gda", "proxy"),
    rollout_a2a="deepep_v2",
    trainer_dispatcher="alltoall",
    # The signal budget of the fork (11 contexts x 21 signals) would end at 22 nodes; no EFA run beyond 64 is published.
    max_expert_parallel=64,
    min_kubernetes="1.31",
    limits=(
        Limit(
            capability="trainer-deepep-v2",
            reason="the backward pass of this DeepEP pin corrupts memory on EFA within minutes (Xid 31 at EP32 on "
            "p6-b200); keep the trainer on alltoall until a pin carries the fix",
        ),
    ),
    source=Source(
        title="aws-ofi-nccl v1.21.1 release notes; METADATA of the sglang 0.5.19 and torch 2.13.0 wheels; DeepEP fork "
        "pin as used in awslabs/awsome-distributed-ai pull request 1231",
        url="https://github.com/aws/aws-ofi-nccl/blob/v1.21.1/RELEASENOTES.md",
        as_of=date(2026, 9, 5),
    ),
)

SOFTWARE: Mapping[Software, SoftwareStack] = MappingProxyType(
    {stack.name: stack for stack in (_BASELINE, _AWS_REFERENCE, _EFA_GDA)}
)

DEFAULT_SOFTWARE: Software = "efa-gda"
