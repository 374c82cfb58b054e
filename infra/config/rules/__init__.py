"""Every rule that an environment file must pass, one module per topic. `RULES` lists them by id."""

from infra.catalog import Catalog
from infra.config.environment import Environment
from infra.config.faults import Finding
from infra.config.pins import Pins
from infra.config.rules import ami, capacity, efa, identity, network, software, storage, workload
from infra.config.rules.registry import RULES, Context, findings

__all__ = ["RULES", "ami", "capacity", "check", "efa", "identity", "network", "software", "storage", "workload"]


def check(environment: Environment, catalog: Catalog, pins: Pins) -> list[Finding]:
    """All findings of all rules, faults and warnings."""
    return findings(Context(environment, catalog, pins))
