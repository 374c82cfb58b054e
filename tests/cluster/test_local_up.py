"""`moerl local up --kubernetes`: a control plane for a person, which outlives the command and ends with `down`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infra.cli import app
from infra.local.kubernetes import cluster, programs
from infra.local.kubernetes.api import until
from infra.local.kubernetes.fleet import ready_nodes
from infra.local.kubernetes.programs import Programs
from infra.local.processes import start_ticks
from tests.shipped import plan_of

pytestmark = pytest.mark.cluster


def moerl(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["local", *arguments])
    return done.exit_code, done.output


def test_up_says_where_it_is_and_down_ends_it(programs: Programs, tmp_path: Path) -> None:
    assert programs.paths
    place = ("--dir", str(tmp_path))
    try:
        code, said = moerl("up", "--kubernetes", "--env", "starter-p5en", *place)
        assert (code, "up https://127.0.0.1:" in said) == (0, True), said
        code, said = moerl("status", "--json", *place)
        found = json.loads(said)
        assert (code, found["environment"]["KUBECONFIG"]) == (0, str(tmp_path / "kubernetes" / "kubeconfig"))
        running = cluster.status(tmp_path / "kubernetes")
        assert running is not None
        assert running.url == found["kubernetes_url"]
        assert len(ready_nodes(running.api())) == sum(pool.size.max for pool in plan_of("starter-p5en").pools)
        code, said = moerl("up", "--kubernetes", *place)
        assert (code, "one runs here already" in said) == (1, True)
        # One program that dies takes neither the others nor the way to them with it.
        os.kill(running.pids["etcd"], signal.SIGKILL)
        until("etcd gone", lambda: start_ticks(running.pids["etcd"]) is None, 10)
        assert moerl("status", *place)[0] == 1
    finally:
        assert moerl("down", *place) == (0, "stopped\n")
    assert not any(start_ticks(pid) for pid in running.pids.values())


def test_without_programs_it_says_how_to_build_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "CACHE", tmp_path / "nothing")
    code, said = moerl("up", "--kubernetes", "--dir", str(tmp_path))
    assert (code, "the control plane is not built" in said) == (1, True)
    assert not (tmp_path / "kubernetes").exists()
