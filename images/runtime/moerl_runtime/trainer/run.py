"""One attempt of a run, from its lease to its last committed checkpoint. Everything that acts is handed in.

The lease comes first, since of two trainers only one may commit; then what was restored is compared with what is
committed, and the framework starts with the export of that step as its `--hf-checkpoint`, so that engines and trainer agree
on version 0. Afterwards three things end it: train.py itself, a lost lease (at once: another attempt may be running), or
SIGTERM. An end is good only when the last step is committed and the last batches were worth training on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from moerl_runtime import lease as leases
from moerl_runtime import plan as plans
from moerl_runtime.checkpoint import handover, resolve
from moerl_runtime.checkpoint.layout import Position
from moerl_runtime.checkpoint.resolve import Checkpoint
from moerl_runtime.faults import InputFault, RuntimeFault
from moerl_runtime.lease import Lease, LeaseLost
from moerl_runtime.plan import Node
from moerl_runtime.protocol import Attempt
from moerl_runtime.store import S3Client
from moerl_runtime.trainer import flags as command_line
from moerl_runtime.trainer import gates
from moerl_runtime.trainer.control import Control
from moerl_runtime.trainer.flags import Flags
from moerl_runtime.trainer.gates import Gates, History
from moerl_runtime.trainer.settings import Resumed, Settings

Result = TypeVar("Result")

CONFIG_NAME = "moerl.yaml"
"""JSON, which is YAML: what `--custom-config-path` reads."""
LOOK_SECONDS = 2.0
SIGNAL_SECONDS, COMMITTED_SECONDS = 30.0, 60.0
SIGNAL_PREFIX = "save before "
"""Of the value that the schedule of a capacity block writes (`infra.stacks.pool`), before the time of its end."""
EARLY_SAVE_INTERVAL = 3
"""Save intervals from here up have no save of their own by the time that the early one is made, after step 1."""
STOP_SECONDS = 30.0
"""Between asking train.py to end and ending it."""


class NothingToDo(RuntimeFault):
    """The checkpoint is the last step already. Frameworks run no step then and call it success."""

    exit_code = 6


class Disagreement(RuntimeFault):
    """Scratch holds something else than what is committed."""

    exit_code = 7


class Process(Protocol):
    """A running train.py (`subprocess.Popen`)."""

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What an attempt acts through."""

    s3: S3Client
    parameter: Callable[[str], str | None]
    """Value of an SSM parameter; None where there is none."""
    start: Callable[[Sequence[str]], Process]
    """Starts train.py with these flags."""
    wait: Callable[[float], bool]
    """Sleeps that many seconds or until something happens; True once the run was asked to stop."""
    clock: Callable[[], float]
    report: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be run."""

    run: str
    holder: str
    """Name of this attempt's Ray cluster."""
    flags: Flags
    plan: Node
    plan_path: Path
    work: Path
    """A directory of this process for the configuration file."""
    control_url: str

    @property
    def bucket(self) -> str:
        return self.plan["names"]["checkpoint_bucket"].text

    @property
    def prefix(self) -> str:
        return self.plan["storage"]["checkpoint_prefix"].text

    @property
    def directory(self) -> Path | None:
        """Where checkpoints are saved and restored; None for a run without."""
        written = command_line.value(self.flags, "save")
        return None if written is None else Path(written)

    @property
    def nodes(self) -> int:
        return int(command_line.needed(self.flags, "actor-num-nodes"))

    @property
    def steps(self) -> int:
        return int(command_line.needed(self.flags, "num-rollout"))

    @property
    def sentinel(self) -> Path | None:
        """The file that makes Miles save after the step in work; None for slime and for a run without checkpoints."""
        written = command_line.value(self.flags, "save-trigger-sentinel")
        return None if written is None else Path(written)


def run(order: Order, around: Around, control: Control) -> None:
    """Runs one attempt. Raises RuntimeFault, with its own exit code, unless the run is at its end."""
    check(order)
    bounds = gates.read(order.plan)
    position = _restored(order, around)

    def wait(seconds: float) -> None:
        if around.wait(seconds):
            raise RuntimeFault("trainer", order.run, "was asked to stop", "It had not begun; start it again.")

    with leases.acquire(
        around.s3,
        bucket=order.bucket,
        prefix=order.prefix,
        run=order.run,
        holder=order.holder,
        clock=around.clock,
        resumed_from=position,
        wait_seconds=leases.TTL_SECONDS + leases.LOOK_SECONDS,
        wait=wait,
        report=around.report,
    ) as lease:
        resumed = _resumed(order, around, position)
        if resumed is not None and resumed.step + 1 >= order.steps:
            if history := gates.history(resumed.metadata.get("history")):
                _judge(around, bounds, history)
            raise NothingToDo(
                "--num-rollout",
                order.steps,
                f"step {resumed.step} is committed already, so no step is left",
                "Write more steps, or a new run.",
            )
        flags = prepared(order, lease.attempt, resumed)
        begins = "anew" if resumed is None else f"after step {resumed.step} of attempt {resumed.attempt}"
        around.report(f"trainer: attempt {lease.attempt.number} of {order.run} begins {begins}")
        process = around.start(flags)
        try:
            _watch(order, around, control, lease, process, bounds=bounds, saves_early=_saves_early(order, resumed))
        finally:
            if process.poll() is None:
                process.kill()
        _judge(around, bounds, _finish(order, around, control, lease, resumed))


def check(order: Order) -> None:
    """Raises InputFault for a run that cannot work on this plan."""
    trainer = order.plan["workload"]["trainer"]
    pool = plans.pool(order.plan, trainer["pool"].text)
    capacity = pool["capacity"]["type"].text
    if capacity == "spot":
        raise InputFault(
            f"pools.{pool['name'].text}.capacity",
            capacity,
            "one reclaimed node ends the step of all",
            "Use fixed capacity.",
        )
    framework = command_line.framework(order.flags)
    if framework == "slime" and order.nodes > 1 and order.plan["storage"]["scratch"].text != "fsx":
        raise InputFault(
            "checkpoints.scratch",
            order.plan["storage"]["scratch"].text,
            f"slime writes its exports on one of {order.nodes} nodes, and they are published from another",
            "Write fsx, or use software efa-gda.",
        )
    if command_line.value(order.flags, "custom-config-path") is not None:
        raise InputFault(
            "--custom-config-path",
            command_line.value(order.flags, "custom-config-path"),
            "carries the run and its attempt to the framework's processes",
            "Remove it, and write the flags themselves.",
        )


def prepared(order: Order, attempt: Attempt, resumed: Resumed | None) -> Flags:
    """The command line of this attempt, its configuration file written and what an older one left behind removed."""
    flags = order.flags
    if resumed is not None:
        export = command_line.needed(flags, "save-hf").format(rollout_id=resumed.step)
        if not any(Path(export).glob("*.safetensors")):
            raise Disagreement(
                "--save-hf",
                export,
                f"holds no export of step {resumed.step}, and engines would begin with the base model",
                "Restore another checkpoint (`checkpoint restore --checkpoint`), or start a new run.",
            )
        flags = command_line.replaced(flags, "hf-checkpoint", export)
    if order.sentinel is not None:
        order.sentinel.unlink(missing_ok=True)
    settings = Settings(
        framework=command_line.framework(flags),
        run=order.run,
        attempt=attempt.number,
        plan=str(order.plan_path),
        control=order.control_url,
        resumed=resumed,
    )
    path = order.work / CONFIG_NAME
    path.write_text(json.dumps(settings.document()), encoding="utf-8")
    return (*flags, "--custom-config-path", str(path))


def save_asked(value: str | None, scale_down_at: str) -> bool:
    """Whether the signal is this block's: the parameter of an earlier block of the pool keeps its value."""
    if value is None or not value.startswith(SIGNAL_PREFIX):
        return False
    return _time(value.removeprefix(SIGNAL_PREFIX)) == _time(scale_down_at)


def _restored(order: Order, around: Around) -> Position | None:
    """What `checkpoint restore` brought. Raises Disagreement unless it is what is committed and what Megatron will load."""
    directory = order.directory
    if directory is None:
        return None
    if not (directory / handover.FOLDER / handover.RESTORED_NAME).is_file():
        raise Disagreement(
            "checkpoint directory",
            str(directory),
            "was never restored, so the run would begin anew whatever is committed",
            "Run `checkpoint restore` in an init container.",
        )
    position = handover.restored(directory)
    newest = resolve.resolve(around.s3, order.bucket, order.prefix, order.run)
    committed = None if newest is None else newest.position
    if position != committed:
        # The former attempt committed after this pod had restored. The lineage will say what is gone on from, but where
        # every node restores for itself, others may have the newer one.
        if order.plan["storage"]["scratch"].text != "fsx" and order.nodes > 1:
            raise Disagreement(
                "checkpoint",
                str(position),
                f"was restored here, and {committed} is committed meanwhile: other nodes may have restored that",
                "Start the run again; every pod restores anew.",
            )
        around.report(f"trainer: {committed} was committed after {position} was restored; going on from {position}")
    tracker = directory / handover.TRACKER_NAME
    found = tracker.read_text(encoding="utf-8").strip() if tracker.is_file() else None
    expected = None if position is None else str(position.step)
    if found != expected:
        raise Disagreement(
            str(tracker),
            found,
            f"makes Megatron load that step, and {expected} was restored",
            "Start the run again; `checkpoint restore` clears the directory.",
        )
    return position


def _resumed(order: Order, around: Around, position: Position | None) -> Resumed | None:
    if position is None:
        return None
    found = resolve.at(around.s3, order.bucket, order.prefix, order.run, position)
    if found is None:
        raise Disagreement("checkpoint", str(position), "was pruned meanwhile", "Start the run again.")
    framework = command_line.framework(order.flags)
    if "ledger" not in found.metadata or found.metadata.get("framework") != framework:
        raise Disagreement(
            "checkpoint", str(position), f"was not saved by {framework} under this entrypoint", "Start a new run."
        )
    return Resumed(attempt=position.attempt, step=position.step, metadata=found.metadata)


def _saves_early(order: Order, resumed: Resumed | None) -> bool:
    """Whether a new run saves once before its first interval is over: a save that cannot work is to be found in minutes."""
    saves_late = int(command_line.value(order.flags, "save-interval") or 1) >= EARLY_SAVE_INTERVAL
    return resumed is None and order.sentinel is not None and saves_late


def _watch(
    order: Order,
    around: Around,
    control: Control,
    lease: Lease,
    process: Process,
    *,
    bounds: Gates,
    saves_early: bool,
) -> None:
    """Until train.py ends by itself with 0; everything else raises."""
    pool = plans.pool(order.plan, order.plan["workload"]["trainer"]["pool"].text)
    block: Mapping[str, Any] | None = pool["capacity"]["block"].value
    sentinel = order.sentinel
    asked, warned = block is None or sentinel is None, False
    signal_at = committed_at = around.clock()
    while (code := process.poll()) is None:
        # train.py is killed at once: another attempt may write already, and nothing of this one counts any more.
        _hold(order, lease)
        now = around.clock()
        if not asked and block is not None and sentinel is not None and now >= signal_at:
            signal_at = now + SIGNAL_SECONDS
            asked = save_asked(_signal(around, block), block["scale_down_at"])
            if asked:
                around.report(f"trainer: the capacity block ends at {block['scale_down_at']}; saving after this step")
                sentinel.touch()
        # Version 1 follows step 0. Not before: only patched forks of Megatron, as those of both frameworks, load iteration 0.
        if saves_early and sentinel is not None and control.weight_version >= 1:
            saves_early = False
            around.report("trainer: step 0 is done; saving once early, to know that saves work")
            sentinel.touch()
        if now >= committed_at:
            committed_at = now + COMMITTED_SECONDS
            _tried(around, "checkpoint", lambda: _show_committed(order, around, control))
            warned = _warned(around, bounds, control.history, warned)
        if around.wait(LOOK_SECONDS):
            _stop(around, process)
            raise RuntimeFault("trainer", order.run, "was asked to stop", "It resumes from its last checkpoint.")
    if code != 0:
        raise RuntimeFault(
            "train.py", code, "ended with an error", "Read the log above; the run resumes from its last checkpoint."
        )


def _warned(around: Around, bounds: Gates, history: History, warned: bool) -> bool:
    """Whether the latest batches are bad; says so when they become it. Later ones may be better, so the run goes on."""
    bad = gates.fault(bounds, history) if len(history.batches) >= bounds.batches else None
    if bad is not None and not warned:
        around.report(f"trainer: {bad}")
    return bad is not None


def _judge(around: Around, bounds: Gates, history: History) -> None:
    """Raises BadBatches for a run that should not count as a success."""
    bad = gates.fault(bounds, history)
    if bad is None:
        return
    if bounds.enforced:
        raise bad
    around.report(f"trainer: no error, since workload.trainer.gates is false: {bad}")


def _finish(order: Order, around: Around, control: Control, lease: Lease, resumed: Resumed | None) -> History:
    """Waits for the commit of the last step, and returns the batches that it says. Raises unless steps were run and the last
    one is committed."""
    if control.step is None and _committed_step(order, around) == (None if resumed is None else resumed.step):
        raise RuntimeFault(
            "train.py", 0, "ended well and ran no step", "Compare --num-rollout and the checkpoint that it loaded."
        )
    if order.directory is None:
        return control.history
    last, patience = order.steps - 1, order.plan["workload"]["trainer"]["save_seconds_max"].number
    began = told = around.clock()
    while (
        found := _tried(around, "checkpoint", lambda: _show_committed(order, around, control))
    ) is None or found.step < last:
        now = around.clock()
        _hold(order, lease)
        if now - began > patience:
            raise handover.NotCommitted(
                "step", last, f"was not committed within {now - began:.0f} s after the end", "See the uploader's log."
            )
        if now - told >= SIGNAL_SECONDS:
            told = now
            newest = None if found is None else found.step
            around.report(f"trainer: waiting for the commit of step {last}; the newest is {newest}")
        if around.wait(LOOK_SECONDS):
            raise handover.NotCommitted("step", last, "was not committed when the run was stopped", "Run it again.")
    around.report(f"trainer: step {last} is committed; the run is at its end")
    return gates.history(found.metadata.get("history"))


def _hold(order: Order, lease: Lease) -> None:
    """Raises LeaseLost where another attempt may have begun."""
    if not lease.held():
        raise LeaseLost(
            "lease", order.run, f"attempt {lease.attempt.number} no longer holds it", "The newer attempt goes on."
        )


def _show_committed(order: Order, around: Around, control: Control) -> Checkpoint | None:
    found = _newest(order, around)
    if found is not None:
        control.committed(found.step)
    return found


def _committed_step(order: Order, around: Around) -> int | None:
    found = _newest(order, around)
    return None if found is None else found.step


def _newest(order: Order, around: Around) -> Checkpoint | None:
    """The newest committed checkpoint."""
    if order.directory is None:
        return None
    return resolve.resolve(around.s3, order.bucket, order.prefix, order.run)


def _signal(around: Around, block: Mapping[str, Any]) -> str | None:
    name = str(block["save_signal_parameter"])
    return _tried(around, name, lambda: around.parameter(name))


def _tried(around: Around, what: str, look: Callable[[], Result | None]) -> Result | None:
    """A look that is repeated anyway: a throttle must not end the run."""
    try:
        return look()
    except (BotoCoreError, ClientError) as error:
        around.report(f"trainer: {what} could not be read, trying again: {error}")
        return None


def _stop(around: Around, process: Process) -> None:
    process.terminate()
    deadline = around.clock() + STOP_SECONDS
    while process.poll() is None and around.clock() < deadline:
        around.wait(LOOK_SECONDS)
    if process.poll() is None:
        process.kill()


def _time(written: str) -> datetime | None:
    try:
        return datetime.fromisoformat(written)
    except ValueError:
        return None
