"""Weights change under work: every sample says what served it, and an engine of unknown weights serves nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from moerl_runtime import protocol
from moerl_runtime.agent import effects as do
from moerl_runtime.agent.core import BROKEN
from moerl_runtime.agent.settings import HEAR_SECONDS, SILENT_LOOKS
from moerl_runtime.agent.states import State
from moerl_runtime.agent.weights import Step, tag_of, version_of
from moerl_runtime.protocol import Attempt, Current
from tests.images.runtime.agent.simulation import BASE, QUEUES, SETTINGS, Agent, Engine, Member, World, current
from tests.images.runtime.agent.test_serving import outcomes, sample_of, served


@pytest.fixture
def world() -> World:
    made = World()
    made.point_at(current())
    return made


def kinds(agent: Agent) -> list[str]:
    """Effects that concern weights, in order."""
    wanted = (do.Fetch, do.Pause, do.Load, do.Verify, do.Resume)
    return [type(effect).__name__ for effect in agent.performed if isinstance(effect, wanted)]


def test_a_base_model_that_the_engine_was_started_with_is_not_loaded_again(world: World) -> None:
    agent = Agent(world, Engine(world))
    world.run_for(10)
    assert agent.core.view.ready
    assert kinds(agent) == []


def test_an_idle_engine_is_not_paused_and_its_cache_is_flushed(world: World) -> None:
    agent = Agent(world, Engine(world))
    world.run_for(10)
    world.point_at(current(1))
    world.run_for(20)
    assert kinds(agent) == ["Fetch", "Load", "Verify"]
    assert [effect.flush for effect in agent.performed if isinstance(effect, do.Load)] == [True]
    assert agent.metrics.value("moerl_agent_weight_version") == 1
    assert agent.metrics.value("moerl_agent_weight_load_seconds") == pytest.approx(8.1, abs=0.5)


def test_a_working_engine_is_paused_loads_without_a_flush_and_goes_on(world: World) -> None:
    world.issue(0)
    agent = Agent(world, Engine(world, seconds=lambda: 40.0))
    world.run_for(5)
    world.point_at(current(1))
    served(world, 1)
    assert kinds(agent) == ["Fetch", "Pause", "Load", "Verify", "Resume"]
    assert [effect.flush for effect in agent.performed if isinstance(effect, do.Load)] == [False]


@pytest.mark.parametrize("spans", [True, False], ids=["0.5.19 names spans", "0.5.17 names the last version"])
def test_a_sample_names_every_version_that_served_it(world: World, spans: bool) -> None:
    world.issue(0)
    engine = Engine(world, seconds=lambda: 60.0)
    engine.spans = spans
    Agent(world, engine, fetch_seconds=1.0, load_seconds=1.0)
    world.run_for(5)
    world.point_at(current(1))
    world.run_for(15)
    world.point_at(current(3))
    served(world, 1)
    assert sample_of(world, 0, 0).versions == (0, 1, 3)


def test_requests_sent_after_a_reload_have_a_cache_of_their_own(world: World) -> None:
    world.issue(0)
    agent = Agent(world, Engine(world))
    served(world, 1)
    world.point_at(current(1))
    world.run_for(30)
    world.issue(1)
    served(world, 2)
    keys = [effect.cache_key for effect in agent.performed if isinstance(effect, do.Generate)]
    assert set(keys[:4]) == {"0"}
    assert set(keys[4:]) == {"00000100000001"}


def test_nothing_is_sent_to_an_engine_while_its_weights_change(world: World) -> None:
    world.issue(0)
    engine = Engine(world, seconds=lambda: 30.0)
    agent = Agent(world, engine, load_seconds=20.0)
    world.run_for(5)
    world.point_at(current(1))
    world.run(lambda: agent.core.weights.swapping, limit_seconds=30)
    world.issue(1)
    world.run_for(19)
    assert agent.core.weights.swapping
    assert len(agent.core.ledger.leases) == 2
    assert len([effect for effect in agent.performed if isinstance(effect, do.Generate)]) == 4
    served(world, 2)
    assert sample_of(world, 1, 0).versions == (1,)


def test_versions_that_come_faster_than_they_load_are_skipped(world: World) -> None:
    agent = Agent(world, Engine(world), fetch_seconds=10.0)
    for version in range(1, 11):
        world.at(3.0 * version, lambda version=version: world.point_at(current(version)))  # type: ignore[misc]
    world.run(lambda: agent.metrics.value("moerl_agent_weight_version") == 10, limit_seconds=120)
    loads = [effect.tag for effect in agent.performed if isinstance(effect, do.Load)]
    assert len(loads) < 6
    assert loads == sorted(loads)


def test_a_new_attempt_starts_from_its_own_first_version_whatever_the_engine_held(world: World) -> None:
    """The base model again, where nothing was resumed: attempt 1's last weights are not attempt 2's first."""
    world.point_at(current(3))
    engine = Engine(world)
    agent = Agent(world, engine)
    world.run_for(30)
    assert engine.tag == "00000100000003"
    world.point_at(current(0, attempt=2))
    second = Attempt(run="run", number=2)
    world.issue(0, of=second)
    world.run(lambda: world.stored(second) == {0: {0, 1, 2, 3}}, limit_seconds=60)
    assert engine.tag == "00000200000000"
    assert [effect.path for effect in agent.performed if isinstance(effect, do.Load)][-1] == BASE
    assert sample_of(world, 0, 0, second).versions == (0,)


def test_another_run_with_the_same_numbers_is_not_taken_for_this_one(world: World) -> None:
    world.point_at(current(1))
    engine = Engine(world)
    agent = Agent(world, engine)
    world.run_for(30)
    loads = engine.calls.count("load")
    world.point_at(current(1, run="another"))
    world.run_for(30)
    assert engine.calls.count("load") == loads + 1
    assert agent.core.view.ready


def test_a_version_that_cannot_be_fetched_gives_way_to_the_newest(world: World) -> None:
    agent = Agent(world, Engine(world))
    world.run_for(5)
    fetch, gone = agent.around.fetch, current(1)

    def sometimes(wanted: Current) -> Path:
        if wanted == gone:
            raise OSError("no such version")
        return fetch(wanted)

    agent.around = replace(agent.around, fetch=sometimes)
    world.point_at(gone)
    world.run_for(20)
    assert agent.core.view.ready, "it serves what it has"
    world.point_at(current(2))
    world.run(lambda: agent.metrics.value("moerl_agent_weight_version") == 2, limit_seconds=60)


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_refused_weights_are_replaced_by_the_last_good_ones_before_anything_goes_on(world: World) -> None:
    world.point_at(current(1))
    for group in range(6):
        world.issue(group)
    engine = Engine(world, seconds=lambda: 15.0)
    agent = Agent(world, engine)
    engine.bad_paths.add("/models/00000100000002")
    world.run_for(20)
    world.point_at(current(2))
    served(world, 6)
    assert engine.met_half_loaded == 0
    assert engine.tag == "00000100000001"
    assert {sample_of(world, group, 0).versions for group in range(6)} == {(1,)}
    assert agent.core.state is State.SERVING
    engine.bad_paths.clear()
    world.run(lambda: agent.metrics.value("moerl_agent_weight_version") == 2, limit_seconds=120)


def test_tasks_that_need_refused_weights_go_back(world: World) -> None:
    engine = Engine(world)
    engine.bad_paths.add("/models/00000100000001")
    agent = Agent(world, engine)
    world.run_for(5)
    world.point_at(current(1))
    world.issue(0, version_min=1)
    world.run(lambda: bool(outcomes(agent)), limit_seconds=60)
    assert outcomes(agent) == {"returned": 1}


def test_an_engine_that_takes_neither_new_nor_old_weights_ends_its_agent(world: World) -> None:
    world.point_at(current(1))
    world.issue(0)
    engine = Engine(world, seconds=lambda: 100.0)
    agent = Agent(world, engine)
    world.run_for(30)
    engine.bad_paths |= {"/models/00000100000002", "/models/00000100000001"}
    world.point_at(current(2))
    world.run(lambda: not agent.alive, limit_seconds=60)
    assert agent.core.exit_code == BROKEN
    assert not world.stored(), "no answer of such an engine is stored"
    assert world.sqs.visible(QUEUES.tasks) == 1


def test_an_answer_of_an_engine_that_is_not_believed_any_more_is_not_stored(world: World) -> None:
    world.point_at(current(1))
    world.issue(0)
    engine = Engine(world, seconds=lambda: 1e5)
    agent = Agent(world, engine)
    world.run_for(30)
    engine.bad_paths |= {"/models/00000100000002", "/models/00000100000001"}
    world.point_at(current(2))
    world.run(lambda: agent.core.exit_code == BROKEN, limit_seconds=60)
    engine.paused = False
    engine._finish(sorted(engine.asked)[0])
    world.run_for(1)
    assert not [effect for effect in agent.performed if isinstance(effect, do.Publish)]


def test_a_load_that_claims_success_under_another_name_is_not_believed(world: World) -> None:
    engine = Engine(world)
    agent = Agent(world, engine)
    world.run_for(5)
    load = engine.load

    def forgetful(path: str, *, tag: str, flush: bool) -> None:
        load(path, tag="something else" if tag.endswith("1") else tag, flush=flush)

    engine.load = forgetful  # type: ignore[method-assign]
    world.point_at(current(1))
    world.run_for(20)
    assert any("'something else'" in line for line in world.logs)
    assert engine.tag == "0", "the base model is back"
    assert agent.core.view.ready


def test_an_engine_half_loaded_by_an_agent_that_died_is_not_taken_for_a_fresh_one(world: World) -> None:
    """The failed load has left the engine's first tag in place, and its first weights are gone."""
    engine = Engine(world)
    engine.bad_paths.add("/models/00000100000001")
    first = Agent(world, engine)
    world.run_for(5)
    world.point_at(current(1))
    world.run(lambda: engine.half_loaded, limit_seconds=60)
    first.kill()
    assert engine.tag == "0"
    world.point_at(current(0))
    world.issue(0)
    second = Agent(world, engine, "second")
    served(world, 1)
    assert engine.met_half_loaded == 0
    assert "Load" in kinds(second)


def test_an_engine_that_dies_in_a_load_is_nobodys_failure(world: World) -> None:
    world.issue(0)
    engine = Engine(world, seconds=lambda: 200.0)
    agent = Agent(world, engine, load_seconds=20.0)
    world.run_for(5)
    world.point_at(current(1))
    world.run(lambda: agent.core.weights.swapping, limit_seconds=30)
    world.run_for(5)
    engine.die()
    world.run_for(30)
    assert outcomes(agent) == {"returned": 2}, "the second time by the long poll that was open"
    assert agent.core.state is State.STARTING


def test_a_probe_that_a_reload_overtook_says_nothing(world: World) -> None:
    agent = Agent(world, Engine(world))
    world.run_for(10)
    agent.core.handle(do.Due("probe"), world.now)
    world.point_at(current(1))
    world.run(lambda: agent.metrics.value("moerl_agent_weight_version") == 1, limit_seconds=60)
    agent.tell(do.Probed("0"))
    assert agent.core.state is State.SERVING


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_group_serves_when_every_pod_is_there_and_loads_when_every_node_has_the_version(world: World) -> None:
    engine = Engine(world)
    agent = Agent(world, engine, settings=replace(SETTINGS, group_size=3))
    members = {number: Member(world, agent, number) for number in (1, 2)}
    world.run_for(10)
    assert agent.core.state is State.STARTING
    members[1].say(None)
    members[2].say(None)
    assert agent.core.state is State.SERVING
    world.point_at(current(1))
    world.run_for(30)
    assert agent.core.view.target == current(1)
    members[1].say(current(1))
    world.run_for(5)
    assert "load" not in engine.calls
    members[2].say(current(0))
    world.run_for(5)
    assert "load" not in engine.calls, "a node with another version is not ready"
    members[2].say(current(1))
    world.run_for(10)
    assert engine.tag == "00000100000001"


@pytest.mark.parametrize("refused", [False, True], ids=["it ends well", "it is refused"])
def test_a_load_that_was_given_up_says_nothing_about_the_next_one(world: World, refused: bool) -> None:
    engine = Engine(world)
    agent = Agent(world, engine, settings=replace(SETTINGS, group_size=2), fetch_seconds=0.1, load_seconds=20.0)
    member = Member(world, agent)
    member.say(None)
    world.run_for(8)
    world.point_at(current(1))
    member.say(current(1))
    world.run(lambda: agent.core.weights.swapping, limit_seconds=30)
    (first,) = [effect for effect in agent.performed if isinstance(effect, do.Load)]
    member.say(current(1), engine=False)
    world.point_at(current(2))
    member.say(None)
    world.run_for(9)
    member.say(None, reason="version 1 was pruned")
    member.say(current(2))
    world.run(lambda: agent.core.weights.swapping, limit_seconds=30)
    reload = agent.core.weights.reload
    assert reload is not None
    agent.tell(do.LoadRefused(first, "rolling back") if refused else do.Done(first))
    assert (reload.step, reload.restoring, agent.core.weights.broken) == (Step.LOADING, False, None)
    member.say(current(2))
    world.run(lambda: agent.core.view.ready, limit_seconds=60)
    assert agent.metrics.value("moerl_agent_weight_version") == 2


def test_a_followers_lost_engine_is_the_groups(world: World) -> None:
    world.issue(0)
    engine = Engine(world, seconds=lambda: 100.0)
    agent = Agent(world, engine, settings=replace(SETTINGS, group_size=2))
    member = Member(world, agent)
    member.say(None)
    world.run_for(10)
    assert agent.core.state is State.SERVING
    member.say(None, engine=False)
    world.run_for(1)
    assert agent.core.state is State.STARTING
    assert outcomes(agent) == {"returned": 2}, "the second time by the long poll that was open"


def test_a_follower_that_falls_silent_takes_the_engine_with_it_and_no_task_is_blamed(world: World) -> None:
    """Its node is gone: the engine waits for it, answers its probes and nothing else."""
    world.issue(0)
    engine = Engine(world)
    agent = Agent(world, engine, settings=replace(SETTINGS, group_size=2))
    member = Member(world, agent)
    member.say()
    engine.stuck = True
    world.run_for(100)
    assert agent.core.state is State.SERVING
    member.fall_silent()
    world.run_for(HEAR_SECONDS * (SILENT_LOOKS + 1) + 1)
    assert agent.core.state is State.STARTING
    assert not agent.core.view.ready
    assert outcomes(agent) == {"returned": 2}, "the second time by the long poll that was open"
    (message,) = world.sqs.queue(QUEUES.tasks).messages.values()
    assert message.visible_seconds <= world.now
    task = protocol.decode(protocol.TaskMessage, message.body)
    assert (task.failures, task.crashes) == (0, 0)
    world.run_for(60)
    assert agent.core.state is State.STARTING, "without it there is no engine"
    engine.stuck = False
    member.say()
    world.run(lambda: world.finished(1), limit_seconds=120)


def test_a_followers_agent_may_be_started_again_while_its_engine_goes_on(world: World) -> None:
    agent = Agent(world, Engine(world), settings=replace(SETTINGS, group_size=2))
    member = Member(world, agent)
    member.say(current())
    world.run_for(10)
    member.fall_silent()
    world.run_for(HEAR_SECONDS * SILENT_LOOKS - 3)
    member.say(None, engine=None)
    world.run_for(10)
    member.say(None)
    world.run_for(10)
    assert agent.core.state is State.SERVING
    assert not [line for line in world.logs if "is lost" in line]


def test_a_follower_that_has_not_looked_at_its_engine_yet_does_not_complete_the_group(world: World) -> None:
    agent = Agent(world, Engine(world), settings=replace(SETTINGS, group_size=2))
    member = Member(world, agent)
    member.say(engine=None)
    world.run_for(30)
    assert agent.core.state is State.STARTING
    member.say()
    world.run_for(1)
    assert agent.core.state is State.SERVING


def test_a_leader_that_stood_still_itself_takes_nobody_for_silent(world: World) -> None:
    agent = Agent(world, Engine(world), settings=replace(SETTINGS, group_size=2))
    Member(world, agent).say()
    world.run_for(10)
    agent.apply(agent.core.due(world.now + 300.0))
    assert agent.core.state is State.SERVING


@pytest.mark.parametrize(
    ("tag", "version"),
    [("00000300000017", 17), ("0", 0), ("default", 0), ("00000400000017", None), ("v17", None), ("", None)],
)
def test_a_tag_names_a_version_of_one_attempt(tag: str, version: int | None) -> None:
    assert version_of(tag, Attempt(run="run", number=3)) == version


def test_tags_are_digits_and_no_two_versions_share_one() -> None:
    tags = {tag_of(current(version, attempt=attempt)) for attempt in (1, 2, 11) for version in (0, 1, 10, 99_999_999)}
    assert len(tags) == 12
    assert all(tag.isdigit() for tag in tags)
