"""What an image is built from besides its stack's own pins: repositories, and the trainer's packages.

A stack whose base image already holds the trainer names its repository alone. The others build Transformer Engine, Flash
Attention and Apex against their own torch, since such an extension loads under no other minor version of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from types import MappingProxyType
from typing import Literal

from infra.catalog.facts import Pin, Source, commit_of
from infra.catalog.software import Software

EFA_KEY_FINGERPRINT = "4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC"
"""OpenPGP key that signs EFA installers."""
EFA_KEY_SOURCE = Source(
    title="Amazon EC2 user guide, Get started with EFA and NCCL: verify the EFA tarball",
    url="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html",
    as_of=date(2026, 8, 1),
)

GIN_EXPORT: Mapping[str, str] = MappingProxyType({"gda": "ncclGinPlugin_v14", "proxy": "ncclGinPlugin_v13"})
"""Symbol of libnccl-net-ofi.so without which NCCL has no such device-side networking. Installers have carried another
plugin than their label says, so an image is judged by the symbol."""
GIN_SOURCE = Source(
    title="aws-ofi-nccl, GIN getting started; source of v1.20.0 and v1.21.1",
    url="https://github.com/aws/aws-ofi-nccl/blob/2daf7d303aa139a03140aa530957d10521e4478d/doc/gin-getting-started.md",
    as_of=date(2026, 8, 21),
)

GDRCOPY_REPOSITORY = "https://github.com/NVIDIA/gdrcopy"
GDRCOPY_COMMITS: Mapping[str, str] = MappingProxyType({"2.5.2": "c91ad9f178e5fb729fc5b6dc62a77c3bb364d6c9"})
"""Commit of each release that a stack names."""
GDRCOPY_SOURCE = Source(
    title="NVIDIA/gdrcopy, tag v2.5.2",
    url="https://github.com/NVIDIA/gdrcopy/tree/v2.5.2",
    as_of=date(2026, 3, 11),
)

_NONE: Mapping[str, str] = MappingProxyType({})

PackageName = Literal[
    "transformer-engine",
    "flash-attn",
    "flash-linear-attention",
    "tilelang",
    "nvidia-cudnn-cu13",
    "sglang-router",
    "apex",
    "mbridge",
    "megatron-bridge",
    "nvidia-modelopt",
    "torch-memory-saver",
    "torchaudio",
    "torchvision",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSources:
    """`trainer` pins the packages that the trainer needs and the base image lacks: releases, or commits of the
    repositories that the Dockerfile names. `open_requirements` are versions of what the framework requires without one;
    what the base image has already stays. `build_tools` compile the extensions and stay out of the image. All are empty
    where the base image holds the trainer."""

    sglang_repository: str
    framework_repository: str
    megatron_repository: str
    megatron_ref: Pin
    trainer: Mapping[PackageName, str]
    open_requirements: Mapping[str, str] = field(default_factory=lambda: _NONE)
    build_tools: Mapping[str, str] = field(default_factory=lambda: _NONE)
    source: Source


_SGLANG = "https://github.com/sgl-project/sglang"
_MILES = "https://github.com/radixark/miles"
_MILES_MEGATRON = "https://github.com/radixark/Megatron-LM"

_MILES_TRAINER: Mapping[PackageName, str] = MappingProxyType(
    {
        "transformer-engine": "2.17.0",
        # Miles takes it from wheels of its own, whose version it does not state; Transformer Engine 2.17 takes this one.
        "flash-attn": "2.8.3",
        "flash-linear-attention": "0.4.2",
        # Miles' own, in its images on SGLang 0.5.16 and on 0.5.19 alike, though 0.5.17 requires 0.1.11 and 0.5.19 0.1.12: the
        # trainer compiles GLM-5's sparse attention with it. On NVIDIA both releases of SGLang import it for DeepSeek V4 (0.5.19
        # for MiniCPM too), which are no models of the catalog, and for --dsa-*-backend tilelang, which nothing here sets. 0.1.9
        # gives that attention's backward pass NaN (tile-ai/tilelang issue 2199). Miles and its SGLang are to move to 0.1.14
        # together (radixark/miles pull request 3309, sgl-project/sglang 40079, both open on 2026-09-21).
        "tilelang": "0.1.8",
        "nvidia-cudnn-cu13": "9.22.0.52",
        "sglang-router": "0.3.2",
        # Miles takes it from wheels of its own; this is slime's commit.
        "apex": "10417aceddd7d5d05d7cbf7b0fc2daad1105f8b4",
        "mbridge": "89eb10887887bc74853f89a4de258c0702932a1c",
        "megatron-bridge": "7f0fb3456f8ffe47599b5fd167b454605d85f932",
        "nvidia-modelopt": "0.37.0",
        "torch-memory-saver": "74d68c5e4bedf2b6774f2c92ed0f81b7c8d91ed0",
    }
)

# Newest of 2026-09-05 that agree with the pins of SGLang 0.5.17 and 0.5.19, by uv pip compile --exclude-newer over Miles'
# requirements.txt and what its Dockerfile adds by name.
_MILES_OPEN: Mapping[str, str] = MappingProxyType(
    {
        "accelerate": "1.14.0",
        "einops": "0.8.2",
        "httpx": "0.28.1",
        "hypothesis": "6.167.1",
        "kubernetes-asyncio": "36.1.0",
        "mcp": "2.1.1",
        "megatron-energon": "7.4.1",
        "memray": "1.20.0",
        "multi-storage-client": "1.1.0",
        "nvdlfw-inspect": "0.2.2",
        "nvidia-resiliency-ext": "0.6.0",
        "omegaconf": "2.3.1",
        "onnx": "1.22.0",
        "onnxscript": "0.7.1",
        "psycopg": "3.3.5",
        "pylatexenc": "2.11",
        "pytest-asyncio": "1.4.0",
        "pyyaml": "6.0.3",
        "qwen-vl-utils": "0.0.14",
        "ray": "2.58.0",
        "ring-flash-attn": "0.1.8",
        "safetensors": "0.8.0",
        "tensorboard": "2.21.0",
        "wandb": "0.29.0",
    }
)
# Newest of the same day; setuptools as torch 2.12 takes it at most.
_BUILD_TOOLS: Mapping[str, str] = MappingProxyType(
    {
        "ninja": "1.13.2",
        "nvidia-ml-py": "13.610.43",
        "packaging": "26.3",
        "psutil": "7.2.2",
        "pybind11": "3.1.0",
        "setuptools": "81.0.0",
        "wheel": "0.48.0",
    }
)

IMAGE_SOURCES: Mapping[Software, ImageSources] = MappingProxyType(
    {
        "baseline": ImageSources(
            sglang_repository=_SGLANG,
            framework_repository="https://github.com/THUDM/slime",
            megatron_repository="https://github.com/NVIDIA/Megatron-LM",
            megatron_ref="3714d81d418c9f1bca4594fc35f9e8289f652862",
            trainer=MappingProxyType({}),
            source=Source(
                title="slime v0.2.4, docker/Dockerfile, docker/README.md and docker/version.txt",
                url="https://github.com/THUDM/slime/tree/bd217a63f113d74488170914e4d39e68c12e8cf0/docker",
                as_of=date(2026, 3, 29),
            ),
        ),
        "aws-reference": ImageSources(
            sglang_repository=_SGLANG,
            framework_repository=_MILES,
            megatron_repository=_MILES_MEGATRON,
            megatron_ref="37f91617b95c1ef4f01fc66210e502572ad97fda",
            # torchvision 0.27.1 requires torch 2.12.1; torchaudio is SGLang 0.5.17's pin.
            trainer=MappingProxyType({**_MILES_TRAINER, "torchaudio": "2.11.0", "torchvision": "0.27.1"}),
            open_requirements=_MILES_OPEN,
            build_tools=_BUILD_TOOLS,
            source=Source(
                title="Miles v0.1.0, docker/Dockerfile, requirements.txt and release-lock.json",
                url="https://github.com/radixark/miles/tree/78527b9102b3a5f15891128cbec3ac6c2dc4089e",
                as_of=date(2026, 8, 18),
            ),
        ),
        "efa-gda": ImageSources(
            sglang_repository=_SGLANG,
            framework_repository=_MILES,
            megatron_repository=_MILES_MEGATRON,
            megatron_ref=commit_of(
                "head of the branch of Megatron-LM that Miles builds on", _MILES_MEGATRON, "refs/heads/miles-main"
            ),
            trainer=MappingProxyType(
                {
                    **_MILES_TRAINER,
                    "flash-linear-attention": "0.5.2",
                    "torch-memory-saver": "b5588e83de86412a48689a6583a4b567e75f7acc",
                }
            ),
            open_requirements=_MILES_OPEN,
            build_tools=_BUILD_TOOLS,
            source=Source(
                title="Miles main on SGLang 0.5.19, docker/Dockerfile (commit 01719e81, date not shown)",
                url="https://github.com/radixark/miles/blob/01719e81f9cb6ff7f9a4fe2eb36a28f829582b85/docker/Dockerfile",
                as_of=date(2026, 9, 5),
            ),
        ),
    }
)
