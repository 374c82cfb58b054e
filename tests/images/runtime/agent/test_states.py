"""The life of an agent is a table, and the table is complete."""

from __future__ import annotations

import pytest

from moerl_runtime.agent.states import TABLE, ImpossibleTurn, State, Turn, after

EXPECTED = {
    State.STARTING: {
        Turn.READY: State.SERVING,
        Turn.ENGINE_LOST: State.STARTING,
        Turn.NOTICE: State.DRAINING,
        Turn.BROKEN: State.DRAINING,
    },
    State.SERVING: {
        Turn.ENGINE_LOST: State.STARTING,
        Turn.NOTICE: State.DRAINING,
        Turn.BROKEN: State.DRAINING,
    },
    State.DRAINING: {
        Turn.NOTICE: State.DRAINING,
        Turn.ENGINE_LOST: State.DRAINING,
        Turn.BROKEN: State.DRAINING,
        Turn.SETTLED: State.DONE,
        Turn.OVERDUE: State.DONE,
    },
    State.DONE: {},
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("turn", Turn)
def test_every_turn_is_in_the_table_or_impossible(state: State, turn: Turn) -> None:
    if turn in EXPECTED[state]:
        assert after(state, turn) is EXPECTED[state][turn]
    else:
        with pytest.raises(ImpossibleTurn, match=state.value):
            after(state, turn)


def test_nothing_leads_back_from_a_drain() -> None:
    ends = {to for (state, _), to in TABLE.items() if state is State.DRAINING}
    assert ends == {State.DRAINING, State.DONE}
    assert not [state for state, _ in TABLE if state is State.DONE]
