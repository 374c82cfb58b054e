"""Hooks of Miles inside the training ranks: weights leave by `published`, a failed export stops the run in `saved`.

`published` stands on the critical path, between two barriers. Where scratch is shared, rank 0 only queues the upload; where
every node has its own, all ranks take part, since the files of a version lie on several nodes.
"""

from __future__ import annotations

import logging
import re
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from moerl_runtime import plan, store
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.plan import Node
from moerl_runtime.trainer import arguments, data_source, framework, report, settings
from moerl_runtime.trainer.metrics import metrics as trainer_metrics
from moerl_runtime.trainer.report import Reporter
from moerl_runtime.trainer.settings import Settings
from moerl_runtime.weights.publish import Publisher

log = logging.getLogger(__name__)

VERSION = re.compile(r"weight_v(\d{6})")
COMPLETE_NAME = ".complete"
"""Miles' marker of a whole export; that an export failed is only logged."""
LAST_SECONDS = 1_800.0
"""How long the end of a run waits for its last version."""


class ExportFailed(RuntimeFault):
    """A save without the model that a resume would begin with."""


def started(args: Any) -> None:
    """On every rank, at the end of Megatron's initialization: forgets versions that an earlier attempt left on this node.

    Miles clears the publication directory on rank 0's node only.
    """
    for path in Path(args.update_weight_disk_dir).glob("weight_v*"):
        shutil.rmtree(path, ignore_errors=True)


def published(args: Any, version_dir: str, rollout_engines: Sequence[Any]) -> None:
    """On every rank after a version's files exist; at the start once, on rank 0, with the directory of all versions."""
    arguments.no_engines(rollout_engines)
    known, directory = settings.of(args), Path(version_dir)
    named = VERSION.fullmatch(directory.name)
    if named is None:
        _publisher(known).begin(Path(args.hf_checkpoint), resumed=known.resumed is not None)
        _reporter(known).metrics.set("moerl_trainer_weight_version", 0)
        return
    version = int(named[1])
    if plan.load(known.plan_path)["storage"]["scratch"].text == "fsx":
        if _rank() == 0:
            _publisher(known).enqueue(directory, version, "delta", version - 1)
            if version == known.version_after(args.num_rollout - 1):
                flush(args, LAST_SECONDS)
    else:
        gather = _gatherer(known)
        _publisher(known).publish_shares(
            directory if _leads_its_node(gather) else None, version, version - 1, rank=_rank(), gather=gather
        )
    if _rank() == 0:
        _reporter(known).metrics.set("moerl_trainer_weight_version", version)


def flush(args: Any, deadline_seconds: float) -> None:
    """On rank 0: waits until what was published is where engines find it. Raises as `Publisher.flush` does."""
    _publisher(settings.of(args)).flush(deadline_seconds)


def saved(args: Any, rollout_id: int, checkpoint_dir: str, hf_checkpoint_dir: str | None) -> None:
    """On rank 0 after every save. The data source's `save`, which comes after it, hands the files over."""
    known = settings.of(args)
    if hf_checkpoint_dir is not None:
        export = Path(hf_checkpoint_dir)
        if not (export / COMPLETE_NAME).is_file():
            raise ExportFailed(
                "--save-hf",
                hf_checkpoint_dir,
                f"step {rollout_id} was not exported, and engines of a resumed run would begin with the base model",
                "Read the log above for the export's own error.",
            )
        _publisher(known).offer_anchor(export, known.version_after(rollout_id))
    began = framework.save_began_unix_seconds(known.framework)
    if began is not None:
        _reporter(known).metrics.set("moerl_trainer_save_seconds", time.time() - began)
    log.info("step %d is saved in %s", rollout_id, checkpoint_dir)


@cache
def _publisher_of(run: str, attempt: int, plan_path: str) -> Publisher:
    known = Settings(framework="miles", run=run, attempt=attempt, plan=plan_path, control="")
    document: Node = plan.load(known.plan_path)
    return data_source.publisher(store.client(document["region"].text), known, document)


def _publisher(known: Settings) -> Publisher:
    """One for the life of the process: it knows what was published before."""
    return _publisher_of(known.run, known.attempt, known.plan)


@cache
def _reporter_of(control: str) -> Reporter:
    return Reporter("rank-0", trainer_metrics(), report.poster(control))


def _reporter(known: Settings) -> Reporter:
    return _reporter_of(known.control)


def _rank() -> int:
    from torch import distributed

    return int(distributed.get_rank())


def _gatherer(known: Settings) -> Callable[[Any], list[Any]]:
    """All-gather of small objects over gloo: NCCL's group is busy with the weights."""
    from torch import distributed

    group = framework.gloo_group(known.framework)

    def gather(item: Any) -> list[Any]:
        found: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(found, item, group=group)
        return found

    return gather


def _leads_its_node(gather: Callable[[Any], list[Any]]) -> bool:
    """Whether this is the lowest rank of its node; all ranks ask."""
    hosts = gather(socket.gethostname())
    return hosts.index(socket.gethostname()) == _rank()
