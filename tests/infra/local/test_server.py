"""The embedded AWS starts on the loopback interface only, is found again by its state file, and ends without a trace."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.local import server
from infra.local.processes import start_ticks

from .conftest import PYTHON, ROOT


@pytest.fixture
def running(tmp_path: Path) -> Iterator[server.Server]:
    started = server.start(tmp_path, python=PYTHON, project_root=ROOT, region="eu-central-1")
    yield started
    server.stop(tmp_path)


@pytest.mark.emulator
def test_starts_once_is_found_again_and_stops(running: server.Server, tmp_path: Path) -> None:
    assert server.status(tmp_path) == running
    with pytest.raises(server.EmulatorError, match=f"already runs here: pid {running.pid}"):
        server.start(tmp_path, python=PYTHON, project_root=ROOT)
    assert server.stop(tmp_path) is True
    assert server.status(tmp_path) is None
    assert server.stop(tmp_path) is False
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", running.port), timeout=1):
        pass


@pytest.mark.emulator
def test_answers_on_loopback_and_nowhere_else(running: server.Server) -> None:
    server.assert_loopback_only(running)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # picks the outward interface; sends nothing
        outward = probe.getsockname()[0]
    if outward.startswith("127."):
        pytest.skip("this machine has no interface beside loopback")
    with pytest.raises(OSError, match="refused"), socket.create_connection((outward, running.port), timeout=1):
        pass


def test_a_process_that_listens_everywhere_is_caught(tmp_path: Path) -> None:
    program = (
        "import socket, sys; made = socket.create_server(('0.0.0.0', 0));"
        " print(made.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(  # noqa: S603 - this interpreter
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = _server(tmp_path, pid=process.pid, port=int(process.stdout.readline()))
        with pytest.raises(server.EmulatorError, match=r"beyond the loopback interface: 0\.0\.0\.0:"):
            server.assert_loopback_only(found)
        process.communicate("")


def _server(directory: Path, *, pid: int, port: int, process_start: int = 1) -> server.Server:
    return server.Server(
        port=port,
        pid=pid,
        process_start=process_start,
        url=f"http://127.0.0.1:{port}",
        account="123456789012",
        region="us-west-2",
        log=directory / "log",
        state_file=directory / server.STATE_FILE,
    )


def test_stop_spares_a_stranger_with_the_same_number(tmp_path: Path) -> None:
    """The state file names a process number that another process has by now."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as stranger:
        stale = {"port": 1, "pid": stranger.pid, "process_start": 1, "url": "", "account": "", "region": "", "log": "x"}
        (tmp_path / server.STATE_FILE).write_text(json.dumps(stale))
        assert server.status(tmp_path) is None
        assert server.stop(tmp_path) is False
        assert stranger.poll() is None
        stranger.communicate(b"")


def test_a_start_that_fails_shows_why_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(server.EmulatorError, match="exited with") as caught:
        server.start(tmp_path, python=Path(sys.executable), project_root=tmp_path)
    assert "ministack is not installed" in str(caught.value)
    assert not (tmp_path / server.STATE_FILE).exists()


def test_a_start_that_stays_silent_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "root" / "infra" / "local" / "emulator"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text("import time; time.sleep(60)")
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(*arguments, **options))  # noqa: S603 - what the server starts
        return started[0]

    monkeypatch.setattr(
        server, "subprocess", SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT)
    )
    with pytest.raises(server.EmulatorError, match=r"did not answer within 1\.5 s"):
        server.start(tmp_path, python=Path(sys.executable), project_root=tmp_path / "root", deadline_seconds=1.5)
    (silent,) = started
    assert silent.returncode == -signal.SIGKILL


def test_a_start_that_is_cut_off_can_be_stopped(tmp_path: Path) -> None:
    package = tmp_path / "root" / "infra" / "local" / "emulator"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text("import time; time.sleep(60)")
    source = (
        "import sys; from pathlib import Path; from infra.local import server\n"
        "server.start(Path(sys.argv[1]), python=Path(sys.executable), project_root=Path(sys.argv[1]) / 'root')"
    )
    with subprocess.Popen([sys.executable, "-c", source, str(tmp_path)], cwd=ROOT) as starting:  # noqa: S603
        deadline = time.monotonic() + 30
        while (found := server.status(tmp_path)) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        starting.terminate()
    assert found is not None
    assert server.stop(tmp_path) is True
    assert start_ticks(found.pid) is None


def test_clients_are_pointed_at_the_emulator_and_nothing_else(tmp_path: Path) -> None:
    base = {"PATH": "/bin", "AWS_PROFILE": "production", "AWS_SESSION_TOKEN": "x", "CDK_DEFAULT_ACCOUNT": "1"}
    environment = server.client_environment(_server(tmp_path, pid=1, port=4000), node=Path("/node"), base=base)
    assert environment["AWS_ENDPOINT_URL"] == "http://127.0.0.1:4000"
    assert environment["AWS_ENDPOINT_URL_S3_FOR_CLOUDFORMATION"] == "http://localhost:4000"
    assert environment["CDK_DEFAULT_ACCOUNT"] == "123456789012"
    assert environment["AWS_CONFIG_FILE"] == os.devnull
    assert environment["PATH"] == "/bin"
    assert not {"AWS_PROFILE", "AWS_SESSION_TOKEN"} & environment.keys()
