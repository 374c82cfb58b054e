"""Both frameworks' rollout functions give back what the ledger has, and never generate or evaluate."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moerl_runtime.faults import InputFault
from moerl_runtime.trainer.data_source import DataSource
from moerl_runtime.trainer.rollout import Rollout, generate_rollout


class Source(DataSource):
    """Notes what it is asked."""

    def __init__(self, framework: str) -> None:
        self.settings = SimpleNamespace(framework=framework)  # type: ignore[assignment]
        self.asked: list[tuple[int, int | None]] = []

    def batch(self, step: int, weight_version: int | None) -> tuple[list[list[Any]], dict[str, float]]:
        self.asked.append((step, weight_version))
        return [["sample"]], {"rollout/moerl/wait_seconds": 1.0}


@pytest.fixture(params=["miles", "slime"])
def framework(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of that name with nothing but the output class."""
    name: str = request.param
    package = tmp_path / name / "rollout"
    package.mkdir(parents=True)
    (tmp_path / name / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "base_types.py").write_text(
        "from dataclasses import dataclass\nfrom typing import Any\n\n\n@dataclass\nclass RolloutFnTrainOutput:\n"
        "    samples: list[Any]\n    metrics: dict[str, Any] | None = None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def call(framework: str, source: Any, *, step: int = 3, version: int | None = None, evaluation: bool = False) -> Any:
    if framework == "slime":
        return generate_rollout(SimpleNamespace(), step, source, evaluation=evaluation)
    rollout = Rollout(SimpleNamespace(args=SimpleNamespace(), data_source=source))
    return rollout(SimpleNamespace(rollout_id=step, weight_version=version, evaluation=evaluation))


def test_a_batch_comes_back_as_the_frameworks_output(framework: str) -> None:
    source = Source(framework)
    output = call(framework, source)
    assert type(output).__module__ == f"{framework}.rollout.base_types"
    assert output.samples == [["sample"]]
    assert output.metrics == {"rollout/moerl/wait_seconds": 1.0}


def test_miles_counts_its_versions_from_zero_and_slime_leaves_it_to_the_data_source(framework: str) -> None:
    source = Source(framework)
    call(framework, source)
    call(framework, source, step=4, version=1)
    assert source.asked == ([(3, 0), (4, 1)] if framework == "miles" else [(3, None), (4, None)])


def test_evaluation_is_refused(framework: str) -> None:
    with pytest.raises(InputFault, match="eval-interval"):
        call(framework, Source(framework), evaluation=True)


def test_a_data_source_of_another_kind_is_refused(framework: str) -> None:
    with pytest.raises(InputFault, match="data-source-path"):
        call(framework, object())
