"""Text → values: what would take for ever, or load what nobody wrote, is refused at its line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.config.documents import MAX_DEPTH, MAX_VALUES, is_file, parse, read
from infra.config.faults import EnvironmentFault, Finding


def refused(text: str) -> Finding:
    with pytest.raises(EnvironmentFault) as fault:
        parse(text, "e.yaml")
    (found,) = fault.value.findings
    assert found.text("e.yaml").isprintable()
    return found


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x]"]
    for level in range(1, levels + 1):
        aliases = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} [{aliases}]")
    return "\n".join(lines) + "\n"


def merges(levels: int) -> str:
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, levels + 1):
        aliases = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} {{<<: [{aliases}]}}")
    return "\n".join(lines) + "\n"


def test_values_come_with_the_line_of_every_key_through_aliases_too() -> None:
    document = parse("a: &one\n  b: 1\nc: *one\nd: [x,\n  {e: 2}]\n", "e.yaml")
    assert document.value == {"a": {"b": 1}, "c": {"b": 1}, "d": ["x", {"e": 2}]}
    assert document.lines == {"": 1, "a": 1, "a.b": 2, "c": 3, "c.b": 2, "d": 4, "d.0": 4, "d.1": 5, "d.1.e": 5}
    assert document.faults == ()


@pytest.mark.parametrize("text", [bomb(7), bomb(12), merges(7)], ids=["aliases", "more aliases", "merge keys"])
def test_aliases_that_multiply_are_refused(text: str) -> None:
    assert f"more than {MAX_VALUES} values" in str(refused(text).value)


def test_as_many_values_as_the_limit_are_read_and_one_more_is_refused() -> None:
    def listed(values: int) -> str:
        return "[" + "1, " * (values - 1) + "]"

    assert len(parse(listed(MAX_VALUES), "e.yaml").value) == MAX_VALUES - 1
    assert "more than" in str(refused(listed(MAX_VALUES + 1)).value)


def test_a_key_that_holds_aliases_is_refused_before_it_is_written_out() -> None:
    found = refused(bomb(12).replace("a1:", "? [z]\n: 1\na1:"))
    assert (found.value, found.line) == ("a key is a list or a mapping", 2)


@pytest.mark.parametrize("text", ["[" * 3000 + "]" * 3000, "{a: " * 3000 + "1" + "}" * 3000])
def test_deep_nesting_is_refused_and_not_descended(text: str) -> None:
    assert f"more than {MAX_DEPTH} deep" in str(refused(text).value)
    assert parse("[" * MAX_DEPTH + "]" * MAX_DEPTH, "e.yaml").value


@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "9" * 5000, "1" * 41 + ".5", "0b" + "1" * 5000])
def test_a_number_of_thousands_of_digits_is_refused_at_its_key(number: str) -> None:
    found = refused(f"a: 1\nnodes: {number}\n")
    assert (found.key, found.line) == ("nodes", 2)
    assert "a number of more than 40 characters" in found.why
    assert len(found.text("e.yaml")) < 400


@pytest.mark.parametrize("text", ["when: 2026-13-45", "when: 0b_"])
def test_what_only_looks_like_a_time_or_a_number_is_refused_at_its_key(text: str) -> None:
    assert refused(text).key == "when"


@pytest.mark.parametrize(
    "tag", ["!!binary aGVsbG8=", "!!str 1", "!!set {a}", "!mine x", "! x", "!!python/name:os.system"]
)
def test_no_tag_is_taken(tag: str) -> None:
    found = refused(f"a: 1\nb: {tag}\n")
    assert found.line == 2
    assert "the tag !" in str(found.value)


@pytest.mark.parametrize("escaped", [r"\ud800", r"\0", r"\e[2J", r"\x7f", r"\N"])
def test_a_control_character_or_half_of_a_character_is_refused_at_its_key(escaped: str) -> None:
    for text in (f'a: {{b: "x{escaped}"}}', f'a: {{"b{escaped}": x}}'):
        found = refused(text)
        assert found.key.startswith("a.b")
        assert "control character" in found.why
    assert parse('a: "b\\tc\\n\\u00fc"', "e.yaml").value == {"a": "b\tc\n\u00fc"}


def test_a_character_that_is_no_text_is_named_with_its_line() -> None:
    found = refused("a: 1\nb: \x07\n")
    assert (found.value, found.line) == ("character U+0007 does not belong in a text", 2)


def test_a_file_of_megabytes_is_refused() -> None:
    assert "1000004 characters" in str(refused("a: " + "x" * 1_000_001).value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("a: 1\n", encoding="utf-8")
    path.chmod(0)
    with pytest.raises(EnvironmentFault, match="Permission denied, it cannot be read"):
        read(path)


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")])
def test_what_the_system_refuses_to_read_is_a_fault(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(Path, "read_text", fail)
    with pytest.raises(EnvironmentFault, match=f"{error.strerror}, it cannot be read"):
        read(Path("mine.yaml"))


def test_a_folder_that_may_not_be_searched_is_a_fault_and_an_impossible_name_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not is_file(Path("x" * 5000))

    def fail(_: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", fail)
    with pytest.raises(EnvironmentFault, match="Permission denied, it cannot be read"):
        is_file(Path("closed/mine.yaml"))
