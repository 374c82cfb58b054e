"""The data source that Miles and slime load into their rollout manager: prompts, ids, the ledger, and the save.

`save` runs last of a save: the shards are on disk by then, and the export of the model. It hands all of it to the uploader
together with the ledger, which is so far the only copy of what is outstanding; the uploader commits. `load` takes the ledger
of the resumed checkpoint up again.

slime has neither hooks nor versions of weights, so here it also publishes, once per save.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moerl_runtime import lease, plan, sqs, store
from moerl_runtime.checkpoint import handover
from moerl_runtime.faults import InputFault
from moerl_runtime.metrics import Metrics
from moerl_runtime.plan import Node
from moerl_runtime.sqs import SqsClient
from moerl_runtime.store import S3Client
from moerl_runtime.trainer import arguments, framework, gates, report, samples, settings
from moerl_runtime.trainer.dispatch import Feed, Fetch, Limits, Pace, Queues
from moerl_runtime.trainer.ledger import Ledger
from moerl_runtime.trainer.metrics import metrics as trainer_metrics
from moerl_runtime.trainer.prompts import DEFAULT_GRADER, Columns, Prompts, Render, fingerprint, parse, read, renderer
from moerl_runtime.trainer.report import Reporter
from moerl_runtime.trainer.settings import Settings
from moerl_runtime.weights.publish import Publisher
from moerl_runtime.workers import buffer_client
from moerl_runtime.workers.buffer_client import BufferClient

log = logging.getLogger(__name__)

MEGATRON_NAME = "iter_{step:07d}"
PUBLISH_SECONDS = 1_800.0
"""How long a save of slime may wait for the publication of the one before."""
SAMPLING: Mapping[str, str] = {
    "temperature": "rollout_temperature",
    "top_p": "rollout_top_p",
    "top_k": "rollout_top_k",
    "max_new_tokens": "rollout_max_response_len",
    "stop": "rollout_stop",
    "stop_token_ids": "rollout_stop_token_ids",
    "skip_special_tokens": "rollout_skip_special_tokens",
}
"""SGLang's sampling parameter to the framework's argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a data source talks to; a test brings its own."""

    s3: S3Client
    sqs_client: SqsClient
    render: Render
    reporter: Reporter
    sample_class: type[Any]
    fetch: Fetch
    clock: Callable[[], float] = time.monotonic
    pace: Pace | None = None


class DataSource:
    """Built with `args` alone by both frameworks."""

    def __init__(self, args: Any, parts: Parts | None = None) -> None:
        self.args = args
        self.settings = settings.of(args)
        arguments.check(args, self.settings.framework)
        document = plan.load(self.settings.plan_path)
        self._parts = parts or connect(args, self.settings, document)
        self._scratch_is_shared = document["storage"]["scratch"].text == "fsx"
        self._lock = threading.Lock()
        body = read(args.prompt_data, self._parts.s3)
        self.prompts = Prompts(
            parse(body, _columns(args)),
            fingerprint=fingerprint(body),
            render=self._parts.render,
            samples=args.n_samples_per_prompt,
            sampling=_sampling(args),
            seed=args.rollout_seed,
            shuffle=args.rollout_shuffle,
            grader=getattr(args, "rm_type", None) or DEFAULT_GRADER,
            tokens_max=getattr(args, "rollout_max_prompt_len", None),
        )
        limits = _limits(args, self.settings, document)
        self._pace = self._parts.pace or Pace()
        self._ledger = Ledger(
            samples=args.n_samples_per_prompt, window=limits.window, reissue_seconds=self._pace.reissue_seconds
        )
        self._feed = Feed(
            ledger=self._ledger,
            attempt=self.settings.of,
            payload=self.prompts.payload,
            limits=limits,
            queues=_queues(document),
            bucket=document["names"]["weights_bucket"].text,
            s3=self._parts.s3,
            sqs_client=self._parts.sqs_client,
            fetch=self._parts.fetch,
            metrics=self._parts.reporter.metrics,
            clock=self._parts.clock,
            pace=self._pace,
        )
        self._publisher = publisher(self._parts.s3, self.settings, document) if self._is_slime else None
        self._gates = gates.read(document)
        self._history = gates.History()
        self._version = 0
        self._loaded = False

    # --- the frameworks' protocol

    def load(self, rollout_id: int | None = None) -> None:
        """Takes up the checkpoint of that step, -1 or None for a run that begins. Tasks go out with the first batch."""
        with self._lock:
            resumed = self.settings.resumed
            step = -1 if rollout_id is None else rollout_id
            if step != self.settings.start - 1:
                raise InputFault(
                    "start step",
                    step + 1,
                    f"the framework does not go on from the committed checkpoint, whose next step is {self.settings.start}",
                    "Remove what is in the checkpoint directory, and start the run again.",
                )
            if resumed is not None:
                self._restore(resumed.metadata)
            if self._publisher is not None:
                self._publisher.begin(Path(self.args.hf_checkpoint), resumed=resumed is not None)
            self._loaded = True

    def save(self, rollout_id: int) -> None:
        """Hands the save of that step over: files of Megatron, export, ledger."""
        with self._lock:
            self._parts.reporter.phase("save", rollout_id)
            directory = Path(self.args.save)
            paths = [directory / MEGATRON_NAME.format(step=rollout_id)]
            export = Path(self.args.save_hf.format(rollout_id=rollout_id)) if self.args.save_hf else None
            if export is not None:
                paths.append(export)
            if self._publisher is not None:
                self._publish(self._publisher, export, rollout_id)
            handover.announce(
                directory,
                attempt=self.settings.of,
                step=rollout_id,
                paths=paths,
                nodes=1 if self._scratch_is_shared else self.args.actor_num_nodes,
                metadata={
                    "framework": self.settings.framework,
                    "ledger": self._feed.state(rollout_id),
                    "prompts": self.prompts.fingerprint,
                    "history": self._history.until(rollout_id).document(),
                },
            )
            self._feed.saved(rollout_id)
            log.info("step %d is handed to the uploader", rollout_id)
            self._parts.reporter.phase("publish", rollout_id)

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        """Prompts for a caller that answers them himself; the queue never sees them."""
        lent = self._feed.lend(self.settings.start, num_samples)
        return [
            samples.prompt_group(
                self._parts.sample_class, group, self.prompts.row(position), self.args.n_samples_per_prompt
            )
            for group, position in lent
        ]

    def add_samples(self, groups: Sequence[Sequence[Any]]) -> None:
        """Takes prompts of `get_samples` back; they go out again under new ids."""
        self._feed.give_back([group[0].group_index for group in groups])

    def get_buffer_length(self) -> int:
        """Groups that are complete and wait."""
        return self._feed.waiting()

    def close(self) -> None:
        self._feed.close()
        if self._publisher is not None:
            self._publisher.flush(PUBLISH_SECONDS)
            self._publisher.close()
        self._parts.reporter.close()

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def dataset(self) -> Prompts:
        """Miles asks for its length where steps follow from epochs."""
        return self.prompts

    # --- for the rollout class

    def batch(self, step: int, weight_version: int | None) -> tuple[list[list[Any]], dict[str, float]]:
        """(groups in the framework's form, metrics) of one step. `weight_version` is None where the framework keeps none."""
        if not self._loaded:
            raise InputFault("data source", "not loaded", "no checkpoint was taken up", "Call load() before a batch.")
        # Not in load(): the pointer of the weights moves to this attempt after it, and agents delete tasks of any other.
        self._feed.start()
        reporter = self._parts.reporter
        reporter.phase("wait", step)
        version = self._version if weight_version is None else weight_version
        began = self._parts.clock()
        taken = self._feed.batch(step, version)
        waited = self._parts.clock() - began
        found = samples.statistics(taken, version)
        self._export(reporter.metrics, found)
        self._remember(step, found)
        groups = [
            samples.framework_group(self._parts.sample_class, group, self.prompts.row(group.position))
            for group in taken
        ]
        reporter.phase("train", step)
        return groups, {
            "rollout/moerl/wait_seconds": waited,
            "rollout/moerl/staleness_versions": found.staleness_versions,
            "rollout/moerl/ready_groups": float(self._feed.waiting()),
        }

    # --- inside

    @property
    def _is_slime(self) -> bool:
        return self.settings.framework == "slime"

    def _restore(self, metadata: Mapping[str, Any]) -> None:
        if metadata.get("prompts") != self.prompts.fingerprint:
            raise InputFault(
                "--prompt-data",
                self.args.prompt_data,
                "is not the file that the checkpoint was made with, and positions in it would mean other prompts",
                "Put the old file back, or start a new run.",
            )
        self._ledger.restore(metadata["ledger"])
        # Absent in checkpoints of an older release: this attempt's own batches are judged then.
        self._history = gates.history(metadata.get("history"))

    def _publish(self, publisher: Publisher, export: Path | None, step: int) -> None:
        if export is None or not any(export.glob("*.safetensors")):
            # slime only logs that an export failed.
            raise InputFault(
                "--save-hf",
                str(export),
                f"holds no weights of step {step}, so engines would never see them",
                "Read the trainer's log for the export's error; with several nodes, scratch has to be fsx.",
            )
        self._version += 1
        publisher.enqueue(export, self._version, "full", None)
        publisher.flush(PUBLISH_SECONDS)
        self._parts.reporter.metrics.set("moerl_trainer_weight_version", self._version)

    def _remember(self, step: int, found: samples.BatchStatistics) -> None:
        """For the entrypoint, which judges the last batches: with the next save, and at once for a run without saves."""
        batch = gates.Batch(
            step=step,
            reward_min=found.reward_min,
            reward_max=found.reward_max,
            repetition_share=found.repetition_share,
            truncated_share=found.truncated_share,
        )
        # One more than is judged: of the newest the step may not be saved yet.
        self._history = self._history.after(batch, keep=self._gates.batches)
        self._parts.reporter.history(self._history.document())

    def _export(self, metrics: Metrics, found: samples.BatchStatistics) -> None:
        metrics.set("moerl_trainer_reward_mean", found.reward_mean)
        metrics.set("moerl_trainer_repetition_share", found.repetition_share)
        metrics.set("moerl_trainer_truncated_share", found.truncated_share)
        metrics.set("moerl_trainer_staleness_versions", found.staleness_versions)


def connect(args: Any, known: Settings, document: Node) -> Parts:
    """The real parts."""
    region = document["region"].text
    s3 = store.client(region)
    bucket = document["names"]["weights_bucket"].text
    chat_template = bool(getattr(args, "apply_chat_template", False))
    return Parts(
        s3=s3,
        sqs_client=sqs.client(region),
        render=renderer(
            framework.tokenizer(known.framework, args),
            chat_template=chat_template,
            template_arguments=getattr(args, "apply_chat_template_kwargs", None),
        ),
        reporter=Reporter("rollout-manager", trainer_metrics(), report.poster(known.control)),
        sample_class=framework.sample_class(known.framework),
        fetch=fetcher(s3, bucket, BufferClient(buffer_client.urls(document))),
    )


def fetcher(s3: S3Client, bucket: str, buffers: BufferClient) -> Fetch:
    """From the buffer worker that has it, or from S3, where it is in any case."""

    def fetch(group: int, key: str) -> bytes | None:
        buffered = buffers.get(group, key)
        if buffered is not None:
            return buffered
        found = store.get(s3, bucket, key)
        return None if found is None else found.body

    return fetch


def _columns(args: Any) -> Columns:
    return Columns(
        prompt=args.input_key,
        label=getattr(args, "label_key", None),
        metadata=getattr(args, "metadata_key", None) or "metadata",
        tools=getattr(args, "tool_key", None),
    )


def _sampling(args: Any) -> dict[str, Any]:
    written = {name: getattr(args, argument, None) for name, argument in SAMPLING.items()}
    # As Miles samples itself: a stop token stays in the answer, since it is trained on.
    fixed = {"no_stop_trim": True, "spaces_between_special_tokens": False}
    return {name: value for name, value in written.items() if value is not None} | fixed


def _limits(args: Any, known: Settings, document: Node) -> Limits:
    """The plan's staleness, from which it has sized batch and fleet; it is what --max-weight-staleness says, where Miles
    itself reads it with engines of its own alone."""
    return Limits(
        batch=args.rollout_batch_size,
        staleness=document["workload"]["batch"]["staleness_versions"].number,
        steps_per_version=1 if known.framework == "miles" else args.save_interval,
    )


def _queues(document: Node) -> Queues:
    queue = document["queue"]
    return Queues(
        task=queue["task_url"].text, result=queue["result_url"].text, dead_letter=queue["dead_letter_url"].text
    )


def publisher(s3: S3Client, known: Settings, document: Node) -> Publisher:
    """Publishes this attempt's weights, as long as no newer attempt has the lease."""
    bucket, prefix = document["names"]["checkpoint_bucket"].text, document["storage"]["checkpoint_prefix"].text
    return Publisher(
        s3,
        bucket=document["names"]["weights_bucket"].text,
        weights_prefix=document["storage"]["weights_prefix"].text,
        attempt=known.of,
        check=lambda: lease.check_attempt(s3, bucket=bucket, prefix=prefix, attempt=known.of),
        report=log.warning,
    )
