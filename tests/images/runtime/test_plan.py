"""plan.json: what a render writes is what the image reads; what is missing is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k8s.charts.run_config import PLAN_FILE, objects
from k8s.names import RUN_CONFIG_PATH
from moerl_runtime import plan
from moerl_runtime.faults import InputFault
from tests.shipped import plan_of

ENVIRONMENTS = ("reference-p5en", "starter-p5en", "p5", "p6-b200")


@pytest.fixture(params=ENVIRONMENTS)
def rendered(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (config,) = objects(plan_of(request.param))
    path = tmp_path / PLAN_FILE
    path.write_text(config["data"][PLAN_FILE])
    return path


def test_what_the_charts_render_is_what_the_image_reads(rendered: Path) -> None:
    document = plan.load(rendered)
    for entry in document["workload"]["rollouts"].value:
        of_pool = plan.rollout(document, entry["pool"])
        assert of_pool["engine"]["tasks_max"].number > 0
        assert plan.pool(document, entry["pool"])["role"].text == "rollout"
    assert document["queue"]["task_url"].text.startswith("https://sqs.")
    assert document["storage"]["checkpoint_prefix"].text.endswith("/")


def test_the_image_looks_where_the_charts_mount_it() -> None:
    assert str(plan.MOUNTED) == f"{RUN_CONFIG_PATH}/{PLAN_FILE}"


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda document: document["queue"]["url"], "queue.url"),
        (lambda document: document["pools"][0]["size"]["least"], "pools.0.size.least"),
        (lambda document: plan.pool(document, "trainers"), "trainer"),
        (lambda document: document["name"].number, "name"),
        (lambda document: document["protected"].number, "protected"),
    ],
)
def test_what_is_missing_or_of_another_kind_is_named(tmp_path: Path, ask: object, named: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(
        json.dumps({"name": "x", "protected": True, "queue": {}, "pools": [{"name": "trainer", "size": {}}]})
    )
    with pytest.raises(InputFault, match=named):
        ask(plan.load(path))  # type: ignore[operator]


@pytest.mark.parametrize("text", [None, "{", "", "[" * 100_000], ids=["none", "cut", "empty", "deep"])
def test_a_plan_that_cannot_be_read_is_wrong_input(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputFault, match="cannot be read"):
        plan.load(path)


@pytest.mark.parametrize("text", ["[]", "1", "null"])
def test_a_document_that_is_no_object_is_wrong_input(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputFault, match="is no JSON object"):
        plan.load(path)
