"""docs/field-problems.md says the truth about itself: every row once, every named test there, the counts right."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = (ROOT / "docs/field-problems.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in DOCUMENT.splitlines()
    if re.match(r"\| B\d\d \|", line)
]
STATES = ("tested", "part", "documented", "open")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)(?:\[([^\]]+)\])?`")


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


@cache
def functions(file: str) -> frozenset[str]:
    return frozenset(node.name for node in tree(file).body if isinstance(node, ast.FunctionDef))


@cache
def words(file: str) -> frozenset[str]:
    """Every constant of a test file and of the helper modules beside and above it, where a case may be written."""
    folders = [folder for folder in Path(file).parents if folder.parts]
    helpers = [path for folder in folders for path in (ROOT / folder).glob("*.py") if not path.stem.startswith("test_")]
    trees = [tree(file), *(tree(str(path.relative_to(ROOT))) for path in helpers)]
    return frozenset(str(node.value) for one in trees for node in ast.walk(one) if isinstance(node, ast.Constant))


def test_every_row_stands_there_once_in_order_and_complete() -> None:
    assert [row[0] for row in ROWS] == [f"B{number:02d}" for number in range(1, 91)]
    for row in ROWS:
        assert len(row) == 5, row
        assert row[1], row
        assert row[2], row
        assert row[3] in STATES, row


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_names_tests_that_exist_and_says_what_is_open(row: list[str]) -> None:
    state, held = row[3], row[4]
    named = TEST.findall(held)
    assert held.count("::") == len(named), "a test is named in another form"
    for file, function, case in named:
        assert (ROOT / file).is_file(), file
        assert function in functions(file), f"{file}::{function}"
        assert not case or case in words(file), f"{file}::{function}[{case}]"
    assert bool(named) == (state in ("tested", "part"))
    assert ("open: " in held) == (state in ("part", "open"))
    if state == "documented":
        links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", held)
        assert links
        assert all((ROOT / "docs" / link).is_file() for link in links)


def test_the_counts_are_those_of_the_table() -> None:
    counts = Counter(row[3] for row in ROWS)
    said = ", ".join(f"{state} {counts[state]}" for state in STATES).capitalize()
    assert f"\n{said}: {len(ROWS)} rows.\n" in DOCUMENT
