"""Agents, a framework and a run for the trainer's tests: real protocol and storage, everything else in memory."""

from __future__ import annotations

import json
import random
import threading
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from moerl_runtime import protocol, sqs, store
from moerl_runtime.metrics import Metrics
from moerl_runtime.plan import Node
from moerl_runtime.protocol import Attempt, DeadLetter, ResultMessage, Sample, TaskMessage, TaskPayload
from moerl_runtime.trainer.dispatch import Queues
from moerl_runtime.trainer.gates import Batch, History
from moerl_runtime.trainer.metrics import metrics
from moerl_runtime.trainer.report import Reporter
from moerl_runtime.trainer.settings import Resumed, Settings

REGION = "us-west-2"
SAMPLE = Sample(
    group=0,
    sample=0,
    tokens=(1, 2, 3),
    response_length=2,
    response="a b",
    status="completed",
    reward=1.0,
    log_probs=(-0.1, -0.2),
    loss_mask=None,
    versions=(0,),
    worker="w",
    finished_unix_seconds=0.0,
)


def sample(group: int, number: int, version: int = 0, **changes: Any) -> Sample:
    return replace(SAMPLE, **{"group": group, "sample": number, "versions": (version,), **changes})


class Clock:
    """Seconds that pass when told to, or a little at every reading."""

    def __init__(self, step_seconds: float = 0.0) -> None:
        self.now, self.step_seconds = 0.0, step_seconds

    def __call__(self) -> float:
        self.now += self.step_seconds
        return self.now


@dataclass
class Bed:
    """A bucket and three queues of their own."""

    s3: Any
    sqs_client: Any
    bucket: str
    queues: Queues


def bed(endpoint_url: str, name: str) -> Bed:
    s3, client = store.client(REGION, endpoint_url), sqs.client(REGION, endpoint_url)
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    urls = [client.create_queue(QueueName=f"{name}-{part}")["QueueUrl"] for part in ("tasks", "results", "dead")]
    return Bed(s3=s3, sqs_client=client, bucket=name, queues=Queues(task=urls[0], result=urls[1], dead_letter=urls[2]))


def payload(position: int, group: int, samples: int = 2) -> TaskPayload:
    return TaskPayload(
        group=group,
        prompt=f"question {position}",
        prompt_tokens=(1,),
        samples=samples,
        sampling={"temperature": 1.0},
        label=str(position),
        grader="exact",
        metadata={"position": position},
    )


@dataclass
class Agent:
    """An agent that follows the protocol, with a version of weights and a temper.

    `fate(task)` may say: `lose-result` (sample stored, message lost), `lose-task` (deleted and forgotten), `twice` (results
    sent twice), `die` (dead letter), `half` (stores one sample, then vanishes without giving back), or None.
    """

    bed: Bed
    attempt: Attempt
    version: Callable[[], int] = lambda: 0
    fate: Callable[[TaskMessage], str | None] = lambda _: None
    lease_seconds: int = 30
    done: list[int] = field(default_factory=list)

    def work(self, most: int = 10, wait_seconds: int = 0) -> int:
        messages = sqs.receive(
            self.bed.sqs_client,
            self.bed.queues.task,
            most=most,
            wait_seconds=wait_seconds,
            lease_seconds=self.lease_seconds,
        )
        for message in messages:
            self._one(message)
        return len(messages)

    def _one(self, message: sqs.Received) -> None:
        task = protocol.decode(TaskMessage, message.body)
        if task.of != self.attempt:
            sqs.delete(self.bed.sqs_client, self.bed.queues.task, [message.receipt])
            return
        if self.version() < task.version_min:
            sqs.give_back(self.bed.sqs_client, self.bed.queues.task, [message.receipt])
            return
        fate = self.fate(task)
        if fate == "lose-task":
            sqs.delete(self.bed.sqs_client, self.bed.queues.task, [message.receipt])
            return
        if fate == "die":
            letter = DeadLetter(
                run=task.run, attempt=task.attempt, group=task.group, key=task.key, failures=3, reason="no grader"
            )
            sqs.send(self.bed.sqs_client, self.bed.queues.dead_letter, [protocol.encode(letter)])
            sqs.delete(self.bed.sqs_client, self.bed.queues.task, [message.receipt])
            return
        asked = self.read(task)
        for number in range(1 if fate == "half" else asked.samples):
            self.publish(task, number, asked, announce=fate != "lose-result")
            if fate == "twice":
                self.publish(task, number, asked)
        if fate == "half":
            return
        sqs.delete(self.bed.sqs_client, self.bed.queues.task, [message.receipt])
        self.done.append(task.group)

    def read(self, task: TaskMessage) -> TaskPayload:
        stored = store.get(self.bed.s3, self.bed.bucket, task.key)
        assert stored is not None
        return protocol.decode(TaskPayload, stored.body)

    def publish(
        self, task: TaskMessage, number: int, asked: TaskPayload | None = None, *, announce: bool = True
    ) -> None:
        key = protocol.sample_key(task.of, task.group, number)
        tokens = (*(asked or self.read(task)).prompt_tokens, 2, 3)
        body = protocol.encode(sample(task.group, number, self.version(), tokens=tokens, reward=float(number % 2)))
        store.put_new(self.bed.s3, self.bed.bucket, key, body)
        if announce:
            result = ResultMessage(run=task.run, attempt=task.attempt, group=task.group, sample=number, key=key)
            sqs.send(self.bed.sqs_client, self.bed.queues.result, [protocol.encode(result)])


class Fleet:
    """Agents in threads, until the block ends."""

    def __init__(self, agents: Sequence[Agent]) -> None:
        self._agents, self._stopped = agents, threading.Event()
        self._faults: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(agent,), daemon=True) for agent in agents]

    def _run(self, agent: Agent) -> None:
        try:
            while not self._stopped.is_set():
                if not agent.work():
                    self._stopped.wait(0.1)
        except BaseException as error:
            self._faults.append(error)

    def __enter__(self) -> Fleet:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        assert not self._faults


def chaos(seed: int, *, share: float, fates: Sequence[str]) -> Callable[[TaskMessage], str | None]:
    """A fate that depends on the task and how often it was issued, so that a run with a seed is the same run again."""

    def fate(task: TaskMessage) -> str | None:
        dice = random.Random(f"{seed}-{task.attempt}-{task.group}-{task.issue}")  # noqa: S311 - repeats on purpose
        return dice.choice(list(fates)) if dice.random() < share else None

    return fate


# --- frameworks


@dataclass
class FrameworkSample:
    """Fields and check of `miles.utils.types.Sample` and slime's, as far as both have them."""

    group_index: int | None = None
    index: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"

    status: Status = Status.PENDING

    def validate(self) -> None:
        assert len(self.tokens) >= self.response_length
        assert self.rollout_log_probs is None or len(self.rollout_log_probs) == self.response_length


class Tokenizer:
    """Words are tokens."""

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": [len(word) for word in text.split()]}

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tools: Any, tokenize: bool, add_generation_prompt: bool, **more: Any
    ) -> str:
        assert not tokenize
        assert add_generation_prompt
        del tools, more
        return " ".join(f"<{message['role']}> {message['content']}" for message in messages) + " <assistant>"


class Posts:
    """What was reported to the head."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, path: str, body: dict[str, Any]) -> None:
        self.bodies.append((path, body))

    def phases(self) -> list[tuple[str, int]]:
        return [(body["phase"], body["step"]) for path, body in self.bodies if path == "/v1/phase"]


def reporter(posts: Posts, found: Metrics | None = None) -> Reporter:
    return Reporter("test", found or metrics(), posts, period_seconds=0.05)


def history(count: int, **changes: float) -> History:
    """So many batches; without changes, of a run that learns."""
    found = History()
    for step in range(count):
        batch = {"reward_min": 0.0, "reward_max": 1.0, "repetition_share": 0.0, "truncated_share": 0.1} | changes
        found = found.after(Batch(step=step, **batch), keep=count)
    return found


def plan_document(bed_: Bed, *, scratch: str = "fsx", checkpoint_bucket: str | None = None) -> dict[str, Any]:
    return {
        "region": REGION,
        "names": {"weights_bucket": bed_.bucket, "checkpoint_bucket": checkpoint_bucket or bed_.bucket},
        "storage": {"scratch": scratch, "checkpoint_prefix": "checkpoints/", "weights_prefix": "weights/"},
        "queue": {
            "task_url": bed_.queues.task,
            "result_url": bed_.queues.result,
            "dead_letter_url": bed_.queues.dead_letter,
        },
        "pools": [{"name": "trainer", "capacity": {"type": "on_demand", "block": None}}],
        "workload": {
            "trainer": {"pool": "trainer", "save_seconds_max": 60},
            "batch": {"staleness_versions": 2},
            "gates": {"enforced": True, "batches": 5, "repetition_share_max": 0.3, "truncated_share_max": 0.9},
            "cpu_workers": [],
        },
    }


def plan_node(document: dict[str, Any]) -> Node:
    return Node(document, "")


def arguments_of(
    tmp_path: Path,
    document: dict[str, Any],
    *,
    framework: str = "miles",
    resumed: Resumed | None = None,
    attempt: int = 1,
    batch: int = 4,
    samples: int = 2,
    prompts: int = 10,
    run: str = "trainer-0123abcd",
    **changes: Any,
) -> Namespace:
    """The arguments of a framework as the trainer sees them."""
    plan_path, prompt_path = tmp_path / "plan.json", tmp_path / "prompts.jsonl"
    plan_path.write_text(json.dumps(document))
    if not prompt_path.exists():
        rows = ({"prompt": f"question {number}", "label": str(number)} for number in range(prompts))
        prompt_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = Settings(
        framework="slime" if framework == "slime" else "miles",
        run=run,
        attempt=attempt,
        plan=str(plan_path),
        control="http://127.0.0.1:1",
        resumed=resumed,
    )
    miles = {
        "rollout_function_path": "moerl_runtime.trainer.rollout.Rollout",
        "rollout_num_gpus": 0,
        "debug_train_only": False,
        "debug_skip_weight_update": False,
        "fully_async": False,
        "colocate": False,
        "async_save": False,
        "update_weight_transfer_mode": "disk-delta",
        "custom_update_weight_post_write_path": "moerl_runtime.trainer.hooks.published",
        "custom_megatron_post_save_hook_path": "moerl_runtime.trainer.hooks.saved",
        "update_weight_disk_dir": str(tmp_path / "scratch" / "weights"),
        "chat_template_path": None,
    }
    slime = {"rollout_function_path": "moerl_runtime.trainer.rollout.generate_rollout", "debug_train_only": True}
    shared = {
        "data_source_path": "moerl_runtime.trainer.data_source.DataSource",
        "rollout_global_dataset": True,
        "debug_rollout_only": False,
        "load_debug_rollout_data": None,
        "use_rollout_routing_replay": False,
        "reward_key": None,
        "rollout_batch_size": batch,
        "n_samples_per_prompt": samples,
        "global_batch_size": batch * samples,
        "actor_num_nodes": 1,
        "num_rollout": 10,
        "save": str(tmp_path / "scratch" / "checkpoints"),
        "save_hf": str(tmp_path / "scratch" / "hf" / "{rollout_id}"),
        "save_interval": 1,
        "hf_checkpoint": str(tmp_path / "base"),
        "prompt_data": str(prompt_path),
        "input_key": "prompt",
        "label_key": "label",
        "metadata_key": "metadata",
        "tool_key": None,
        "apply_chat_template": True,
        "rollout_seed": 42,
        "rollout_shuffle": False,
        "rollout_max_prompt_len": None,
        "rollout_temperature": 1.0,
        "rollout_top_p": 1.0,
        "rollout_top_k": -1,
        "rollout_max_response_len": 16,
        "rollout_stop": None,
        "rollout_stop_token_ids": None,
        "rollout_skip_special_tokens": False,
        "rm_type": None,
    }
    chosen = shared | (slime if framework == "slime" else miles) | settings.document() | changes
    return Namespace(**chosen)
