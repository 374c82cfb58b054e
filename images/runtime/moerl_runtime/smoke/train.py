"""The smoke job's train.py: `python -m moerl_runtime.smoke.train FLAGS`, started by the trainer's entrypoint as Miles' is.

Rank 0 holds the data source, as the rollout manager of Miles does, and sends every rank the step's batch. Experts lie on
all ranks. Weights and saves leave by the hooks that Miles calls, in its order: a save where one is due, whose export becomes
an anchor, then the step's version as a delta.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from moerl_runtime import plan, sqs, store
from moerl_runtime.checkpoint.handover import TRACKER_NAME
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.smoke import base, grpo, job, model_files, ranks, task, versions
from moerl_runtime.smoke.dispatch import AllToAll, Alone, Dispatcher
from moerl_runtime.smoke.grpo import Answer
from moerl_runtime.smoke.model import TinyMoe, share_of
from moerl_runtime.trainer import data_source, hooks, report, settings
from moerl_runtime.trainer.data_source import MEGATRON_NAME, DataSource, Parts
from moerl_runtime.trainer.dispatch import Pace
from moerl_runtime.trainer.metrics import metrics as trainer_metrics
from moerl_runtime.trainer.report import Reporter
from moerl_runtime.workers.buffer_client import BufferClient

LEARNING_RATE, BETAS = 2e-3, (0.9, 0.95)
PASSES = 2
"""Optimizer steps on one batch: the ratio's clip has something to do from the second on."""
GRADIENT_NORM_MAX = 1.0
GRPO = grpo.GrpoSettings(entropy_weight=0.005)
COLLECTIVE_SECONDS = 180.0
"""Longest wait of a rank for the others: rank 0 waits for samples meanwhile, and gives up earlier."""
FLUSH_SECONDS = 30.0
CPU = torch.device("cpu")


@dataclass(kw_only=True)
class Sample:
    """The framework's form of a sample: what `trainer.samples` fills in."""

    class Status(Enum):
        completed = "completed"
        truncated = "truncated"

    group_index: int
    index: int
    prompt: Any
    label: str | None
    metadata: dict[str, Any]
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    reward: float = 0.0
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] = field(default_factory=list)
    status: Status = Status.completed


def main(written: Sequence[str]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    torch.set_num_threads(1)
    parsed = _parsed(written)
    if not Path(parsed.load, TRACKER_NAME).is_file():
        base.make(Path(parsed.hf_checkpoint))
    with tempfile.TemporaryDirectory(prefix="moerl-ranks-") as folder:
        meeting = str(Path(folder) / "meeting")
        # Forked before any thread or connection is there: they need not load torch again.
        context = multiprocessing.get_context("fork")
        more = [
            context.Process(target=_run_rank, args=(parsed, rank, meeting), name=f"rank-{rank}", daemon=True)
            for rank in range(1, parsed.ranks)
        ]
        for process in more:
            process.start()
        try:
            _run_rank(parsed, 0, meeting)
            for process in more:
                process.join(COLLECTIVE_SECONDS)
                if process.exitcode != 0:
                    raise RuntimeFault(str(process.name), process.exitcode, "did not end well", "Read the log above.")
        finally:
            for process in more:
                process.kill()


def _parsed(written: Sequence[str]) -> Namespace:
    parser = argparse.ArgumentParser(prog="python -m moerl_runtime.smoke.train", allow_abbrev=False)
    for flag in ("custom-config-path", "hf-checkpoint", "load", "prompt-data", "save", "save-hf", "step-log"):
        parser.add_argument(f"--{flag}", required=True)
    parser.add_argument("--update-weight-disk-dir", required=True)
    parser.add_argument("--rollout-function-path", required=True)
    for flag in ("num-rollout", "save-interval", "actor-num-nodes", "ranks"):
        parser.add_argument(f"--{flag}", required=True, type=int)
    parsed = parser.parse_args(written)
    # What Miles' parser would have made of the flags of a run without engines of its own.
    for name, value in {
        "moerl": json.loads(Path(parsed.custom_config_path).read_text(encoding="utf-8"))[settings.ATTRIBUTE],
        "data_source_path": "moerl_runtime.trainer.data_source.DataSource",
        "rollout_global_dataset": True,
        "debug_rollout_only": False,
        "debug_train_only": False,
        "debug_skip_weight_update": False,
        "load_debug_rollout_data": None,
        "use_rollout_routing_replay": False,
        "reward_key": None,
        "rollout_num_gpus": 0,
        "fully_async": False,
        "colocate": False,
        "async_save": False,
        "update_weight_transfer_mode": "disk-delta",
        "custom_update_weight_post_write_path": "moerl_runtime.trainer.hooks.published",
        "custom_megatron_post_save_hook_path": "moerl_runtime.trainer.hooks.saved",
        "rollout_batch_size": job.GROUPS,
        "n_samples_per_prompt": job.SAMPLES,
        "global_batch_size": job.GROUPS * job.SAMPLES,
        "rollout_seed": job.PROMPT_SEED,
        "rollout_shuffle": True,
        "rollout_temperature": 1.0,
        "rollout_max_response_len": task.ANSWER_TOKENS,
        "input_key": "prompt",
        "label_key": "label",
    }.items():
        setattr(parsed, name, value)
    return parsed


def _run_rank(args: Namespace, rank: int, meeting: str) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=args.ranks,
        timeout=timedelta(seconds=COLLECTIVE_SECONDS),
    )
    try:
        hooks.started(args)
        trainer = Trainer(args, rank)
        if rank == 0:
            _lead(args, trainer)
        else:
            while (message := trainer.share(None)) is not None:
                number, answers = message
                trainer.step(answers)
                trainer.save(number)
                trainer.publish(number)
    finally:
        dist.destroy_process_group()


class Trainer:
    """One rank's part of the model, and the steps that all ranks take together."""

    def __init__(self, args: Namespace, rank: int) -> None:
        begin = Path(args.hf_checkpoint)
        self._args, self._rank, self._ranks = args, rank, args.ranks
        self._shape = model_files.read_shape(begin)
        dispatcher: Dispatcher = AllToAll(experts=self._shape.experts) if args.ranks > 1 else Alone()
        state = dict(model_files.tensors(begin))
        self._model: TinyMoe = ranks.build(self._shape, dispatcher, state, CPU)
        self._published = model_files.raw(state)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=0.0)
        tracker = Path(args.load) / TRACKER_NAME
        if tracker.is_file():
            self._load(int(tracker.read_text(encoding="utf-8")))

    def share(self, message: Any) -> Any:
        """Rank 0's message, on every rank."""
        held = [message]
        dist.broadcast_object_list(held, src=0)
        return held[0]

    def step(self, answers: Sequence[Answer]) -> float:
        """Trains on the batch, and returns the last loss over all ranks."""
        batch = grpo.batch_of(answers[self._rank :: self._ranks], CPU)
        tokens = float(sum(answer.response_length for answer in answers))
        with torch.no_grad():
            before, _, _ = grpo.target_log_probs(self._model, batch)
        for _ in range(PASSES):
            self._optimizer.zero_grad()
            loss = grpo.loss(self._model, batch, before, GRPO, tokens=tokens)
            loss.backward()  # type: ignore[no-untyped-call]
            ranks.sum_gradients(self._model)
            ranks.clip_gradients(self._model, GRADIENT_NORM_MAX)
            self._optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        return float(total)

    def save(self, number: int) -> None:
        """Every rank's files and the export of the whole model, where a save is due after that step."""
        if not self.saves(number):
            return
        self._save(number)
        state = self._whole()
        dist.barrier()
        if self._rank == 0:
            export = Path(self._args.save_hf.format(rollout_id=number))
            model_files.write(export, self._shape, state)
            hooks.saved(self._args, number, str(self._file(number).parent), str(export))

    def publish(self, number: int) -> None:
        """The weights after that step, as their difference to those before it."""
        version = settings.of(self._args).version_after(number)
        directory = versions.directory_of(Path(self._args.update_weight_disk_dir), version)
        state = self._whole()
        if self._rank == 0:
            weights = model_files.raw(state)
            versions.write(directory, version, self._published, weights)
            self._published = weights
        hooks.published(self._args, str(directory), ())

    def saves(self, number: int) -> bool:
        return bool((number + 1) % self._args.save_interval == 0 or number + 1 == self._args.num_rollout)

    def _file(self, number: int) -> Path:
        return Path(self._args.save) / MEGATRON_NAME.format(step=number) / f"rank-{self._rank}.pt"

    def _save(self, number: int) -> None:
        path = self._file(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}, path)

    def _whole(self) -> dict[str, torch.Tensor]:
        return ranks.whole(self._model.state_dict().items())

    def _load(self, number: int) -> None:
        """Raises RuntimeFault unless the checkpoint is that of the export which the engines begin with."""
        saved = torch.load(self._file(number), weights_only=True)
        export = share_of(dict(model_files.tensors(Path(self._args.hf_checkpoint))), rank=self._rank, ranks=self._ranks)
        for name, tensor in saved["model"].items():
            if not torch.equal(tensor, export[name]):
                raise RuntimeFault(
                    "--hf-checkpoint",
                    self._args.hf_checkpoint,
                    f"has another {name} than the checkpoint of step {number}",
                    "Restore the checkpoint again.",
                )
        self._model.load_state_dict(saved["model"])
        self._optimizer.load_state_dict(saved["optimizer"])


def _lead(args: Namespace, trainer: Trainer) -> None:
    """Rank 0: samples in, weights and checkpoints out."""
    known = settings.of(args)
    document = plan.load(known.plan_path)
    s3 = store.client(document["region"].text)
    bucket, prefix = document["names"]["weights_bucket"].text, document["storage"]["weights_prefix"].text
    source = DataSource(args, _parts(known, document, s3))
    source.load(known.start - 1)
    hooks.published(args, args.update_weight_disk_dir, ())
    began, logged = time.time(), -1
    for number in range(known.start, args.num_rollout):
        version = known.version_after(number) - 1
        groups, metrics = source.batch(number, version)
        _, answers = trainer.share((number, _answers(groups)))
        loss = trainer.step(answers)
        trainer.save(number)
        if trainer.saves(number):
            source.save(number)
        trainer.publish(number)
        # A step takes less than a second here: tasks that ask for weights which are still on their way would wait longer.
        hooks.flush(args, FLUSH_SECONDS)
        rewards = [sample.reward for group in groups for sample in group]
        _log_step(
            Path(args.step_log),
            unix_seconds=time.time(),
            seconds=time.time() - began,
            attempt=known.attempt,
            step=number,
            version=version,
            reward=sum(rewards) / len(rewards),
            loss=loss,
            groups=[group[0].group_index for group in groups],
            samples=len(rewards),
            staleness=metrics["rollout/moerl/staleness_versions"],
            wait_seconds=metrics["rollout/moerl/wait_seconds"],
            weights=versions.stored(s3, bucket, prefix, known.of, range(logged + 1, version + 2)),
        )
        began, logged = time.time(), version + 1
    trainer.share(None)
    source.close()


def _parts(known: settings.Settings, document: plan.Node, s3: store.S3Client) -> Parts:
    bucket = document["names"]["weights_bucket"].text
    return Parts(
        s3=s3,
        sqs_client=sqs.client(document["region"].text),
        render=lambda prompt, _: (str(prompt), task.encode(str(prompt))),
        reporter=Reporter("rollout-manager", trainer_metrics(), report.poster(known.control), period_seconds=1.0),
        sample_class=Sample,
        fetch=data_source.fetcher(s3, bucket, BufferClient([])),
        pace=Pace(
            reissue_seconds=job.REISSUE_SECONDS,
            stall_seconds=job.STALL_SECONDS,
            log_seconds=10.0,
            sweep_seconds=30.0,
            poll_seconds=1.0,
            long_poll_seconds=2,
            result_lease_seconds=job.LEASE_SECONDS,
        ),
    )


def _answers(groups: Sequence[Sequence[Sample]]) -> list[Answer]:
    found = grpo.advantages([[sample.reward for sample in group] for group in groups])
    return [
        Answer(
            tokens=tuple(sample.tokens),
            response_length=sample.response_length,
            log_probs=tuple(sample.rollout_log_probs),
            advantage=advantage,
        )
        for group, values in zip(groups, found, strict=True)
        for sample, advantage in zip(group, values, strict=True)
    ]


def _log_step(path: Path, **row: Any) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
