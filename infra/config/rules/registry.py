"""What a rule is: a generator of findings about one environment, with an id. Rules never raise and never depend on
each other: one that meets a value another rule refuses stays silent about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from infra.catalog import Catalog
from infra.catalog.instances import InstanceType
from infra.catalog.models import Model
from infra.catalog.software import SoftwareStack
from infra.config.environment import Environment, Part, Pool
from infra.config.faults import Finding, Severity
from infra.config.pins import Pins
from infra.config.transport import DerivedTransport, derive_transport, node_release


@dataclass(frozen=True, slots=True)
class Context:
    """Everything a rule may look at."""

    environment: Environment
    catalog: Catalog
    pins: Pins

    @property
    def stack(self) -> SoftwareStack:
        return self.catalog.software[self.environment.software]

    @property
    def model(self) -> Model | None:
        return self.catalog.models.get(self.environment.workload.model)

    def pools(self, *roles: str) -> Iterator[tuple[str, Pool]]:
        """Pools of the given roles, or all of them, with their names."""
        for name, pool in self.environment.pools.items():
            if not roles or pool.role in roles:
                yield name, pool

    def instances(self, pool: Pool) -> list[InstanceType]:
        """The pool's types that the catalog knows."""
        return [self.catalog.instances[name] for name in pool.instance_types if name in self.catalog.instances]

    def gpu_pools(self) -> Iterator[tuple[str, Pool, list[InstanceType]]]:
        for name, pool in self.pools():
            types = self.instances(pool)
            if any(instance.gpus for instance in types):
                yield name, pool, types

    def release(self, pool: Pool) -> str | None:
        return node_release(pool, self.environment.kubernetes, self.pins)

    def transport(self, pool: Pool) -> DerivedTransport:
        """What the pool would get if its `transport` key were absent."""
        return derive_transport(pool, self.instances(pool), self.stack, self.release(pool), self.catalog)


Rule = Callable[[Context], Iterator[Finding]]
RULES: dict[str, Rule] = {}


def rule(identifier: str) -> Callable[[Rule], Rule]:
    """Registers a rule under `topic.name`; ids are part of the interface (messages, tests, docs)."""

    def register(function: Rule) -> Rule:
        if identifier in RULES:
            raise ValueError(f"rule {identifier} is registered twice")
        RULES[identifier] = function
        return function

    return register


def fault(key: str, value: object, why: str, fix: str) -> Finding:
    return _finding("fault", key, value, why, fix)


def warning(key: str, value: object, why: str, fix: str) -> Finding:
    return _finding("warning", key, value, why, fix)


def _finding(severity: Severity, key: str, value: object, why: str, fix: str) -> Finding:
    return Finding(rule="", severity=severity, key=key, value=value, why=why, fix=fix)


def findings(context: Context) -> list[Finding]:
    """What every rule has to say, in registration order, each stamped with its rule's id.

    A rule that reads a field which the loader has taken out, since the file has no usable value there, ends at that point.
    """
    found: list[Finding] = []
    for identifier, judge in RULES.items():
        try:
            for item in judge(context):
                found.append(replace(item, rule=identifier))
        except AttributeError as error:
            if not (isinstance(error.obj, Part) and error.name in type(error.obj).model_fields):
                raise
    return found


def nodes_max(pool: Pool) -> int:
    return pool.nodes if isinstance(pool.nodes, int) else pool.nodes.max


def nodes_min(pool: Pool) -> int:
    return pool.nodes if isinstance(pool.nodes, int) else pool.nodes.min
