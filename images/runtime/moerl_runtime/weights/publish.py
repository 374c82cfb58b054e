"""The trainer's side: versions of the policy into the bucket, and the pointer that engines follow.

    files → manifest → pointer: each is complete before the next is written, so a crash leaves the version before.

A publisher that finds the pointer of a newer attempt, or of another run, has been replaced (`pointer.Fenced`), and the run
ends.

Where the publication directory is shared, rank 0 alone publishes, in the background (`enqueue`); a failure surfaces at the
next call. Where it is local to each node, every node stores its own files and rank 0 writes the manifest when all have
(`publish_shares`, in the foreground: it is a collective).
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from moerl_runtime import protocol, store
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.weights import cache, delta, fetch, pointer, retain, safetensors, transfer
from moerl_runtime.weights.manifest import (
    File,
    Kind,
    Manifest,
    anchor_key,
    encode,
    folder_of,
    list_files,
    version_key,
)
from moerl_runtime.weights.safetensors import INDEX_NAME

KEEP_VERSIONS = 4
"""Versions that stay in the bucket whatever engines have loaded."""
ANCHOR_EVERY = 10
"""Versions between two anchors, where saves bring them."""
ANCHOR_AT_LAST = 2
"""After so many times ANCHOR_EVERY without one, the publisher makes an anchor itself: a new node would replay every delta, and
the bucket's lifecycle would cut the chain."""
ANCHOR_DISK_SHARE = 2
"""It takes no more than one in so many of the free bytes of scratch, which checkpoints need more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one node stored of a version."""

    files: tuple[File, ...]
    checksums: Mapping[str, str]
    """Of the tensors that its files change, after the change."""
    failure: str | None = None


class Publisher:
    """Publishes one attempt's versions, in order.

    `check` raises when the run's lease is lost; it is called right before the pointer moves, before which nobody reads what
    is below this attempt's number. `report` gets a line for what a person should know and the run survives.
    """

    def __init__(
        self,
        s3: store.S3Client,
        *,
        bucket: str,
        weights_prefix: str,
        attempt: protocol.Attempt,
        check: Callable[[], object] = lambda: None,
        report: Callable[[str], object] = print,
        keep_versions: int = KEEP_VERSIONS,
        anchor_every: int = ANCHOR_EVERY,
        workers: int = transfer.FILES_AT_ONCE,
    ) -> None:
        self._s3, self._bucket, self._prefix, self._attempt = s3, bucket, weights_prefix, attempt
        self._check, self._report = check, report
        self._keep_versions, self._anchor_every, self._workers = keep_versions, anchor_every, workers
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="publish")
        self._running: list[Future[None]] = []
        self._broken = threading.Event()
        self._base: Path | None = None
        self._published = -1
        self._anchor: str | None = None
        self._anchor_version = 0
        self._checksums: dict[str, str] = {}
        self._checksum_format = ""
        self._offered: dict[int, tuple[Path, Sequence[str]]] = {}

    @property
    def published(self) -> int:
        """Newest version that engines are pointed at; -1 before `begin`."""
        return self._published

    def begin(self, base: Path, *, resumed: bool) -> None:
        """Points engines at version 0 of this attempt. `base` is the trainer's `--hf-checkpoint`.

        A first attempt begins at the base model that every node has. A resumed one begins at the export of the resumed
        step, which is stored whole: engines must not sample the base model until the first trained step is published.
        """
        self._base = base
        manifest = None
        if resumed:
            _require_whole(base)
            manifest = version_key(self._prefix, self._attempt, 0)
            self._store(base, transferred_names(base), self._manifest(0, "full", None, ()), manifest)
        self._anchor, self._anchor_version = manifest, 0
        self._move(0, manifest, begin=True)

    def enqueue(self, version_dir: Path, version: int, kind: Kind, base: int | None) -> None:
        """Publishes in the background, after what was enqueued before. Raises what an earlier one failed with.

        The directory of a delta is removed once it is published, that of a whole version never.
        """
        self._surface()
        self._running.append(self._pool.submit(self._guarded, lambda: self._publish(version_dir, version, kind, base)))

    def offer_anchor(self, directory: Path, version: int) -> None:
        """Offers the whole of a version that is or will be published as a delta. It is stored if an anchor is due and it
        is, tensor by tensor, what the deltas lead to; else it is reported and left out.

        The directory may go away at any time: whoever commits a newer save removes older ones. Then there is no anchor of
        it, and never one that lacks a file: what it consists of is seen now.
        """
        self._surface()
        names = transferred_names(directory)
        self._running.append(self._pool.submit(self._guarded, lambda: self._take_anchor(directory, names, version)))

    def publish_shares(
        self,
        version_dir: Path | None,
        version: int,
        base: int,
        *,
        rank: int,
        gather: Callable[[Share], Sequence[Share]],
    ) -> None:
        """Publishes a delta of which every node has its own files. All ranks call it; one rank of a node gives the node's
        directory, the others None. `gather` is an all-gather of small objects.

        Whoever fails still gathers, so that nobody waits for it; then all raise.
        """
        share = Share(files=(), checksums={})
        failed: Exception | None = None
        prefix = folder_of(version_key(self._prefix, self._attempt, version))
        try:
            self._surface()
            if version_dir is not None and version_dir.is_dir():
                names = transferred_names(version_dir)
                files = list_files(version_dir, names)
                transfer.upload(self._s3, self._bucket, prefix, version_dir, files, workers=self._workers)
                share = Share(files=files, checksums=delta.checksums(version_dir))
        except Exception as error:  # whatever it is: the other ranks wait in the gather
            failed = error
            share = Share(files=(), checksums={}, failure=f"{type(error).__name__}: {error}")
        shares = gather(share)
        outcome = Share(files=(), checksums={}, failure=next((one.failure for one in shares if one.failure), None))
        if rank == 0 and outcome.failure is None:
            try:
                self._commit_shares(version_dir, version, base, shares)
            except Exception as error:  # as above
                failed = error
                outcome = Share(files=(), checksums={}, failure=f"{type(error).__name__}: {error}")
        reported = next((one.failure for one in gather(outcome) if one.failure), None)
        if failed is not None:
            raise failed
        if reported is not None:
            raise RuntimeFault("version", version, f"was not published: {reported}", "See the rank that failed.")
        self._published = version
        if version_dir is not None:
            shutil.rmtree(version_dir, ignore_errors=True)

    def flush(self, deadline_seconds: float) -> None:
        """Waits until all that was enqueued is published. Raises what failed, or RuntimeFault at the deadline."""
        left = wait(self._running, timeout=deadline_seconds).not_done
        self._surface()
        if left:
            raise RuntimeFault(
                "weights",
                len(left),
                f"versions are still not published after {deadline_seconds:.0f} s",
                "Look at the upload's throughput.",
            )

    def close(self) -> None:
        """Ends the background work: what runs is finished, what waits is dropped. `flush` first to lose nothing."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Nothing is published after a failure: a version would be missing below it."""
        if self._broken.is_set():
            return
        try:
            work()
        except BaseException:
            self._broken.set()
            raise

    def _surface(self) -> None:
        """Raises what failed, at this call and at every later one."""
        ended = [future for future in self._running if future.done()]
        for future in ended:
            future.result()
        self._running = [future for future in self._running if future not in ended]

    def _publish(self, version_dir: Path, version: int, kind: Kind, base: int | None) -> None:
        names = transferred_names(version_dir)
        if kind == "delta":
            self._follows(version_dir, version, base, names)
        elif version <= self._published:
            raise RuntimeFault("version", version, f"is not after {self._published}", "Give versions in order.")
        else:
            _require_whole(version_dir)
        key = version_key(self._prefix, self._attempt, version)
        self._store(version_dir, names, self._manifest(version, kind, base, ()), key)
        if kind == "delta":
            self._checksums |= delta.checksums(version_dir)
            self._checksum_format = delta.read_index(version_dir).checksum_format
        else:
            self._anchor, self._anchor_version, self._checksums, self._base = key, version, {}, version_dir
        self._move(version, key, begin=False)
        if kind == "delta":
            shutil.rmtree(version_dir, ignore_errors=True)
        self._after(version_dir.parent, version, self._checksums)

    def _commit_shares(self, version_dir: Path | None, version: int, base: int, shares: Sequence[Share]) -> None:
        if version_dir is None:
            raise RuntimeFault("version_dir", None, "is not given on rank 0", "Rank 0 writes the index.")
        files = tuple(sorted((file for share in shares for file in share.files), key=lambda file: file.name))
        self._follows(version_dir, version, base, {file.name for file in files})
        key = version_key(self._prefix, self._attempt, version)
        self._commit(self._manifest(version, "delta", base, files), key)
        for share in shares:
            self._checksums |= share.checksums
        self._checksum_format = delta.read_index(version_dir).checksum_format
        self._move(version, key, begin=False)
        # Ranks wait for this one: what can be done later is.
        scratch, known = version_dir.parent, dict(self._checksums)
        self._running.append(self._pool.submit(self._guarded, lambda: self._after(scratch, version, known)))

    def _follows(self, version_dir: Path, version: int, base: int | None, names: Sequence[str] | set[str]) -> None:
        """Raises unless the directory holds that delta as a whole, made for the version published last."""
        index = delta.read_index(version_dir)
        fix = "Give every version that the trainer writes, in order, whole."
        if (index.version, index.base) != (version, base) or base != self._published:
            raise RuntimeFault(
                "version",
                version,
                f"on {base} does not follow version {self._published}, or its index says {index.version} on {index.base}",
                fix,
            )
        listed = {*index.files.values(), INDEX_NAME}
        if set(names) != listed:
            raise RuntimeFault("version_dir", str(version_dir), f"has {sorted(names)} instead of {sorted(listed)}", fix)

    def _store(self, directory: Path, names: Sequence[str], manifest: Manifest, key: str) -> None:
        files = list_files(directory, names)
        transfer.upload(self._s3, self._bucket, folder_of(key), directory, files, workers=self._workers)
        self._commit(Manifest(**_fields(manifest) | {"files": files}), key)

    def _commit(self, manifest: Manifest, key: str) -> None:
        body = encode(manifest)
        if store.put_new(self._s3, self._bucket, key, body) is not None:
            return
        there = store.get(self._s3, self._bucket, key)
        if there is None or there.body != body.encode():
            raise RuntimeFault(
                "manifest",
                key,
                "is there already with other files",
                "Take a new attempt for every start of the trainer.",
            )

    def _move(self, version: int, manifest: str | None, *, begin: bool) -> None:
        self._check()
        to = protocol.Current(run=self._attempt.run, attempt=self._attempt.number, version=version, manifest=manifest)
        pointer.move_current(self._s3, self._bucket, self._prefix, to, begin=begin)
        self._published = version

    def _manifest(self, version: int, kind: Kind, base: int | None, files: tuple[File, ...]) -> Manifest:
        return Manifest(
            run=self._attempt.run,
            attempt=self._attempt.number,
            version=version,
            kind=kind,
            base=base,
            anchor=self._anchor if kind == "delta" else None,
            files=files,
        )

    def _after(self, scratch: Path, version: int, checksums: Mapping[str, str]) -> None:
        """Anchors, and what nobody needs any more. `checksums` are those of this version."""
        if version in self._offered:
            self._store_anchor(*self._offered.pop(version), version, checksums)
        if version - self._anchor_version >= ANCHOR_AT_LAST * self._anchor_every:
            self._make_anchor(scratch, version)
        try:
            retain.prune(self._s3, self._bucket, self._prefix, run=self._attempt.run, keep_versions=self._keep_versions)
        except (RuntimeFault, ClientError, BotoCoreError) as error:
            # What is left over costs money, not the run.
            self._report(f"weights: older versions were not removed: {error}")

    def _take_anchor(self, directory: Path, names: Sequence[str], version: int) -> None:
        if version > self._published:
            self._offered = {version: (directory, names)}
        elif version == self._published:
            self._store_anchor(directory, names, version, dict(self._checksums))
        else:
            self._report(f"weights: the anchor of version {version} came after version {self._published}; left out")

    def _store_anchor(self, directory: Path, names: Sequence[str], version: int, checksums: Mapping[str, str]) -> None:
        """Deltas are taken against exactly these bytes, so an export that differs in one tensor would break every chain
        that begins at it. (Padding rows or another FP8 rounding are enough.)"""
        if version - self._anchor_version < self._anchor_every or self._base is None:
            return
        try:
            _require_whole(directory)
            wrong = delta.difference(directory, self._base, checksums, self._checksum_format)
        except (OSError, RuntimeFault) as error:
            wrong = f"it cannot be read: {error}"
        if wrong:
            self._report(f"weights: {directory} is not version {version}, so it is no anchor: {wrong}")
            return
        try:
            self._commit_anchor(directory, names, version)
        except OSError as error:
            # Of a file: boto3 wraps its own. The next save offers another; no manifest names what was stored of this one.
            self._report(f"weights: no anchor of version {version}, whose files went away: {error}")

    def _make_anchor(self, scratch: Path, version: int) -> None:
        """What a new node would make of the bucket: so it is that version, or is refused as there."""
        directory = anchors_beside(scratch)
        current = protocol.Current(
            run=self._attempt.run,
            attempt=self._attempt.number,
            version=version,
            manifest=version_key(self._prefix, self._attempt, version),
        )
        try:
            directory.mkdir(exist_ok=True)
            whole = fetch.bring(
                self._s3,
                self._bucket,
                current,
                weights_prefix=self._prefix,
                models=directory,
                base=self._base or directory,
                keep=0,
                workers=self._workers,
                free_bytes=lambda path: cache.free_bytes(path) // ANCHOR_DISK_SHARE,
                report=self._report,
            )
            self._commit_anchor(whole, transferred_names(whole), version)
        except (OSError, RuntimeFault, ClientError, BotoCoreError) as error:
            # The run goes on; what is wrong with it for good shows at the next version.
            self._report(f"weights: no anchor of version {version}: {error}")

    def _commit_anchor(self, directory: Path, names: Sequence[str], version: int) -> None:
        key = anchor_key(self._prefix, self._attempt, version)
        self._store(directory, names, self._manifest(version, "full", None, ()), key)
        self._anchor, self._anchor_version = key, version


def anchors_beside(published: Path) -> Path:
    """Where the publisher keeps the whole of a version on scratch: beside the publication directory, which Miles empties
    at its start."""
    return published.with_name(f"{published.name}-anchors")


def _require_whole(directory: Path) -> None:
    """Raises RuntimeFault for a directory that an engine could not load as a whole model."""
    there = set(safetensors.tensor_files(directory))
    index = directory / INDEX_NAME
    listed = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if index.is_file() else there
    if not there or listed != there:
        raise RuntimeFault(
            "version_dir",
            str(directory),
            f"has {sorted(there)} and its index {sorted(listed)}",
            "Export the model again.",
        )


def transferred_names(directory: Path) -> list[str]:
    """Files of a model or a delta, by relative name. What is hidden or partial is none of it."""
    return [
        name for name in every_name(directory) if not any(part.startswith(".") for part in PurePosixPath(name).parts)
    ]


def every_name(directory: Path) -> list[str]:
    """With hidden files, which torch_dist has (.metadata), but without partial ones."""
    files = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return sorted(file.as_posix() for file in files if file.suffix not in (".tmp", transfer.PARTIAL))


def _fields(manifest: Manifest) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in Manifest.__dataclass_fields__}
