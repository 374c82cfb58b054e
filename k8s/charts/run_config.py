"""plan.json for every pod of the run: its numbers come from there and from nowhere else."""

from __future__ import annotations

import json
from dataclasses import asdict

from infra.config.outputs import Outputs
from infra.config.plan import Plan
from k8s.manifest import Object, obj
from k8s.names import RUN_CONFIG, RUN_CONFIG_PATH, RUN_NAMESPACE
from k8s.pods import Spec

PLAN_FILE = "plan.json"


def objects(plan: Plan, outputs: Outputs | None = None) -> tuple[Object, ...]:
    """The ConfigMap. Same plan, same bytes; `outputs` are added where a deploy has made them known."""
    document = plan.document() | ({} if outputs is None else {"outputs": asdict(outputs)})
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    return (obj("v1", "ConfigMap", RUN_CONFIG, namespace=RUN_NAMESPACE, data={PLAN_FILE: text}),)


def volume() -> tuple[Spec, Spec]:
    """(volume, mount) of plan.json."""
    return (
        {"name": RUN_CONFIG, "configMap": {"name": RUN_CONFIG}},
        {"name": RUN_CONFIG, "mountPath": RUN_CONFIG_PATH, "readOnly": True},
    )
