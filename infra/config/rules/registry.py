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

    A rule that reads a field which the loader has taken out, since the file has no usable value there, ends at that point,
    and then judges the pools that lack nothing by themselves.
    """
    found: list[Finding] = []
    for identifier, judge in RULES.items():
        said, ended = _said(judge, context)
        pools = context.environment.__dict__.get("pools", {})
        whole = {name: pool for name, pool in pools.items() if _is_whole(pool)}
        if ended and len(whole) < len(pools):
            alone = replace(context, environment=context.environment.model_copy(update={"pools": whole}))
            about = tuple(f"pools.{name}." for name in whole)
            said += [item for item in _said(judge, alone)[0] if item.key.startswith(about) and item not in said]
        found += [replace(item, rule=identifier) for item in said]
    return found


def _said(judge: Rule, context: Context) -> tuple[list[Finding], bool]:
    """What a rule says, and whether it ended at a field that was taken out."""
    said: list[Finding] = []
    try:
        said.extend(judge(context))
    except AttributeError as error:
        if not (isinstance(error.obj, Part) and error.name in type(error.obj).model_fields):
            raise
        return said, True
    return said, False


def _is_whole(part: object) -> bool:
    """Whether no field of a part, or of the parts in it, was taken out."""
    if isinstance(part, Part):
        return type(part).model_fields.keys() <= part.__dict__.keys() and all(map(_is_whole, part.__dict__.values()))
    return all(map(_is_whole, part)) if isinstance(part, tuple) else True


def nodes_max(pool: Pool) -> int:
    return pool.nodes if isinstance(pool.nodes, int) else pool.nodes.max


def nodes_min(pool: Pool) -> int:
    return pool.nodes if isinstance(pool.nodes, int) else pool.nodes.min
