"""A drain fits its budget whatever hangs, loses nothing, and gives back at once what it cannot finish."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moerl_runtime.agent import effects as do
from moerl_runtime.agent.core import BROKEN, LEFT_LEASED, ORDERLY
from moerl_runtime.agent.states import State
from tests.images.runtime.agent.simulation import QUEUES, SETTINGS, Agent, Engine, Member, World, current
from tests.images.runtime.agent.test_serving import outcomes, sample_of

BUDGET_SECONDS = SETTINGS.drain_seconds
KUBELET_GRACE_SECONDS, SPOT_SECONDS = 110, 120


@pytest.fixture
def world() -> World:
    made = World()
    made.point_at(current())
    return made


def drained(world: World, agent: Agent) -> float:
    """Seconds from now to its end."""
    begun = world.now
    world.run(lambda: not agent.alive, limit_seconds=BUDGET_SECONDS)
    return world.now - begun


def visible(world: World) -> int:
    return world.sqs.visible(QUEUES.tasks)


def busy(world: World, *, groups: int = 4, seconds: float, **more: object) -> tuple[Agent, Engine]:
    """An agent with tasks whose answers take so long."""
    for group in range(groups):
        world.issue(group)
    engine = Engine(world, seconds=lambda: seconds)
    agent = Agent(world, engine, **more)  # type: ignore[arg-type]
    world.run_for(5)
    return agent, engine


def test_short_requests_end_by_themselves_and_are_published(world: World) -> None:
    agent, engine = busy(world, seconds=30.0)
    agent.notice()
    assert drained(world, agent) < 45
    assert agent.core.exit_code == ORDERLY
    assert outcomes(agent) == {"completed": 4}
    assert world.finished(4)
    assert "abort_all" not in engine.calls[-5:]


def test_long_requests_are_aborted_after_a_minute_and_their_tasks_visible_at_once(world: World) -> None:
    agent, engine = busy(world, seconds=1000.0)
    agent.notice()
    world.run_for(59)
    assert visible(world) == 0
    assert len(engine.asked) == 16
    world.run_for(4)
    assert visible(world) == 4
    assert not agent.alive
    assert (agent.core.exit_code, outcomes(agent)) == (ORDERLY, {"returned": 4})
    assert not world.stored()


def test_tasks_that_have_not_begun_go_back_at_once(world: World) -> None:
    settings = replace(SETTINGS, requests_max=4)
    agent, _ = busy(world, seconds=1000.0, settings=settings)
    agent.notice()
    world.run_for(1)
    assert visible(world) == 3
    assert len(agent.core.ledger.leases) == 1


def test_nothing_new_is_leased_or_asked_for_once_it_drains(world: World) -> None:
    agent, _ = busy(world, seconds=20.0, settings=replace(SETTINGS, requests_max=2))
    agent.notice()
    before = len(agent.performed)
    world.issue(9)
    drained(world, agent)
    later = {type(effect) for effect in agent.performed[before:]}
    assert not later & {do.Receive, do.Generate, do.ReadTask, do.Fetch, do.Load}


def test_what_an_open_long_poll_brings_after_the_notice_is_given_back(world: World) -> None:
    agent = Agent(world, Engine(world))
    world.run_for(2)
    agent.notice()
    world.issue(0)
    drained(world, agent)
    assert visible(world) == 1
    assert agent.core.exit_code == ORDERLY


def test_an_idle_agent_is_gone_after_its_long_poll(world: World) -> None:
    agent = Agent(world, Engine(world))
    world.run_for(15)
    agent.tell(do.Stopped())
    assert drained(world, agent) <= SETTINGS.poll_seconds + 1


def test_a_second_notice_changes_nothing(world: World) -> None:
    agent, _ = busy(world, seconds=1000.0)
    agent.notice()
    world.run_for(50)
    agent.tell(do.Stopped())
    agent.notice("rebalance")
    assert drained(world, agent) < 15
    assert agent.metrics.value("moerl_agent_interruptions_total", reason="spot") == 1
    assert agent.metrics.value("moerl_agent_interruptions_total", reason="stop") == 0


# --- what hangs -------------------------------------------------------------------------------------------------------


def test_a_stuck_abort_holds_up_neither_the_tasks_nor_the_end(world: World) -> None:
    agent, engine = busy(world, seconds=1000.0)
    engine.stuck = True
    agent.notice()
    world.run_for(60 + 6)
    assert visible(world) == 4
    assert engine.calls.count("abort_all") >= 6, "it is repeated each second"
    assert 25 < drained(world, agent) <= BUDGET_SECONDS - 66
    assert agent.core.exit_code == ORDERLY


def test_an_abort_call_that_never_returns_holds_up_nothing_either(world: World) -> None:
    agent, _ = busy(world, seconds=1000.0)
    agent.hung |= {do.AbortAll}
    agent.notice()
    world.run_for(60 + 6)
    assert visible(world) == 4
    drained(world, agent)
    assert agent.core.exit_code == ORDERLY
    assert len([effect for effect in agent.performed if isinstance(effect, do.AbortAll)]) == 1


def test_a_dead_engine_ends_a_drain_early_and_is_nobodys_failure(world: World) -> None:
    agent, engine = busy(world, seconds=1000.0)
    agent.notice()
    world.run_for(5)
    engine.die()
    assert drained(world, agent) < 5
    assert outcomes(agent) == {"returned": 4}
    assert visible(world) == 4


def test_an_s3_that_hangs_does_not_outlast_the_budget_and_its_tasks_go_back(world: World) -> None:
    agent, _ = busy(world, seconds=20.0)
    agent.hung |= {do.Publish}
    agent.notice()
    assert drained(world, agent) <= BUDGET_SECONDS
    assert visible(world) == 4
    assert outcomes(agent) == {"returned": 4}


def test_an_sqs_that_hangs_ends_it_with_its_own_code_and_the_leases_run_out(world: World) -> None:
    agent, _ = busy(world, seconds=1000.0)
    agent.hung |= {do.GiveBack, do.Receive}
    agent.notice()
    assert drained(world, agent) <= BUDGET_SECONDS
    assert agent.core.exit_code == LEFT_LEASED
    world.run_for(SETTINGS.lease_seconds)
    assert visible(world) == 4


def test_a_long_poll_that_hangs_is_not_waited_for(world: World) -> None:
    agent = Agent(world, Engine(world))
    agent.hung |= {do.Receive}
    world.run_for(3)
    agent.notice()
    assert drained(world, agent) < SETTINGS.poll_seconds + 6
    assert agent.core.exit_code == ORDERLY


def test_a_load_that_hangs_is_not_waited_for(world: World) -> None:
    agent, engine = busy(world, seconds=1000.0)
    agent.hung |= {do.Load}
    world.point_at(current(1))
    world.run_for(20)
    assert engine.paused, "a load that hangs holds what runs"
    agent.notice()
    world.run_for(60 + 6)
    assert not engine.paused
    assert visible(world) == 4
    drained(world, agent)
    assert (agent.core.exit_code, outcomes(agent)) == (ORDERLY, {"returned": 4})
    assert not world.stored()


@pytest.mark.parametrize("ends", ["gone", "silent"])
def test_a_lost_part_of_the_engine_gives_tasks_back_whatever_a_load_does(world: World, ends: str) -> None:
    for group in range(4):
        world.issue(group)
    engine = Engine(world, seconds=lambda: 1000.0)
    agent = Agent(world, engine, settings=replace(SETTINGS, group_size=2))
    member = Member(world, agent)
    member.say(current())
    world.run_for(5)
    assert len(engine.asked) == 16
    agent.hung |= {do.Load}
    world.point_at(current(1))
    world.run_for(20)
    member.say(current(1))
    world.run_for(5)
    assert engine.paused, "a load that hangs holds what runs"
    if ends == "gone":
        member.say(engine=False)
    else:
        member.fall_silent()
    world.run_for(25)
    assert outcomes(agent) == {"returned": 4}
    agent.notice()
    assert drained(world, agent) <= BUDGET_SECONDS
    assert agent.core.exit_code == ORDERLY


def test_a_give_back_that_fails_is_tried_again(world: World) -> None:
    failing = {"left": 3}

    def interfere(name: str, moment: str) -> None:
        if name == "give back" and moment == "before" and failing["left"]:
            failing["left"] -= 1
            raise OSError("connection reset")

    agent, _ = busy(world, seconds=1000.0, interfere=interfere)
    agent.notice()
    drained(world, agent)
    assert (visible(world), agent.core.exit_code) == (4, ORDERLY)


# --- weights in a drain -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_seconds", [0.05, 2.0, 5.1], ids=["pausing", "loading", "verifying"])
def test_a_pause_ends_first_and_what_it_held_is_finished_or_aborted(world: World, step_seconds: float) -> None:
    agent, engine = busy(world, seconds=15.0, fetch_seconds=0.1)
    world.point_at(current(1))
    world.run(lambda: agent.core.weights.swapping, limit_seconds=30)
    world.run_for(step_seconds)
    agent.notice()
    drained(world, agent)
    assert not engine.paused
    assert not engine.asked
    assert agent.core.exit_code == ORDERLY
    assert sum(outcomes(agent).values()) == 4


def test_a_fetch_is_forgotten_in_a_drain(world: World) -> None:
    agent, engine = busy(world, seconds=10.0, fetch_seconds=8.0)
    world.point_at(current(1))
    world.run_for(5)
    assert agent.core.weights.reload is not None
    agent.notice()
    drained(world, agent)
    assert "load" not in engine.calls
    assert agent.core.exit_code == ORDERLY


def test_weights_refused_in_a_drain_leave_no_sample_behind(world: World) -> None:
    """The load was under way when the notice came; nobody restores anything now, so no answer can be believed."""
    agent, engine = busy(world, seconds=30.0, fetch_seconds=0.1, load_seconds=10.0)
    engine.bad_paths.add("/models/00000100000001")
    world.point_at(current(1))
    world.run(lambda: agent.core.weights.swapping, limit_seconds=30)
    world.run_for(2)
    agent.notice()
    drained(world, agent)
    assert not world.stored()
    assert visible(world) == 4
    assert agent.core.exit_code == BROKEN


def test_an_answer_that_comes_while_a_load_is_not_over_is_not_believed(world: World) -> None:
    """The drain ended the pause; whether this answer is from old weights, new ones, or neither, nobody knows yet."""
    agent, engine = busy(world, groups=1, seconds=30.0, fetch_seconds=0.1, load_seconds=20.0)
    world.point_at(current(1))
    world.run(lambda: agent.core.weights.swapping, limit_seconds=30)
    world.run_for(2)
    agent.notice()
    world.run_for(1)
    assert not engine.paused
    engine._finish(sorted(engine.asked)[0])
    drained(world, agent)
    published = [effect.sample for effect in agent.performed if isinstance(effect, do.Publish)]
    assert sorted(published) == [1, 2, 3], "those that ended after the load"
    assert outcomes(agent) == {"returned": 1}


# --- group, router, kubelet -------------------------------------------------------------------------------------------


def test_a_notice_on_a_followers_node_drains_the_engine(world: World) -> None:
    from moerl_runtime.imds import Notice

    agent, _ = busy(world, seconds=1000.0)
    agent.tell(do.Noticed(Notice(reason="spot", text="{}"), member=3))
    assert agent.core.state is State.DRAINING
    drained(world, agent)
    assert agent.metrics.value("moerl_agent_interruptions_total", reason="spot") == 1
    assert any("pod 3" in line for line in world.logs)


def behind_router(world: World) -> tuple[Agent, Engine]:
    engine = Engine(world)
    agent = Agent(world, engine, settings=replace(SETTINGS, takes_tasks=False))
    world.run_for(5)
    return agent, engine


def test_behind_a_router_it_registers_takes_no_task_and_deregisters_first(world: World) -> None:
    world.issue(0)
    agent, engine = behind_router(world)
    world.run_for(60)
    assert agent.core.view.ready
    assert visible(world) == 1
    assert "load" not in engine.calls
    assert not {"resume", "abort_all"} & set(engine.calls)
    before = len(agent.performed)
    agent.notice()
    assert isinstance(agent.performed[before], do.Deregister)
    assert drained(world, agent) < 2


def test_requests_of_the_routers_clients_have_their_minute_and_are_then_aborted(world: World) -> None:
    agent, engine = behind_router(world)
    payload = object()
    for number in range(3):
        effect = do.Generate(0, 0, f"other-{number}", payload, "")  # type: ignore[arg-type]
        engine.seconds = lambda: 1000.0
        engine.ask(effect, lambda _: None)
    agent.notice()
    world.run_for(59)
    assert len(engine.asked) == 3
    world.run_for(5)
    assert not engine.asked
    assert not agent.alive


def test_requests_of_the_routers_clients_that_end_by_themselves_end_the_drain(world: World) -> None:
    agent, engine = behind_router(world)
    engine.seconds = lambda: 20.0
    engine.ask(do.Generate(0, 0, "other", object(), ""), lambda _: None)  # type: ignore[arg-type]
    agent.notice()
    assert 19 < drained(world, agent) < 23
    assert "abort_all" not in engine.calls


def test_a_router_that_is_away_keeps_a_drain_no_longer_than_its_work(world: World) -> None:
    agent, _ = behind_router(world)
    agent.hung |= {do.Deregister}
    agent.notice()
    assert drained(world, agent) <= 0.6 * BUDGET_SECONDS
    assert agent.core.exit_code == ORDERLY


def test_the_kubelets_order_of_stops_fits_a_spot_notice(world: World) -> None:
    """SIGTERM goes to the agent, and to the engine (a native sidecar) when the agent has ended: 110 s of grace for both."""
    agent, engine = busy(world, seconds=1000.0)
    agent.tell(do.Stopped())
    seconds = drained(world, agent)
    engine_exit_seconds = 5 + 15  # SGLang looks every 5 s, then waits up to 15 s for its schedulers
    assert not engine.asked, "an engine with requests would not end by itself"
    assert seconds + engine_exit_seconds < KUBELET_GRACE_SECONDS < SPOT_SECONDS


def test_a_partial_answer_is_not_stored_but_a_complete_one_that_came_late_is(world: World) -> None:
    agent, engine = busy(world, groups=1, seconds=58.0)
    engine.asked[sorted(engine.asked)[0]].tags[:] = ["0"]
    agent.notice()
    drained(world, agent)
    assert outcomes(agent) == {"completed": 1}
    assert sample_of(world, 0, 3).status == "completed"
