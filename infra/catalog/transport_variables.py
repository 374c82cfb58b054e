"""NCCL, EFA and DeepEP environment variables of a GPU pod on a pool with EFA, each with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType

from infra.catalog.facts import Source
from infra.catalog.instances import Transport

NCCL_NET_NAME = "Libfabric"
"""Name under which aws-ofi-nccl 1.12 and later registers its net plugin; NCCL compares it ignoring case."""

SOURCES = (
    Source(
        title="aws-ofi-nccl v1.21.1: GIN guide, efa-env-var guide, nccl_ofi_interface_nvidia.cpp (plugin name)",
        url="https://github.com/aws/aws-ofi-nccl/blob/2daf7d303aa139a03140aa530957d10521e4478d/doc/gin-getting-started.md",
        as_of=date(2026, 8, 21),
    ),
    Source(
        title="NVIDIA/nccl src/plugin/net.cc, gin.cc, plugin_open.cc before 2.31 (choice by name and type)",
        url="https://github.com/NVIDIA/nccl/blob/0456df2069b703b3331f510d664321be19d24612/src/plugin/net.cc",
        as_of=date(2026, 5, 14),
    ),
    Source(
        title="DeepEP issue 726 (communicator reuse); SGLang 0.5.19 wheel, arg_groups/moe_hook.py (CUMEM)",
        url="https://github.com/deepseek-ai/DeepEP/issues/726",
        as_of=date(2026, 9, 4),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One environment variable and why it is set."""

    name: str
    value: str
    reason: str


_NCCL_OVER_EFA = (
    Variable(
        name="NCCL_NET_PLUGIN",
        value="ofi",
        reason="the installer for NGC images lays down no default-named plugin; NCCL 2.27 mangles a full path",
    ),
    Variable(
        name="NCCL_NET",
        value=NCCL_NET_NAME,
        reason="without a name NCCL falls back to TCP in silence; with one, a missing plugin ends communicator setup",
    ),
    Variable(
        name="NCCL_TUNER_PLUGIN",
        value="ofi",
        reason="the AWS tuner sits in the net plugin's library and is found by name only",
    ),
    Variable(
        name="FI_PROVIDER",
        value="efa",
        reason="keeps libfabric off every other provider, so that a missing EFA is an error",
    ),
    Variable(
        name="OFI_NCCL_PROTOCOL",
        value="RDMA",
        reason="the default since P5, and the only protocol with which device-side networking starts",
    ),
    Variable(
        name="NCCL_SOCKET_IFNAME",
        value="^docker,lo,veth,eni",
        reason="bootstrap must not pick a bridge, loopback or the pod end of a CNI interface",
    ),
)

_DEVICE_SIDE = (
    Variable(
        name="NCCL_CUMEM_ENABLE",
        value="1",
        reason="DeepEP's ElasticBuffer needs symmetric memory, which is cuMem memory",
    ),
    Variable(
        name="EP_REUSE_NCCL_COMM",
        value="0",
        reason="the default takes over torch's communicator and crashes when the group has run no collective yet",
    ),
)

_PROXY = (
    Variable(
        name="NCCL_GIN_TYPE",
        value="2",
        reason="says in the pod what an unset type would silently give on EFA: the CPU proxy",
    ),
)

# Type 5 without the second one dies in communicator setup, asking for strong signals; so they exist as a pair only.
_GDA = (
    Variable(name="NCCL_GIN_TYPE", value="5", reason="EFA GPU-direct is opt-in"),
    Variable(
        name="NCCL_SYM_GIN_KERNELS_ENABLE",
        value="0",
        reason="NCCL's own symmetric kernels need strong signals, which EFA GPU-direct does not have",
    ),
)


def explained(transport: Transport, *, deepep_over_efa: bool) -> tuple[Variable, ...]:
    """The variables with their reasons; arguments as in `variables`."""
    if not deepep_over_efa or transport == "none":
        return _NCCL_OVER_EFA
    return (*_NCCL_OVER_EFA, *_DEVICE_SIDE, *(_GDA if transport == "gda" else _PROXY))


def variables(transport: Transport, *, deepep_over_efa: bool) -> Mapping[str, str]:
    """Environment of a GPU pod whose pool has EFA interfaces, for that transport.

    NCCL's collectives go over EFA in every case, an all-to-all of experts among them. Device-side networking is DeepEP's
    alone, between the nodes of an expert group: `deepep_over_efa` false, or transport `none`, leaves it out. Do not use
    this for a pool without EFA: NCCL is told to fail rather than to use TCP.
    """
    chosen = explained(transport, deepep_over_efa=deepep_over_efa)
    return MappingProxyType({variable.name: variable.value for variable in chosen})
