"""Answers become rewards; whatever goes wrong in a grader is that answer's failure and says why."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime import graders


def exact(response: str, label: str | None) -> float:
    return graders.grade("exact", prompt="", response=response, label=label, metadata={})[0]


@pytest.mark.parametrize(
    ("response", "label", "reward"),
    [
        ("so it is 41, no: 42.", "42", 1.0),
        ("42 is the answer, found in step 3", "42", 0.0),
        (r"thus \boxed{42}, as 7 shows", "42", 1.0),
        (r"\boxed{41} or rather \boxed{42}", "42", 1.0),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", 1.0),
        (r"\boxed{1 and then it was cut, 5", "5", 1.0),
        ("it costs $1,234.50", "1234.5", 1.0),
        ("a half is 1/2", "0.5", 1.0),
        ("minus -3", "-3", 1.0),
        ("about .25", "0.25", 1.0),
        ("no number at all", "42", 0.0),
        ("", "42", 0.0),
        ("divided 1/0", "1/0", 1.0),
    ],
)
def test_the_last_boxed_answer_or_number_decides(response: str, label: str, reward: float) -> None:
    assert exact(response, label) == reward


@given(value=st.integers(-(10**12), 10**12), noise=st.text(alphabet="abc \n", max_size=20))
def test_a_number_is_found_however_it_is_written(value: int, noise: str) -> None:
    assert exact(f"{noise} {value:,}{noise}", str(value)) == 1.0


def test_a_task_without_a_label_cannot_be_graded_exactly() -> None:
    with pytest.raises(graders.GradeError, match="no label"):
        exact("42", None)


def test_an_unknown_grader_names_those_there_are() -> None:
    with pytest.raises(graders.GradeError, match=r"'nobody' is not in this image, which has: .*exact"):
        graders.grade("nobody", prompt="", response="", label="", metadata={})


def length(
    *, prompt: str, response: str, label: str | None, metadata: Mapping[str, Any]
) -> tuple[float, dict[str, Any]]:
    if response == "break":
        raise KeyError("gone")
    if response == "no number":
        return float("nan"), {}
    return len(response) + metadata["offset"], {"label": label, "prompt": prompt}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [EntryPoint(name="length", value=f"{__name__}:length", group=graders.GROUP)]
    monkeypatch.setattr(EntryPoint, "load", lambda _: length)
    monkeypatch.setattr(graders, "entry_points", lambda group: found if group == graders.GROUP else [])
    graders._grader.cache_clear()


@pytest.mark.usefixtures("installed")
def test_graders_of_other_packages_are_entry_points() -> None:
    reward, found = graders.grade("length", prompt="p", response="four", label="l", metadata={"offset": 1})
    assert (reward, found) == (5.0, {"label": "l", "prompt": "p"})


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("response", "why"), [("break", "KeyError: 'gone'"), ("no number", "no finite number")])
def test_whatever_a_grader_raises_or_returns_is_a_grade_error(response: str, why: str) -> None:
    with pytest.raises(graders.GradeError, match=why):
        graders.grade("length", prompt="", response=response, label=None, metadata={"offset": 0})


@pytest.mark.usefixtures("installed")
def test_names_are_the_graders_that_can_be_loaded_and_one_that_cannot_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert graders.names() == ["exact", "length"]
    graders._grader.cache_clear()
    monkeypatch.setattr(EntryPoint, "load", lambda _: __import__("no_such_package_anywhere"))
    with pytest.raises(graders.GradeError, match="length cannot be loaded: ModuleNotFoundError"):
        graders.names()
