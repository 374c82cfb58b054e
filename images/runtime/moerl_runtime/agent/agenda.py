"""What the core has decided: effects to run, and what to look at again later."""

from __future__ import annotations

import heapq

from moerl_runtime.agent.effects import Due, Effect


class Agenda:
    """Shared by the parts of one core. `now` is set by the core before it handles anything."""

    def __init__(self) -> None:
        self.now = 0.0
        self._effects: list[Effect] = []
        self._timers: list[tuple[float, int, Due]] = []
        self._count = 0

    def do(self, effect: Effect) -> None:
        self._effects.append(effect)

    def later(self, seconds: float, due: Due) -> None:
        self._count += 1
        heapq.heappush(self._timers, (self.now + seconds, self._count, due))

    def taken(self) -> list[Effect]:
        """The effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def run_out(self) -> Due | None:
        """The next timer that has run out, if any has."""
        if self._timers and self._timers[0][0] <= self.now:
            return heapq.heappop(self._timers)[2]
        return None

    @property
    def next_seconds(self) -> float:
        """When the next timer runs out."""
        return self._timers[0][0] if self._timers else float("inf")
