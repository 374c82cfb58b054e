"""Errors with what to do about them."""

from __future__ import annotations

from collections.abc import Sequence


class RuntimeFault(Exception):
    """Something that a person has to change: the key, its value, why it cannot work, what to write instead."""

    exit_code = 1

    def __init__(self, key: str, value: object, why: str, fix: str) -> None:
        super().__init__(f"{key} = {value!r}: {why}. {fix}")
        self.key, self.value, self.why, self.fix = key, value, why, fix


class InputFault(RuntimeFault):
    """Wrong command line, variable or plan."""

    exit_code = 2


class InputFaults(RuntimeFault):
    """Several of them, so that one start shows all; a line each."""

    exit_code = InputFault.exit_code

    def __init__(self, faults: Sequence[InputFault]) -> None:
        first = faults[0]
        super().__init__(first.key, first.value, first.why, first.fix)
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)
