"""An agent is killed before and after every single call it makes; a second one does what is left.

Nothing may be lost, and nothing may count twice: a sample is one object whoever wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from moerl_runtime import protocol
from moerl_runtime.protocol import DeadLetter
from tests.images.runtime.agent.services import Moment
from tests.images.runtime.agent.simulation import QUEUES, Agent, Engine, Killed, World, current

GROUPS, SAMPLES = 3, 2
BROKEN_GROUP = 7
"""Its grader always fails: it has to end among the dead letters."""
ANSWER_SECONDS = 70.0
"""Long enough for a lease to be extended."""


class KillAt:
    """Kills at call number `number`, at that moment of it. Calls that only look are counted too."""

    def __init__(self, number: int, moment: Moment) -> None:
        self.left, self.moment = number, moment
        self.calls: list[str] = []

    def __call__(self, name: str, moment: Moment) -> None:
        if moment == self.moment:
            self.calls.append(name)
            self.left -= 1
            if self.left == 0:
                raise Killed(name)


def begun() -> World:
    world = World(seed=5)
    world.point_at(current())
    for group in (*range(GROUPS), BROKEN_GROUP):
        message = world.issue(group, samples=SAMPLES)
    written = json.loads(world.s3.objects[message.key][0]) | {"grader": "broken"}
    world.s3.put(message.key, json.dumps(written).encode())
    world.s3.put(protocol.sample_key(message.of, 1, 0), b"stored before, never announced")
    first = next(iter(world.sqs.queue(QUEUES.tasks).messages.values()))
    first.receives = 1
    queued = world.sqs.queue(QUEUES.tasks).messages
    queued[2].receives = 1  # group 1 was somebody's already
    return world


def over(world: World) -> bool:
    whole = {group: set(range(SAMPLES)) for group in range(GROUPS)}
    done = world.stored() == whole and world.announced() == whole
    return done and not world.sqs.queue(QUEUES.tasks).messages


def life(kill: KillAt, *, notice_seconds: float | None) -> tuple[World, Agent]:
    """One agent until it is killed or done."""
    world = begun()
    agent = Agent(world, Engine(world, seconds=lambda: ANSWER_SECONDS), "first", interfere=kill)
    if notice_seconds is not None:
        world.at(notice_seconds, agent.notice)
    world.run(lambda: not agent.alive or over(world), limit_seconds=1200)
    return world, agent


def check(world: World) -> None:
    """A second agent, on another node, finishes."""
    Agent(world, Engine(world), "second")
    world.run(lambda: over(world) and bool(world.sqs.queue(QUEUES.dead_letters).messages), limit_seconds=3600)
    letters = [
        protocol.decode(DeadLetter, each.body) for each in world.sqs.queue(QUEUES.dead_letters).messages.values()
    ]
    assert {letter.group for letter in letters} == {BROKEN_GROUP}
    assert all(letter.failures == 3 for letter in letters)
    samples = [key for key in world.s3.objects if "/samples/0" in key]
    assert len(samples) == len(set(samples)) == GROUPS * SAMPLES
    assert world.s3.objects[protocol.sample_key(current().of, 1, 0)][0] == b"stored before, never announced"


def calls_of(*, notice_seconds: float | None, moment: Moment) -> list[str]:
    counter = KillAt(0, moment)
    world, _ = life(counter, notice_seconds=notice_seconds)
    check(world)
    return counter.calls


@pytest.mark.parametrize("notice_seconds", [None, 5.0], ids=["serving", "draining"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_any_call_nothing_is_lost_and_nothing_counts_twice(
    moment: Moment, notice_seconds: float | None, proved: Callable[[str], None]
) -> None:
    calls = calls_of(notice_seconds=notice_seconds, moment=moment)
    served = {"put", "delete"} if notice_seconds is None else set()
    looks = {"get", "list"} if moment == "before" else set()
    assert {"receive", "send"} | served | looks <= set(calls)
    assert ("give back" if notice_seconds else "extend") in calls
    killed = 0
    for number in range(1, len(calls) + 1):
        world, agent = life(KillAt(number, moment), notice_seconds=notice_seconds)
        killed += not agent.alive
        check(world)
    assert killed == len(calls)
    proved(f"runtime: killed {moment} each of {killed} calls ({'draining' if notice_seconds else 'serving'}), lost = 0")
