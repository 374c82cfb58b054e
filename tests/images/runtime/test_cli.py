"""The command line of the image: every part that a chart names is there, and none is imported for another's sake."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from botocore import exceptions

from moerl_runtime import cli
from tests.images.runtime.preflight.nodes import document


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


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document("p5en").value), encoding="utf-8")
    return str(path)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command says that ends with 2 before it does anything."""
    try:
        code: object = cli.main(words, variables={})
    except SystemExit as ended:
        code = ended.code
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    return captured.err


# --- no credentials


@pytest.mark.parametrize(
    "words",
    [
        ("weights", "list"),
        ("weights", "prune"),
        ("weights", "fetch", "--pool", "rollout", "--below", "models"),
        ("checkpoint", "list", "--run", "trainer-1"),
        ("smoke", "trainer", "--run", "smoke-1", "--listen", "127.0.0.1:0", "--scratch", "scratch"),
    ],
    ids=" ".join,
)
def test_a_caller_without_credentials_learns_of_the_association(
    words: tuple[str, ...], plan: str, tmp_path: Path
) -> None:
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
    }
    done = subprocess.run(  # noqa: S603 - this package's own program
        [sys.executable, "-m", "moerl_runtime", *words, "--plan", plan],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "AWS credentials = None: cannot be had: Unable to locate credentials" in done.stderr
    assert "Pod Identity association" in done.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (exceptions.NoCredentialsError(), True),
        (exceptions.PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"), True),
        (exceptions.CredentialRetrievalError(provider="container-role", error_msg="refused"), True),
        (exceptions.TokenRetrievalError(provider="sso", error_msg="expired"), True),
        (exceptions.UnauthorizedSSOTokenError(), True),
        (exceptions.NoRegionError(), False),
        (ValueError("credentials"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_missing_credentials_are_taken_for_that(error: Exception, said: bool) -> None:
    assert (cli.without_credentials(error) is not None) is said


@pytest.mark.parametrize(("code", "said"), [("AccessDenied", True), ("ExpiredToken", True), ("SlowDown", False)])
def test_a_refusal_of_aws_is_one_line_and_any_other_error_stays_whole(
    code: str, said: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = exceptions.ClientError({"Error": {"Code": code, "Message": "not for you"}}, "ListObjectsV2")

    def fails(*_: object) -> int:
        raise error

    monkeypatch.setattr(cli, "_run", fails)
    if said:
        assert cli.main([]) == 1
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert "ListObjectsV2" in lines[0]
        assert code in lines[0]
    else:
        with pytest.raises(exceptions.ClientError):
            cli.main([])


# --- addresses in use


@pytest.mark.parametrize("part", ["efa-exporter", "buffer", "environment", "smoke engine", "metrics"])
def test_a_port_in_use_is_said_in_one_line(
    part: str, plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from moerl_runtime import efa_exporter
    from moerl_runtime.workers import cgroup, running

    monkeypatch.setattr(running.stop, "on_stop", lambda _: None)
    monkeypatch.setattr(efa_exporter, "on_stop", lambda _: None)
    monkeypatch.setattr(cgroup, "memory_bytes", lambda _: 2**30)
    (tmp_path / "class").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        words = {
            "efa-exporter": ["efa-exporter", "--listen", listen, "--sysfs", str(tmp_path)],
            "smoke engine": ["smoke", "engine", "--listen", listen, "--start-seconds", "0"],
            "metrics": [
                *("buffer", "--pool", "buffer", "--plan", plan, "--listen", "127.0.0.1:0"),
                *("--metrics-port", listen.rpartition(":")[2]),
            ],
        }.get(part, [part, "--pool", part, "--plan", plan, "--listen", listen])
        if part == "environment":
            words[words.index("--pool") + 1] = "environments"
        code = cli.main(words, variables={})
    said = capsys.readouterr().err
    assert code == 1, said
    assert said.startswith(f"address = '{listen}': cannot be bound: Address already in use.")
    assert said.count("\n") == 1


# --- what cannot be, before anything is done


def test_a_verdict_that_cannot_be_written_is_known_before_the_checks(
    plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("preflight", "node", "--pool", "system", "--plan", plan, "--json")
    assert "there is no folder" in refused(capsys, *words, str(tmp_path / "none" / "x"))
    assert "is a folder" in refused(capsys, *words, str(tmp_path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("preflight", "gpu", "--pool", "rollout", "--ranks", "-3"), "'-3' is not a whole number of 1 or more"),
        (
            ("bench", "deepep", "--pool", "rollout", "--rendezvous", "h:1", "--nodes", "1", "--tokens", "-1"),
            "'-1' is not a whole number of 1 or more",
        ),
        (
            ("agent", "lead", "--pool", "rollout", "--listen", "127.0.0.1:0", "--models", "m", "--engine", "garbage"),
            "'garbage' is not http://HOST:PORT",
        ),
        (
            ("buffer", "--pool", "buffer", "--listen", "127.0.0.1:0", "--metrics-port", "70000"),
            "'70000' is not a whole number from 0 to 65535",
        ),
        (("smoke", "gpu", "--dispatcher", "gloo", "--out", "/nonexistent/x"), "there is no folder /nonexistent"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_arguments_that_cannot_be_are_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, *words)


@pytest.mark.parametrize("part", ["buffer", "environment"])
def test_a_worker_of_no_pool_of_the_plan_is_refused(
    part: str, plan: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from moerl_runtime.workers import cgroup

    monkeypatch.setattr(cgroup, "memory_bytes", lambda _: 2**30)
    assert "'nope': is not in plan.json" in refused(capsys, part, "--pool", "nope", "--plan", plan, "--listen", "h:1")


def test_a_folder_that_is_no_sysfs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path / "none", tmp_path):
        words = ("efa-exporter", "--listen", "127.0.0.1:0", "--sysfs", str(folder))
        assert f"--sysfs = '{folder}': is no sysfs" in refused(capsys, *words)


def test_all_that_is_wrong_with_a_place_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "checkpoint", "list", "--plan", str(tmp_path / "none")).splitlines()
    assert [line.partition(" = ")[0] for line in said] == ["--run", "plan.json"]


# --- Ctrl-C


def test_an_interrupted_engine_ends_with_130_and_no_traceback() -> None:
    words = ["smoke", "engine", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(  # noqa: S603 - this package's own program
        [sys.executable, "-m", "moerl_runtime", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as engine:
        assert engine.stdout is not None
        assert engine.stdout.readline().startswith("engine: http://127.0.0.1:")
        engine.send_signal(signal.SIGINT)
        _, said = engine.communicate(timeout=60)
    assert (engine.returncode, said) == (130, "interrupted\n")


def runs(pid: str) -> bool:
    """Whether there is such a process, and it has not ended unseen: of those proc(5) keeps no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_interrupted_comparison_ends_its_ranks_which_say_nothing(tmp_path: Path) -> None:
    words = [
        "smoke",
        "gpu",
        "--dispatcher",
        "gloo",
        "--ranks",
        "2",
        "--steps",
        "100000",
        "--out",
        str(tmp_path / "out"),
    ]
    with subprocess.Popen(  # noqa: S603 - this package's own program
        [sys.executable, "-m", "moerl_runtime", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as comparison:
        children = Path(f"/proc/{comparison.pid}/task/{comparison.pid}/children")
        status = Path(f"/proc/{comparison.pid}/status")

        def listens() -> bool:
            """Until all are started Ctrl-C is ignored (proc(5): SigIgn)."""
            ignored = int(status.read_text(encoding="ascii").partition("SigIgn:")[2].split()[0], 16)
            return not ignored >> (signal.SIGINT - 1) & 1

        try:
            deadline = time.monotonic() + 60
            ranks: list[str] = []
            while (len(ranks) < 3 or not listens()) and time.monotonic() < deadline:
                time.sleep(0.05)
                ranks = children.read_text(encoding="ascii").split()
            os.killpg(comparison.pid, signal.SIGINT)  # as a terminal does
            _, said = comparison.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(comparison.pid, signal.SIGKILL)
    assert len(ranks) == 3, "two ranks and the tracker of what they share"
    assert (comparison.returncode, said) == (130, "interrupted\n")
    deadline = time.monotonic() + 60
    while (
        left := [rank for rank in ranks if runs(rank)]
    ) and time.monotonic() < deadline:  # the tracker ends by itself
        time.sleep(0.05)
    assert not left
