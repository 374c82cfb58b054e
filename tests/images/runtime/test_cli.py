"""The command line of the image: every part that a chart names is there, and none is imported for another's sake."""

from __future__ import annotations

import subprocess
import sys

import pytest

from moerl_runtime import cli


def test_an_unknown_part_is_wrong_input() -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["nothing"])
    assert ended.value.code == 2


def test_help_of_the_whole_imports_no_part() -> None:
    code = (
        "import sys\n"
        "from moerl_runtime.cli import PARTS, main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not [m for m, _ in PARTS.values() if m in sys.modules]\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert "weights" in done.stdout


@pytest.mark.parametrize("part", sorted(cli.PARTS))
def test_every_part_has_help_with_examples(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([part, "--help"])
    assert ended.value.code == 0
    assert "example" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("checkpoint",), ("checkpoint", "list"), ("agent", "lead"), ("smoke", "engine")])
def test_examples_of_parts_and_their_commands_keep_their_lines(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([*words, "--help"])
    assert "\nexamples:\n  python -m moerl_runtime " in capsys.readouterr().out
