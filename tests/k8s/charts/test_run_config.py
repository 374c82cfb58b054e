"""plan.json in the cluster is the plan."""

from __future__ import annotations

import json

import pytest

from infra.config.outputs import Outputs
from k8s.charts import run_config
from tests.shipped import SHIPPED, plan_of

LIMIT_BYTES = 1 << 20


@pytest.mark.parametrize("name", SHIPPED)
def test_it_is_the_plans_document_and_fits(name) -> None:
    plan = plan_of(name)
    (config,) = run_config.objects(plan)
    text = config["data"]["plan.json"]
    assert json.loads(text) == json.loads(json.dumps(plan.document()))
    assert len(text.encode()) < LIMIT_BYTES
    assert run_config.objects(plan) == run_config.objects(plan_of(name))


def test_outputs_are_added_where_they_are_known() -> None:
    outputs = Outputs(
        cluster_endpoint="https://example.eks.amazonaws.com",
        data_key_arn="arn:aws:kms:us-west-2:123456789012:key/x",
        repository_uri="123456789012.dkr.ecr.us-west-2.amazonaws.com/x",
        file_system_id=None,
        file_system_mount_name=None,
        node_groups={"trainer": "trainer-abc"},
    )
    (config,) = run_config.objects(plan_of("starter-p5en"), outputs)
    assert json.loads(config["data"]["plan.json"])["outputs"]["node_groups"] == {"trainer": "trainer-abc"}


def test_volume_and_mount_go_together() -> None:
    volume, mount = run_config.volume()
    (config,) = run_config.objects(plan_of("starter-p5en"))
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    assert (mount["name"], mount["mountPath"], mount["readOnly"]) == (volume["name"], "/etc/moerl", True)
