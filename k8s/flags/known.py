"""Flag names of the pinned framework releases: an unknown one is refused here, not after sixteen nodes have started."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

from infra.catalog.software import SoftwareStack
from k8s.flags.sglang_rules import known_names

RELEASES = {"miles": "0.1.0", "slime": "0.2.4"}
"""The release whose names were read, by framework."""
SGLANG_PREFIX = "sglang-"


@cache
def framework_flags(framework: str) -> frozenset[str]:
    """Flags of a framework and its Megatron, without dashes; `known_*.txt` says where they come from."""
    source = files("k8s.flags") / f"known_{framework}_{RELEASES[framework]}.txt"
    lines = source.read_text(encoding="utf-8").splitlines()
    return frozenset(line.removeprefix("--") for line in lines if line and not line.startswith("#"))


def is_known(name: str, stack: SoftwareStack) -> bool:
    """Whether the stack's framework takes the flag; `sglang-*` passes through to the engine's own list."""
    if name in framework_flags(stack.framework):
        return True
    return name.startswith(SGLANG_PREFIX) and f"--{name.removeprefix(SGLANG_PREFIX)}" in known_names(stack.sglang)


def unknown(names: Iterable[str], stack: SoftwareStack) -> tuple[str, ...]:
    return tuple(name for name in names if not is_known(name, stack))


def nearest(name: str, stack: SoftwareStack) -> tuple[str, ...]:
    """Known flags that look like it, best first."""
    return tuple(get_close_matches(name, sorted(framework_flags(stack.framework)), n=3))
