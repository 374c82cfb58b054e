"""The rules as a set: each has an example that it refuses, and one close to it that it lets pass."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from infra.config.faults import Finding
from infra.config.rules import RULES
from infra.config.rules.registry import Context, rule


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples_of_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


TOPICS = {
    path.stem.removeprefix("test_rules_"): module(path)
    for path in sorted(Path(__file__).parent.glob("test_rules_*.py"))
}


def examples(topic: ModuleType, *tables: str) -> set[str]:
    """Rule ids in the tables, and those that NAMED gives a test function of their own."""
    named = getattr(topic, "NAMED", {})
    assert all(callable(getattr(topic, test)) for test in named.values())
    return {row[0] for table in tables for row in getattr(topic, table, ())} | set(named)


@pytest.mark.parametrize("identifier", RULES)
def test_every_rule_has_an_example_that_it_refuses_and_one_that_it_lets_pass(identifier: str) -> None:
    topic = TOPICS[identifier.partition(".")[0]]
    assert identifier in examples(topic, "FAULTS", "WARNINGS")
    assert identifier in examples(topic, "PASSES")


def test_no_example_belongs_to_a_rule_that_is_gone() -> None:
    for topic in TOPICS.values():
        assert examples(topic, "FAULTS", "WARNINGS", "PASSES") <= set(RULES)


def test_a_rule_id_is_topic_dot_name_and_unique() -> None:
    assert all(re.fullmatch(r"[a-z]+\.[a-z0-9]+(-[a-z0-9]+)*", identifier) for identifier in RULES)
    with pytest.raises(ValueError, match=r"network\.cidr is registered twice"):
        rule("network.cidr")(lambda _: iter(()))


def test_a_rule_with_an_error_of_its_own_is_not_taken_for_one_that_met_an_unusable_value(monkeypatch, edited) -> None:
    def broken(context: Context) -> Iterator[Finding]:
        yield context.environment.no_such_key  # type: ignore[attr-defined]

    monkeypatch.setitem(RULES, "test.broken", broken)
    with pytest.raises(AttributeError, match="no_such_key"):
        edited("starter-p5en", {})


@pytest.mark.parametrize("base", ["p5", "p6-b200", "reference-p5en", "starter-p5en"])
def test_every_finding_reads_as_a_sentence(base: str, edited) -> None:
    findings: list[Finding] = list(edited(base, {}))
    for topic in TOPICS.values():
        for row in (*getattr(topic, "FAULTS", ()), *getattr(topic, "WARNINGS", ())):
            if row[1] == base:
                findings += edited(base, row[2])
    assert len(findings) > 3
    for found in findings:
        assert found.fix.endswith(".")
        assert found.fix[0].isupper()
        assert not found.why.endswith(".")
        assert found.why
