"""The shipped environments, as they are or with a few keys changed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from infra.config.loader import load, load_text
from infra.config.plan import Plan, build_plan
from infra.local.pins import fixture_pins

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / "environments"
SHIPPED = tuple(sorted(path.stem for path in ENVIRONMENTS.glob("*.yaml") if not path.stem.endswith(".lock")))
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/x@sha256:" + "0" * 64

Changes = Mapping[str, Any]


def document_of(name: str, changes: Changes | None = None) -> dict[str, Any]:
    """`environments/NAME.yaml` after the changes: dotted keys, list positions as numbers, `...` removes."""
    document: dict[str, Any] = yaml.safe_load((ENVIRONMENTS / f"{name}.yaml").read_text(encoding="utf-8"))
    for dotted, value in (changes or {}).items():
        *parents, last = (int(step) if step.isdigit() else step for step in dotted.split("."))
        holder: Any = document
        for parent in parents:
            holder = holder[parent] if isinstance(parent, int) else holder.setdefault(parent, {})
        if value is ...:
            del holder[last]
        else:
            holder[last] = value
    return document


def text_of(name: str, changes: Changes | None = None) -> str:
    """The same as YAML."""
    return yaml.safe_dump(document_of(name, changes), sort_keys=False)


def plan_of(name: str, changes: Changes | None = None) -> Plan:
    """Its plan, with fixture pins for the Kubernetes version that it names; the same object for the same changes."""
    return _planned(name, text_of(name, changes))


def unpinned_plan_of(name: str) -> Plan:
    """The plan of `environments/NAME.yaml` before `moerl lock`."""
    loaded = load(ENVIRONMENTS / f"{name}.yaml")
    return build_plan(loaded.environment, loaded.pins, loaded.warnings)


@cache
def _planned(name: str, text: str) -> Plan:
    version = str(yaml.safe_load(text)["kubernetes"]["version"])
    loaded = load_text(text, str(ENVIRONMENTS / f"{name}.yaml"), pins=fixture_pins(version))
    return build_plan(loaded.environment, loaded.pins, loaded.warnings)
