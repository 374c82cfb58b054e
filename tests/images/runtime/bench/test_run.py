"""Whole benches: real processes, real torch.distributed over gloo, on this machine."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from infra.local.processes import free_port, listening_addresses
from moerl_runtime.bench import meeting, timing
from moerl_runtime.bench.launch import Outcome, run_ranks, variables_of
from moerl_runtime.bench.settings import Case, Links, Settings, Shape, read, write
from moerl_runtime.cli import main
from tests.shipped import plan_of

pytest.importorskip("torch")


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_of("reference-p5en").document()), encoding="utf-8")
    return str(path)


def settings(**fields: Any) -> Settings:
    values: dict[str, Any] = {
        "kind": "deepep",
        "backend": "gloo",
        "pool": "rollout",
        "host": "127.0.0.1",
        "port": free_port(),
        "nodes": 1,
        "node": 0,
        "ranks_per_node": 2,
        "links": Links(gpus=8, efa_devices=16, efa_gbps=200, nvlink_gb_per_second=450),
        "transport": "gda",
        "cases": (Case(name="a", shape=Shape(hidden=256, experts=8, top_k=2), tokens=16),),
    }
    return Settings(**(values | fields))


def launched(folder: Path, wanted: Settings, **fields: Any) -> Outcome:
    return run_ranks(
        wanted,
        folder,
        variables=dict(os.environ),
        seconds=fields.pop("seconds", 120.0),
        clock=time.monotonic,
        pause=threading.Event().wait,
        **fields,
    )


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], dict[str, Any]]:
    code = main(["bench", *arguments], variables={**os.environ})
    *lines, last = capsys.readouterr().out.splitlines()
    return code, lines, json.loads(last)


def test_dispatch_and_combine_over_two_ranks_are_right_and_timed(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, found = bench(
        capsys,
        *("deepep", "--plan", plan, "--pool", "rollout", "--nodes", "1", "--backend", "gloo", "--ranks", "2"),
        *("--rendezvous", f"127.0.0.1:{free_port()}", "--tokens", "16", "--repeats", "2"),
    )
    assert code == 0, lines
    assert lines[1].startswith("ceiling")
    assert found["verdict"] == "passed"
    names = {(result["case"], result["dispatcher"]) for result in found["cases"]}
    assert names == {(case, by) for case in ("model-16", "published-16") for by in ("nccl-merged", "nccl-permuted")}
    for result in found["cases"]:
        dispatch = result["dispatch"]
        assert 0 < dispatch["wire_gb_per_second"] < dispatch["logical_gb_per_second"]
    assert found["winners"] == {}


def test_collectives_over_three_ranks_are_right_and_every_pair_meets(
    plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, found = bench(
        capsys,
        *("nccl", "--plan", plan, "--pool", "trainer", "--nodes", "1", "--backend", "gloo", "--ranks", "3"),
        *("--rendezvous", f"127.0.0.1:{free_port()}", "--largest-mib", "1", "--repeats", "2"),
    )
    assert code == 0
    assert [ring["distance"] for ring in found["rings"]] == [1, 2]
    sizes = {(case["collective"], case["bytes"]) for case in found["cases"]}
    assert ("broadcast", 2**20) in sizes
    assert {name for name, _ in sizes} == {"all-reduce", "all-to-all", "broadcast"}


@contextmanager
def program(folder: Path, source: str) -> Iterator[str]:
    """An interpreter that runs `source` instead of a rank, with the rank's arguments."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\n{source}", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    yield str(path)


HANGS_BUT_FOR_RANK_1 = """
import os, sys, threading
if sys.argv[4] == "1":
    while not os.path.exists(os.path.join(os.path.dirname(sys.argv[3]), "pid")):
        pass
    sys.exit("ncclSystemError: no route")
with open(os.path.join(os.path.dirname(sys.argv[3]), "pid.new"), "w") as file:
    file.write(str(os.getpid()))
os.rename(file.name, file.name[:-4])
threading.Event().wait()
"""


def test_one_rank_that_fails_ends_the_others_and_is_quoted(tmp_path: Path) -> None:
    with program(tmp_path, HANGS_BUT_FOR_RANK_1) as python:
        outcome = launched(tmp_path, settings(), python=python)
    assert outcome.ranks == ()
    assert "local rank 1 ended with 1" in outcome.failure
    assert "no route" in outcome.failure
    other = int((tmp_path / "pid").read_text(encoding="utf-8"))
    assert not Path(f"/proc/{other}").exists()


def test_a_rank_that_crashes_is_named_with_its_signal(tmp_path: Path) -> None:
    with program(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n") as python:
        outcome = launched(tmp_path, settings(ranks_per_node=1), python=python)
    assert "local rank 0 was killed by SIGSEGV" in outcome.failure


def test_ranks_that_hang_are_ended(tmp_path: Path) -> None:
    ticks = iter(range(1000))
    with program(tmp_path, "import threading\nthreading.Event().wait()\n") as python:
        outcome = run_ranks(
            settings(),
            tmp_path,
            variables={},
            seconds=5.0,
            clock=lambda: float(next(ticks)),
            pause=lambda _: None,
            python=python,
        )
    assert "still at work after 5 s" in outcome.failure


def test_a_bench_whose_ranks_cannot_start_fails_with_their_words(
    plan: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "moerl_runtime.bench.cli.run_ranks",
        lambda *_, **__: Outcome(ranks=(), failure="rank 0 ended with 1\n  File x\nno NVIDIA driver"),
    )
    code = main(
        ["bench", "nccl", "--plan", plan, "--pool", "trainer", "--nodes", "1", "--rendezvous", "127.0.0.1:29500"],
        variables={**os.environ},
    )
    printed = capsys.readouterr()
    *lines, last = printed.out.splitlines()
    assert code == 1
    assert (json.loads(last)["verdict"], json.loads(last)["causes"]) == ("failed", ["ranks"])
    assert [line for line in lines if "rank 0 ended with 1 ... no NVIDIA driver; needed" in line]
    assert "  File x\nno NVIDIA driver\n" in printed.err


def test_settings_survive_the_way_to_a_rank(tmp_path: Path) -> None:
    wanted = settings(num_sms=12)
    write(wanted, tmp_path / "settings.json")
    assert read(tmp_path / "settings.json") == wanted


def test_ranks_of_one_node_do_without_device_side_networking_and_keep_the_pods_variables() -> None:
    one = variables_of(settings(backend="deep_ep"), {"NCCL_NET": "Libfabric"}, Path("/x.log"))
    assert one["EP_DISABLE_GIN"] == "1"
    assert one["NCCL_NET"] == "Libfabric"
    assert one["NCCL_DEBUG_FILE"] == "/x.log"
    several = variables_of(settings(backend="deep_ep", nodes=2), {"NCCL_GIN_TYPE": "5"}, Path("/x.log"))
    assert "EP_DISABLE_GIN" not in several
    assert several["NCCL_GIN_TYPE"] == "5"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_ranks_meet_on_the_rendezvous_address_alone(host: str) -> None:
    port = free_port()
    store = meeting.store(host, port, ranks=1, leads=True, seconds=10.0, clock=time.monotonic, pause=lambda _: None)
    addresses = [address for address, at in listening_addresses(os.getpid()) if at == port]
    assert addresses == [host]
    store.set("key", "value")
    assert store.get("key") == b"value"


def test_a_name_that_dns_does_not_know_yet_is_waited_for_and_then_given_up() -> None:
    ticks, pauses = iter(range(100)), []
    with pytest.raises(OSError, match=r"[Nn]ame"):
        meeting.listening_socket(
            "no-such-host.invalid", 1, seconds=3.0, clock=lambda: float(next(ticks)), pause=pauses.append
        )
    assert pauses == [meeting.RETRY_SECONDS] * 2


def test_steps_get_what_the_one_before_returned_and_medians_are_taken() -> None:
    times = iter([0.0, 1.0, 1.0, 3.0, 3.0, 13.0, 13.0, 15.0, 15.0, 17.0, 17.0, 19.0])
    seen: list[Any] = []
    taken = timing.on_cpu([lambda _: "first", seen.append], warmups=1, repeats=3, clock=lambda: next(times))
    assert seen == ["first"] * 4
    assert taken == [2.0, 2.0]
