"""Numbers of one agent: those of the plan, and this package's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isqrt

from moerl_runtime import plan as plans

FAILURES_MAX = 3
"""Own failures of a task before it goes to the dead-letter queue."""
CRASHES_SUSPECT = 2
"""Engines that ended with a task in them, before it is kept apart from those of which nothing is suspected."""
RESULTS_MAX = 20_000
"""Results that may wait for the trainer before agents stop pulling: a trainer that is away needs no more of them."""
POLL_SECONDS = 10
"""Of a long poll. A drain waits for the one that is open, since what it brings would stay invisible for a whole lease."""
POLL_SLACK_SECONDS = 5.0
"""A long poll that takes so much longer hangs; a drain does not wait for it. What it may bring comes back by itself."""
CURRENT_SECONDS = 5.0
PROBE_SECONDS = 5.0
DEPTH_SECONDS = 15.0
HEAR_SECONDS = 5.0
SILENT_LOOKS = 3
"""In a row without a report, before a follower counts as gone: 15 s. Followers report every 2 s; one whose agent alone is
started again is back before."""
LEASE_TOTAL_SECONDS = 11.5 * 3600
"""SQS ends a lease 12 h after its receive whatever is done; this much is used."""
WORK_SHARE = 0.6
"""Of the drain's budget: how long requests may end by themselves. 60 of 100 s."""
STOP_SHARE = 0.95
"""Of the drain's budget: what the agent itself uses."""
ABORT_SECONDS = 1.0
COUNT_SECONDS = 1.0
"""Between counts of what a router's clients still have in a draining engine."""
GIVE_BACK_SECONDS = 5.0
"""After the first abort of a drain: tasks whose replies still have not come are given back all the same."""
RETRIES_MAX = 8
"""Of one sample that the engine put off or lost, before that is the task's failure."""
BACKOFF_SECONDS, BACKOFF_SECONDS_MAX = 1.0, 30.0
GRADES_MAX = 20
"""Times that one answer is offered to graders without time, some nine minutes: they may have to come up on a new node. The answer
is held as long, for to generate it again costs more."""
GRADER_DELAY_SECONDS = 300
"""Of a task that goes back for want of a grader: other agents reach the same ones."""
RETRY_SECONDS = 2.0
"""Before a call is made again that boto3 itself has already tried several times."""
REFETCH_SECONDS = 5.0
GIVE_BACK_DELAY_SECONDS = 15
"""A task for weights that nobody has published yet."""
FOREIGN_DELAY_SECONDS = 60
"""A message of another protocol: its own agents will take it."""
BAD_WEIGHTS_SECONDS = 60.0
"""Before weights that did not load are tried again."""
START_PROBE_SECONDS = 1.0
UNHEALTHY_PROBES, UNREACHABLE_PROBES = 6, 2
"""In a row, before an engine that is not well, or that does not answer, counts as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    lease_seconds: int
    tasks_max: int
    requests_max: int
    drain_seconds: float
    engine_arguments: Mapping[str, int | str] = field(default_factory=dict)
    """SGLang's name of an argument to what it has to be: an engine that makes something else of its flags, such as no expert
    parallelism, answers all the same."""
    group_size: int = 1
    """Pods of the engine; the others report to this agent."""
    takes_tasks: bool = True
    """False behind a router: the trainer drives the engine and loads its weights."""
    failures_max: int = FAILURES_MAX
    results_max: int = RESULTS_MAX
    poll_seconds: int = POLL_SECONDS
    current_seconds: float = CURRENT_SECONDS


def read(plan: plans.Node, pool: str, *, takes_tasks: bool, poll_seconds: int = POLL_SECONDS) -> Settings:
    """Settings of the agents of a rollout pool. Raises InputFault for a plan that lacks a number."""
    rollout = plans.rollout(plan, pool)
    engine = rollout["engine"]
    return Settings(
        lease_seconds=plan["queue"]["visibility_seconds"].number,
        tasks_max=engine["tasks_max"].number,
        requests_max=engine["running_requests_max"].number,
        drain_seconds=engine["drain_budget_seconds"].number,
        engine_arguments=_engine_arguments(rollout),
        group_size=rollout["pods"]["pods_per_group"].number,
        takes_tasks=takes_tasks,
        poll_seconds=poll_seconds,
    )


def _engine_arguments(rollout: plans.Node) -> dict[str, int | str]:
    geometry, engine = rollout["geometry"], rollout["engine"]
    planned: dict[str, int | str] = {
        "tp_size": geometry["gpus_per_engine"].number,
        "ep_size": geometry["expert_parallel"].number,
        "dp_size": engine["attention_data_parallel"].number,
        "moe_a2a_backend": rollout["backend"].text,
    }
    if engine["deepep_v2_mode"].value is not None:  # releases without deepep_v2 know no such argument
        planned["deepep_v2_mode"] = engine["deepep_v2_mode"].text
    return planned


def company(crashes: int, tasks_max: int) -> int:
    """Most tasks that an engine works at together with one that was in so many engines when they ended.

    Anything may end an engine once. After the second time the tasks that were there are told apart as group tests do it: some √n
    of n together, then one by one those whose engine ends again. One by one at once would take n turns of a fleet of one engine,
    halves would cost more engines.
    """
    if crashes < CRASHES_SUSPECT:
        return tasks_max
    return isqrt(tasks_max) if crashes == CRASHES_SUSPECT else 1


def backoff(tries: int) -> float:
    """Seconds before try number `tries` + 1."""
    return min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS * 2.0 ** min(tries, 10))
