"""`python -m moerl_runtime checkpoint`: restore, upload, list, prune, pin, unpin."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from typing import Any

from moerl_runtime import plan as run_plan
from moerl_runtime import store
from moerl_runtime.checkpoint import crt, prune, resolve, restore, shared, transfer, upload
from moerl_runtime.checkpoint.layout import Position
from moerl_runtime.checkpoint.progress import Progress, size
from moerl_runtime.checkpoint.shared import Shared
from moerl_runtime.faults import InputFault, InputFaults
from moerl_runtime.plan import Node
from moerl_runtime.stop import on_stop
from moerl_runtime.store import S3Client

RESTORE_TRIES, RESTORE_WAIT_SECONDS = 5, 10.0
NODE = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")

EPILOG = """exit codes: 0 done (also: nothing to restore), 1 it failed, 2 wrong input, 6 not enough space on scratch.

variables: MOERL_RUN names the run where --run does not, HOSTNAME the node where --node does not.

examples:
  python -m moerl_runtime checkpoint list --run trainer-0a1b2c3d
  python -m moerl_runtime checkpoint restore --to /scratch/starter/checkpoints
  python -m moerl_runtime checkpoint pin --run trainer-0a1b2c3d 000002-00000120
  python -m moerl_runtime checkpoint prune --run trainer-0a1b2c3d --dry-run
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the run's checkpoints are."""

    s3: S3Client
    plan: Node
    bucket: str
    prefix: str
    run: str


def register(commands: _SubParsersAction[ArgumentParser]) -> None:
    parser = commands.add_parser(
        "checkpoint",
        help="restore, upload, list and prune checkpoints",
        description="Checkpoints of a run in S3.",
        epilog=EPILOG,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    restoring = _verb(verbs, "restore", _restore, "bring the newest complete checkpoint to scratch")
    restoring.add_argument("--to", type=Path, required=True, metavar="DIR", help="the trainer's --load directory")
    restoring.add_argument(
        "--checkpoint", metavar="ATTEMPT-STEP", help="another one than the newest, as `list` shows it"
    )
    _takes_attempts(restoring)
    restoring.add_argument("--plain", action="store_true", help="boto3 alone, without the AWS CRT")
    uploading = _verb(
        verbs, "upload", _upload, "upload and commit what the trainer saves, until SIGTERM", document=False
    )
    uploading.add_argument(
        "--from", type=Path, required=True, metavar="DIR", dest="source", help="the trainer's --save directory"
    )
    _takes_attempts(uploading)
    uploading.add_argument("--node", help="name of this node among those that upload (default: HOSTNAME)")
    uploading.add_argument("--plain", action="store_true", help="boto3 alone, without the AWS CRT")
    _verb(verbs, "list", _list, "what is stored of the run, oldest first")
    pruning = _verb(verbs, "prune", _prune, "remove what is neither among the newest nor pinned")
    pruning.add_argument("--keep", type=int, metavar="N", help="complete ones to keep (default: the environment's)")
    pruning.add_argument("--dry-run", action="store_true", help="say what would go")
    for name, handler, text in (
        ("pin", _pin, "keep one from being pruned"),
        ("unpin", _unpin, "let a pinned one be pruned again"),
    ):
        _verb(verbs, name, handler, text).add_argument("checkpoint", metavar="ATTEMPT-STEP", help="as `list` shows it")


def _verb(
    verbs: _SubParsersAction[ArgumentParser],
    name: str,
    handler: Callable[[Namespace], int],
    text: str,
    *,
    document: bool = True,
) -> ArgumentParser:
    parser = verbs.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=EPILOG,
    )
    run_plan.add_argument(parser)
    parser.add_argument("--run", help="name of the run's RayJob (default: MOERL_RUN)")
    if document:
        parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.set_defaults(handler=handler)
    return parser


def _takes_attempts(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--attempts",
        type=Path,
        metavar="ROOT",
        help="scratch that attempts share: DIR is ROOT/RUN/ATTEMPT/NAME, and what ended attempts left below ROOT is removed",
    )


def _shared(arguments: Namespace, directory: Path, place: Place, *, begins: bool) -> Shared | None:
    if arguments.attempts is None:
        return None
    return shared.look(arguments.attempts, directory, place.run, begins=begins, unix_clock=time.time, report=_report)


def _restore(arguments: Namespace) -> int:
    place = _place(arguments)
    found = None
    if arguments.checkpoint:
        position = _position(arguments.checkpoint)
        found = resolve.at(place.s3, place.bucket, place.prefix, place.run, position)
        if found is None:
            raise InputFault(
                "--checkpoint", arguments.checkpoint, "is no complete checkpoint", "See `checkpoint list`."
            )
    attempts = _shared(arguments, arguments.to, place, begins=True)
    files, parts = transfer.pools()
    with files, parts:
        moves = _moves(arguments, place, parts)
        for left in reversed(range(RESTORE_TRIES)):
            try:
                restored = restore.restore(
                    place.s3,
                    place.bucket,
                    place.prefix,
                    place.run,
                    arguments.to,
                    files=files,
                    moves=moves,
                    free_bytes=restore.free_bytes,
                    found=found,
                    shared=attempts,
                )
                break
            except transfer.TRANSIENT as error:
                if not left:
                    raise
                _report(f"checkpoint: trying again in {RESTORE_WAIT_SECONDS:g} s: {error}")
                time.sleep(RESTORE_WAIT_SECONDS)
    if restored is None:
        _report(f"checkpoint: nothing to restore: {place.run} has no complete checkpoint and begins anew")
    else:
        total = size(restored.complete.size_bytes)
        _report(f"checkpoint: {restored.position} of {place.run} is in {arguments.to}, {total}")
    if arguments.json:
        print(json.dumps({"run": place.run, "restored": None if restored is None else asdict(restored.position)}))
    return 0


def _upload(arguments: Namespace) -> int:
    place = _place(arguments)
    node = arguments.node or arguments.variables.get("HOSTNAME", "")
    if not NODE.fullmatch(node):
        raise InputFault("--node", node, "is no host name", "Write --node or set HOSTNAME.")
    attempts = _shared(arguments, arguments.source, place, begins=False)
    storage, trainer = place.plan["storage"], place.plan["workload"]["trainer"]
    stop = Event()
    on_stop(stop.set, signals=[signal.SIGTERM])
    files, parts = transfer.pools()
    with files, parts:
        uploader = upload.Uploader(
            s3=place.s3,
            bucket=place.bucket,
            prefix=place.prefix,
            run=place.run,
            node=node,
            directory=arguments.source,
            several_nodes=storage["scratch"].text == "nvme" and trainer["workers"].number > 1,
            barrier_seconds=trainer["save_seconds_max"].number,
            retain_last=storage["retain_last"].number,
            files=files,
            moves=_moves(arguments, place, parts),
            clock=time.monotonic,
            wait=time.sleep,
            report=_report,
            shared=attempts,
        )
        _report(f"checkpoint: uploading saves of {place.run} from {arguments.source}")
        upload.serve(uploader, stop)
    return 0


def _list(arguments: Namespace) -> int:
    place = _place(arguments)
    where = (place.s3, place.bucket, place.prefix, place.run)
    lineage = {found.position for found in resolve.lineage(*where)}
    pinned = set(prune.pins(*where))
    rows: list[dict[str, Any]] = []
    for position in prune.positions(*where):
        found = resolve.at(*where, position)
        rows.append(
            {
                "checkpoint": str(position),
                "attempt": position.attempt,
                "step": position.step,
                "state": "incomplete" if found is None else "complete" if position in lineage else "abandoned",
                "pinned": position in pinned,
                "files": None if found is None else len(found.complete.files),
                "size_bytes": None if found is None else found.complete.size_bytes,
            }
        )
    if arguments.json:
        print(json.dumps({"run": place.run, "checkpoints": rows}))
        return 0
    print(f"{'checkpoint':<16} {'state':<10} {'pinned':<6} {'files':>7} {'size':>10}")
    for row in rows:
        count, length = ("-", "-") if row["files"] is None else (str(row["files"]), size(row["size_bytes"]))
        pin = "yes" if row["pinned"] else ""
        print(f"{row['checkpoint']:<16} {row['state']:<10} {pin:<6} {count:>7} {length:>10}")
    if not rows:
        print(f"{place.run} has stored none in s3://{place.bucket}/{place.prefix}")
    return 0


def _prune(arguments: Namespace) -> int:
    place = _place(arguments)
    keep = place.plan["storage"]["retain_last"].number if arguments.keep is None else arguments.keep
    done = prune.prune(place.s3, place.bucket, place.prefix, place.run, retain_last=keep, dry_run=arguments.dry_run)
    if arguments.json:
        print(
            json.dumps(
                {
                    "run": place.run,
                    "dry_run": arguments.dry_run,
                    "removed": [str(position) for position in done.positions],
                    "objects": done.objects,
                    "uploads": done.uploads,
                }
            )
        )
        return 0
    verb = "would go" if arguments.dry_run else "removed"
    for position in done.positions:
        print(f"{position} {verb}")
    print(f"{len(done.positions)} checkpoints, {done.objects} objects, {done.uploads} broken-off uploads {verb}")
    return 0


def _pin(arguments: Namespace) -> int:
    return _pinned(arguments, prune.pin, "is pinned")


def _unpin(arguments: Namespace) -> int:
    return _pinned(arguments, prune.unpin, "may be pruned")


def _pinned(arguments: Namespace, change: Callable[..., None], text: str) -> int:
    place, position = _place(arguments), _position(arguments.checkpoint)
    change(place.s3, place.bucket, place.prefix, place.run, position)
    print(json.dumps({"run": place.run, "checkpoint": str(position)}) if arguments.json else f"{position} {text}")
    return 0


def _place(arguments: Namespace) -> Place:
    variables = arguments.variables
    run = arguments.run or variables.get("MOERL_RUN", "")
    faults = []
    if not run or "/" in run:
        faults.append(InputFault("--run", run, "names no run", "Write --run or set MOERL_RUN."))
    try:
        document = run_plan.load(arguments.plan)
    except InputFault as fault:
        faults.append(fault)
    if faults:
        raise InputFaults(faults)
    return Place(
        s3=store.client(document["region"].text),
        plan=document,
        bucket=document["names"]["checkpoint_bucket"].text,
        prefix=document["storage"]["checkpoint_prefix"].text,
        run=run,
    )


def _position(written: str) -> Position:
    match = re.fullmatch(r"(\d{6,})-(\d{8,})", written)
    if match is None:
        raise InputFault("checkpoint", written, "is not ATTEMPT-STEP", "Write one as `checkpoint list` shows it.")
    return Position(attempt=int(match[1]), step=int(match[2]))


def _moves(arguments: Namespace, place: Place, parts: Any) -> transfer.Moving:
    native = None if arguments.plain else crt.native(place.s3)

    @contextmanager
    def moving(label: str, total: int) -> Iterator[transfer.Moves]:
        shown = Progress(label, total, stream=sys.stderr, clock=time.monotonic) if label else None
        moved = transfer.nobody if shown is None else shown.add
        yield transfer.Moves(s3=place.s3, bucket=place.bucket, parts=parts, native=native, moved=moved)
        if shown is not None:
            shown.finish()

    return moving


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
