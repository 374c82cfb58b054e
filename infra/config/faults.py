"""What is wrong with an environment file, said so that the reader knows what to write instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["fault", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault or warning.

    `key` is the dotted path in the file (`pools.rollout.zone`), `value` what stands there,
    `why` the reason it cannot work (a full clause), `fix` what to write instead.
    """

    rule: str
    key: str
    value: object
    why: str
    fix: str
    severity: Severity = "fault"
    line: int | None = None

    def text(self, path: str) -> str:
        """`FILE:LINE: key: value, why. fix [rule]`, one line, whatever the file holds."""
        where = path if self.line is None else f"{path}:{self.line}"
        line = f"{where}: {self.key}: {_shown(self.value)}, {self.why}. {self.fix} [{self.rule}]"
        return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)

    def document(self) -> dict[str, object]:
        """The same for `--json`."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "key": self.key,
            "value": _shown(self.value),
            "why": self.why,
            "fix": self.fix,
            "line": self.line,
        }


class EnvironmentFault(Exception):
    """An environment file that must not be rendered; carries every finding, warnings included."""

    def __init__(self, path: str, findings: tuple[Finding, ...]) -> None:
        self.path = path
        self.findings = findings
        faults = [finding for finding in findings if finding.severity == "fault"]
        super().__init__("\n".join(finding.text(path) for finding in faults))


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    return str(value)
