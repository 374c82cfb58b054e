"""What is wrong with an environment file, said so that the reader knows what to write instead."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Literal

from yaml import ScalarNode
from yaml.resolver import Resolver

Severity = Literal["fault", "warning"]
SHOWN_CHARACTERS = 100


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
        line = f"{where}: {cut(self.key)}: {shown(self.value)}, {self.why}. {self.fix} [{self.rule}]"
        return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)

    def document(self) -> dict[str, object]:
        """The same for `--json`."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "key": cut(self.key),
            "value": shown(self.value),
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


def addressed(text: str, env: str) -> str:
    """`moerl lock ENV` in a message, with what the reader typed for ENV."""
    return re.sub(r"(moerl (?:[a-z]+ )+)ENV\b", lambda found: found[1] + shlex.quote(env), text)


def count(number: int, what: str) -> str:
    """`1 fault`, `2 faults`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def cut(text: str) -> str:
    """The text, or its beginning and its length where nobody would read on."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}... ({len(text)} characters)"


def shown(value: object) -> str:
    """A value as the file has it, on one line: quotes where YAML needs them to read a text, or where there is nothing."""
    if isinstance(value, list | tuple | set | frozenset):
        return cut("[" + ", ".join(shown(item) for item in value) + "]")
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and _reads_as_another(value):
        return f"'{cut(value)}'"
    return cut(str(value))


def _reads_as_another(text: str) -> bool:
    if text != text.strip():
        return True
    tag: str = Resolver().resolve(ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return tag != "tag:yaml.org,2002:str"
