"""CloudFormation resources for the emulator's own tests: every type and every property that the emulator keeps.

Five stacks, keyed by name, each {logical id: resource}. Stacks import from each other by export name.
"""

from __future__ import annotations

import copy
from typing import Any

from .base import (
    ACCOUNT,
    EFA_CARDS,
    REGION,
    Resource,
    Resources,
    allow,
    att,
    identity_policy,
    imported,
    ref,
    resource,
    sub,
    tags,
    trust,
)
from .compute import cluster
from .network import NETWORK_EXPORTS, network
from .operations import operations
from .rare import rare
from .storage import STORAGE_EXPORTS, storage


def all_stacks() -> dict[str, Resources]:
    """Stack name -> its resources, in deployment order. A fresh copy: tests change it."""
    made = {"Net": network(), "Data": storage(), "Compute": cluster(), "Ops": operations(), "Rare": rare()}
    return copy.deepcopy(made)


EXPORTS: dict[str, dict[str, Any]] = {"Net": NETWORK_EXPORTS, "Data": STORAGE_EXPORTS}

__all__ = [
    "ACCOUNT",
    "EFA_CARDS",
    "EXPORTS",
    "REGION",
    "Resource",
    "Resources",
    "all_stacks",
    "allow",
    "att",
    "identity_policy",
    "imported",
    "ref",
    "resource",
    "sub",
    "tags",
    "trust",
]
