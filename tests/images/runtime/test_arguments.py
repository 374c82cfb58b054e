"""Numbers and addresses as people and pods write them: what is none is told, whatever Python takes for a digit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime.arguments import digits, host_port


@given(st.integers(0, 10**9))
def test_a_number_of_plain_digits_is_read(value: int) -> None:
    assert digits(str(value)) == digits(f"00{value}") == value


@given(st.text(max_size=6))
def test_no_text_makes_the_reading_raise(text: str) -> None:
    found = digits(text)
    assert (found is None) is not (bool(text) and set(text) <= set("0123456789"))
    assert host_port(text) is None or ":" in text


@pytest.mark.parametrize("text", ["host", "host:", "host:x", "host:²", "host:٣", "host:-1", "host:65536"])
def test_what_is_no_address_is_none(text: str) -> None:
    assert host_port(text) is None


def test_an_address_may_be_a_name_a_bracketed_one_or_have_no_host() -> None:
    assert host_port("pool-0.pool.rl.svc:29500") == ("pool-0.pool.rl.svc", 29500)
    assert host_port("[fd00::1]:0") == ("fd00::1", 0)
    assert host_port(":80") == ("", 80)
