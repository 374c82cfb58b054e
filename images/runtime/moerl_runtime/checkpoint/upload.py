"""The sidecar: uploads what a save has left, waits for the other nodes, commits.

    1  the trainer announces a save in the checkpoint directory of one pod (`handover`)
    2  that pod's uploader writes the announcement to S3, so that the others learn of it; it is the committer
    3  every uploader sends what its node has of the save, proves every file, then writes its node's manifest
    4  the committer waits for all manifests and compares their union with what the save must consist of
    5  it asks once more whether its attempt is the current one, and writes complete.json, which nobody can overwrite

Whatever dies in between, either complete.json is there, with everything that it names before it, or the checkpoint before
is still the newest one. Each step may be repeated: an uploader that starts again finds what it has done. A save that a
newer one overtakes while it waits is dropped, so that the newest is always the next.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event

from moerl_runtime import lease, store
from moerl_runtime.checkpoint import handover, layout, listing, prune, resolve
from moerl_runtime.checkpoint import shared as sharing
from moerl_runtime.checkpoint.handover import NotCommitted, Outcome, Ready
from moerl_runtime.checkpoint.layout import Announcement, Complete, File, NodeManifest, Position, files_of
from moerl_runtime.checkpoint.shared import Shared
from moerl_runtime.checkpoint.transfer import TRANSIENT, Moving, begun_uploads, upload
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.protocol import Attempt, decode, encode
from moerl_runtime.store import S3Client

LOOK_SECONDS = 5.0
"""Between two looks for work, or for the manifests of other nodes."""
RETRY_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploader:
    """One pod's uploader. `several_nodes`: other pods may announce saves of which this one has files."""

    s3: S3Client
    bucket: str
    prefix: str
    run: str
    node: str
    directory: Path
    several_nodes: bool
    barrier_seconds: float
    """How long the committer waits for the other nodes after its own files are up."""
    retain_last: int
    files: Executor
    moves: Moving
    clock: Callable[[], float]
    wait: Callable[[float], object]
    """Waits whether or not the process was told to stop: a save that was begun is brought to its end."""
    report: Callable[[str], None]
    shared: Shared | None = None
    """Where attempts share scratch: what older ones have left goes once this one has committed."""

    @property
    def scratch(self) -> Path:
        return self.directory.resolve().parent


def serve(uploader: Uploader, stop: Event) -> None:
    """Uploads saves until `stop` is set and nothing is left to do."""
    while True:
        stopping = stop.is_set()
        try:
            worked = work(uploader)
        except TRANSIENT as error:
            # The announcement is still there, and so is what was uploaded.
            uploader.report(f"checkpoint: trying again in {RETRY_SECONDS:g} s: {error}")
            uploader.wait(RETRY_SECONDS)
            continue
        if not worked:
            if stopping:
                return
            stop.wait(LOOK_SECONDS)


def work(uploader: Uploader) -> bool:
    """Uploads one save, if there is one. Returns whether there was one that could be."""
    waiting = handover.waiting(uploader.directory)
    if waiting:
        newest = max(waiting, key=lambda ready: (ready.attempt, ready.step))
        for ready in waiting:
            if ready is not newest:
                _give_up(uploader, ready, f"step {newest.step} was saved before its turn came")
        _commit_announced(uploader, newest)
        return True
    if uploader.several_nodes:
        try:
            for announcement in announced_elsewhere(uploader):
                upload_node(uploader, announcement)
                return True
        except RuntimeFault as fault:
            # Its committer gives it up when its time is over; the next save may be sound.
            uploader.report(f"checkpoint: a save of another node is not uploaded: {fault}")
    return False


def announced_elsewhere(uploader: Uploader) -> Iterator[Announcement]:
    """Saves of the newest attempt, newest first, that lack this node's manifest."""
    attempt = resolve.newest_attempt(uploader.s3, uploader.bucket, uploader.prefix, uploader.run)
    if attempt is None:
        return
    for step in reversed(resolve.steps(uploader.s3, uploader.bucket, uploader.prefix, attempt)):
        below = layout.step_prefix(uploader.prefix, attempt, step)
        stored = store.get(uploader.s3, uploader.bucket, layout.announced_key(below))
        if stored is None:
            continue
        announcement = decode(Announcement, stored.body)
        if announcement.committer == uploader.node:
            continue
        if store.get(uploader.s3, uploader.bucket, layout.node_key(below, uploader.node)) is None:
            yield announcement
        # Older ones were overtaken: their committer has given them up.
        return


def upload_node(uploader: Uploader, announcement: Announcement) -> NodeManifest:
    """Sends what this node has of a save; its manifest last."""
    attempt = Attempt(run=announcement.run, number=announcement.attempt)
    below = layout.step_prefix(uploader.prefix, attempt, announcement.step)
    found = list(handover.files(uploader.scratch, announcement.items))
    total = sum(path.stat().st_size for _, path in found)
    begun = begun_uploads(uploader.s3, uploader.bucket, below)
    with uploader.moves(f"upload step {announcement.step}", total) as moves:

        def send(entry: tuple[str, Path]) -> File:
            name, path = entry
            return upload(moves, layout.file_key(below, name), path, name=name, begun=begun)

        sent = list(uploader.files.map(send, found))
    manifest = NodeManifest(
        run=announcement.run,
        attempt=announcement.attempt,
        step=announcement.step,
        node=uploader.node,
        files=tuple(asdict(file) for file in sent),
    )
    store.put(uploader.s3, uploader.bucket, layout.node_key(below, uploader.node), encode(manifest))
    uploader.report(f"checkpoint: step {announcement.step}, {len(sent)} files of {uploader.node} are stored")
    _forget_older(uploader, announcement)
    return manifest


def commit(uploader: Uploader, announcement: Announcement) -> Complete:
    """Waits for all nodes, compares, and writes the commit marker. Raises NotCommitted or LeaseLost."""
    attempt = Attempt(run=announcement.run, number=announcement.attempt)
    below = layout.step_prefix(uploader.prefix, attempt, announcement.step)
    manifests = _all_manifests(uploader, announcement, below)
    files = _union(announcement, manifests)

    def read(name: str) -> bytes:
        stored = store.get(uploader.s3, uploader.bucket, layout.file_key(below, name))
        return b"" if stored is None else stored.body

    lacking = listing.missing({file.name for file in files}, announcement.items, read)
    if lacking:
        raise NotCommitted(
            "step",
            announcement.step,
            f"{len(lacking)} files are on no node: {', '.join(lacking[:5])}",
            "Announce a save when all ranks have finished it.",
        )
    complete = Complete(
        run=announcement.run,
        attempt=announcement.attempt,
        step=announcement.step,
        nodes=tuple(manifest.node for manifest in manifests),
        files=tuple(asdict(file) for file in files),
        metadata=announcement.metadata,
    )
    lease.check_attempt(uploader.s3, bucket=uploader.bucket, prefix=uploader.prefix, attempt=attempt)
    body, key = encode(complete), layout.complete_key(below)
    if store.put_new(uploader.s3, uploader.bucket, key, body) is None:
        # Ours, when an answer was lost or this process died after it; the files that it names are there either way.
        stored = store.get(uploader.s3, uploader.bucket, key)
        if stored is None:
            raise NotCommitted("step", announcement.step, "its marker vanished", "Is another release pruning?")
        return decode(Complete, stored.body)
    return complete


def _commit_announced(uploader: Uploader, ready: Ready) -> None:
    """Brings a save of this pod's trainer to its end, and tells the trainer which."""
    attempt = Attempt(run=ready.run, number=ready.attempt)
    below = layout.step_prefix(uploader.prefix, attempt, ready.step)
    try:
        done = resolve.at(uploader.s3, uploader.bucket, uploader.prefix, ready.run, ready.position)
        if done is None:
            lease.check_attempt(uploader.s3, bucket=uploader.bucket, prefix=uploader.prefix, attempt=attempt)
            announcement = Announcement(
                run=ready.run,
                attempt=ready.attempt,
                step=ready.step,
                nodes=ready.nodes,
                committer=uploader.node,
                items=ready.items,
                metadata=ready.metadata,
            )
            store.put(uploader.s3, uploader.bucket, layout.announced_key(below), encode(announcement))
            upload_node(uploader, announcement)
            commit(uploader, announcement)
    except RuntimeFault as fault:
        _give_up(uploader, ready, str(fault))
        return
    handover.conclude(
        uploader.directory,
        ready,
        Outcome(run=ready.run, attempt=ready.attempt, step=ready.step, committed=True, prefix=below),
    )
    uploader.report(f"checkpoint: step {ready.step} is committed: s3://{uploader.bucket}/{below}")
    try:
        prune.prune(uploader.s3, uploader.bucket, uploader.prefix, uploader.run, retain_last=uploader.retain_last)
        if uploader.shared is not None:
            sharing.sweep(uploader.s3, uploader.bucket, uploader.prefix, uploader.shared)
    except (*TRANSIENT, RuntimeFault) as error:
        uploader.report(f"checkpoint: not pruned this time: {error}")


def _give_up(uploader: Uploader, ready: Ready, reason: str) -> None:
    uploader.report(f"checkpoint: step {ready.step} is not committed: {reason}")
    handover.conclude(
        uploader.directory,
        ready,
        Outcome(run=ready.run, attempt=ready.attempt, step=ready.step, committed=False, reason=reason),
    )


def _all_manifests(uploader: Uploader, announcement: Announcement, below: str) -> list[NodeManifest]:
    """One manifest a node, in order of their names."""
    began = uploader.clock()
    attempt = Attempt(run=announcement.run, number=announcement.attempt)
    while True:
        present = list(store.keys(uploader.s3, uploader.bucket, layout.nodes_prefix(below)))
        if len(present) >= announcement.nodes:
            stored = [store.get(uploader.s3, uploader.bucket, key) for key in present]
            return [decode(NodeManifest, found.body) for found in stored if found is not None]
        waited = uploader.clock() - began
        if waited >= uploader.barrier_seconds:
            raise NotCommitted(
                "step",
                announcement.step,
                f"{len(present)} of {announcement.nodes} nodes had uploaded their files after {waited:.0f} s",
                "See the logs of the uploaders on the other nodes.",
            )
        lease.check_attempt(uploader.s3, bucket=uploader.bucket, prefix=uploader.prefix, attempt=attempt)
        uploader.wait(LOOK_SECONDS)


def _union(announcement: Announcement, manifests: list[NodeManifest]) -> list[File]:
    """The files of all nodes. Two nodes may have the same file, but not two files of one name."""
    files: dict[str, File] = {}
    for manifest in manifests:
        for file in files_of(manifest):
            if files.setdefault(file.name, file) != file:
                raise NotCommitted(
                    "step",
                    announcement.step,
                    f"{file.name} differs between nodes",
                    "Save it on one node, or under one name per node.",
                )
    return [files[name] for name in sorted(files)]


def _forget_older(uploader: Uploader, announcement: Announcement) -> None:
    """Removes saves from scratch that are older than the newest one that is committed, except what was restored."""
    newest = resolve.resolve(uploader.s3, uploader.bucket, uploader.prefix, uploader.run)
    number = None if newest is None else listing.iteration([file.name for file in files_of(newest.complete)])
    if newest is None or number is None:
        return
    kept = {*announcement.items, *_items(uploader, newest.position)}
    restored = handover.restored(uploader.directory)
    if restored is not None:
        kept |= set(_items(uploader, restored))
    for older, path in listing.saves(uploader.directory):
        if older < number and path.relative_to(uploader.scratch).as_posix() not in kept:
            shutil.rmtree(path)


def _items(uploader: Uploader, position: Position) -> tuple[str, ...]:
    below = layout.step_prefix(uploader.prefix, Attempt(run=uploader.run, number=position.attempt), position.step)
    stored = store.get(uploader.s3, uploader.bucket, layout.announced_key(below))
    return () if stored is None else decode(Announcement, stored.body).items
