"""One answer in the making, as engine and server share it, and how aborts end it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from moerl_runtime.smoke.engine_request import Sampling

ABORTED, ABORTED_QUEUED = "Aborted", "Abort in waiting queue"


@dataclass(slots=True, eq=False, kw_only=True)
class Generation:
    """One answer in the making. Guarded by the engine's lock."""

    rid: str
    prompt: tuple[int, ...]
    sampling: Sampling
    stream: bool
    changed: threading.Condition
    submitted: float
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    token_versions: list[str] = field(default_factory=list)
    """Of each token: the weights that made it."""
    finish: dict[str, Any] | None = None
    version: str | None = None
    """The engine's tag when the last output was processed."""
    finished: float | None = None
    retractions: int = 0
    queued_abort: bool = False
    ending: bool = False
    """Aborted while running: it ends with the next step."""
    refused: bool = False
    """Aborted before the scheduler had it (0.5.17): 499 once it gets through the gate."""
    overflow: bool = False
    """Back in the queue after a retraction, and the queue is full: 503."""

    @property
    def spans(self) -> list[dict[str, Any]]:
        """{version, start, end} over the answer's tokens."""
        found: list[dict[str, Any]] = []
        for position, version in enumerate(self.token_versions):
            if found and found[-1]["version"] == version:
                found[-1]["end"] = position + 1
            else:
                found.append({"version": version, "start": position, "end": position + 1})
        return found

    @property
    def over(self) -> bool:
        return self.finish is not None or self.overflow


def aborted(message: str) -> dict[str, Any]:
    return {"type": "abort", "message": message, "status_code": None, "err_type": None}
