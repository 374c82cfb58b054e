"""Numbers of the smoke job, and the plan as its small processes read it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from moerl_runtime.plan import Node
from moerl_runtime.smoke import task

SERVING = "smoke"
"""Name of the base model's directory below the models."""
RANKS = 2
GROUPS, SAMPLES = 8, 8
"""Of one step."""
STEPS, SAVE_INTERVAL = 60, 5
STALENESS = 2
LEASE_SECONDS = 12
"""Of a task: a worker that is killed holds its tasks no longer. The plan's own suits answers of minutes."""
TASKS_MAX, REQUESTS_MAX = 6, 16
DRAIN_SECONDS = 3
REISSUE_SECONDS, STALL_SECONDS = 30.0, 120.0
PROMPTS, PROMPT_SEED, MODEL_SEED = 400, 7, 0
RUN_PREFIX = "smoke-"


def plan_for(plan: Node, pool: str | None) -> dict[str, Any]:
    """The document with the same queues and buckets, and engines of one tiny pod; nobody buffers or grades for them."""
    document: dict[str, Any] = copy.deepcopy(plan.value)
    document["queue"]["visibility_seconds"] = LEASE_SECONDS
    # Read where `scratch` is said: one pod has all files of a save.
    document["storage"]["scratch"] = "fsx"
    work = document["workload"]
    work["files"]["serving"] = SERVING
    work["cpu_workers"] = []
    # Answers have a fixed length, which a model that has not learned yet fills to the end.
    work["gates"]["truncated_share_max"] = 1.0
    work["batch"] |= {"groups": GROUPS, "staleness_versions": STALENESS, "window_groups": GROUPS * STALENESS}
    for rollout in work["rollouts"]:
        if rollout["pool"] == pool:
            rollout["pods"]["pods_per_group"] = 1
            rollout["backend"] = "none"
            rollout["geometry"] |= {"gpus_per_engine": 1, "expert_parallel": 1}
            rollout["engine"] |= {
                "attention_data_parallel": 1,
                "deepep_v2_mode": None,
                "tasks_max": TASKS_MAX,
                "running_requests_max": REQUESTS_MAX,
                "drain_budget_seconds": DRAIN_SECONDS,
            }
    return document


def write_plan(plan: Node, pool: str | None, path: Path) -> Path:
    path.write_text(json.dumps(plan_for(plan, pool)), encoding="utf-8")
    return path


def prompt_lines() -> str:
    """The prompt file: one JSON object a line."""
    rows = (
        {"prompt": task.prompt(start), "label": task.label(start), "grader": task.GRADER}
        for start in task.starts(PROMPT_SEED, PROMPTS)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)
