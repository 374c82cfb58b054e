"""Versions on this node, for an engine that reads them: brought by `weights.fetch`, kept while they may be loaded again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from moerl_runtime import store
from moerl_runtime.protocol import Current
from moerl_runtime.weights import cache, fetch

DEADLINE_SECONDS = 20.0
"""For a version that is not there: the pointer may have moved on, and then names one that is."""
HELD = 2
"""The version that the engine has, and the one before while it is being replaced: a failed load goes back to it."""


class Bringer:
    """Called by one thread at a time. What it gives stays on the disk until HELD others were asked for after it."""

    def __init__(
        self,
        s3: store.S3Client,
        bucket: str,
        *,
        weights_prefix: str,
        models: Path,
        base: Path,
        worker: str,
        log: Callable[[str], None],
    ) -> None:
        self._mark = models / cache.POLICY / f".loading-{worker}"
        self._s3, self._bucket, self._weights_prefix = s3, bucket, weights_prefix
        self._models, self._base, self._log = models, base, log
        self._held: dict[Path, ExitStack] = {}

    def __call__(self, current: Current) -> Path:
        """Raises RuntimeFault or an error of S3 where it cannot be had."""
        path = fetch.bring(
            self._s3,
            self._bucket,
            current,
            weights_prefix=self._weights_prefix,
            models=self._models,
            base=self._base,
            deadline_seconds=DEADLINE_SECONDS,
            report=self._log,
        )
        if path != self._base:
            self._hold(path)
        return path

    @property
    def touched(self) -> bool:
        """Whether an agent of this pod has begun a load on this node, now or before a restart."""
        return self._mark.exists()

    def mark_loading(self) -> None:
        cache.open_to_agents(self._models)
        self._mark.touch()

    def _hold(self, path: Path) -> None:
        stack = self._held.pop(path, None)
        if stack is None:
            stack = ExitStack()
            stack.enter_context(cache.holding(path))
        self._held[path] = stack
        while len(self._held) > HELD + 1:
            self._held.pop(next(iter(self._held))).close()
