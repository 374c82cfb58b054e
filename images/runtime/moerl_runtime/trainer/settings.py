"""What the entrypoint tells the processes of the framework: it rides on their `args`, which Ray carries to every actor.

`--custom-config-path` puts the keys of a file on `args`; the one key here is `moerl`. Everything else comes from plan.json,
which every pod of the run has mounted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from moerl_runtime.faults import InputFault
from moerl_runtime.protocol import Attempt

ATTRIBUTE = "moerl"
Framework = Literal["miles", "slime"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The checkpoint that this attempt goes on from."""

    attempt: int
    step: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """As `data_source` wrote it at the save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One attempt of a run."""

    framework: Framework
    run: str
    attempt: int
    plan: str
    """Path of plan.json."""
    control: str
    """URL of the head's control server."""
    resumed: Resumed | None = None

    @property
    def of(self) -> Attempt:
        return Attempt(run=self.run, number=self.attempt)

    @property
    def start(self) -> int:
        """First step of this attempt."""
        return 0 if self.resumed is None else self.resumed.step + 1

    @property
    def plan_path(self) -> Path:
        return Path(self.plan)

    def version_after(self, step: int) -> int:
        """Version of the weights that Miles publishes after that step: it counts from 0 anew in every attempt."""
        return step - self.start + 1

    def document(self) -> dict[str, Any]:
        """The body of the configuration file."""
        return {ATTRIBUTE: asdict(self)}


def of(args: Any) -> Settings:
    """From a framework's `args`. Raises InputFault where the entrypoint did not start it."""
    written = getattr(args, ATTRIBUTE, None)
    if not isinstance(written, dict):
        raise InputFault(
            f"args.{ATTRIBUTE}",
            written,
            "the run, its attempt and its lease are not known",
            "Start train.py with `python -m moerl_runtime trainer`.",
        )
    resumed = written.get("resumed")
    return Settings(**{**written, "resumed": None if resumed is None else Resumed(**resumed)})
