"""What only several nodes can show: that all of them reach each other over EFA as planned, and what crosses arrives whole.

The benches' own code with fewer rounds, about a minute: NCCL among all nodes, DeepEP in the groups that the run has. Speed
is left to the benches; what is wrong here would stop a run or make it wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moerl_runtime.bench import nccl_log, planned
from moerl_runtime.bench.conclusions import conclusions
from moerl_runtime.bench.launch import Outcome, run_ranks
from moerl_runtime.bench.rank import log_path
from moerl_runtime.bench.settings import MIB, Case, Settings
from moerl_runtime.plan import Node
from moerl_runtime.preflight.check import Check, judged
from moerl_runtime.preflight.expected import Expected
from moerl_runtime.preflight.peers import Meeting

PEERS_SECONDS = 1800.0
"""From the first node that is ready to the last, which may have to join, pull the image and fetch the model."""
MEET_SECONDS = 120.0
"""From then on, until every rank has started."""
SECONDS: Mapping[str, float] = {"nccl": 300.0, "deepep": 420.0}
"""Longest run of each kind. DeepEP compiles kernels the first time."""
WARMUPS, REPEATS = 1, 3
LARGEST_MIB = 1024
"""A broadcast of that size is what a weight refit does."""
TITLES: Mapping[str, str] = {"nccl": "NCCL", "deepep": "expert traffic"}
PEERS = "fabric peers"
_PEERS_FIX = (
    "Read the preflight of the missing ones, which wait for room or have failed; `kubectl -n rl get pods -o wide` shows their "
    "addresses. A policy that closes TCP among them looks the same."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """This node among those that work together."""

    host: str
    """Where the first one listens."""
    port: int
    """Nodes meet there; ranks on the ports after it."""
    nodes: int
    node: int
    addresses: tuple[str, ...] = ()
    """Of all nodes; empty where one name is all that is known."""


def placed(meeting: Meeting, own: str, port: int, nodes: int) -> tuple[Place | None, Check]:
    """None where not all came."""
    if meeting.addresses:
        node = meeting.addresses.index(own)
        found = f"{nodes} of {nodes} came; {own} is node {node}"
        place = Place(host=meeting.addresses[0], port=port, nodes=nodes, node=node, addresses=meeting.addresses)
        return place, Check(name=PEERS, status="ok", found=found)
    if meeting.unsound:
        return None, judged(
            PEERS,
            False,
            found=f"{len(meeting.unsound)} of {nodes} came to say that their own checks have failed: "
            f"{', '.join(meeting.unsound)}",
            needed=f"{nodes} sound nodes",
            fix="Read the preflight of those; `kubectl -n rl get pods -o wide` shows their addresses. This node's links were "
            "not tried.",
            cause="unsound-peer",
        )
    found = f"{len(meeting.known)} of {nodes} came"
    if len(meeting.known) == nodes:
        who = f"{len(meeting.silent)} of them, {', '.join(meeting.silent)}," if meeting.silent else "some of them"
        found = f"{nodes} of {nodes} have an address, but {who} did not get as far as this"
    check = judged(
        PEERS,
        False,
        found=found,
        needed=f"{nodes} nodes ready within {PEERS_SECONDS / 60:g} minutes",
        fix=_PEERS_FIX,
        cause="fabric-peers",
    )
    return None, check


def steps(
    plan: Node,
    expected: Expected,
    place: Place,
    *,
    on_cpu: bool = False,
    ranks: int | None = None,
    tokens: Sequence[int] | None = None,
    largest_mib: int = LARGEST_MIB,
) -> tuple[Settings, ...]:
    """What is run, in order. Raises InputFault for a pool without GPUs."""
    nccl = planned.settings(
        plan,
        expected.pool,
        kind="nccl",
        backend="gloo" if on_cpu else "nccl",
        host=place.host,
        port=place.port + 1,
        nodes=place.nodes,
        node=place.node,
        ranks=ranks,
    )
    nccl = replace(
        nccl,
        # Each GPU to its own kind on every other node, over the NICs of both. All distances would be connections of every
        # pair, which at 128 ranks take longer than all the rest.
        rings=tuple(distance * nccl.ranks_per_node for distance in range(1, place.nodes)),
        largest_bytes=largest_mib * MIB,
        warmups=WARMUPS,
        repeats=REPEATS,
        meet_seconds=MEET_SECONDS,
    )
    if expected.expert_nodes == 1:
        return (nccl,)
    # Groups are runs of consecutive nodes, and each needs the address of its own first one.
    together = expected.expert_nodes
    if not place.addresses or place.nodes % together:
        together = place.nodes
    first = place.node // together * together
    experts = planned.settings(
        plan,
        expected.pool,
        kind="deepep",
        backend="gloo" if on_cpu else "deep_ep",
        host=place.addresses[first] if place.addresses else place.host,
        port=place.port + 2,
        nodes=together,
        node=place.node - first,
        ranks=ranks,
    )
    shape = planned.fitting(expected.shape, experts.ranks)
    cases = tuple(Case(name=f"{count} tokens", shape=shape, tokens=count) for count in tokens or planned.DEFAULT_TOKENS)
    return nccl, replace(experts, cases=cases, warmups=WARMUPS, repeats=REPEATS, meet_seconds=MEET_SECONDS)


def run(
    settings: Settings,
    plan: Node,
    folder: Path,
    *,
    variables: Mapping[str, str],
    clock: Callable[[], float],
    pause: Callable[[float], object],
) -> tuple[list[str], tuple[Check, ...]]:
    """(table, checks) of one step. The table is the first node's alone."""
    outcome = run_ranks(settings, folder, variables=variables, seconds=SECONDS[settings.kind], clock=clock, pause=pause)
    return judge(settings, plan, outcome, _logs(settings, folder))


def judge(
    settings: Settings, plan: Node, outcome: Outcome, logs: Sequence[nccl_log.Evidence]
) -> tuple[list[str], tuple[Check, ...]]:
    """As a bench judges it. `logs` are what NCCL said on this node, for ranks that brought nothing."""
    lines, _, checks = conclusions(settings, plan, outcome)
    if not outcome.ranks:
        checks = tuple(_explained(check, logs) for check in checks)
    named = tuple(replace(check, name=f"{check.name} ({TITLES[settings.kind]})") for check in checks)
    return lines if settings.node == 0 else [], named


def proven(done: Sequence[Settings]) -> str:
    """What steps that passed have shown."""
    texts = []
    for settings in done:
        where = f"{settings.nodes} nodes x {settings.ranks_per_node} ranks"
        if settings.kind == "nccl":
            largest = settings.largest_bytes // MIB
            texts.append(f"{where}: send and receive, all-reduce, all-to-all, a broadcast of {largest} MiB")
        else:
            texts.append(f"groups of {where}: dispatch and combine equal to the plain reference")
    return "; ".join(texts)


def _logs(settings: Settings, folder: Path) -> list[nccl_log.Evidence]:
    paths = (log_path(folder, local_rank) for local_rank in range(settings.ranks_per_node))
    return [nccl_log.parse(path.read_text(encoding="utf-8", errors="replace")) for path in paths if path.is_file()]


def _explained(check: Check, logs: Sequence[nccl_log.Evidence]) -> Check:
    """With NCCL's warnings, which go to its log and not to what the rank prints."""
    warnings = list(dict.fromkeys(warning for log in logs for warning in log.warnings))[: nccl_log.WARNINGS_KEPT]
    sockets = any("Socket" in log.networks for log in logs)
    return replace(
        check,
        found="\n".join([check.found, *(f"NCCL: {warning}" for warning in warnings)]),
        cause="sockets-fallback" if sockets else check.cause,
    )
