"""One checked fact and the verdict over many: what preflight and the benches print."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "warning", "failed", "skipped"]
FAILED = 1
_MARKS: dict[Status, str] = {"ok": "ok", "warning": "WARN", "failed": "FAIL", "skipped": "skip"}

_NOT_TELLING = re.compile(
    r"""(File\ "|Traceback\ \(|(Current\ )?[Tt]hread\ 0x|<no\ Python\ frame>|Extension\ modules:|[~^\s]*$)""",
    re.VERBOSE,
)
"""Lines that end what a dying Python prints and name no reason: frames of a traceback, and faulthandler's lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was looked at, what was there, what has to be, and what to do about it."""

    name: str
    status: Status
    found: str
    """May have lines of its own, such as the last ones of a program."""
    needed: str = ""
    fix: str = ""
    cause: str = ""
    """Stable word for what is wrong, for programs: `efa-absent`, `gdrdrv-missing`. Empty where nothing is."""

    def line(self) -> str:
        text = f"{_MARKS[self.status]:4}  {self.name}: {one_line(self.found)}"
        if self.status in ("ok", "skipped"):
            return text
        return f"{text}; needed: {self.needed}. {self.fix}" if self.needed else f"{text}. {self.fix}"


def telling(text: str) -> list[str]:
    """Its lines but for those that name no reason. The last one of a program that failed is usually its error."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if not _NOT_TELLING.match(line)]


def one_line(text: str) -> str:
    """The first and the last telling line."""
    lines = telling(text)
    return " ... ".join([*lines[:1], *lines[1:][-1:]])


def details(checks: Iterable[Check]) -> list[str]:
    """In full what `line` has cut short."""
    return [f"{check.name}:\n{check.found}" for check in checks if one_line(check.found) != check.found.strip()]


def judged(
    name: str, good: bool, *, found: object, needed: object, fix: str, cause: str = "", severity: Status = "failed"
) -> Check:
    """A check that is ok or of the given severity."""
    return Check(
        name=name,
        status="ok" if good else severity,
        found=str(found),
        needed=str(needed),
        fix="" if good else fix,
        cause="" if good else cause,
    )


def skipped(name: str, reason: str) -> Check:
    return Check(name=name, status="skipped", found=reason)


def failed(checks: Iterable[Check]) -> tuple[Check, ...]:
    return tuple(check for check in checks if check.status == "failed")


def causes(checks: Iterable[Check]) -> list[str]:
    """Of what failed, each once."""
    return list(dict.fromkeys(check.cause for check in failed(checks) if check.cause))


def exit_code(checks: Iterable[Check]) -> int:
    """Warnings do not fail."""
    return FAILED if failed(checks) else 0


def document(checks: Iterable[Check]) -> list[dict[str, Any]]:
    return [asdict(check) for check in checks]
