"""One checked fact and the verdict over many: what preflight and the benches print."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "warning", "failed", "skipped"]
FAILED = 1
_MARKS: dict[Status, str] = {"ok": "ok", "warning": "WARN", "failed": "FAIL", "skipped": "skip"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was looked at, what was there, what has to be, and what to do about it."""

    name: str
    status: Status
    found: str
    needed: str = ""
    fix: str = ""
    cause: str = ""
    """Stable word for what is wrong, for programs: `efa-absent`, `gdrdrv-missing`. Empty where nothing is."""

    def line(self) -> str:
        text = f"{_MARKS[self.status]:4}  {self.name}: {self.found}"
        if self.status in ("ok", "skipped"):
            return text
        return f"{text}; needed: {self.needed}. {self.fix}" if self.needed else f"{text}. {self.fix}"


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
