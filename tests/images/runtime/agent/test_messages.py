"""No text on the task queue, and none in a payload, ends an agent: it would be leased by the next one, and the next."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moerl_runtime import protocol
from moerl_runtime.agent.states import State
from moerl_runtime.protocol import TaskPayload
from tests.images.runtime.agent.simulation import FIRST, QUEUES, Agent, Engine, World, current
from tests.images.runtime.messages import bent


def begun() -> World:
    world = World()
    world.point_at(current())
    return world


def outlives(world: World) -> None:
    """The agent is not moved by what is on the queue, and serves what comes after it."""
    agent = Agent(world, Engine(world, seconds=lambda: 0.5))
    world.run_for(20)
    world.issue(9)
    world.run(lambda: world.stored().get(9) == {0, 1, 2, 3}, limit_seconds=60)
    assert agent.core.state is State.SERVING


ISSUED = begun().issue(0)
PAYLOAD = TaskPayload(
    group=0, prompt="p", prompt_tokens=(1,), samples=2, sampling={"sampling_seed": 1}, label=None, grader="exact"
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(bent(ISSUED))
def test_no_text_on_the_queue_ends_an_agent(body: str) -> None:
    world = begun()
    world.issue(0)
    world.sqs.queue(QUEUES.tasks).messages.clear()
    world.sqs.send(QUEUES.tasks, body)
    outlives(world)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(bent(PAYLOAD) | st.text())
def test_no_payload_ends_an_agent(body: str) -> None:
    world = begun()
    world.s3.put(world.issue(0).key, body.encode(errors="replace"))
    outlives(world)


@pytest.mark.parametrize("key", ["", "samples/run/000001/tasks/0000000001.json", "x" * 2000])
def test_a_message_with_the_key_of_another_task_is_buried(key: str) -> None:
    """What is not its own cannot be read, would be asked for again each two seconds, and holds a lease meanwhile."""
    world = begun()
    body = protocol.encode(replace(world.issue(0), key=key))
    world.sqs.queue(QUEUES.tasks).messages.clear()
    world.sqs.send(QUEUES.tasks, body)
    outlives(world)
    assert [each.body for each in world.sqs.queue(QUEUES.dead_letters).messages.values()] == [body]
    assert protocol.task_key(FIRST, 0) != key
