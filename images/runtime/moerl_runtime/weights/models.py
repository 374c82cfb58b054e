"""Base models: `models/NAME/` in the bucket, with a listing that is written last, and `DIR/NAME` on every node.

The prepare job stores them; before a pod's main container starts, `weights fetch` brings the ones that its pool needs to the
node, once a node. Nothing expires them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from moerl_runtime import disk, store
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.plan import Node
from moerl_runtime.weights import cache, manifest, transfer
from moerl_runtime.weights.cache import Clock, Wait
from moerl_runtime.weights.fetch import HELD_FREE_BYTES, LOCK_SECONDS
from moerl_runtime.weights.manifest import MODEL_MARKER, File, Model

MODELS_PREFIX = "models/"
LISTING_NAME = ".complete.json"
"""On the node: the listing of what the directory holds. Hidden, since it is none of the model's files."""


def needed(plan: Node, pool: str) -> tuple[str, ...]:
    """Directories that pods of the pool read: engines the serving model; the trainer takes its names and dtypes from that
    and starts from the reference."""
    files = plan["workload"]["files"]
    if plan["workload"]["trainer"]["pool"].text == pool:
        return tuple(dict.fromkeys((files["serving"].text, files["reference"].text)))
    plan["workload"]["rollouts"].named("pool", pool)
    return (files["serving"].text,)


def prefix_of(name: str) -> str:
    return f"{MODELS_PREFIX}{name}/"


def stored(s3: store.S3Client, bucket: str, name: str) -> Model | None:
    """The listing in the bucket; None for a model that is not there as a whole."""
    found = store.get(s3, bucket, prefix_of(name) + MODEL_MARKER)
    return None if found is None else manifest.decode_model(found.body)


def complete(s3: store.S3Client, bucket: str, model: Model) -> None:
    """Makes a model of the files that are stored."""
    store.put(s3, bucket, prefix_of(model.name) + MODEL_MARKER, manifest.encode(model))


def fetch(
    s3: store.S3Client,
    bucket: str,
    name: str,
    *,
    below: Path,
    workers: int = transfer.FILES_AT_ONCE,
    clock: Clock = time.monotonic,
    wait: Wait = time.sleep,
    free_bytes: Callable[[Path], int] = cache.free_bytes,
    report: Callable[[str], object] = print,
) -> Path:
    """The model's directory on this node, complete and verified. Other pods of the node wait and find it.

    Raises RuntimeFault where the bucket does not have it, a byte differs, or the disk is full.
    """
    model = stored(s3, bucket, name)
    if model is None:
        raise RuntimeFault(
            "model",
            prefix_of(name),
            f"is not complete in bucket {bucket}",
            "Run the prepare job: kubectl create -f jobs/prepare.yaml.",
        )
    target, listing = below / name, manifest.encode(model)
    below.mkdir(parents=True, exist_ok=True)
    with cache.locked(below, deadline_seconds=LOCK_SECONDS, clock=clock, wait=wait):
        if _listing(target) == listing:
            report(f"weights: {name} is on this node already")
            return target
        half = cache.hidden(target, "partial")
        if _listing(half) != listing:
            # What is left of another listing may have files of the same name and size.
            cache.discard(half)
            half.mkdir()
            (half / LISTING_NAME).write_text(listing, encoding="utf-8")
        left, free = model.size_bytes - cache.size_bytes(half), free_bytes(below)
        if free < left + HELD_FREE_BYTES:
            raise RuntimeFault(
                "below",
                str(below),
                f"has {free / 2**30:.1f} GiB free, and {name} still needs {left / 2**30:.1f}",
                "Remove models that no run uses from the node, or take nodes with more local disk.",
            )
        begun = clock()
        read = transfer.download(s3, bucket, prefix_of(name), half, model.files, workers=workers, report=report)
        disk.sync(half / LISTING_NAME)
        cache.finish(half, target)
        report(f"weights: {name}, {read / 2**30:.2f} GiB read, {clock() - begun:.1f} s")
    return target


def adopt(directory: Path, target: Path, model: Model) -> None:
    """Gives a directory that was made here, and is that model, the name under which a fetch looks for it."""
    (directory / LISTING_NAME).write_text(manifest.encode(model), encoding="utf-8")
    disk.sync(directory / LISTING_NAME)
    cache.finish(directory, target)


def merged(name: str, origin: str, parts: Sequence[Model]) -> Model:
    """One listing of what several nodes stored. Raises RuntimeFault where they stored different files under one name."""
    files: dict[str, File] = {}
    for part in parts:
        for file in part.files:
            if files.setdefault(file.name, file) != file:
                raise RuntimeFault("model", f"{name}/{file.name}", "differs between two nodes", "Run the job again.")
    return Model(name=name, origin=origin, files=tuple(files[key] for key in sorted(files)))


def renamed(files: Sequence[File], old: str, new: str) -> tuple[File, ...]:
    """The listing with the folder `old` called `new`."""
    return tuple(
        replace(file, name=new + file.name.removeprefix(old)) if file.name.startswith(old) else file for file in files
    )


def _listing(directory: Path) -> str | None:
    try:
        return (directory / LISTING_NAME).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
