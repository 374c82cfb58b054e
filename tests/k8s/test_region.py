"""No pod has to ask the node's metadata where it is: whatever calls AWS is told its region."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from infra.config.names import NAMESPACE
from k8s.controllers import CONTROLLER_VALUES
from tests.k8s.renders import rendered
from tests.shipped import SHIPPED, plan_of


def pod_specs(value: Any) -> Iterator[dict[str, Any]]:
    """Every pod spec in a manifest, whatever kind it is of."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for item in value.values():
            yield from pod_specs(item)
    elif isinstance(value, list):
        for item in value:
            yield from pod_specs(item)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_container_of_a_run_is_told_the_region(name: str) -> None:
    region = plan_of(name).region
    told = [
        (container["name"], {item["name"]: item.get("value") for item in container.get("env", [])})
        for file in rendered(name).files
        for item in file.objects
        if item["metadata"].get("namespace") == NAMESPACE
        for pod in pod_specs(item)
        for container in (*pod.get("initContainers", []), *pod["containers"])
    ]
    assert {"agent", "engine", "fetch", "preflight", "ray-head", "ray-worker"} <= {part for part, _ in told}
    for part, variables in told:
        assert (variables.get("AWS_REGION"), variables.get("AWS_DEFAULT_REGION")) == (region, region), part


def test_controllers_that_call_aws_are_told_the_region() -> None:
    plan = plan_of("reference-p5en")
    assert {"name": "AWS_REGION", "value": plan.region} in CONTROLLER_VALUES["keda"](plan)["env"]
    # Its chart makes the variable of this.
    assert CONTROLLER_VALUES["cluster-autoscaler"](plan)["awsRegion"] == plan.region
