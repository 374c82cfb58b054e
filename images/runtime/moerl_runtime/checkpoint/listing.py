"""What a save must consist of, as far as its own files say.

Megatron's torch_dist format (and torch's own) writes one `.metadata` per directory, a pickle that names every shard. It is
not unpickled here: its text is searched for the names, so that no code of a checkpoint runs and no torch is needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath

METADATA_NAME = ".metadata"
SHARD = re.compile(rb"__\d+_\d+\.distcp")
ITERATION = re.compile(r"iter_(\d{7})")
EXPORTS = "hf"
"""Directory below scratch that holds one model export a step (`--save-hf` of the chart)."""


def missing(names: Collection[str], items: Sequence[str], read: Callable[[str], bytes]) -> list[str]:
    """What a checkpoint of these files lacks. `read` gives the content of one of them."""
    lacking = [item for item in items if not any(name == item or name.startswith(f"{item}/") for name in names)]
    sharded = {PurePosixPath(name).parent for name in names if name.endswith(".distcp")}
    for directory in sorted(sharded | {PurePosixPath(name).parent for name in names if name.endswith(METADATA_NAME)}):
        metadata = str(directory / METADATA_NAME)
        if metadata not in names:
            lacking.append(metadata)
            continue
        shards = {match.decode() for match in SHARD.findall(read(metadata))}
        lacking += sorted(name for shard in shards if (name := str(directory / shard)) not in names)
    return lacking


def iteration(names: Collection[str]) -> int | None:
    """Megatron's number of the save; None where nothing of Megatron is in it."""
    found = {int(match[1]) for name in names for part in name.split("/")[:-1] if (match := ITERATION.fullmatch(part))}
    return max(found) if found else None


def saves(directory: Path) -> Iterator[tuple[int, Path]]:
    """(number, path) of every save on scratch: Megatron's directories, and the exports beside the checkpoint directory."""
    scratch = directory.resolve().parent
    for path in sorted(directory.resolve().glob("iter_*")):
        if match := ITERATION.fullmatch(path.name):
            yield int(match[1]), path
    for path in sorted((scratch / EXPORTS).glob("*")):
        if path.name.isascii() and path.name.isdigit():
            yield int(path.name), path
