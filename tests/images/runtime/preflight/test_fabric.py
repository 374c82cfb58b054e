"""The fabric between nodes as one verdict: who came, what runs, what a log of NCCL means, and the whole thing on CPUs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from infra.local.processes import free_port
from moerl_runtime.bench import nccl_log, planned
from moerl_runtime.bench.launch import Outcome
from moerl_runtime.bench.settings import Settings
from moerl_runtime.cli import main
from moerl_runtime.plan import Node as Document
from moerl_runtime.preflight import fabric, peers
from moerl_runtime.preflight.check import Check, causes, failed
from moerl_runtime.preflight.expected import expected
from moerl_runtime.preflight.fabric import Place
from moerl_runtime.preflight.peers import Meeting
from tests.images.runtime.preflight.nodes import document, wanted

LOGS = Path(__file__).parents[1] / "bench/logs"
FOUR = ("10.0.0.1", "10.0.0.2", "10.0.0.9", "10.0.0.10")


def place(node: int = 0, addresses: Sequence[str] = FOUR) -> Place:
    return Place(host=addresses[0], port=29_500, nodes=len(addresses), node=node, addresses=tuple(addresses))


def steps(pool: str = "rollout", at: Place | None = None, type_name: str = "p5en", **fields: Any) -> list[Settings]:
    needs = replace(wanted(type_name, pool), **fields.pop("needs", {}))
    return list(fabric.steps(document(type_name), needs, at or place(), **fields))


def test_nccl_runs_among_all_nodes_and_deepep_in_the_groups_that_the_run_has() -> None:
    nccl, experts = steps(at=place(node=3), needs={"expert_nodes": 2})
    assert (nccl.kind, nccl.backend, nccl.host, nccl.nodes, nccl.node) == ("nccl", "nccl", FOUR[0], 4, 3)
    assert (experts.kind, experts.backend) == ("deepep", "deep_ep")
    assert (experts.host, experts.nodes, experts.node) == (FOUR[2], 2, 1)
    # The meeting's own port and that of a run which is not quite over stay free.
    assert len({29_500, nccl.port, experts.port}) == 3


@pytest.mark.parametrize("at", [place(node=1, addresses=FOUR[:3]), Place(host="first", port=1, nodes=4, node=1)])
def test_groups_that_cannot_be_told_apart_are_one(at: Place) -> None:
    _, experts = steps(at=at, needs={"expert_nodes": 2})
    assert (experts.host, experts.nodes, experts.node) == (at.host, at.nodes, 1)


def test_a_pool_whose_experts_stay_on_their_nodes_tries_nccl_alone() -> None:
    assert [item.kind for item in steps("rollout", needs={"expert_nodes": 1})] == ["nccl"]
    assert [item.kind for item in steps("trainer")] == ["nccl"]


def test_a_trainer_is_told_its_groups_where_it_dispatches_by_deepep() -> None:
    """No stack of the catalog lets a file ask for it yet, so the document is changed."""
    plan = json.loads(json.dumps(document("p5en").value))
    assert expected(Document(plan, ""), "trainer", whole_node=False).expert_nodes == 1
    plan["workload"]["trainer"]["dispatcher"] = "deepep_v2"
    nodes = plan["workload"]["trainer"]["geometry"]["expert_group_nodes"]
    assert expected(Document(plan, ""), "trainer", whole_node=False).expert_nodes == nodes > 1


def test_a_start_is_short_and_keeps_the_broadcast_of_a_gibibyte() -> None:
    many = place(addresses=[f"10.0.0.{last}" for last in range(1, 17)])
    (nccl,) = steps("trainer", many)
    assert nccl.rings == tuple(range(8, 128, 8)), "each GPU to its own kind on the 15 other nodes"
    assert nccl.largest_bytes == 2**30
    assert nccl.repeats < 5
    _, experts = steps()
    assert {case.tokens for case in experts.cases} == set(planned.DEFAULT_TOKENS)


def test_experts_that_do_not_divide_are_replaced_by_ones_that_do() -> None:
    _, experts = steps(at=place(addresses=FOUR[:3]), needs={"expert_nodes": 3})
    assert experts.ranks == 24
    assert all(case.shape.experts % 24 == 0 for case in experts.cases)


def ranks_of(settings: Settings, *logs: str, faults: Sequence[str] = ()) -> Outcome:
    """What ranks bring whose logs are these and whose results are right."""
    entry = {"dispatch_seconds": 1e-3, "combine_seconds": 1e-3, "faults": list(faults)}
    names = ("deepep", "nccl-merged", "nccl-permuted")
    copies = {name: {"all": 2, "wire": 1} for name in names}
    measured: dict[str, Any] = {case.name: {"copies": copies, **dict.fromkeys(names, entry)} for case in settings.cases}
    if settings.kind == "nccl":
        measured = {"cases": [], "rings": [], "faults": list(faults)}
    return Outcome(
        ranks=tuple(
            {
                "rank": place,
                "measured": measured,
                "software": {"torch": "2", "nccl": {"paths": ["/opt/nccl/lib/libnccl.so.2"], "version": "2.31.2"}},
                "evidence": asdict(nccl_log.parse((LOGS / f"{name}.log").read_text(encoding="utf-8"))),
            }
            for place, name in enumerate(logs)
        )
    )


def judged(settings: Settings, *logs: str, faults: Sequence[str] = ()) -> tuple[Check, ...]:
    outcome = ranks_of(settings, *logs, faults=faults)
    return fabric.judge(settings, document("p5en"), outcome, [])[1]


def test_recorded_logs_of_a_good_run_pass_and_each_check_says_which_library_it_is_about() -> None:
    nccl, experts = steps(at=place(addresses=FOUR[:2]))
    checks = [*judged(nccl, "gda", "gda"), *judged(experts, "gda", "gda")]
    assert failed(checks) == ()
    assert {"network (NCCL)", "device-side networking (expert traffic)"} <= {check.name for check in checks}
    assert len({check.name for check in checks}) == len(checks)


@pytest.mark.parametrize(
    ("kind", "log", "cause"),
    [
        ("nccl", "socket", "sockets-fallback"),
        ("nccl", "partial", "efa-partial"),
        ("nccl", "staged", "host-staged"),
        ("deepep", "proxy", "proxy-instead-of-gda"),
        ("deepep", "proxy-asked", "proxy-instead-of-gda"),
        ("deepep", "broken", "no-device-side-networking"),
    ],
)
def test_one_rank_out_of_line_fails_with_its_cause(kind: str, log: str, cause: str) -> None:
    (settings,) = (item for item in steps(at=place(addresses=FOUR[:2])) if item.kind == kind)
    assert causes(judged(settings, "gda", log))[0] == cause


@pytest.mark.parametrize("place_of_step", [0, 1])
def test_wrong_results_fail_over_the_best_of_networks(place_of_step: int) -> None:
    settings = steps(at=place(addresses=FOUR[:2]))[place_of_step]
    assert causes(judged(settings, "gda", "gda", faults=["3 values are wrong"])) == ["wrong-results"]


@pytest.mark.parametrize(
    ("log", "cause", "said"),
    [("broken", "ranks", "strong signals are required"), ("socket", "sockets-fallback", "ended with 1")],
)
def test_ranks_that_brought_nothing_are_explained_by_what_nccl_wrote(log: str, cause: str, said: str) -> None:
    settings = steps()[0]
    evidence = [nccl_log.parse((LOGS / f"{log}.log").read_text(encoding="utf-8"))]
    outcome = Outcome(ranks=(), failure="local rank 0 ended with 1")
    _, (check,) = fabric.judge(settings, document("p5en"), outcome, evidence)
    assert check.cause == cause
    assert "local rank 0 ended with 1" in check.found
    assert said in check.found


def test_the_table_is_the_first_nodes() -> None:
    for node in (0, 1):
        nccl, _ = steps(at=place(node=node, addresses=FOUR[:2]))
        lines, _ = fabric.judge(nccl, document("p5en"), ranks_of(nccl, "gda", "gda"), [])
        assert bool(lines) == (node == 0)


def test_who_came_is_a_check_of_its_own() -> None:
    at, check = fabric.placed(Meeting(addresses=FOUR, known=FOUR), FOUR[2], 29_500, 4)
    assert at == place(node=2)
    assert (check.status, check.found) == ("ok", "4 of 4 came; 10.0.0.9 is node 2")
    for meeting, said in (
        (Meeting(addresses=(), known=FOUR[:3]), "3 of 4 came"),
        (Meeting(addresses=(), known=FOUR, silent=FOUR[3:]), "1 of them, 10.0.0.10, did not"),
        (Meeting(addresses=(), known=FOUR), "some of them did not"),
        (Meeting(addresses=(), known=FOUR, unsound=FOUR[1:3]), "2 of 4 came to say that their own checks have failed"),
    ):
        at, check = fabric.placed(meeting, FOUR[0], 29_500, 4)
        assert at is None
        assert (check.status, check.cause) == ("failed", "unsound-peer" if meeting.unsound else "fabric-peers")
        assert said in check.found


# --- the command


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document("p5en").value), encoding="utf-8")
    return str(path)


def test_two_nodes_of_two_ranks_meet_behind_a_service_and_pass(
    plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes and real torch.distributed, over gloo on two addresses of the loopback."""
    pytest.importorskip("torch")
    addresses = ("127.0.0.1", "127.0.0.2")
    monkeypatch.setattr(peers, "resolver", lambda name, _: lambda: {name: addresses}["fabric.rl.svc"])
    port = free_port()

    def node(address: str) -> tuple[int, dict[str, Any]]:
        verdict = tmp_path / f"{address}.json"
        code = main(
            [
                *("preflight", "fabric", "--plan", plan, "--pool", "rollout", "--json", str(verdict)),
                *("--service", f"fabric.rl.svc:{port}", "--nodes", "2", "--backend", "gloo", "--ranks", "2"),
                *("--tokens", "16", "--largest-mib", "1"),
            ],
            variables={**os.environ, "POD_IP": address},
        )
        return code, json.loads(verdict.read_text(encoding="utf-8"))

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(node, addresses))
    for (code, verdict), number in zip(found, (0, 1), strict=True):
        assert (code, verdict["verdict"]) == (0, "passed"), verdict
        texts = {check["name"]: check["found"] for check in verdict["checks"]}
        assert texts["fabric peers"].endswith(f"node {number}")
        assert texts["results of collectives (NCCL)"] == "right on every rank"
        assert texts["results of nccl-merged, 16 tokens (expert traffic)"] == "equal to the plain reference"
        assert "2 nodes x 2 ranks" in texts["between nodes"]


def verdict_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return document


def test_too_few_nodes_are_a_failed_check_and_start_nothing(
    plan: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fabric, "PEERS_SECONDS", 0.0)
    monkeypatch.setattr(fabric, "run", lambda *_, **__: pytest.fail("ranks were started"))
    arguments = [
        "preflight",
        "fabric",
        "--plan",
        plan,
        "--pool",
        "trainer",
        "--nodes",
        "2",
        "--service",
        "fabric:29500",
    ]
    assert main(arguments, variables={"POD_IP": "10.0.0.1"}) == 1
    assert verdict_of(capsys)["causes"] == ["fabric-peers"]


def test_what_follows_a_failed_step_is_not_tried(
    plan: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def run(settings: Settings, *_: Any, **__: Any) -> tuple[list[str], tuple[Check, ...]]:
        ran.append(settings.kind)
        return [], (Check(name="network (NCCL)", status="failed", found="sockets", cause="sockets-fallback"),)

    monkeypatch.setattr(fabric, "run", run)
    arguments = ["preflight", "fabric", "--plan", plan, "--pool", "rollout", "--nodes", "1"]
    assert main([*arguments, "--rendezvous", "127.0.0.1:29500"], variables={}) == 1
    verdict = verdict_of(capsys)
    assert ran == ["nccl"]
    assert verdict["causes"] == ["sockets-fallback"]
    assert {check["name"]: check["status"] for check in verdict["checks"]}["expert traffic"] == "skipped"
    assert verdict["checks"][-1]["found"] == "not proven, see above"


def test_a_node_that_is_not_sound_says_so_and_none_of_those_that_it_meets_starts(
    plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine has no GPU, which the trainer's pool asks for and the system's does not. Real sockets."""
    addresses = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
    monkeypatch.setattr(peers, "resolver", lambda *_: lambda: addresses)
    monkeypatch.setattr(fabric, "run", lambda *_, **__: pytest.fail("ranks were started"))
    port = free_port()

    def node(address: str, pool: str) -> tuple[int, dict[str, Any]]:
        verdict = tmp_path / f"{address}.json"
        arguments = ["preflight", "node", "--plan", plan, "--pool", pool, "--json", str(verdict)]
        code = main([*arguments, "--service", f"x:{port}", "--nodes", "3"], variables={"POD_IP": address})
        return code, json.loads(verdict.read_text(encoding="utf-8"))

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(node, addresses, ("system", "trainer", "system")))
    checks = [{check["name"]: check for check in verdict["checks"]} for _, verdict in found]
    assert [code for code, _ in found] == [1, 1, 1]
    assert found[0][1]["causes"] == found[2][1]["causes"] == ["unsound-peer"]
    assert "1 of 3 came to say" in checks[0]["fabric peers"]["found"]
    assert checks[2]["fabric peers"]["found"].endswith(": 127.0.0.2")
    assert "unsound-peer" not in found[1][1]["causes"]
    assert checks[1]["fabric peers"]["status"] == checks[1]["between nodes"]["status"] == "skipped"
    assert checks[1]["fabric peers"]["found"] == "this node has failed, and has told the others"


@pytest.mark.parametrize(("raised", "said"), [(False, "did not all come"), (True, "could not tell the others: in use")])
def test_a_node_that_cannot_tell_the_others_has_its_own_verdict_all_the_same(
    raised: bool, said: str, plan: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def meet(own: str, *, sound: bool, **_: Any) -> Meeting:
        assert not sound
        if raised:
            raise OSError("in use")
        return Meeting(addresses=(), known=(own,))

    monkeypatch.setattr(peers, "meet", meet)
    arguments = ["preflight", "node", "--plan", plan, "--pool", "trainer", "--service", "x:29500", "--nodes", "16"]
    assert main(arguments, variables={"POD_IP": "10.0.0.1"}) == 1
    verdict = verdict_of(capsys)
    assert "nvidia-driver-missing" in verdict["causes"]
    (told,) = (check["found"] for check in verdict["checks"] if check["name"] == "fabric peers")
    assert told.endswith(said)


def test_a_sound_node_goes_on_to_the_fabric_in_the_same_command(
    plan: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system pool's checks pass anywhere; that it has no GPUs ends what comes after the meeting."""
    asked: dict[str, Any] = {}

    def meet(own: str, **fields: Any) -> Meeting:
        asked.update(fields, own=own)
        return Meeting(addresses=(), known=(own,))

    monkeypatch.setattr(peers, "meet", meet)
    arguments = [
        "preflight",
        "node",
        "--plan",
        plan,
        "--pool",
        "system",
        "--service",
        "x.rl.svc:29500",
        "--nodes",
        "16",
    ]
    assert main(arguments, variables={"POD_IP": "10.0.0.1"}) == 1
    assert (asked["own"], asked["nodes"], asked["port"]) == ("10.0.0.1", 16, 29_500)
    verdict = verdict_of(capsys)
    assert verdict["causes"] == ["fabric-peers"]
    assert [check["found"] for check in verdict["checks"] if check["name"] == "fabric peers"] == ["1 of 16 came"]


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["fabric", "--service", "x:1", "--nodes", "2"], {}, "POD_IP"),
        (["fabric", "--service", "x:1", "--nodes", "2"], {"POD_IP": "here"}, "is no address"),
        (["fabric", "--service", "x:1", "--nodes", "0"], {"POD_IP": "10.0.0.1"}, "not a number of nodes"),
        (["fabric", "--service", "x", "--nodes", "2"], {"POD_IP": "10.0.0.1"}, "HOST:PORT"),
        (["fabric", "--rendezvous", "x:1", "--nodes", "2"], {"JOB_COMPLETION_INDEX": "2"}, "not one of 2 nodes"),
        (["node", "--service", "x:1"], {"POD_IP": "10.0.0.1"}, "not a number of nodes"),
    ],
)
def test_wrong_input_is_exit_code_2(
    arguments: list[str], variables: dict[str, str], said: str, plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preflight", *arguments, "--plan", plan, "--pool", "trainer"], variables=variables) == 2
    assert said in capsys.readouterr().err
