"""plan.json: the numbers of the run, as the render wrote them.

The document is read as it is and asked by path; a key that is missing is an error that names it, never a default: an image
and a render of different releases must not guess each other's numbers.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moerl_runtime.faults import InputFault

MOUNTED = Path("/etc/moerl/plan.json")
"""Where every pod of the run has the document (`k8s.charts.run_config`)."""


@dataclass(frozen=True, slots=True)
class Node:
    """One value of the document with its path, for error messages."""

    value: Any
    path: str

    def __getitem__(self, key: str | int) -> Node:
        path = f"{self.path}.{key}" if self.path else str(key)
        try:
            return Node(self.value[key], path)
        except (KeyError, IndexError, TypeError) as error:
            raise InputFault(
                path, None, "is not in plan.json", "Render the manifests with the release that built this image."
            ) from error

    @property
    def text(self) -> str:
        return str(self._of(str))

    @property
    def number(self) -> int:
        return int(self._of(int))

    @property
    def share(self) -> float:
        return float(self._of(float))

    @property
    def flag(self) -> bool:
        return bool(self._of(bool))

    def named(self, key: str, name: str) -> Node:
        """The entry of a list of objects whose `key` is `name`."""
        entries: list[Mapping[str, Any]] = self._of(list)
        for position, entry in enumerate(entries):
            if entry.get(key) == name:
                return self[position]
        known = ", ".join(str(entry.get(key)) for entry in entries)
        raise InputFault(f"{self.path}[{key}]", name, "is not in plan.json", f"Known are: {known}.")

    def _of(self, kind: type) -> Any:
        if not isinstance(self.value, kind) or (kind is int and isinstance(self.value, bool)):
            raise InputFault(self.path, self.value, f"is no {kind.__name__}", "Render the manifests anew.")
        return self.value


def load(path: Path) -> Node:
    """The document. Raises InputFault where it cannot be read, or is not one."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputFault("plan.json", str(path), f"cannot be read: {error}", "Mount the run's ConfigMap.") from error
    if not isinstance(document, dict):
        raise InputFault("plan.json", str(path), "is no JSON object", "Mount the run's ConfigMap.")
    return Node(document, "")


def pool(plan: Node, name: str) -> Node:
    """A node pool by name."""
    return plan["pools"].named("name", name)


def rollout(plan: Node, pool_name: str) -> Node:
    """The rollout half that runs on a pool."""
    return plan["workload"]["rollouts"].named("pool", pool_name)


def add_argument(parser: ArgumentParser) -> None:
    """`--plan`, for commands that read the document."""
    parser.add_argument("--plan", type=Path, default=MOUNTED, help=f"plan.json of the run (default: {MOUNTED})")
