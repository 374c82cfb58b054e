"""The engines' side: a version of the policy, as a full directory on the node that an engine can load.

SGLang loads whatever tensors a directory has and misses none, so deltas are applied here, into a directory that gets its
name when every tensor has the checksum that the trainer gave it. Killed at any point, the next call repairs.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from moerl_runtime import protocol, store
from moerl_runtime.faults import InputFault, RuntimeFault
from moerl_runtime.weights import cache, delta, manifest, transfer
from moerl_runtime.weights.cache import Clock, Wait
from moerl_runtime.weights.manifest import Manifest
from moerl_runtime.weights.transfer import Missing

LOOK_SECONDS = 2.0
DEADLINE_SECONDS = 120.0
"""How long a version that the pointer names may be missing: it is written before the pointer, so it was pruned."""
LOCK_SECONDS = 3600.0
"""How long another pod of the node may take over the same version."""
KEEP = 2
"""Versions that a node keeps beside the one it makes: the one before is what a failed reload goes back to."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
HELD_FREE_BYTES = 2 * 2**30
"""Room that others of the node keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How to make a version: from a directory of the node, or from a whole version in the bucket, by these deltas."""

    local: Path | None
    whole: Manifest | None
    whole_key: str | None
    deltas: tuple[Manifest, ...]
    """In the order in which they apply."""


def bring(
    s3: store.S3Client,
    bucket: str,
    current: protocol.Current,
    *,
    weights_prefix: str,
    models: Path,
    base: Path,
    deadline_seconds: float = DEADLINE_SECONDS,
    keep: int = KEEP,
    workers: int = transfer.FILES_AT_ONCE,
    clock: Clock = time.monotonic,
    wait: Wait = time.sleep,
    free_bytes: Callable[[Path], int] = cache.free_bytes,
    report: Callable[[str], object] = print,
) -> Path:
    """The directory of the version that `current` names, complete and verified.

    `models` is the node's cache, which its pods share; `base` the base model there, which is version 0 unless the pointer
    names a manifest for it. Raises Missing where the version cannot be had before the deadline (read the pointer anew),
    RuntimeFault where a byte differs or the disk is full.
    """
    if current.manifest is None:
        if not base.is_dir():
            raise RuntimeFault("base", str(base), "is not on this node", "Run `weights fetch` first.")
        return base
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", current.run):
        raise InputFault("run", current.run, "is no name of a run", "Point current.json at a run.")
    target = cache.version_path(models, current.of, current.version)
    if target.is_dir():
        return target
    cache.open_to_agents(models)
    with cache.locked(models / cache.POLICY, deadline_seconds=LOCK_SECONDS, clock=clock, wait=wait):
        if target.is_dir():
            return target
        begun, end = clock(), clock() + deadline_seconds
        while True:
            try:
                route = find_route(s3, bucket, current, weights_prefix=weights_prefix, models=models, base=base)
                _make(
                    s3,
                    bucket,
                    route,
                    target,
                    weights_prefix=weights_prefix,
                    models=models,
                    keep=keep,
                    workers=workers,
                    free_bytes=free_bytes,
                )
            except Missing:
                if clock() >= end:
                    raise
                wait(LOOK_SECONDS)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                raise _full(models, free_bytes(models), needed_bytes(route)) from error
            else:
                break
    size = sum(item.size_bytes for item in route.deltas) + (route.whole.size_bytes if route.whole else 0)
    report(
        f"weights: version {current.version} of attempt {current.attempt} from {len(route.deltas)} deltas on "
        f"{route.local or route.whole_key}, {size / 2**30:.2f} GiB read, {clock() - begun:.1f} s"
    )
    return target


def find_route(
    s3: store.S3Client, bucket: str, current: protocol.Current, *, weights_prefix: str, models: Path, base: Path
) -> Route:
    """The shortest way to the version: back over its deltas to the first version that is on the node, is an anchor, or is
    the base model."""
    if current.manifest is None:
        raise InputFault("manifest", None, "is no key: this is the base model", "Take the base model itself.")
    attempt, key = current.of, current.manifest
    top = at = _read(s3, bucket, key)
    _expect(top, attempt, current.version)
    deltas: list[Manifest] = []
    while at.kind == "delta" and at.base is not None:
        deltas.insert(0, at)
        local = cache.version_path(models, attempt, at.base)
        if local.is_dir():
            return Route(local=local, whole=None, whole_key=None, deltas=tuple(deltas))
        if top.anchor is not None and manifest.version_of(top.anchor) == at.base:
            key = top.anchor
        elif at.base == 0 and top.anchor is None:
            return Route(local=base, whole=None, whole_key=None, deltas=tuple(deltas))
        else:
            key = manifest.version_key(weights_prefix, attempt, at.base)
        version = at.base
        at = _read(s3, bucket, key)
        _expect(at, attempt, version)
    return Route(local=None, whole=at, whole_key=key, deltas=tuple(deltas))


def _make(
    s3: store.S3Client,
    bucket: str,
    route: Route,
    target: Path,
    *,
    weights_prefix: str,
    models: Path,
    keep: int,
    workers: int,
    free_bytes: Callable[[Path], int],
) -> None:
    """The deltas come to a folder beside the version; a whole version that they begin at becomes one of its own."""
    target.parent.mkdir(parents=True, exist_ok=True)
    start = route.local
    if route.whole is not None:
        start = cache.version_path(models, route.whole.of, route.whole.version)
    partial, parts = cache.hidden(target, "partial"), cache.hidden(target, "deltas")
    # Downloads go on where a killed process left them. What it was applying deltas to does not: half of that is older weights.
    begun = {parts, cache.hidden(start, "whole")} if start is not None else {parts}
    cache.clean(models, spare=begun)
    _make_room(route, start, models=models, keep=keep, free_bytes=free_bytes)
    if route.whole is not None and route.whole_key is not None and start is not None:
        half = cache.hidden(start, "whole")
        half.mkdir(exist_ok=True)
        prefix = manifest.folder_of(route.whole_key)
        transfer.download(s3, bucket, prefix, half, route.whole.files, workers=workers)
        cache.finish(half, start)
    if not route.deltas or start is None:
        return
    folders = []
    for item in route.deltas:
        folder = parts / f"{item.version:08d}"
        folder.mkdir(parents=True, exist_ok=True)
        prefix = protocol.version_prefix(weights_prefix, item.of, item.version)
        transfer.download(s3, bucket, prefix, folder, item.files, workers=workers)
        folders.append(folder)
    partial.mkdir()
    try:
        delta.apply(start, folders, partial, workers=workers)
    except RuntimeFault:
        # Whatever was wrong with it is not to be found again by the next call.
        cache.clean(models)
        raise
    cache.finish(partial, target)
    cache.clean(models)


def _make_room(route: Route, start: Path | None, *, models: Path, keep: int, free_bytes: Callable[[Path], int]) -> None:
    """Removes older versions, more of them where the disk asks for it. Raises RuntimeFault where that is not enough."""
    spare = {start} if start is not None else set()
    cache.evict(models, keep=keep, spare=spare)
    wanted = needed_bytes(route) + HELD_FREE_BYTES
    if free_bytes(models) < wanted:
        cache.evict(models, keep=0, spare=spare)
    free = free_bytes(models)
    if free < wanted:
        raise _full(models, free, wanted)


def _full(models: Path, free: int, wanted: int) -> RuntimeFault:
    return RuntimeFault(
        "models",
        str(models),
        f"has {free / 2**30:.1f} GiB free, and the version needs {wanted / 2**30:.1f}",
        "Remove models that no run uses from the node, or take nodes with more local disk.",
    )


def needed_bytes(route: Route) -> int:
    """Disk that making the version takes at most: as if no file were shared with the version that it begins at."""
    whole = route.whole.size_bytes if route.whole is not None else 0
    deltas = sum(item.size_bytes for item in route.deltas)
    copied = (cache.size_bytes(route.local) if route.local is not None else whole) if route.deltas else 0
    return whole + deltas + copied


def _read(s3: store.S3Client, bucket: str, key: str) -> Manifest:
    stored = store.get(s3, bucket, key)
    if stored is None:
        raise Missing("manifest", key, f"is not in bucket {bucket}", "Read the pointer anew.")
    return manifest.decode_manifest(stored.body)


def _expect(found: Manifest, attempt: protocol.Attempt, version: int) -> None:
    if (found.of, found.version) != (attempt, version):
        raise InputFault(
            "manifest",
            f"{found.run} {found.attempt} {found.version}",
            f"lies where {attempt.run} {attempt.number} {version} should",
            "Publish the version anew.",
        )
