"""Dashboards are complete data: panels that do not overlap, ids that do not clash, same plan same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from infra.config.plan import Plan
from k8s import dashboards
from tests.shipped import SHIPPED, plan_of


@pytest.mark.parametrize("make", [dashboards.fleet, dashboards.run])
@pytest.mark.parametrize("name", SHIPPED)
def test_panels_fill_the_grid_without_overlap(make: Callable[[Plan], dict[str, Any]], name: str) -> None:
    panels = make(plan_of(name))["panels"]
    cells = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in cells
                cells.add((x, y))
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)


@pytest.mark.parametrize("make", [dashboards.fleet, dashboards.run])
def test_every_target_asks_the_chosen_data_source(make: Callable[[Plan], dict[str, Any]]) -> None:
    dashboard = make(plan_of("reference-p5en"))
    (variable,) = dashboard["templating"]["list"]
    for panel in dashboard["panels"]:
        references = [target["refId"] for target in panel["targets"]]
        assert references == sorted(set(references))
        for holder in (panel, *panel["targets"]):
            assert holder["datasource"] == {"type": "prometheus", "uid": f"${{{variable['name']}}}"}


def test_the_two_have_names_of_their_own_and_fit_grafanas_limit() -> None:
    uids = [make(plan_of(name))["uid"] for name in SHIPPED for make in (dashboards.fleet, dashboards.run)]
    assert len(set(uids)) == len(uids)
    assert all(len(uid) <= 40 for uid in uids)


def test_same_plan_same_bytes() -> None:
    assert json.dumps(dashboards.fleet(plan_of("p5"))) == json.dumps(dashboards.fleet(plan_of("p5")))
