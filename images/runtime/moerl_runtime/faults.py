"""Errors with what to do about them."""

from __future__ import annotations


class RuntimeFault(Exception):
    """Something that a person has to change: the key, its value, why it cannot work, what to write instead."""

    exit_code = 1

    def __init__(self, key: str, value: object, why: str, fix: str) -> None:
        super().__init__(f"{key} = {value!r}: {why}. {fix}")
        self.key, self.value, self.why, self.fix = key, value, why, fix


class InputFault(RuntimeFault):
    """Wrong command line, variable or plan."""

    exit_code = 2
