"""Start, find and stop the embedded AWS: one process group on the loopback interface, described by a state file."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.local.processes import LOOPBACK, end_group, free_port, listening_addresses, start_ticks, tail, write_whole

STATE_FILE = "emulator.json"
LOG_FILE = "emulator.log"
START_SECONDS = 120.0
"""Only for one that hangs: one that ends is noticed at once. It took 13 s on two cores with a load of 13."""
LOG_LINES = 15
"""Shown of the log when the server does not come up."""


class EmulatorError(RuntimeError):
    """The embedded AWS did not start, or is not the process that the state file describes."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running embedded AWS.

    process_start: the kernel's start time of `pid` (clock ticks since boot), which tells it from a later process of the
    same number.
    """

    port: int
    pid: int
    process_start: int
    url: str
    account: str
    region: str
    log: Path
    state_file: Path

    @property
    def transcript_url(self) -> str:
        return f"{self.url}/_moerl/transcript"

    @property
    def health_url(self) -> str:
        return f"{self.url}/_moerl/health"


def start(
    directory: Path,
    *,
    python: Path,
    project_root: Path,
    account: str = "123456789012",
    region: str = "us-west-2",
    deadline_seconds: float = START_SECONDS,
) -> Server:
    """Start the emulator and wait until it answers.

    directory: takes the state file and the log. python: interpreter of the emulator's virtual environment. project_root:
    directory that holds the `infra` package. Raises EmulatorError when one runs there already, or when it exits or stays
    silent past the deadline, or where there is no Linux /proc.
    """
    if not Path("/proc/self/net/tcp").exists():
        raise EmulatorError("the embedded AWS needs Linux: it proves in /proc that it listens on loopback only")
    running = status(directory)
    if running is not None:
        raise EmulatorError(
            f"an emulator already runs here: pid {running.pid}, {running.url};"
            f" `moerl local down --dir {directory}` ends it"
        )
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    log = directory / LOG_FILE
    command = [str(python), "-m", "infra.local.emulator", "--port", str(port), "--account", account, "--region", region]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - fixed argument list
            command,
            cwd=directory,
            env=_process_environment(project_root),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(
        port=port,
        pid=process.pid,
        process_start=start_ticks(process.pid) or 0,
        url=f"http://{LOOPBACK}:{port}",
        account=account,
        region=region,
        log=log,
        state_file=directory / STATE_FILE,
    )
    try:
        # Before it answers: whatever ends this process meanwhile, `stop` finds the emulator.
        write_whole(server.state_file, _to_json(server))
        _wait_until_healthy(server, process, deadline_seconds)
        assert_loopback_only(server)
    except BaseException:
        end_group(process.pid)
        process.wait()
        server.state_file.unlink(missing_ok=True)
        raise
    return server


def _process_environment(project_root: Path) -> dict[str, str]:
    """What the emulator's process may see: no AWS setting of the caller, no proxy."""
    return {
        "PATH": os.defpath,
        "PYTHONPATH": str(project_root),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LOG_LEVEL": "WARNING",
    }


def _wait_until_healthy(server: Server, process: subprocess.Popen[bytes], deadline_seconds: float) -> None:
    deadline = time.monotonic() + deadline_seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise EmulatorError(f"the emulator exited with {process.returncode}:\n{tail(server.log, LOG_LINES)}")
        if _is_healthy(server):
            return
        time.sleep(0.05)
    raise EmulatorError(f"the emulator did not answer within {deadline_seconds:g} s:\n{tail(server.log, LOG_LINES)}")


def _is_healthy(server: Server) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy could not reach our loopback
    try:
        with direct.open(server.health_url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def status(directory: Path) -> Server | None:
    """The emulator that the state file describes, or None when that process is gone.

    Raises EmulatorError for a file that describes none, and OSError for one that cannot be read.
    """
    path = directory / STATE_FILE
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        server = Server(**{**fields, "log": Path(fields["log"]), "state_file": path})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise EmulatorError(
            f"{path} is damaged: {error}. End what `pgrep -f infra.local.emulator` shows of it, and remove the file."
        ) from error
    return server if _is_same_process(server) else None


def stop(directory: Path, *, deadline_seconds: float = 10.0) -> bool:
    """End the process group that `start` made, and only that. False when nothing ran."""
    server = status(directory)
    if server is None:
        (directory / STATE_FILE).unlink(missing_ok=True)
        return False
    end_group(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + deadline_seconds
    while _is_same_process(server) and time.monotonic() < deadline:
        _reap(server.pid)
        time.sleep(0.05)
    if _is_same_process(server):
        end_group(server.pid, signal.SIGKILL)
        _reap(server.pid, block=True)
    server.state_file.unlink(missing_ok=True)
    return True


def _reap(pid: int, *, block: bool = False) -> None:
    """Collect the process if it is our child: a zombie still looks alive."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0 if block else os.WNOHANG)


def _is_same_process(server: Server) -> bool:
    return server.process_start != 0 and start_ticks(server.pid) == server.process_start


def assert_loopback_only(server: Server) -> None:
    """Raises EmulatorError unless every listening socket of the emulator's process is on the loopback interface."""
    listening = listening_addresses(server.pid)
    outside = [f"{host}:{port}" for host, port in listening if not ipaddress.ip_address(host).is_loopback]
    if outside:
        raise EmulatorError(f"the emulator listens beyond the loopback interface: {', '.join(outside)}")
    if server.port not in {port for _, port in listening}:
        raise EmulatorError(f"the emulator's process does not listen on port {server.port}")


def client_environment(server: Server, *, node: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment in which boto3 and the CDK CLI talk to the emulator and nothing else.

    node: the Node binary for jsii. base: variables to start from (PATH and the like); AWS settings in it are dropped.
    """
    kept = {key: value for key, value in (base or {}).items() if not key.startswith(("AWS_", "CDK_"))}
    endpoint = f"http://{LOOPBACK}:{server.port}"
    return kept | {
        "AWS_ENDPOINT_URL": endpoint,
        # The CLI only builds template URLs from this one; CloudFormation reads path-style URLs on localhost.
        "AWS_ENDPOINT_URL_S3_FOR_CLOUDFORMATION": f"http://localhost:{server.port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": server.region,
        "AWS_DEFAULT_REGION": server.region,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "CDK_DEFAULT_ACCOUNT": server.account,
        "CDK_DEFAULT_REGION": server.region,
        "CDK_DISABLE_CLI_TELEMETRY": "true",
        "JSII_NODE": str(node),
        "NO_PROXY": f"{LOOPBACK},localhost",
        "no_proxy": f"{LOOPBACK},localhost",
    }


def _to_json(server: Server) -> str:
    fields = dataclasses.asdict(server)
    fields.pop("state_file")
    return json.dumps(fields, default=str, indent=1)
