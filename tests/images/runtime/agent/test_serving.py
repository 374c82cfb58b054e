"""What an agent does with tasks, in virtual time: the real core and the real calls on services in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from moerl_runtime import protocol
from moerl_runtime.agent import effects as do
from moerl_runtime.agent.core import BROKEN
from moerl_runtime.agent.settings import GRADER_DELAY_SECONDS, GRADES_MAX, LEASE_TOTAL_SECONDS
from moerl_runtime.agent.states import State
from moerl_runtime.agent.work import GradingBusy, perform
from moerl_runtime.engine.answers import Answer
from moerl_runtime.engine.client import Refused, Unreachable
from moerl_runtime.graders import GradeError
from moerl_runtime.protocol import Attempt, DeadLetter, Sample, TaskMessage, TaskPayload
from tests.images.runtime.agent.simulation import QUEUES, SETTINGS, Agent, Engine, World, current

TASKS = "moerl_agent_tasks_total"


@pytest.fixture
def world() -> World:
    made = World()
    made.point_at(current())
    return made


def served(world: World, groups: int, *, limit_seconds: float = 600.0, samples: int = 4) -> None:
    world.run(lambda: world.finished(groups, samples), limit_seconds=limit_seconds)
    world.run_for(1)  # the agent hears of it


def outcomes(agent: Agent) -> dict[str, float]:
    names = ("completed", "returned", "failed", "crashed", "dead_lettered", "stale", "expired")
    found = {name: agent.metrics.value(TASKS, outcome=name) for name in names}
    return {name: value for name, value in found.items() if value}


def sample_of(world: World, group: int, sample: int, of: Attempt | None = None) -> Sample:
    key = protocol.sample_key(of or current().of, group, sample)
    return protocol.decode(Sample, world.s3.objects[key][0])


def test_every_sample_is_stored_announced_and_its_task_deleted(world: World) -> None:
    for group in range(20):
        world.issue(group)
    agent = Agent(world, Engine(world))
    served(world, 20)
    assert outcomes(agent) == {"completed": 20}
    assert agent.metrics.value("moerl_agent_samples_total") == 80
    stored = sample_of(world, 7, 2)
    assert stored.tokens == (7, 1, 2, 5, 6, 2)
    assert (stored.response_length, stored.status, stored.versions) == (3, "completed", (0,))
    assert stored.log_probs == (-0.1, -0.2, -0.3)


def test_no_more_is_leased_or_asked_for_than_the_plan_says(world: World) -> None:
    for group in range(40):
        world.issue(group, samples=8)
    agent = Agent(world, Engine(world), settings=replace(SETTINGS, tasks_max=4, requests_max=10))
    most = {"leases": 0, "runs": 0}

    def over() -> bool:
        most["leases"] = max(most["leases"], len(agent.core.ledger.leases))
        most["runs"] = max(most["runs"], len(agent.core.ledger.runs))
        return world.finished(40, 8)

    world.run(over, limit_seconds=2000)
    assert most == {"leases": 4, "runs": 10}


def test_nothing_is_leased_before_there_is_a_current_version() -> None:
    world = World()
    world.issue(0)
    agent = Agent(world, Engine(world))
    world.run_for(60)
    assert agent.core.state is State.STARTING
    assert not [effect for effect in agent.performed if isinstance(effect, do.Receive)]
    world.point_at(current())
    served(world, 1)


def test_nothing_is_leased_before_the_first_look_for_a_notice(world: World) -> None:
    world.issue(0)
    agent = Agent(world, Engine(world))
    agent.core._looked = False
    world.run_for(60)
    assert agent.core.state is State.STARTING
    agent.tell(do.Looked())
    served(world, 1)


def test_leases_are_extended_by_half_of_their_time_for_as_long_as_work_takes(world: World) -> None:
    world.issue(0)
    agent = Agent(world, Engine(world, seconds=lambda: 1000.0))
    world.run_for(5)
    for _ in range(90):
        world.run_for(10)
        (message,) = world.sqs.queue(QUEUES.tasks).messages.values()
        assert message.visible_seconds - world.now > SETTINGS.lease_seconds / 3
    served(world, 1)
    assert message.receives == 1
    assert outcomes(agent) == {"completed": 1}


def test_leases_are_extended_ten_a_call(world: World) -> None:
    for group in range(25):
        world.issue(group, samples=1)
    settings = replace(SETTINGS, tasks_max=25, requests_max=25)
    calls: list[str] = []
    Agent(
        world,
        Engine(world, seconds=lambda: 100.0),
        settings=settings,
        interfere=lambda name, moment: calls.append(name) if moment == "before" else None,
    )
    world.run_for(90)
    assert calls.count("extend") == 3


def test_a_task_is_given_back_before_sqs_ends_its_lease_for_good(world: World) -> None:
    world.issue(0)
    engine = Engine(world, seconds=lambda: 13 * 3600.0)
    agent = Agent(world, engine)
    world.run(lambda: bool(outcomes(agent)), limit_seconds=13 * 3600)
    assert outcomes(agent) == {"returned": 1}
    assert LEASE_TOTAL_SECONDS < world.now < 12 * 3600
    assert engine.calls.count("abort") == 4


def test_a_lease_that_others_have_is_worked_off_and_not_deleted(world: World) -> None:
    world.issue(0)
    agent = Agent(world, Engine(world, seconds=lambda: 200.0))
    world.run_for(5)
    (message,) = world.sqs.queue(QUEUES.tasks).messages.values()
    message.visible_seconds = world.now  # SQS forgot it; another agent takes it
    (taken,) = world.sqs.receive(QUEUES.tasks, 1, 10_000)
    world.run(lambda: world.stored() == {0: {0, 1, 2, 3}}, limit_seconds=400)
    world.run_for(10)
    assert list(world.sqs.queue(QUEUES.tasks).messages) == [taken.number]
    assert outcomes(agent) == {"expired": 1}


def test_a_redelivered_task_is_finished_and_what_is_stored_is_announced_again(world: World) -> None:
    message = world.issue(0)
    world.s3.put(protocol.sample_key(message.of, 0, 1), b"another agent's")
    world.s3.put(protocol.sample_key(message.of, 0, 3), b"another agent's")
    queued = next(iter(world.sqs.queue(QUEUES.tasks).messages.values()))
    queued.receives = 1
    engine = Engine(world)
    agent = Agent(world, engine)
    served(world, 1)
    assert agent.metrics.value("moerl_agent_samples_total") == 2
    assert [effect.sample for effect in agent.performed if isinstance(effect, do.Generate)] == [0, 2]


def test_what_nobody_of_the_run_wrote_beside_the_samples_is_taken_for_none(world: World) -> None:
    message = world.issue(0)
    agent = Agent(world, Engine(world))
    below = protocol.group_prefix(message.of, 0)
    for name in ("0001.json", "0002.json.old", "a-note.txt", "3.json"):
        world.s3.put(below + name, b"{}")
    read = perform(do.ReadTask(1, message, fresh=False), agent.around)
    assert isinstance(read, do.TaskRead)
    assert read.stored == (1,)
    assert world.announced() == {0: {1}}


def test_two_deliveries_to_one_agent_are_one_piece_of_work(world: World) -> None:
    first = world.issue(0)
    world.sqs.send(QUEUES.tasks, protocol.encode(replace(first, issue=1)))
    agent = Agent(world, Engine(world))
    served(world, 1)
    assert len([effect for effect in agent.performed if isinstance(effect, do.Generate)]) == 4
    assert outcomes(agent) == {"completed": 1}


# --- attempts, runs, versions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "old", [Attempt(run="run", number=1), Attempt(run="another", number=9)], ids=["older attempt", "another run"]
)
def test_tasks_of_an_older_attempt_or_another_run_are_deleted(world: World, old: Attempt) -> None:
    world.point_at(current(attempt=2))
    world.issue(0, of=old)
    agent = Agent(world, Engine(world))
    world.run(lambda: bool(outcomes(agent)), limit_seconds=60)
    assert outcomes(agent) == {"stale": 1}
    assert not world.sqs.queue(QUEUES.tasks).messages
    assert not world.stored(old)


def test_work_of_an_older_attempt_ends_when_a_newer_one_begins(world: World) -> None:
    engine = Engine(world, seconds=lambda: 500.0)
    agent = Agent(world, engine)
    world.issue(0)
    world.run_for(10)
    world.point_at(current(attempt=2))
    world.run(lambda: bool(outcomes(agent)), limit_seconds=60)
    assert outcomes(agent) == {"stale": 1}
    assert not engine.asked
    assert not world.stored()


def test_a_task_of_an_attempt_that_this_agent_has_not_heard_of_is_not_taken_for_stale(world: World) -> None:
    """A new attempt writes current.json and then issues; the agent's copy of it may be a moment older."""
    agent = Agent(world, Engine(world), settings=replace(SETTINGS, current_seconds=1e9))
    world.run_for(5)
    second = Attempt(run="run", number=2)
    world.point_at(current(attempt=2))
    world.issue(0, of=second)
    world.run(lambda: world.stored(second) == {0: {0, 1, 2, 3}}, limit_seconds=60)
    assert "stale" not in outcomes(agent)


def test_a_task_for_weights_that_nobody_published_goes_back_with_a_delay(world: World) -> None:
    world.issue(0, version_min=3)
    agent = Agent(world, Engine(world))
    world.run(lambda: bool(outcomes(agent)), limit_seconds=60)
    assert outcomes(agent) == {"returned": 1}
    (message,) = world.sqs.queue(QUEUES.tasks).messages.values()
    assert 5 < message.visible_seconds - world.now <= 15
    world.point_at(current(3))
    served(world, 1)
    assert sample_of(world, 0, 0).versions == (3,)


def test_a_task_waits_for_weights_that_are_on_their_way(world: World) -> None:
    agent = Agent(world, Engine(world), fetch_seconds=100.0)
    world.run_for(5)
    world.point_at(current(1))
    world.issue(0, version_min=1)
    served(world, 1)
    assert outcomes(agent) == {"completed": 1}
    assert {sample_of(world, 0, sample).versions for sample in range(4)} == {(1,)}


def test_a_look_from_before_a_task_came_says_nothing_about_it(world: World) -> None:
    """A long poll may be open for longer than the time between two looks at current.json."""
    agent = Agent(world, Engine(world))
    world.run_for(8)
    assert 0 < agent.core.weights.looked_seconds < world.now
    world.point_at(current(1))
    world.issue(0, version_min=1)
    served(world, 1)
    assert outcomes(agent) == {"completed": 1}


# --- failures of its own ----------------------------------------------------------------------------------------------


def failing(kind: str) -> Callable[[Engine], None]:
    def make(engine: Engine) -> None:
        def ask(effect: do.Generate, answer: Callable[[do.Event], None]) -> None:
            engine.world.at(0.1, lambda: answer(do.Unanswered(effect, kind, f"it is {kind}")))  # type: ignore[arg-type]

        engine.ask = ask  # type: ignore[method-assign]

    return make


def test_a_refused_task_comes_back_with_its_failures_counted_and_is_buried_after_three(world: World) -> None:
    world.issue(0)
    engine = Engine(world)
    failing("refused")(engine)
    agent = Agent(world, engine)
    world.run(lambda: bool(world.sqs.queue(QUEUES.dead_letters).messages), limit_seconds=60)
    world.run_for(1)
    assert outcomes(agent) == {"failed": 2, "dead_lettered": 1}
    assert not world.sqs.queue(QUEUES.tasks).messages
    (message,) = world.sqs.queue(QUEUES.dead_letters).messages.values()
    letter = protocol.decode(DeadLetter, message.body)
    assert (letter.group, letter.failures) == (0, 3)
    assert "it is refused" in letter.reason


def test_a_busy_engine_is_asked_again_before_it_is_the_tasks_failure(world: World) -> None:
    world.issue(0, samples=1)
    engine, busy = Engine(world), {"times": 5}
    ask = engine.ask

    def sometimes(effect: do.Generate, answer: Callable[[do.Event], None]) -> None:
        busy["times"] -= 1
        if busy["times"] >= 0:
            world.at(0.1, lambda: answer(do.Unanswered(effect, "busy", "HTTP 503")))
        else:
            ask(effect, answer)

    engine.ask = sometimes  # type: ignore[method-assign]
    agent = Agent(world, engine)
    served(world, 1, samples=1)
    assert outcomes(agent) == {"completed": 1}


def test_an_engine_that_is_always_busy_fails_its_tasks_at_last(world: World) -> None:
    world.issue(0, samples=1)
    engine = Engine(world)
    failing("busy")(engine)
    agent = Agent(world, engine)
    world.run(lambda: bool(world.sqs.queue(QUEUES.dead_letters).messages), limit_seconds=3600)
    world.run_for(1)
    assert outcomes(agent) == {"failed": 2, "dead_lettered": 1}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (None, "does not exist"),
        (b"{}", "is no TaskPayload"),
        (b"not json", "is no TaskPayload"),
    ],
)
def test_a_payload_that_cannot_be_used_is_buried_with_the_reason(
    world: World, payload: bytes | None, reason: str
) -> None:
    message = world.issue(0)
    if payload is None:
        del world.s3.objects[message.key]
    else:
        world.s3.put(message.key, payload)
    Agent(world, Engine(world))
    world.run(lambda: bool(world.sqs.queue(QUEUES.dead_letters).messages), limit_seconds=60)
    (dead,) = world.sqs.queue(QUEUES.dead_letters).messages.values()
    assert reason in protocol.decode(DeadLetter, dead.body).reason


@pytest.mark.parametrize(
    "change",
    [
        {"group": 1},
        {"samples": 0},
        {"samples": 10_000},
        {"samples": "2"},
        {"prompt_tokens": []},
        {"grader": 5},
        {"sampling": {"sampling_seed": "x"}},
    ],
)
def test_a_payload_of_another_group_size_or_type_is_buried(world: World, change: dict[str, object]) -> None:
    message = world.issue(0)
    written = json.loads(world.s3.objects[message.key][0]) | change
    world.s3.put(message.key, json.dumps(written).encode())
    agent = Agent(world, Engine(world))
    world.run(lambda: bool(world.sqs.queue(QUEUES.dead_letters).messages), limit_seconds=60)
    assert not [effect for effect in agent.performed if isinstance(effect, do.Generate)]


def test_a_grader_that_fails_is_the_tasks_failure(world: World) -> None:
    message = world.issue(0)
    written = json.loads(world.s3.objects[message.key][0]) | {"grader": "broken"}
    world.s3.put(message.key, json.dumps(written).encode())
    agent = Agent(world, Engine(world))
    world.run(lambda: bool(world.sqs.queue(QUEUES.dead_letters).messages), limit_seconds=60)
    world.run_for(1)
    assert outcomes(agent) == {"failed": 2, "dead_lettered": 1}
    assert not world.stored()


def test_a_grader_without_time_is_asked_again_and_the_task_then_left_to_a_later_day(world: World) -> None:
    world.issue(0)
    agent = Agent(world, Engine(world), grade=no_time)
    world.run(lambda: bool(outcomes(agent)), limit_seconds=1_000)
    assert outcomes(agent) == {"returned": 1}, "no failure of the task"
    (message,) = world.sqs.queue(QUEUES.tasks).messages.values()
    assert protocol.decode(TaskMessage, message.body).failures == 0
    assert agent.metrics.value("moerl_agent_grader_busy_total") >= GRADES_MAX
    back = next(effect for effect in agent.performed if isinstance(effect, do.GiveBack))
    assert back.delay_seconds == GRADER_DELAY_SECONDS
    assert world.sqs.visible(QUEUES.tasks) == 0
    assert [effect.sample for effect in agent.performed if isinstance(effect, do.Generate)] == [0, 1, 2, 3]


def test_an_answer_waits_for_a_grader_and_is_not_generated_again(world: World) -> None:
    world.issue(0)
    until = world.now + 200.0

    def grade(_payload: TaskPayload, text: str) -> tuple[float, dict[str, object]]:
        return no_time(_payload, text) if world.now < until else (1.0, {})

    agent = Agent(world, Engine(world), grade=grade)
    served(world, 1)
    assert outcomes(agent) == {"completed": 1}
    assert len([effect for effect in agent.performed if isinstance(effect, do.Generate)]) == 4


def test_a_drain_does_not_wait_for_a_grader(world: World) -> None:
    world.issue(0)
    agent = Agent(world, Engine(world), grade=no_time)
    world.run(lambda: agent.metrics.value("moerl_agent_grader_busy_total") > 8, limit_seconds=100)
    began = world.now
    agent.notice()
    world.run(lambda: not agent.alive, limit_seconds=100)
    assert world.now - began < SETTINGS.drain_seconds
    assert outcomes(agent) == {"returned": 1}


def no_time(_payload: TaskPayload, _response: str) -> tuple[float, dict[str, object]]:
    raise GradingBusy("HTTP 503")


def test_a_reason_that_quotes_the_whole_answer_still_fits_a_message(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A letter that SQS refuses would be tried again for ever, by every agent after this one."""

    def quotes(_payload: TaskPayload, response: str) -> tuple[float, dict[str, object]]:
        raise GradeError("cannot parse " + response + "\u3042" * 1_000_000)

    world.issue(0)
    agent = Agent(world, Engine(world))
    monkeypatch.setattr(agent, "around", replace(agent.around, grade=quotes))
    world.run(lambda: bool(world.sqs.queue(QUEUES.dead_letters).messages), limit_seconds=60)
    (dead,) = world.sqs.queue(QUEUES.dead_letters).messages.values()
    assert len(dead.body) < 64 * 1024
    assert protocol.decode(DeadLetter, dead.body).reason.startswith("sample ")


@pytest.mark.parametrize("change", [None, {"version_min": "0"}, {"failures": None}])
def test_a_message_that_nobody_can_read_is_moved_to_the_dead_letters_as_it_is(
    world: World, change: dict[str, object] | None
) -> None:
    """It would end every agent that leases it, one after the other."""
    written = json.loads(protocol.encode(world.issue(0)))
    world.sqs.queue(QUEUES.tasks).messages.clear()
    body = "no task at all" if change is None else json.dumps(written | change)
    world.sqs.send(QUEUES.tasks, body)
    agent = Agent(world, Engine(world))
    world.run(lambda: bool(world.sqs.queue(QUEUES.dead_letters).messages), limit_seconds=60)
    world.run_for(1)
    assert not world.sqs.queue(QUEUES.tasks).messages
    assert [each.body for each in world.sqs.queue(QUEUES.dead_letters).messages.values()] == [body]
    assert outcomes(agent) == {"dead_lettered": 1}


def test_a_task_of_another_protocol_is_left_to_agents_of_its_release(world: World) -> None:
    body = json.loads(protocol.encode(world.issue(0))) | {"protocol": 99}
    world.sqs.queue(QUEUES.tasks).messages.clear()
    world.sqs.send(QUEUES.tasks, json.dumps(body))
    Agent(world, Engine(world))
    world.run_for(30)
    (message,) = world.sqs.queue(QUEUES.tasks).messages.values()
    assert message.visible_seconds > world.now
    assert not world.sqs.queue(QUEUES.dead_letters).messages


# --- the engine -------------------------------------------------------------------------------------------------------


def test_a_lost_engine_fails_what_it_worked_at_and_returns_the_rest(world: World) -> None:
    for group in range(4):
        world.issue(group, samples=4)
    engine = Engine(world, seconds=lambda: 100.0)
    agent = Agent(world, engine, settings=replace(SETTINGS, tasks_max=4, requests_max=4))
    world.run_for(5)
    engine.die()
    world.run_for(10)
    assert agent.core.state is State.STARTING
    assert outcomes(agent) == {"crashed": 1, "returned": 3}
    engine.restart()
    engine.seconds = lambda: 1.0
    served(world, 4)


def test_a_task_that_ends_every_engine_is_buried_and_the_others_are_served(world: World) -> None:
    poison, others = 0, range(1, 6)
    for group in (poison, *others):
        world.issue(group, samples=1)
    engine = Engine(world)
    ask = engine.ask

    def fragile(effect: do.Generate, answer: Callable[[do.Event], None]) -> None:
        ask(effect, answer)
        if effect.payload.group == poison:
            world.at(0.5, engine.die)
            world.at(20.0, engine.restart)

    engine.ask = fragile  # type: ignore[method-assign]
    Agent(world, engine, settings=replace(SETTINGS, tasks_max=1))
    whole = {group: {0} for group in others}
    world.run(lambda: world.stored() == whole, limit_seconds=3600)
    world.run_for(120)
    (dead,) = world.sqs.queue(QUEUES.dead_letters).messages.values()
    assert protocol.decode(DeadLetter, dead.body).group == poison
    assert not world.sqs.queue(QUEUES.tasks).messages


@pytest.mark.parametrize("takes_tasks", [True, False])
@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ({"ep_size": 1}, "ep_size is 1, planned 16; compare"),
        ({"moe_a2a_backend": "none"}, "moe_a2a_backend is 'none', planned 'deepep_v2'; compare"),
        ({"ep_size": None, "moe_a2a_backend": None}, "ep_size is None, planned 16, moe_a2a_backend is None, planned"),
    ],
)
def test_an_engine_that_is_not_the_planned_one_ends_the_agent_before_any_task(
    world: World, shown: dict[str, object], said: str, takes_tasks: bool
) -> None:
    world.issue(0)
    engine = Engine(world)
    engine.shown |= shown
    agent = Agent(world, engine, settings=replace(SETTINGS, takes_tasks=takes_tasks))
    world.run(lambda: not agent.alive, limit_seconds=30)
    assert agent.core.exit_code == BROKEN
    assert any(f"cannot go on: the engine is not as planned: {said}" in line for line in world.logs)
    assert not [each for each in agent.performed if isinstance(each, do.Receive | do.Generate | do.Register)]
    assert world.sqs.visible(QUEUES.tasks) == 1


def test_every_engine_that_comes_up_is_inspected_once(world: World) -> None:
    engine = Engine(world)
    agent = Agent(world, engine)
    world.run_for(60)
    assert engine.calls.count("arguments") == 1
    engine.die()
    world.run_for(30)
    engine.shown["ep_size"] = 1
    engine.restart()
    world.run(lambda: not agent.alive, limit_seconds=30)
    assert engine.calls.count("arguments") == 2
    assert agent.core.exit_code == BROKEN


def test_an_engine_that_does_not_answer_the_inspection_is_asked_again(world: World) -> None:
    engine, real = Engine(world), Engine.arguments
    failures = iter([Refused(500, "internal"), Unreachable("/server_info: reset")])

    def arguments(names: Sequence[str]) -> dict[str, object]:
        for failure in failures:
            raise failure
        return real(engine, names)

    engine.arguments = arguments  # type: ignore[method-assign]
    world.issue(0)
    agent = Agent(world, engine)
    served(world, 1)
    assert outcomes(agent) == {"completed": 1}
    assert [isinstance(each, do.Inspect) for each in agent.performed].count(True) == 3


def test_an_engine_that_was_started_again_between_two_probes_is_noticed(world: World) -> None:
    world.point_at(current(1))
    engine = Engine(world)
    agent = Agent(world, engine)
    world.run_for(30)
    assert engine.tag == "00000100000001"
    engine.restart()
    world.run_for(30)
    assert engine.tag == "00000100000001"
    assert any("was started again" in line for line in world.logs)
    assert agent.core.state is State.SERVING


def test_requests_that_are_lost_one_after_another_do_not_multiply_the_probes(world: World) -> None:
    engine, lost = Engine(world), {"left": 100}
    ask = engine.ask

    def sometimes(effect: do.Generate, answer: Callable[[do.Event], None]) -> None:
        lost["left"] -= 1
        if lost["left"] >= 0:
            world.at(0.3, lambda: answer(do.Unanswered(effect, "lost", "connection reset")))
        else:
            ask(effect, answer)

    engine.ask = sometimes  # type: ignore[method-assign]
    agent = Agent(world, engine)
    for group in range(60):
        world.issue(group)
    world.run(lambda: lost["left"] < 0, limit_seconds=600)
    world.run_for(120)
    before = len(agent.performed)
    world.run_for(100)
    probes = [effect for effect in agent.performed[before:] if isinstance(effect, do.Probe)]
    assert len(probes) <= 21


def test_an_answer_aborted_by_somebody_else_is_asked_for_again(world: World) -> None:
    world.issue(0)
    engine = Engine(world, seconds=lambda: 20.0)
    agent = Agent(world, engine)
    world.run_for(5)
    engine.abort_all()
    served(world, 1)
    assert outcomes(agent) == {"completed": 1}


def test_an_answer_of_other_weights_is_not_stored(world: World) -> None:
    world.issue(0, samples=1)
    engine = Engine(world)
    agent = Agent(world, engine)
    world.run_for(0.3)
    engine.asked[next(iter(engine.asked))].tags[:] = ["00000700000001"]
    served(world, 1, samples=1)
    assert sample_of(world, 0, 0).versions == (0,)
    assert len([effect for effect in agent.performed if isinstance(effect, do.Generate)]) == 2


def test_what_a_former_agent_left_in_the_engine_is_ended_first(world: World) -> None:
    engine = Engine(world, seconds=lambda: 1e6)
    world.issue(0)
    first = Agent(world, engine)
    world.run_for(5)
    engine.pause("retract")
    first.kill()
    engine.seconds = lambda: 1.0
    Agent(world, engine, "second")
    world.run_for(2)
    assert not engine.paused
    served(world, 1)


# --- back-pressure ----------------------------------------------------------------------------------------------------


def test_an_agent_pulls_nothing_while_too_many_results_wait(world: World) -> None:
    for number in range(11):
        world.s3.put(_result(number).key, b"")
        world.sqs.send(QUEUES.results, protocol.encode(_result(number)))
    agent = Agent(world, Engine(world), settings=replace(SETTINGS, results_max=10))
    world.run_for(40)  # the long poll that was open when it was found out is over
    world.issue(0)
    world.run_for(60)
    assert agent.metrics.value("moerl_agent_held") == 1
    assert not world.stored()
    world.sqs.queue(QUEUES.results).messages.clear()
    served(world, 1)
    assert agent.metrics.value("moerl_agent_held") == 0


def _result(number: int) -> protocol.ResultMessage:
    return protocol.ResultMessage(run="run", attempt=1, group=1000 + number, sample=0, key=f"old/{number}")


def test_an_answer_of_a_mistake_in_a_thread_ends_the_agent_in_order(world: World) -> None:
    world.issue(0)
    engine = Engine(world, seconds=lambda: 1e5)
    agent = Agent(world, engine)
    world.run_for(5)
    agent.tell(do.Crashed("Publish", "TypeError: a mistake"))
    world.run(lambda: not agent.alive, limit_seconds=30)
    assert agent.core.exit_code == 1
    (message,) = world.sqs.queue(QUEUES.tasks).messages.values()
    assert message.visible_seconds <= world.now
    assert isinstance(protocol.decode(TaskMessage, message.body), TaskMessage)


def test_aborted_answers_are_never_samples() -> None:
    assert Answer(ending="aborted").tokens == ()


def test_a_task_is_complete_when_every_sample_is_stored_and_not_when_nothing_runs_any_more(world: World) -> None:
    """The last answer comes when the engine is not believed any more: its sample is missing, however idle the task is."""
    world.issue(0, samples=2)
    engine = Engine(world, seconds=lambda: 1e5)
    agent = Agent(world, engine, settings=replace(SETTINGS, tasks_max=1))
    world.run_for(5)
    first, second = sorted(engine.asked)
    agent.hung |= {do.Publish}
    engine._finish(first)
    (publish,) = [effect for effect in agent.performed if isinstance(effect, do.Publish)]
    agent.tell(do.Crashed("Depth", "KeyError: a mistake"))
    engine._finish(second)
    assert len([effect for effect in agent.performed if isinstance(effect, do.Publish)]) == 1
    agent.tell(do.Published(publish.lease, publish.sample, new=True))
    world.run(lambda: not agent.alive, limit_seconds=30)
    assert outcomes(agent) == {"returned": 1}
    assert world.sqs.visible(QUEUES.tasks) == 1


def test_a_lease_that_is_being_given_back_is_not_extended(world: World) -> None:
    """An extension after the return would hide the task again."""
    world.issue(0)
    agent = Agent(world, Engine(world, seconds=lambda: 1e5))
    world.run_for(5)
    agent.hung |= {do.GiveBack}
    agent.engine.die()
    agent.core.tasks.give_back(agent.core.ledger.open())
    before = len(agent.performed)
    world.run_for(90)
    assert not [effect for effect in agent.performed[before:] if isinstance(effect, do.Extend)]


def test_a_lease_that_could_not_be_extended_counts_as_over_when_its_time_is(world: World) -> None:
    def interfere(name: str, _moment: str) -> None:
        if name == "extend":
            raise OSError("connection reset")

    world.issue(0)
    engine = Engine(world, seconds=lambda: 150.0)
    agent = Agent(world, engine, settings=replace(SETTINGS, tasks_max=1), interfere=interfere)
    world.run(lambda: bool(outcomes(agent)), limit_seconds=200)
    assert outcomes(agent) == {"expired": 1}
    assert not [effect for effect in agent.performed if isinstance(effect, do.Delete)]
    served(world, 1)
