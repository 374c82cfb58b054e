"""Which way DeepEP's traffic leaves a node of a pool: GPU-direct (gda), CPU proxy, or not over EFA at all.

Derived from three things, weakest first: the instance type, the software stack, the AMI. Each derivation says why,
since a silent proxy costs 2 to 5 times the decode latency (field measurement on p5en, DeepEP v2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infra.catalog import Catalog
from infra.catalog.ami import (
    BAKED_EFA_INSTALLER,
    BAKED_GDRCOPY,
    EFA_DRIVER_FOR_GDA,
    EFA_INSTALLER_DRIVERS,
    GDRDRV_FLOOR,
    release_date,
)
from infra.catalog.instances import InstanceType, Transport
from infra.catalog.software import Capability, SoftwareStack
from infra.config.environment import Kubernetes, Pool
from infra.config.pins import Pins

RANK: dict[Transport, int] = {"none": 0, "proxy": 1, "gda": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedTransport:
    """The transport a pool gets, why not a better one, and what a live node still has to prove."""

    transport: Transport
    limited_by: str | None = None
    """Why it is not gda; None when it is, or when the pool wants no EFA."""
    to_prove: str | None = None
    """What the catalog does not know and node preflight must read."""


def node_release(pool: Pool, kubernetes: Kubernetes, pins: Pins) -> str | None:
    """The AMI release of a managed pool, most specific first; None when unresolved or when the AMI is custom."""
    if pool.ami.id:
        return None
    return pool.ami.release or kubernetes.node_release or pins.node_release


def derive_transport(
    pool: Pool, instances: Sequence[InstanceType], stack: SoftwareStack, release: str | None, catalog: Catalog
) -> DerivedTransport:
    """The best transport that every type of the pool, the stack and the AMI can all carry."""
    if not pool.efa or any(instance.efa_devices == 0 for instance in instances):
        return DerivedTransport(transport="none", limited_by="the pool has no EFA interfaces")
    weakest = min(instances, key=lambda instance: RANK[_best(instance.efa_transports)])
    hardware, software = _best(weakest.efa_transports), _best(stack.transports)
    gdrdrv = ami_gdrdrv(pool)
    if gdrdrv is not None and version_key(gdrdrv) < version_key(GDRDRV_FLOOR) and "none" not in (hardware, software):
        return DerivedTransport(
            transport="none", limited_by=f"the AMI's gdrdrv is {gdrdrv}; DeepEP over EFA needs {GDRDRV_FLOOR}"
        )
    if RANK[software] < RANK["gda"] and RANK[software] <= RANK[hardware]:
        reason = stack_limit(stack, "gda" if software == "proxy" else "proxy")
        return DerivedTransport(transport=software, limited_by=f"software {stack.name}: {reason}")
    if RANK[hardware] < RANK["gda"]:
        return DerivedTransport(
            transport=hardware, limited_by=f"{weakest.name} has no GPU-direct EFA, in hardware, whatever the software"
        )
    driver = ami_driver(pool, release, catalog)
    if driver is not None and version_key(driver) < version_key(EFA_DRIVER_FOR_GDA):
        return DerivedTransport(
            transport="proxy", limited_by=f"the AMI's EFA driver is {driver}; GPU-direct needs {EFA_DRIVER_FOR_GDA}"
        )
    unknown = [
        *(() if driver else (f"EFA driver >= {EFA_DRIVER_FOR_GDA} loaded",)),
        *(() if gdrdrv else (f"gdrdrv >= {GDRDRV_FLOOR} loaded",)),
    ]
    return DerivedTransport(transport="gda", to_prove=" and ".join(unknown) or None)


def gpu_direct_possible(instances: Sequence[InstanceType], stack: SoftwareStack) -> bool:
    """Whether every type and the stack can do GPU-direct EFA, whatever the AMI."""
    return "gda" in stack.transports and all("gda" in instance.efa_transports for instance in instances)


def stack_limit(stack: SoftwareStack, capability: Capability) -> str:
    """Why the stack lacks a capability."""
    return (
        "; ".join(limit.reason for limit in stack.limits if limit.capability == capability) or f"it has no {capability}"
    )


def ami_driver(pool: Pool, release: str | None, catalog: Catalog) -> str | None:
    """EFA kernel driver of the pool's AMI as declared, baked, or as the catalog recorded it; None when unknown."""
    if pool.ami.baked:
        return EFA_INSTALLER_DRIVERS[BAKED_EFA_INSTALLER]
    if pool.ami.efa_driver:
        return pool.ami.efa_driver
    known = catalog.ami_releases.get(release_date(release)) if release else None
    return known.efa_driver if known else None


def ami_gdrdrv(pool: Pool) -> str | None:
    """gdrdrv module of the pool's AMI, as declared or baked; None when it has none that one may rely on."""
    return BAKED_GDRCOPY if pool.ami.baked else pool.ami.gdrdrv


def version_key(version: str) -> tuple[int, ...]:
    """Orders dotted versions; a trailing letter (3.1.0g) is ignored."""
    return tuple(int("".join(digit for digit in part if digit.isdigit()) or 0) for part in version.split("."))


def _best(transports: Sequence[Transport]) -> Transport:
    return max(transports, key=lambda transport: RANK[transport], default="none")
