"""What exists only after a deploy, from `cdk deploy --outputs-file`: typed input of a render, never guessed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.config.faults import EnvironmentFault, Finding
from infra.config.names import stack_name
from infra.config.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    cluster_endpoint: str
    data_key_arn: str
    repository_uri: str
    file_system_id: str | None
    """None where scratch is nvme."""
    file_system_mount_name: str | None
    node_groups: Mapping[str, str]
    """Live node group name of each pool."""


def load_outputs(path: Path, plan: Plan) -> Outputs:
    """Reads the outputs file of this environment's stacks.

    Raises EnvironmentFault naming every stack or output that the file lacks.
    """
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EnvironmentFault(
            str(path),
            (
                _fault(
                    "file", str(path), f"cannot be read as JSON: {error}", "Write the file that `--outputs-file` made."
                ),
            ),
        ) from error
    missing: list[Finding] = []

    def output(part: str, key: str) -> str:
        stack = stack_name(plan.name, part)
        of_stack = written.get(stack) if isinstance(written, dict) else None
        value = of_stack.get(key) if isinstance(of_stack, dict) else None
        if not isinstance(value, str):
            missing.append(
                _fault(
                    f"{stack}.{key}",
                    value,
                    "is not in the outputs file",
                    "Deploy every stack with `npx cdk deploy --all --outputs-file FILE`.",
                )
            )
            return ""
        return value

    fsx = plan.storage.scratch == "fsx"
    outputs = Outputs(
        cluster_endpoint=output("cluster", "ClusterEndpoint"),
        data_key_arn=output("storage", "DataKeyArn"),
        repository_uri=output("storage", "RepositoryUri"),
        file_system_id=output("storage", "FileSystemId") if fsx else None,
        file_system_mount_name=output("storage", "FileSystemMountName") if fsx else None,
        node_groups={
            pool.name: output(f"pool-{pool.name}", "NodeGroupName") for pool in plan.pools if pool.role != "system"
        },
    )
    if missing:
        raise EnvironmentFault(str(path), tuple(missing))
    return outputs


def _fault(key: str, value: object, why: str, fix: str) -> Finding:
    return Finding(rule="file.outputs", key=key, value=value, why=why, fix=fix)
