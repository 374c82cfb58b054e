"""`python -m benchmarks.agent [--json] [--embedded]`: CPU time of the rollout agent per task, and what that means for a fleet.

What is measured is the agent's own code, with all its threads: an engine that answers at once, a queue and a bucket that are
dictionaries. A task is 8 samples. CPU time of the process is divided by tasks, so it says what a core can serve, not how
long a task takes. JSON of tokens and log probabilities is measured apart, since it grows with the length of answers; so is
what the HTTP client spends on an engine's replies, against a server in another process.

`--embedded` runs the same through boto3 against the embedded AWS (which needs its virtual environment, `make setup`): its CPU
time, less the other, is boto3's.

Exit code 1 when the own code's CPU time per task is above the target.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from moerl_runtime import protocol, sqs, store
from moerl_runtime.agent import effects as do
from moerl_runtime.agent.core import Core
from moerl_runtime.agent.exported import METRICS
from moerl_runtime.agent.grading import grader
from moerl_runtime.agent.loop import Loop
from moerl_runtime.agent.settings import Settings
from moerl_runtime.agent.work import Around, Queues, perform
from moerl_runtime.engine.answers import Answer
from moerl_runtime.engine.client import Engine
from moerl_runtime.metrics import Metrics
from moerl_runtime.protocol import Current, Sample, TaskMessage, TaskPayload
from moerl_runtime.serve import Answer as HttpAnswer
from moerl_runtime.serve import serving

ROOT = Path(__file__).resolve().parents[1]
TARGET_CPU_MS = 1.0
"""Of the own code, per task, with short answers."""
SAMPLES = 8
TASKS, EMBEDDED_TASKS = 2_000, 150
ANSWER_TOKENS = (16, 1_000)
"""Short answers show the agent's own work, longer ones what JSON costs."""
REPEATS = 3
CURRENT = Current(run="bench", attempt=1, version=0, manifest=None)

FLEET_GPUS, GPUS_PER_ENGINE = 256, 16
"""The rollout half of the reference: 32 nodes of 8 GPUs, engines of two nodes."""
TOKENS_PER_SECOND_AND_GPU = (500, 2_000, 8_000)
FLEET_ANSWER_TOKENS = 2_000


class Memory:
    """A bucket and queues as dictionaries, by boto3's method names. Nothing is ever delivered twice."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.queues: dict[str, list[str]] = {"tasks": [], "results": [], "dead": []}
        self.lock = threading.Lock()

    def get_object(self, *, Key: str, IfNoneMatch: str | None = None, **_: Any) -> dict[str, Any]:
        if IfNoneMatch is not None:
            raise store.ClientError({"Error": {"Code": "304"}}, "GetObject")
        date = "Sun, 29 Nov 2026 00:00:00 GMT"
        return {
            "Body": BytesIO(self.objects[Key]),
            "ETag": '"1"',
            "LastModified": store.parsedate_to_datetime(date),
            "ResponseMetadata": {"HTTPHeaders": {"date": date}},
        }

    def put_object(self, *, Key: str, Body: bytes, **_: Any) -> dict[str, Any]:
        self.objects[Key] = Body
        return {"ETag": '"1"'}

    def send_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, str]]) -> dict[str, Any]:
        with self.lock:
            self.queues[QueueUrl] += [entry["MessageBody"] for entry in Entries]
        return {}

    def receive_message(self, *, QueueUrl: str, MaxNumberOfMessages: int, **_: Any) -> dict[str, Any]:
        with self.lock:
            queue = self.queues[QueueUrl]
            taken, queue[:] = queue[:MaxNumberOfMessages], queue[MaxNumberOfMessages:]
        return {"Messages": [{"Body": body, "ReceiptHandle": str(id(body))} for body in taken]}

    def delete_message_batch(self, **_: Any) -> dict[str, Any]:
        return {}

    def change_message_visibility_batch(self, **_: Any) -> dict[str, Any]:
        return {}

    def get_queue_attributes(self, *, AttributeNames: list[str], **_: Any) -> dict[str, Any]:
        return {"Attributes": dict.fromkeys(AttributeNames, "0")}


class Instant:
    """An engine that answers at once."""

    def __init__(self, answer_tokens: int) -> None:
        self._answer = Answer(
            ending="completed",
            tokens=tuple(range(1_000, 1_000 + answer_tokens)),
            text="so the answer is 42",
            log_probs=tuple(-0.123456789 for _ in range(answer_tokens)),
            tags=("0",),
            spans=True,
        )

    def generate(self, **_: Any) -> Answer:
        return self._answer

    def healthy(self) -> bool:
        return True

    def weight_tag(self) -> str:
        return "0"

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


@dataclass(frozen=True)
class Services:
    s3: Any
    sqs: Any
    bucket: str
    queues: Queues


def in_memory() -> Services:
    memory = Memory()
    return Services(memory, memory, "bucket", Queues(tasks="tasks", results="results", dead_letters="dead"))


def embedded(url: str, region: str) -> Services:
    """The embedded AWS, through boto3."""
    s3 = store.client(region, url, connections=96)
    queues = sqs.client(region, url, connections=96)
    bucket = f"agent-bench-{os.getpid()}"
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": region})
    urls = [queues.create_queue(QueueName=f"{bucket}-{part}")["QueueUrl"] for part in ("tasks", "results", "dead")]
    return Services(s3, queues, bucket, Queues(tasks=urls[0], results=urls[1], dead_letters=urls[2]))


def issue(services: Services, tasks: int) -> None:
    store.put(services.s3, services.bucket, f"weights/{protocol.CURRENT_NAME}", protocol.encode(CURRENT))
    messages = []
    for group in range(tasks):
        key = protocol.task_key(CURRENT.of, group)
        payload = TaskPayload(
            group=group,
            prompt="what is 6 * 7?",
            prompt_tokens=tuple(range(200)),
            samples=SAMPLES,
            sampling={"temperature": 1.0, "max_new_tokens": 1_000},
            label="42",
            grader="exact",
        )
        store.put(services.s3, services.bucket, key, protocol.encode(payload))
        task = TaskMessage(run=CURRENT.run, attempt=CURRENT.attempt, group=group, key=key, version_min=0)
        messages.append(protocol.encode(task))
    sqs.send(services.sqs, services.queues.tasks, messages)


def serve(services: Services, tasks: int, *, answer_tokens: int) -> dict[str, float]:
    """CPU and wall seconds of an agent from its start to the last deleted task."""
    issue(services, tasks)
    metrics = Metrics(METRICS)
    settings = Settings(
        lease_seconds=120, tasks_max=64, requests_max=512, drain_seconds=100.0, poll_seconds=1, current_seconds=5.0
    )
    core = Core(settings, base=Path("/models/base"), touched=False, metrics=metrics, log=lambda _: None)
    around = Around(
        engine=Instant(answer_tokens),
        s3=services.s3,
        sqs=services.sqs,
        bucket=services.bucket,
        weights_prefix="weights/",
        queues=services.queues,
        lease_seconds=120,
        failures_max=3,
        worker="bench",
        clock=time.monotonic,
        unix_seconds=time.time,
        fetch=lambda _: Path("/models/base"),
        mark_loading=lambda: None,
        grade=grader([]),
        buffer=lambda *_: None,
    )
    left = threading.Semaphore(0)

    def performed(effect: do.Effect) -> do.Event:
        event = perform(effect, around)
        if isinstance(effect, do.Delete):
            left.release()
        return event

    loop = Loop(core, performed, clock=time.monotonic)
    loop.tell(do.Looked())
    cpu, wall = time.process_time(), time.perf_counter()
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    for _ in range(tasks):
        if not left.acquire(timeout=120):
            raise SystemExit("the agent did not finish its tasks")
    spent = {"cpu_seconds": time.process_time() - cpu, "wall_seconds": time.perf_counter() - wall}
    loop.tell(do.Stopped())
    thread.join(30)
    return spent


def json_ms(answer_tokens: int) -> float:
    """CPU milliseconds to write the samples of one task as JSON."""
    answer = Instant(answer_tokens).generate()
    sample = Sample(
        group=1,
        sample=1,
        tokens=tuple(range(200)) + answer.tokens,
        response_length=answer_tokens,
        response=answer.text,
        status="completed",
        reward=1.0,
        log_probs=answer.log_probs,
        loss_mask=None,
        versions=(0,),
        worker="bench",
        finished_unix_seconds=1.0,
    )
    rounds = 40
    cpu = time.process_time()
    for _ in range(rounds * SAMPLES):
        protocol.encode(sample).encode()
    return (time.process_time() - cpu) / rounds * 1_000


def http_ms(answer_tokens: int) -> float:
    """CPU milliseconds to ask an engine for the samples of one task and to read its replies."""
    answer = Instant(answer_tokens).generate()
    reply = {
        "text": answer.text,
        "output_ids": list(answer.tokens),
        "meta_info": {
            "finish_reason": {"type": "stop", "matched": 2},
            "weight_versions": [{"version": "0", "start": 0, "end": answer_tokens}],
            "output_token_logprobs": [[-0.123456789, token, None] for token in answer.tokens],
        },
    }
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_canned, args=(json.dumps(reply).encode(), theirs), daemon=True)
    server.start()
    engine = Engine(ours.recv(), requests_max=SAMPLES, answer_seconds_max=30.0, load_seconds_max=30.0)
    rounds, prompt = 40, tuple(range(200))
    cpu = time.process_time()
    for number in range(rounds * SAMPLES):
        engine.generate(request_id=str(number), prompt_tokens=prompt, sampling={"temperature": 1.0}, cache_key="0")
    spent = time.process_time() - cpu
    ours.send("over")
    server.join(10)
    return spent / rounds * 1_000


def _canned(reply: bytes, pipe: Any) -> None:
    """An HTTP server that gives the same reply to everything, until it is told that it is over."""
    with serving("127.0.0.1:0", lambda _: HttpAnswer(body=reply)) as url:
        pipe.send(url)
        pipe.recv()


def measure(name: str, make: Callable[[], Services], tasks: int, *, answer_tokens: int, repeats: int) -> dict[str, Any]:
    runs = [serve(make(), tasks, answer_tokens=answer_tokens) for _ in range(repeats)]
    cpu_ms = [run["cpu_seconds"] / tasks * 1_000 for run in runs]
    return {
        "services": name,
        "answer_tokens": answer_tokens,
        "tasks": tasks,
        "repeats": repeats,
        "cpu_ms_per_task": {"min": min(cpu_ms), "median": statistics.median(cpu_ms), "max": max(cpu_ms)},
        "tasks_per_second": tasks / statistics.median(run["wall_seconds"] for run in runs),
        "json_cpu_ms_per_task": json_ms(answer_tokens),
        "http_cpu_ms_per_task": http_ms(answer_tokens),
    }


def cpu_ms(rows: Sequence[dict[str, Any]], answer_tokens: int) -> float:
    """CPU milliseconds of a task with answers of that length: on the line through the two lengths measured in memory, HTTP to
    the engine included, and what boto3 adds to short answers where that was measured."""
    short, long, *through_boto3 = rows
    taken = [row["cpu_ms_per_task"]["median"] + row["http_cpu_ms_per_task"] for row in (short, long)]
    per_token = (taken[1] - taken[0]) / (long["answer_tokens"] - short["answer_tokens"])
    boto3 = [row["cpu_ms_per_task"]["median"] - short["cpu_ms_per_task"]["median"] for row in through_boto3]
    return float(taken[0] + per_token * (answer_tokens - short["answer_tokens"]) + sum(boto3))


def fleet(cpu_ms_per_task: float) -> list[dict[str, float]]:
    """What a fleet asks of each agent, at several rates of its GPUs. A task is SAMPLES answers of FLEET_ANSWER_TOKENS."""
    rows = []
    for rate in TOKENS_PER_SECOND_AND_GPU:
        tasks = rate * FLEET_GPUS / (FLEET_ANSWER_TOKENS * SAMPLES)
        per_engine = tasks * GPUS_PER_ENGINE / FLEET_GPUS
        rows.append(
            {
                "tokens_per_second_and_gpu": rate,
                "tasks_per_second": tasks,
                "tasks_per_second_and_engine": per_engine,
                "cores_per_engine": per_engine * cpu_ms_per_task / 1_000,
            }
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agent", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    parser.add_argument("--embedded", action="store_true", help="also through boto3, against the embedded AWS")
    parser.add_argument("--tasks", type=int, default=TASKS, help=f"of a run in memory (default {TASKS})")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"runs of each kind (default {REPEATS})")
    options = parser.parse_args()
    if options.tasks < 10 or options.repeats < 1:
        parser.error("--tasks must be at least 10, --repeats at least 1")
    shown = sys.stderr if options.json else sys.stdout
    print(f"agent, {SAMPLES} samples a task, own code at most {TARGET_CPU_MS:g} ms of CPU a task", file=shown)
    print(f"machine {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}", file=shown, flush=True)
    rows = [
        measure("memory", in_memory, options.tasks, answer_tokens=tokens, repeats=options.repeats)
        for tokens in ANSWER_TOKENS
    ]
    with ExitStack() as stack:
        if options.embedded:
            from infra.local import server

            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            running = server.start(folder, python=ROOT / ".venv-emulator" / "bin" / "python", project_root=ROOT)
            stack.callback(server.stop, folder)
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                os.environ.setdefault(name, "local")
            made = lambda: embedded(running.url, "us-west-2")  # noqa: E731 - a name for one use
            rows.append(measure("embedded", made, EMBEDDED_TASKS, answer_tokens=ANSWER_TOKENS[0], repeats=1))
    own = rows[0]["cpu_ms_per_task"]["median"] - rows[0]["json_cpu_ms_per_task"]
    for row in rows:
        cpu = row["cpu_ms_per_task"]
        print(
            f"{row['services']:>9}, {row['answer_tokens']:>5} tokens an answer: CPU min {cpu['min']:.2f}  median "
            f"{cpu['median']:.2f}  max {cpu['max']:.2f} ms a task, of which JSON {row['json_cpu_ms_per_task']:.2f}; "
            f"{row['tasks_per_second']:.0f} tasks/s; HTTP to the engine {row['http_cpu_ms_per_task']:.2f} ms beside it",
            file=shown,
        )
    document = {
        "benchmark": "agent",
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "runs": rows,
        "own_cpu_ms_per_task": own,
        "target_cpu_ms": TARGET_CPU_MS,
        "fleet": fleet(cpu_ms(rows, FLEET_ANSWER_TOKENS)),
        "passed": own <= TARGET_CPU_MS,
    }
    for row in document["fleet"]:
        print(
            f"{FLEET_GPUS} GPUs at {row['tokens_per_second_and_gpu']} tokens/s each, answers of {FLEET_ANSWER_TOKENS}: "
            f"{row['tasks_per_second']:.0f} tasks/s, {row['tasks_per_second_and_engine']:.2f} per engine, "
            f"{row['cores_per_engine']:.4f} cores of its agent",
            file=shown,
        )
    print(f"own code {own:.2f} ms a task; target {'met' if document['passed'] else 'MISSED'}", file=shown)
    print(json.dumps(document), flush=True)
    return 0 if document["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
