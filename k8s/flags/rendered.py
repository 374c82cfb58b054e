"""Names of the flags that the renders of a plan pass to its image, for the check at the end of the image's build."""

from __future__ import annotations

from collections.abc import Iterable

from infra.catalog import CATALOG
from infra.config.plan import Plan
from k8s.flags import miles, slime
from k8s.flags.sglang import engine_command

_DIRECTORY = "/"
"""Stands for paths that the pods choose: a name does not depend on them."""


def trainer_flag_names(plan: Plan) -> tuple[str, ...]:
    """Flags of train.py. Raises EnvironmentFault for flags of the file that cannot work."""
    if CATALOG.software[plan.software].framework == "slime":
        return _names(slime.trainer_flags(plan))
    return _names(miles.trainer_flags(plan, config_directory=_DIRECTORY))


def engine_flag_names(plan: Plan) -> tuple[str, ...]:
    """Flags and SGLANG_ variables of every rollout's engines. Raises ValueError where SGLang would not serve."""
    found: set[str] = set()
    for rollout in plan.workload.rollouts:
        command = engine_command(plan, rollout, model_path=_DIRECTORY, jit_path=_DIRECTORY)
        found |= {*_names(command.flags), *(name for name in command.variables if name.startswith("SGLANG_"))}
    return tuple(sorted(found))


def _names(command_line: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({word for word in command_line if word.startswith("--")}))
