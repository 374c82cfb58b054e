"""The real program: `agent lead` and `agent follow` as processes, a local engine, S3 and SQS over HTTP, fake metadata."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pytest

from infra.local.processes import free_port
from moerl_runtime import imds, protocol
from moerl_runtime.protocol import Current, ResultMessage, Sample, TaskMessage, TaskPayload
from moerl_runtime.serve import serving
from tests.images.runtime.test_imds import SPOT, Metadata

PATIENCE_SECONDS = 60.0
REGION = "us-west-2"


@dataclass
class Site:
    """One run's buckets and queues, its plan, and the processes of the test."""

    folder: Path
    endpoint_url: str
    name: str = field(default_factory=lambda: f"run-{uuid4().hex[:8]}")
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    pods: int = 1
    expert_parallel: int = 1
    """Of the plan; the local engine is started with another only where a test says so."""

    def __post_init__(self) -> None:
        self.s3 = boto3.client("s3", region_name=REGION, endpoint_url=self.endpoint_url)
        self.sqs = boto3.client("sqs", region_name=REGION, endpoint_url=self.endpoint_url)
        self.s3.create_bucket(Bucket=self.name, CreateBucketConfiguration={"LocationConstraint": REGION})
        self.urls = {
            part: self.sqs.create_queue(QueueName=f"{self.name}-{part}")["QueueUrl"]
            for part in ("tasks", "results", "dead")
        }
        self.current = Current(run=self.name, attempt=1, version=0, manifest=None)
        self.put("weights/current.json", protocol.encode(self.current))
        self.models = self.folder / "models"
        base = self.models / "base"
        base.mkdir(parents=True)
        (base / "model.safetensors").write_bytes(b"w")

    def put(self, key: str, body: str) -> None:
        self.s3.put_object(Bucket=self.name, Key=key, Body=body.encode())

    def plan(self) -> Path:
        path = self.folder / "plan.json"
        engine = {"tasks_max": 4, "running_requests_max": 16, "drain_budget_seconds": 4}
        engine |= {"attention_data_parallel": 1, "deepep_v2_mode": None}
        geometry = {"gpus_per_engine": 1, "expert_parallel": self.expert_parallel}
        rollout = {"pool": "rollout", "backend": "none", "geometry": geometry, "engine": engine}
        document = {
            "region": REGION,
            "queue": {
                "task_url": self.urls["tasks"],
                "result_url": self.urls["results"],
                "dead_letter_url": self.urls["dead"],
                "visibility_seconds": 30,
            },
            "names": {"weights_bucket": self.name},
            "storage": {"weights_prefix": "weights/"},
            "workload": {
                "files": {"serving": "base"},
                "cpu_workers": [],
                "rollouts": [{**rollout, "pods": {"pods_per_group": self.pods}}],
            },
        }
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    def issue(self, group: int, *, samples: int = 2, tokens: int = 3) -> None:
        key = protocol.task_key(self.current.of, group)
        payload = TaskPayload(
            group=group,
            prompt="1 2 3",
            prompt_tokens=tuple(b"7 is 42"),
            samples=samples,
            sampling={"max_new_tokens": tokens, "ignore_eos": True},
            label="42",
            grader="exact",
        )
        self.put(key, protocol.encode(payload))
        message = TaskMessage(run=self.name, attempt=1, group=group, key=key, version_min=0)
        self.sqs.send_message(QueueUrl=self.urls["tasks"], MessageBody=protocol.encode(message))

    def results(self) -> set[tuple[int, int]]:
        """(group, sample) of every result that is there now; they are taken."""
        found: set[tuple[int, int]] = set()
        while messages := self.sqs.receive_message(QueueUrl=self.urls["results"], MaxNumberOfMessages=10).get(
            "Messages"
        ):
            for message in messages:
                result = protocol.decode(ResultMessage, message["Body"])
                found.add((result.group, result.sample))
        return found

    def tasks(self) -> tuple[int, int]:
        """(visible, leased)."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.urls["tasks"], AttributeNames=names)["Attributes"]
        return int(found[names[0]]), int(found[names[1]])

    def start(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{words[0]}-{words[1]}-{len(self.processes)}.log").open("wb")
        process = subprocess.Popen(  # noqa: S603 - this package's own program
            [sys.executable, "-m", "moerl_runtime", *words],
            env={**os.environ, "AWS_ENDPOINT_URL": self.endpoint_url, "HOSTNAME": "pod-0", **variables},
            stdout=log,
            stderr=log,
        )
        log.close()
        self.processes.append(process)
        return process

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))


@pytest.fixture
def site(tmp_path: Path, local_aws: str) -> Iterator[Site]:
    made = Site(tmp_path, local_aws)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture
def metadata() -> Iterator[tuple[Metadata, str]]:
    made = Metadata()
    with serving("127.0.0.1:0", made.answer) as url:
        yield made, url


def until(site: Site, condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen\n{site.logs()}"
        time.sleep(0.05)


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own loopback
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own loopback
        return str(answer.read().decode())


def engine(site: Site, *words: str, step_seconds: float) -> str:
    port = free_port()
    site.start(
        "smoke", "engine", "--listen", f"127.0.0.1:{port}", "--health-probe-seconds", "0", "--step-seconds",
        str(step_seconds), "--sigterm-tick-seconds", "0.1", *words,
    )  # fmt: skip
    return f"http://127.0.0.1:{port}"


def agent(site: Site, part: str, engine_url: str, imds_url: str, *more: str, **variables: str) -> tuple[Any, str, str]:
    """(process, its URL, URL of its metrics)."""
    port, metrics_port = free_port(), free_port()
    process = site.start(
        "agent", part, "--pool", "rollout", "--listen", f"127.0.0.1:{port}", "--engine", engine_url,
        "--models", str(site.models), "--plan", str(site.plan()), "--metrics-port", str(metrics_port),
        "--imds", imds_url, *more, **variables,
    )  # fmt: skip
    return process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics_port}"


def test_a_leader_serves_its_tasks_and_drains_on_a_spot_notice(site: Site, metadata: tuple[Metadata, str]) -> None:
    imds_service, imds_url = metadata
    for group in range(6):
        site.issue(group)
    process, url, metrics_url = agent(site, "lead", engine(site, step_seconds=0.01), imds_url, "--poll-seconds", "1")
    until(site, lambda: status(f"{url}/ready") == 200, "ready")
    found: set[tuple[int, int]] = set()
    until(site, lambda: len(found.__ior__(site.results())) == 12, "twelve results")
    until(site, lambda: site.tasks() == (0, 0), "the end of all tasks")
    key = protocol.sample_key(site.current.of, 3, 1)
    sample = protocol.decode(Sample, site.s3.get_object(Bucket=site.name, Key=key)["Body"].read())
    assert (sample.response, sample.status, sample.versions) == ("7 i", "truncated", (0,))
    assert (sample.reward, sample.worker) == (0.0, "pod-0")
    assert 'moerl_agent_tasks_total{outcome="completed"} 6.0' in text(f"{metrics_url}/metrics")
    assert "sglang:num_running_reqs" in text(f"{metrics_url}/engine/metrics")
    assert status(f"{url}/live") == 200

    for group in range(6, 9):
        site.issue(group, tokens=4_000)
    until(site, lambda: site.tasks() == (0, 3), "the lease of three long tasks")
    imds_service.documents[imds.SPOT_PATH] = SPOT
    until(site, lambda: process.poll() is not None, "the end of the agent")
    assert process.returncode == 0, site.logs()
    assert site.tasks() == (3, 0), "they are visible again at once"
    assert "serving -> draining (notice)" in site.logs()
    # The kubelet stops the engine after the agent: nothing is left that its own drain would wait for.
    site.processes[0].send_signal(signal.SIGTERM)
    assert site.processes[0].wait(PATIENCE_SECONDS) == 0


def test_an_engine_that_made_something_else_of_its_flags_gets_no_task(
    site: Site, metadata: tuple[Metadata, str]
) -> None:
    """SGLang may take --ep-size and serve without expert parallelism: every answer is right, and late."""
    site.issue(0)
    site.expert_parallel = 8
    process, _, _ = agent(site, "lead", engine(site, step_seconds=0.01), metadata[1], "--poll-seconds", "1")
    assert process.wait(timeout=PATIENCE_SECONDS) == 1
    assert "cannot go on: the engine is not as planned: ep_size is 1, planned 8; compare" in site.logs()
    assert (site.tasks(), site.results()) == ((1, 0), set())

    agent(site, "lead", engine(site, "--ep-size", "8", step_seconds=0.01), metadata[1], "--poll-seconds", "1")
    until(site, lambda: len(site.results()) > 0, "a result")


def test_sigterm_ends_an_agent_whose_engine_and_aws_are_gone(site: Site, metadata: tuple[Metadata, str]) -> None:
    process, url, _ = agent(site, "lead", "http://127.0.0.1:9", metadata[1], AWS_ENDPOINT_URL="http://127.0.0.1:9")
    until(site, lambda: status(f"{url}/live") == 200, "live")
    assert status(f"{url}/ready") == 503
    process.send_signal(signal.SIGTERM)
    until(site, lambda: process.poll() is not None, "the end of the agent")
    assert process.returncode == 0, site.logs()


def test_a_followers_notice_drains_the_group_and_the_hook_waits_for_it(
    site: Site, metadata: tuple[Metadata, str]
) -> None:
    site.pods = 2
    quiet = Metadata()
    with serving("127.0.0.1:0", quiet.answer) as quiet_url:
        engine_url = engine(site, step_seconds=0.01)
        leader, url, _ = agent(site, "lead", engine_url, quiet_url, "--poll-seconds", "1")
        until(site, lambda: status(f"{url}/live") == 200, "the leader")
        assert status(f"{url}/ready") == 503, "its follower is not there"
        host_port = url.removeprefix("http://")
        follower, follower_url, _ = agent(
            site, "follow", engine_url, metadata[1], "--leader", host_port, LWS_WORKER_INDEX="1", HOSTNAME="pod-0-1"
        )
        until(site, lambda: status(f"{url}/ready") == 200, "the group")
        until(site, lambda: status(f"{follower_url}/ready") == 200, "the follower")
        site.issue(0, tokens=4_000)
        until(site, lambda: site.tasks() == (0, 1), "the lease")
        metadata[0].documents[imds.SPOT_PATH] = SPOT
        until(site, lambda: "serving -> draining (notice)" in site.logs(), "the drain")
        host, _, port = host_port.partition(":")
        hook = site.start("agent", "await-drain", "--port", port, LWS_LEADER_ADDRESS=host, LWS_WORKER_INDEX="1")
        until(site, lambda: hook.poll() is not None, "the end of the hook")
        assert (hook.returncode, leader.wait(5)) == (0, 0), site.logs()
        assert site.tasks() == (1, 0)
        follower.send_signal(signal.SIGTERM)
        assert follower.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lead", "--poll-seconds", "0"], "--poll-seconds = 0: is no long poll"),
        (["lead", "--router", "http://r"], "goes with --advertise"),
        (["follow", "--leader", "x:1"], "LWS_WORKER_INDEX = ''"),
        (["lead", "--listen", "0.0.0.0:1"], "would listen on every interface"),
    ],
)
def test_wrong_input_is_said_in_one_line_with_code_2(site: Site, words: list[str], message: str) -> None:
    given = [
        "--pool",
        "rollout",
        "--listen",
        "127.0.0.1:0",
        "--engine",
        "http://127.0.0.1:9",
        "--models",
        str(site.models),
    ]
    found = subprocess.run(  # noqa: S603 - this package's own program
        [sys.executable, "-m", "moerl_runtime", "agent", words[0], *given, "--plan", str(site.plan()), *words[1:]],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert found.returncode == 2, found.stderr
    assert message in found.stderr
    assert "Traceback" not in found.stderr
