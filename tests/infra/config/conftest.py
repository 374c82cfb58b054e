"""Shipped environments with a few keys changed, judged or planned."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import date

import pytest

from infra.catalog import CATALOG, Catalog
from infra.config.faults import EnvironmentFault, Finding
from infra.config.loader import Loaded, load_text
from infra.config.pins import UNRESOLVED, Pins
from infra.config.plan import Plan, build_plan
from tests.shipped import Changes, text_of

PATH = "environment.yaml"


def judged(base: str, changes: Changes, *, pins: Pins, catalog: Catalog) -> Loaded:
    return load_text(text_of(base, changes), PATH, catalog, pins=pins)


@pytest.fixture(scope="session")
def text() -> Callable[[str, Changes], str]:
    """`text(BASE, CHANGES)`: the file as YAML, not yet judged."""
    return text_of


@pytest.fixture(scope="session")
def edited() -> Callable[..., tuple[Finding, ...]]:
    """`edited(BASE, CHANGES)`: every finding of the file, warnings alone when it may be rendered."""

    def findings(
        base: str, changes: Changes, *, pins: Pins = UNRESOLVED, catalog: Catalog = CATALOG
    ) -> tuple[Finding, ...]:
        try:
            return judged(base, changes, pins=pins, catalog=catalog).warnings
        except EnvironmentFault as refused:
            return refused.findings

    return findings


@pytest.fixture(scope="session")
def planned() -> Callable[..., Plan]:
    """`planned(BASE, CHANGES)`: the plan of the file, which must be valid."""

    def plan(base: str, changes: Changes | None = None, *, pins: Pins = UNRESOLVED, catalog: Catalog = CATALOG) -> Plan:
        loaded = judged(base, changes or {}, pins=pins, catalog=catalog)
        return build_plan(loaded.environment, loaded.pins, loaded.warnings, catalog)

    return plan


@pytest.fixture(scope="session")
def dated() -> Callable[[date], Catalog]:
    """`dated(DAY)`: the catalog as if it had been compiled on that day."""
    return lambda day: replace(CATALOG, as_of=day)


@pytest.fixture(scope="session")
def fires(edited: Callable[..., tuple[Finding, ...]]) -> Callable[..., None]:
    """`fires(RULE, BASE, CHANGES, KEY, VALUE, WHY, FIX)`: asserts that the rule speaks of the key, shows the value,
    gives the reason and the remedy (parts of each), and that the rules in `beside` are all that refuse something as well.
    """

    def assert_fires(
        rule: str,
        base: str,
        changes: Changes,
        key: str,
        value: str,
        why: str,
        fix: str,
        *,
        severity: str = "fault",
        beside: Collection[str] = (),
        pins: Pins = UNRESOLVED,
        catalog: Catalog = CATALOG,
    ) -> None:
        findings = edited(base, changes, pins=pins, catalog=catalog)
        said = [found for found in findings if (found.rule, found.key, found.severity) == (rule, key, severity)]
        apt = [
            found for found in said if value in str(found.document()["value"]) and why in found.why and fix in found.fix
        ]
        assert len(apt) == 1, f"{rule} on {key} said {said}; everything said: {findings}"
        assert apt[0].line is not None
        refused = {found.rule for found in findings if found.severity == "fault"} - {rule}
        assert refused == set(beside), f"{refused} refuse as well, not {beside}: {findings}"

    return assert_fires


@pytest.fixture(scope="session")
def silent(edited: Callable[..., tuple[Finding, ...]]) -> Callable[..., None]:
    """`silent(RULE, BASE, CHANGES)`: asserts that the file is valid and that the rule has nothing to say about it."""

    def assert_silent(
        rule: str, base: str, changes: Changes, *, pins: Pins = UNRESOLVED, catalog: Catalog = CATALOG
    ) -> None:
        findings = edited(base, changes, pins=pins, catalog=catalog)
        assert not [found for found in findings if found.severity == "fault" or found.rule == rule]

    return assert_silent
