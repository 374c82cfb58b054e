"""A smoke worker goes when it is asked to, and when the smoke run that it served is over; never for a run of others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from moerl_runtime import plan, protocol, store
from moerl_runtime.protocol import Current
from moerl_runtime.smoke import job, rollout
from moerl_runtime.smoke.rollout import Worker
from moerl_runtime.store import S3Client

BUCKET = "smoke-worker"
KEY = f"weights/{protocol.CURRENT_NAME}"


@pytest.fixture
def s3(at_local_aws: str) -> Iterator[S3Client]:
    made = boto3.client("s3", endpoint_url=at_local_aws, region_name="us-east-1")
    made.create_bucket(Bucket=BUCKET)
    yield made
    for key in store.keys(made, BUCKET, ""):
        store.delete(made, BUCKET, key)
    made.delete_bucket(Bucket=BUCKET)


class Agent:
    """Ends with `code` once it is told to."""

    def __init__(self, code: int = 0) -> None:
        self.code, self.told = code, 0
        self.returncode: int | None = None
        self.looks = 0
        """That were made before it was told."""

    def poll(self) -> int | None:
        if self.told:
            self.returncode = self.code
        return self.returncode

    def terminate(self) -> None:
        self.told += 1


def follow(agent: Agent, looks: list[Callable[[], object]], *, asked_at: int | None = None) -> int:
    """`looks` happen one after the other before each look; the agent is asked to end, by hand, after all of them."""
    document = {"names": {"weights_bucket": BUCKET}, "storage": {"weights_prefix": "weights/"}}
    worker = Worker(
        plan=plan.Node(document, ""),
        pool="rollout",
        models=Path("unused"),
        listen="",
        engine_listen="",
        metrics_port=0,
        imds=None,
        region="us-east-1",
        step_seconds=0.0,
        seed=0,
    )
    done = 0

    def wait(seconds: float) -> bool:
        nonlocal done
        assert seconds == rollout.LOOK_SECONDS
        if done < len(looks):
            looks[done]()
        done += 1
        agent.looks = done
        return asked_at is not None and done > asked_at

    return rollout._follow(worker, agent, wait)  # type: ignore[arg-type]


def point(s3: S3Client, run: str) -> Callable[[], object]:
    return lambda: store.put(s3, BUCKET, KEY, protocol.encode(Current(run=run, attempt=1, version=0, manifest=None)))


def gone(s3: S3Client) -> Callable[[], object]:
    return lambda: store.delete(s3, BUCKET, KEY)


def test_it_ends_its_agent_when_the_run_that_it_saw_is_over(s3: S3Client) -> None:
    agent = Agent()
    assert follow(agent, [gone(s3), point(s3, "smoke-1"), point(s3, "smoke-1"), gone(s3)]) == 0
    assert agent.told == 1


def test_a_pointer_that_is_not_there_yet_or_is_another_runs_says_nothing(s3: S3Client) -> None:
    agent = Agent()
    looks = [gone(s3), gone(s3), point(s3, "policy"), gone(s3), gone(s3)]
    assert follow(agent, looks, asked_at=len(looks)) == 0
    assert (agent.told, agent.looks) == (1, len(looks) + 1), "only when it was asked to"


def test_it_is_told_once_and_its_code_is_the_workers(s3: S3Client) -> None:
    agent = Agent(code=3)
    assert follow(agent, [point(s3, "smoke-1")], asked_at=1) == 3
    assert agent.told == 1


def test_commands_are_those_that_the_parsers_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both programs would refuse a flag that they do not know with code 2."""
    from moerl_runtime import cli
    from moerl_runtime.agent import cli as agent_cli
    from moerl_runtime.smoke import cli as smoke_cli

    seen: list[Any] = []
    monkeypatch.setattr(agent_cli, "_lead", lambda arguments: seen.append(arguments) or 0)
    monkeypatch.setattr(smoke_cli, "_engine", lambda arguments: seen.append(arguments) or 0)
    worker = Worker(
        plan=plan.Node({}, ""),
        pool="rollout",
        models=tmp_path,
        listen="127.0.0.1:1",
        engine_listen="127.0.0.1:2",
        metrics_port=3,
        imds="http://127.0.0.1:4",
        region="us-east-1",
        step_seconds=0.5,
        seed=7,
    )
    for command in (
        rollout._engine_command(worker, tmp_path / job.SERVING),
        rollout._agent_command(worker, tmp_path / "plan.json"),
    ):
        assert command[1:3] == ("-m", "moerl_runtime")
        assert cli.main(command[3:], variables={}) == 0
    engine, agent = seen
    assert (engine.listen, engine.seed, engine.step_seconds) == ("127.0.0.1:2", 7, 0.5)
    assert (agent.engine, agent.imds, agent.metrics_port) == ("http://127.0.0.1:2", "http://127.0.0.1:4", 3)
    assert json.dumps(str(agent.models))
