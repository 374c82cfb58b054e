"""Life of an agent, as a table.

starting: the engine comes up, current.json is read, its weights are loaded and verified. Nothing is leased.
serving:  tasks are leased and answered; newer weights are loaded in between.
draining: nothing new is leased or begun; what runs ends, first by itself, then by abort; the rest is given back.
done:     nothing is leased any more, or the time is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    DONE = "done"


class Turn(StrEnum):
    """What moves an agent from one state to another."""

    READY = "ready"
    """Engine up, weights verified, and the first look for a notice is over."""
    ENGINE_LOST = "engine lost"
    NOTICE = "notice"
    """Spot, rebalance, or a stop."""
    BROKEN = "broken"
    """It cannot serve and cannot mend it."""
    SETTLED = "settled"
    """Nothing is leased and no reply is awaited."""
    OVERDUE = "overdue"
    """The drain's budget is spent."""


TABLE: Mapping[tuple[State, Turn], State] = MappingProxyType(
    {
        (State.STARTING, Turn.READY): State.SERVING,
        (State.STARTING, Turn.ENGINE_LOST): State.STARTING,
        (State.STARTING, Turn.NOTICE): State.DRAINING,
        (State.STARTING, Turn.BROKEN): State.DRAINING,
        (State.SERVING, Turn.ENGINE_LOST): State.STARTING,
        (State.SERVING, Turn.NOTICE): State.DRAINING,
        (State.SERVING, Turn.BROKEN): State.DRAINING,
        # A second notice changes neither the order nor the deadline.
        (State.DRAINING, Turn.NOTICE): State.DRAINING,
        (State.DRAINING, Turn.BROKEN): State.DRAINING,
        (State.DRAINING, Turn.ENGINE_LOST): State.DRAINING,
        (State.DRAINING, Turn.SETTLED): State.DONE,
        (State.DRAINING, Turn.OVERDUE): State.DONE,
    }
)
"""Every turn that may happen. Any other is a mistake in the agent."""


class ImpossibleTurn(Exception):
    """A turn that the table does not have."""


def after(state: State, turn: Turn) -> State:
    """Where a turn leads. Raises ImpossibleTurn."""
    try:
        return TABLE[state, turn]
    except KeyError:
        raise ImpossibleTurn(f"{turn.value!r} while {state.value}") from None
