"""What stays in the bucket: what engines may still ask for, and all that it is built on.

Kept of the current attempt are the newest versions, versions that an agent reports as loaded, and for each of them its
deltas back to its anchor, with the anchor. Kept of an older attempt is only what an agent reports. Versions above the
pointer and newer attempts are being written: they are left alone.

An agent reports by an object below `samples/`, where it may write: one small PUT per load, repeated every
REPORT_SECONDS. A report counts for REPORT_AGE_SECONDS by S3's own clock, so a lost agent holds nothing for long, and no
machine's clock is compared with another's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from moerl_runtime import names, protocol, store
from moerl_runtime.faults import InputFault
from moerl_runtime.weights import manifest, pointer
from moerl_runtime.weights.manifest import ANCHOR_FOLDER, Manifest

REPORT_SECONDS = 600.0
REPORT_AGE_SECONDS = 3 * REPORT_SECONDS
LOADED_FOLDER = "loaded/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Body of an agent's report."""

    version: int


@dataclass(frozen=True, slots=True, order=True)
class Form:
    """One stored form of a version of one attempt."""

    version: int
    anchor: bool
    """Whether it is the whole form beside a delta."""


def loaded_key(attempt: protocol.Attempt, host: str) -> str:
    return f"{protocol.attempt_prefix(attempt)}{LOADED_FOLDER}{host}.json"


def report_loaded(s3: store.S3Client, bucket: str, current: protocol.Current, host: str) -> None:
    """Says that this host's engine serves that version. To be repeated every REPORT_SECONDS while it does."""
    store.put(s3, bucket, loaded_key(current.of, host), protocol.encode(Loaded(version=current.version)))


def loaded_versions(s3: store.S3Client, bucket: str, attempt: protocol.Attempt) -> set[int]:
    """Versions of the attempt that agents reported lately."""
    prefix = protocol.attempt_prefix(attempt) + LOADED_FOLDER
    found = {key: store.get(s3, bucket, key) for key in store.keys(s3, bucket, prefix)}
    fresh = {key: each for key, each in found.items() if each is not None and each.age_seconds < REPORT_AGE_SECONDS}
    return {version for key, each in fresh.items() if (version := _reported(key, each.body)) is not None}


def _reported(key: str, body: bytes) -> int | None:
    try:
        return protocol.decode(Loaded, body).version
    except InputFault:
        names.pass_over(key)
        return None


def needed(manifests: Mapping[Form, Manifest], versions: Collection[int]) -> set[Form]:
    """Forms that the versions are built from: of each its deltas back to its anchor, and that."""
    kept: set[Form] = set()
    for version in versions:
        top = manifests.get(Form(version, anchor=False))
        if top is None:
            continue
        anchor = None if top.anchor is None else _form(top.anchor)
        at: Manifest | None = top
        while at is not None:
            kept.add(Form(at.version, anchor=False))
            if at.kind == "full" or at.base is None:
                break
            if anchor is not None and anchor.version == at.base:
                kept.add(anchor)
                break
            at = manifests.get(Form(at.base, anchor=False))
        # The same version whole, where it is: what a reader of a later delta begins with.
        whole = Form(version, anchor=True)
        if whole in manifests:
            kept.add(whole)
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One form of a version in the bucket, for people."""

    run: str
    attempt: int
    version: int
    form: str
    """full, delta or anchor; `incomplete` without a manifest that can be read."""
    base: int | None
    size_bytes: int | None
    files: int
    loaded: bool
    """Whether an agent reported it lately."""
    current: bool


def list_stored(s3: store.S3Client, bucket: str, weights_prefix: str, *, run: str) -> list[Stored]:
    """Every form of every version of the run, the oldest first."""
    at = pointer.read_current(s3, bucket, weights_prefix)
    current = None if at is None else at.current
    listed: list[Stored] = []
    for attempt in _attempts(s3, bucket, weights_prefix, run):
        loaded = loaded_versions(s3, bucket, attempt)
        keys = _keys_by_form(s3, bucket, weights_prefix, attempt)
        for form in sorted(keys):
            found = _manifest(s3, bucket, _key(weights_prefix, attempt, form), keys[form])
            kind = "incomplete" if found is None else "anchor" if form.anchor else found.kind
            pointed = current is not None and (current.of, current.version) == (attempt, form.version)
            listed.append(
                Stored(
                    run=run,
                    attempt=attempt.number,
                    version=form.version,
                    form=kind,
                    base=None if found is None else found.base,
                    size_bytes=None if found is None else found.size_bytes,
                    files=len(keys[form]),
                    loaded=form.version in loaded,
                    current=pointed,
                )
            )
    return listed


def prune(s3: store.S3Client, bucket: str, weights_prefix: str, *, run: str, keep_versions: int) -> list[str]:
    """Removes what nobody needs. Returns the prefixes of the removed forms, in order.

    A form's manifest goes first: half of it is never taken for the whole.
    """
    pointed = pointer.read_current(s3, bucket, weights_prefix)
    if pointed is None or pointed.current.run != run:
        return []
    current = pointed.current
    removed: list[str] = []
    for attempt in _attempts(s3, bucket, weights_prefix, run):
        if attempt.number > current.attempt:
            continue
        newest = current.version if attempt.number == current.attempt else None
        removed += _prune_attempt(s3, bucket, weights_prefix, attempt, newest=newest, keep_versions=keep_versions)
    return removed


def _prune_attempt(
    s3: store.S3Client,
    bucket: str,
    weights_prefix: str,
    attempt: protocol.Attempt,
    *,
    newest: int | None,
    keep_versions: int,
) -> list[str]:
    """`newest` is the version that engines are pointed at, None for an attempt that is over."""
    keys = _keys_by_form(s3, bucket, weights_prefix, attempt)
    manifests = {
        form: found
        for form in keys
        if (found := _manifest(s3, bucket, _key(weights_prefix, attempt, form), keys[form])) is not None
    }
    versions = sorted({form.version for form in manifests if newest is None or form.version <= newest})
    wanted = loaded_versions(s3, bucket, attempt)
    if newest is not None:
        wanted |= set(versions[-max(1, keep_versions) :])
    kept = needed(manifests, wanted)
    removed = []
    for form in sorted(keys):
        if form in kept or (newest is not None and form.version > newest):
            continue
        key = _key(weights_prefix, attempt, form)
        store.delete(s3, bucket, key)
        store.delete_all(s3, bucket, [other for other in keys[form] if other != key])
        removed.append(manifest.folder_of(key))
    return removed


def _attempts(s3: store.S3Client, bucket: str, weights_prefix: str, run: str) -> Iterator[protocol.Attempt]:
    below = f"{weights_prefix}{run}/"
    for name in store.folders(s3, bucket, below):
        if (number := names.number(name, 6, key=f"{below}{name}/")) is not None:
            yield protocol.Attempt(run=run, number=number)


def _keys_by_form(
    s3: store.S3Client, bucket: str, weights_prefix: str, attempt: protocol.Attempt
) -> dict[Form, list[str]]:
    prefix = f"{weights_prefix}{attempt.run}/{attempt.name}/"
    found: dict[Form, list[str]] = {}
    for key in store.keys(s3, bucket, prefix):
        name, _, rest = key.removeprefix(prefix).partition("/")
        if (version := names.number(name, 8, key=key)) is not None:
            found.setdefault(Form(version, anchor=rest.startswith(ANCHOR_FOLDER)), []).append(key)
    return found


def _manifest(s3: store.S3Client, bucket: str, key: str, keys: Collection[str]) -> Manifest | None:
    """None for a form that is being written, is half removed, or says nothing that can be read: nobody can use it."""
    stored = store.get(s3, bucket, key) if key in keys else None
    try:
        return None if stored is None else manifest.decode_manifest(stored.body)
    except InputFault:
        return None


def _key(weights_prefix: str, attempt: protocol.Attempt, form: Form) -> str:
    name = manifest.anchor_key if form.anchor else manifest.version_key
    return name(weights_prefix, attempt, form.version)


def _form(key: str) -> Form:
    return Form(manifest.version_of(key), anchor=manifest.folder_of(key).endswith(f"/{ANCHOR_FOLDER}"))
