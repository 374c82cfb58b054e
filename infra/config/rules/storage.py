"""Checkpoints, weights and scratch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.config.faults import Finding
from infra.config.names import bucket_names, checkpoint_path
from infra.config.rules.registry import Context, fault, rule, warning

BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
FSX_SIZES_GIB = (1200, 2400)
FSX_STEP_GIB = 2400


@rule("storage.bucket-name")
def bucket_name(context: Context) -> Iterator[Finding]:
    written = context.environment.checkpoints.bucket
    if written and not BUCKET.fullmatch(written):
        reason = (
            "has a dot: TLS names with dots fail in S3 clients, PyTorch distributed checkpoint among them"
            if "." in written
            else "is not a bucket name (3 to 63 of a-z, 0-9, -)"
        )
        yield fault(
            "checkpoints.bucket", written, reason, "Write the name of a bucket without dots, or leave the key out."
        )


@rule("storage.derived-name")
def derived_name(context: Context) -> Iterator[Finding]:
    for name in bucket_names(context.environment):
        if len(name) > 63:
            yield fault(
                "name",
                context.environment.name,
                f"makes the bucket name {name}, which has {len(name)} characters; S3 allows 63",
                f"Shorten it by {len(name) - 63}.",
            )


@rule("storage.removal")
def removal(context: Context) -> Iterator[Finding]:
    checkpoints = context.environment.checkpoints
    if checkpoints.removal == "destroy" and not checkpoints.confirm_destroy:
        yield fault(
            "checkpoints.removal",
            "destroy",
            "lets a stack deletion or a replacement take every checkpoint with it",
            "Write `removal: retain`, or add `confirm_destroy: true` to say that you mean it.",
        )
    elif checkpoints.removal == "destroy":
        yield warning(
            "checkpoints.removal", "destroy", "checkpoints go with the stack", "Write `removal: retain` to keep them."
        )


@rule("storage.scratch-size")
def scratch_size(context: Context) -> Iterator[Finding]:
    size = context.environment.checkpoints.scratch_gib
    if context.environment.checkpoints.scratch == "fsx" and size not in FSX_SIZES_GIB and size % FSX_STEP_GIB:
        yield fault(
            "checkpoints.scratch_gib",
            size,
            "FSx for Lustre offers 1200, 2400 and multiples of 2400 GiB",
            f"Write {-(-size // FSX_STEP_GIB) * FSX_STEP_GIB}.",
        )


@rule("storage.scratch-nvme")
def scratch_nvme(context: Context) -> Iterator[Finding]:
    if context.environment.checkpoints.scratch != "nvme":
        return
    for name, pool in context.pools("trainer"):
        bare = [instance.name for instance in context.instances(pool) if instance.gpus and not instance.nvme_gib]
        if bare:
            yield fault(
                "checkpoints.scratch",
                "nvme",
                f"pool {name} has {', '.join(bare)}, which has no local disks",
                "Write `scratch: fsx`.",
            )


@rule("storage.save-interval")
def save_interval(context: Context) -> Iterator[Finding]:
    workload = context.environment.workload
    if workload.save_interval > workload.steps and not workload.no_checkpoint:
        yield fault(
            "workload.save_interval",
            workload.save_interval,
            f"is above steps ({workload.steps}): the run would end without a checkpoint, and exit 0",
            f"Write {workload.steps} or less, or `no_checkpoint: true`.",
        )


@rule("storage.save-optimizer")
def save_optimizer(context: Context) -> Iterator[Finding]:
    workload = context.environment.workload
    if not workload.trainer.save_optimizer and not workload.no_checkpoint:
        yield fault(
            "workload.trainer.save_optimizer",
            False,
            "a checkpoint without optimizer state cannot be resumed",
            "Write true, or `no_checkpoint: true` for a run that nobody will resume.",
        )


@rule("storage.load-equals-save")
def load_equals_save(context: Context) -> Iterator[Finding]:
    workload, save = context.environment.workload, checkpoint_path(context.environment)
    if workload.load is not None and workload.load != save:
        yield fault(
            "workload.load",
            workload.load,
            f"is not the save path ({save}): after an interruption the run would start again from there, in silence",
            "Leave the key out; load and save are one path.",
        )
