"""Plans of the shipped environments, for chart tests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from infra.catalog import CATALOG
from infra.config.loader import Loaded, load, load_text
from infra.config.plan import Plan, build_plan
from infra.local.pins import fixture_pins

ENVIRONMENTS = Path(__file__).resolve().parents[2] / "environments"
SHIPPED = tuple(sorted(path.stem for path in ENVIRONMENTS.glob("*.yaml") if not path.stem.endswith(".lock")))
PINS = fixture_pins("1.35", CATALOG.addons)
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/x@sha256:" + "0" * 64


def plan_of(name: str, changes: Mapping[str, Any] | None = None) -> Plan:
    """The plan of `environments/NAME.yaml` after the changes: dotted keys, list positions as numbers, `...` removes."""
    if not changes:
        return _shipped(name)
    path = ENVIRONMENTS / f"{name}.yaml"
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    for dotted, value in changes.items():
        *parents, last = (int(step) if step.isdigit() else step for step in dotted.split("."))
        holder = document
        for parent in parents:
            holder = holder[parent] if isinstance(parent, int) else holder.setdefault(parent, {})
        if value is ...:
            del holder[last]
        else:
            holder[last] = value
    return _planned(load_text(yaml.safe_dump(document, sort_keys=False), str(path), pins=PINS))


@cache
def _shipped(name: str) -> Plan:
    return _planned(load(ENVIRONMENTS / f"{name}.yaml", pins=PINS))


def _planned(loaded: Loaded) -> Plan:
    return build_plan(loaded.environment, loaded.pins, loaded.warnings)
