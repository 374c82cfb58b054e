"""A task that ends every engine it is given to: it is found and buried, and no other one for its sake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from moerl_runtime import protocol
from moerl_runtime.agent import effects as do
from moerl_runtime.agent.settings import GIVE_BACK_DELAY_SECONDS, company
from moerl_runtime.agent.states import State
from moerl_runtime.protocol import DeadLetter
from tests.images.runtime.agent.simulation import QUEUES, SETTINGS, Agent, Engine, World, current

SAMPLES = 2
RESTART_SECONDS = 120.0
FLEETS = [(1, 16), (2, 8), (4, 8), (4, 16), (2, 32)]
"""(agents, tasks of one)"""


class Poisoned:
    """A fleet in the middle of whose work is one task, or some, that ends engines. Answers take up to a minute."""

    def __init__(self, agents: int, tasks_max: int, *, groups: int, poisons: set[int], seed: int = 0) -> None:
        self.world, self.groups, self.poisons = World(seed), groups, poisons
        self.crashes = 0
        self.world.point_at(current())
        for group in range(groups):
            self.world.issue(group, samples=SAMPLES)
        settings = replace(SETTINGS, tasks_max=tasks_max, requests_max=tasks_max * SAMPLES)
        self.agents = [Agent(self.world, self._engine(), f"agent-{n}", settings=settings) for n in range(agents)]

    def _engine(self) -> Engine:
        chance = self.world.chance
        engine = Engine(self.world, seconds=lambda: chance.uniform(5, 60))
        ask = engine.ask

        def fragile(effect: do.Generate, answer: Callable[[do.Event], None]) -> None:
            ask(effect, answer)
            if effect.payload.group in self.poisons:
                self.world.at(chance.uniform(0.5, 4), lambda: self.end(engine, effect.request_id))

        engine.ask = fragile  # type: ignore[method-assign]
        return engine

    def end(self, engine: Engine, request_id: str | None = None) -> None:
        """An engine ends, if the request that ends it is still there."""
        if engine.alive and (request_id is None or request_id in engine.asked):
            self.crashes += 1
            engine.die()
            self.world.at(RESTART_SECONDS, engine.restart)

    def run(self) -> None:
        whole = {group: set(range(SAMPLES)) for group in range(self.groups) if group not in self.poisons}
        self.world.run(
            lambda: not self.world.sqs.queue(QUEUES.tasks).messages and self.world.announced() == whole,
            limit_seconds=3 * 3600,
        )

    @property
    def dead(self) -> list[DeadLetter]:
        return [
            protocol.decode(DeadLetter, each.body)
            for each in self.world.sqs.queue(QUEUES.dead_letters).messages.values()
        ]


@pytest.mark.parametrize("windows", [1, 3])
@pytest.mark.parametrize(("agents", "tasks_max"), FLEETS)
def test_one_poison_costs_no_innocent_task(agents: int, tasks_max: int, windows: int) -> None:
    for seed in range(4):
        fleet = Poisoned(agents, tasks_max, groups=windows * agents * tasks_max, poisons={3}, seed=seed)
        fleet.run()
        (letter,) = fleet.dead
        assert (letter.group, letter.failures) == (3, SETTINGS.failures_max)
        assert "the engine ended while it worked at it alone" in letter.reason
        assert fleet.crashes <= 6, "each is an engine's start"


def test_several_poisons_are_all_found_and_nothing_else() -> None:
    fleet = Poisoned(4, 8, groups=64, poisons={3, 20, 41})
    fleet.run()
    assert {letter.group for letter in fleet.dead} == fleet.poisons


def test_an_engine_that_ends_once_keeps_no_task_from_company() -> None:
    """Engines end for reasons of their own, and a whole fleet would wait for the tasks of one."""
    fleet = Poisoned(2, 8, groups=48, poisons=set())
    most: Counter[int] = Counter()

    def ends() -> None:
        fleet.end(fleet.agents[0].engine)

    fleet.world.at(20.0, ends)

    def watched() -> None:
        for place, agent in enumerate(fleet.agents):
            crashed = sum(lease.message.crashes == 1 for lease in agent.core.ledger.leases.values() if lease.inside)
            most[place] = max(most[place], crashed and sum(lease.inside for lease in agent.core.ledger.leases.values()))
        fleet.world.at(1.0, watched)

    watched()
    fleet.run()
    assert fleet.dead == []
    assert max(most.values()) == 8


@pytest.mark.parametrize(("crashes", "together"), [(0, 16), (1, 16), (2, 4), (3, 1), (9, 1)])
def test_suspects_are_worked_at_in_no_more_company_than_they_may_have(crashes: int, together: int) -> None:
    assert company(crashes, 16) == together
    world, most = World(seed=2), 0
    world.point_at(current())
    for group in range(20):
        world.issue(group, samples=1, crashes=crashes)
    agent = Agent(world, Engine(world), settings=replace(SETTINGS, tasks_max=16))

    def over() -> bool:
        nonlocal most
        most = max(most, len(agent.engine.asked))
        return world.finished(20, 1)

    world.run(over, limit_seconds=3600)
    # One long poll brings ten, and none follows while there are suspects.
    assert most == min(together, 10) if together < 16 else most > 10


def test_a_suspect_waits_until_the_engine_is_empty_and_nothing_is_leased_meanwhile() -> None:
    world = World()
    world.point_at(current())
    engine = Engine(world, seconds=lambda: 30.0)
    for group in range(3):
        world.issue(group, samples=1)
    agent = Agent(world, engine, settings=replace(SETTINGS, tasks_max=8))
    world.run_for(5)
    world.issue(3, samples=1, crashes=3)
    world.run_for(5)
    for group in range(4, 8):
        world.issue(group, samples=1)
    world.run_for(5)
    assert {asked.effect.payload.group for asked in engine.asked.values()} == {0, 1, 2}
    assert len(agent.core.ledger.leases) == 4
    world.run_for(25)
    assert {asked.effect.payload.group for asked in engine.asked.values()} == {3}
    world.run(lambda: world.finished(8, 1), limit_seconds=300)


def test_a_task_is_not_alone_with_requests_that_nobody_wants_any_more() -> None:
    """They may be what ends the engine, whatever became of their task."""
    world = World()
    world.point_at(current())
    engine = Engine(world, seconds=lambda: 60.0)
    world.issue(0, samples=1)
    Agent(world, engine)
    world.run_for(5)
    engine.stuck = True  # an abort ends nothing
    world.point_at(current(attempt=2))
    world.issue(1, samples=1, of=current(attempt=2).of, crashes=3)
    world.run_for(30)
    assert "abort" in engine.calls
    assert {asked.effect.payload.group for asked in engine.asked.values()} == {0}
    engine.stuck = False
    engine.abort_all()
    world.run(
        lambda: {asked.effect.payload.group for asked in engine.asked.values()} == {1},
        limit_seconds=GIVE_BACK_DELAY_SECONDS + 5,
    )


@pytest.mark.parametrize("after_seconds", [0.0, 0.5])
def test_a_crash_counts_where_the_pod_is_stopped_for_it_before_a_probe_can_tell(after_seconds: float) -> None:
    """LeaderWorkerSet ends all pods of a group whose engine has ended; uncounted, its task would end the next one."""
    world = World()
    world.point_at(current())
    engine = Engine(world, seconds=lambda: 100.0)
    world.issue(0, samples=1)
    agent = Agent(world, engine)
    world.run_for(5)
    engine.die()
    world.run_for(after_seconds)
    assert agent.core.state is State.SERVING, "it has to be before that"
    agent.tell(do.Stopped())
    world.run(lambda: not agent.alive, limit_seconds=SETTINGS.drain_seconds)
    (message,) = world.sqs.queue(QUEUES.tasks).messages.values()
    task = protocol.decode(protocol.TaskMessage, message.body)
    assert (task.crashes, task.failures) == (1, 1)


def test_alone_in_an_engine_that_ends_is_an_own_failure_and_in_company_is_none() -> None:
    for together, failures in ((1, 1), (2, 0)):
        world = World()
        world.point_at(current())
        engine = Engine(world, seconds=lambda: 100.0)
        for group in range(together):
            world.issue(group, samples=1)
        agent = Agent(world, engine)
        world.run_for(5)
        engine.die()
        world.run_for(10)
        assert agent.metrics.value("moerl_agent_tasks_total", outcome="failed") == failures
        found = [
            protocol.decode(protocol.TaskMessage, each.body) for each in world.sqs.queue(QUEUES.tasks).messages.values()
        ]
        assert [(message.crashes, message.failures) for message in found] == [(1, failures)] * together
