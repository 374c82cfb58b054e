"""Spot takes a whole pool at once: nothing that existed on its nodes alone was needed."""

from __future__ import annotations

import pytest

from tests.images.runtime.agent.simulation import Agent, Engine, World, current

GROUPS, AGENTS, SAMPLES = 24, 4, 4


@pytest.mark.parametrize("warned", [True, False], ids=["with a notice", "without one"])
@pytest.mark.parametrize("lost_at_seconds", [1.0, 7.0, 30.0])
def test_a_pool_that_is_lost_as_a_whole_loses_no_task(warned: bool, lost_at_seconds: float) -> None:
    world = World(seed=3)
    world.point_at(current(0))
    for group in range(GROUPS):
        world.issue(group, samples=SAMPLES)

    def fleet(name: str) -> list[Agent]:
        return [Agent(world, Engine(world, seconds=lambda: 20.0), f"{name}-{place}") for place in range(AGENTS)]

    first = fleet("first")
    world.run_for(lost_at_seconds)
    assert not world.finished(GROUPS), "the loss has to come in the middle of the work"
    if warned:
        for agent in first:
            agent.notice()
        world.run_for(120.0)
    for agent in first:
        agent.kill()
    # For hours there is no capacity.
    world.run_for(2 * 3600.0)
    before = world.stored()
    fleet("second")
    world.run(lambda: world.finished(GROUPS, SAMPLES), limit_seconds=3600.0)
    assert all(samples <= world.stored()[group] for group, samples in before.items())


def test_what_was_stored_before_the_loss_is_not_made_again() -> None:
    world = World(seed=4)
    world.point_at(current(0))
    world.issue(0, samples=SAMPLES)
    seconds = iter([2.0, 2.0, 500.0, 500.0])
    lost = Agent(world, Engine(world, seconds=lambda: next(seconds)), "lost")
    world.run_for(20.0)
    assert world.stored() == {0: {0, 1}}
    lost.kill()
    later = Engine(world)
    Agent(world, later, "later")
    asked: set[int] = set()

    def done() -> bool:
        asked.update(request.effect.sample for request in later.asked.values())
        return world.finished(1, SAMPLES)

    world.run(done, limit_seconds=3600.0)
    assert asked == {2, 3}
