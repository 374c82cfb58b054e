"""Pods are found in every kind, at any depth, and counted as their controllers would make them."""

from __future__ import annotations

from typing import Any

import pytest

from k8s.checks.tree import matches, tree
from k8s.manifest import ManifestFile, Object, obj

TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}


def counts(*objects: Object) -> dict[str, int | None]:
    found = tree([ManifestFile(name="0100-x.yaml", objects=objects)])
    return {pods.where.partition(": ")[2]: pods.at_most for pods in found.pods}


def made(kind: str, **spec: Any) -> Object:
    return obj("example.com/v1", kind, "x", namespace="rl", spec=spec)


def scaled(kind: str, most: int) -> Object:
    return obj(
        "keda.sh/v1alpha1",
        "ScaledObject",
        "s",
        namespace="rl",
        spec={"scaleTargetRef": {"kind": kind, "name": "x"}, "maxReplicaCount": most},
    )


def test_plain_workloads() -> None:
    assert counts(made("Deployment", replicas=3, template=TEMPLATE)) == {"spec.template": 3}
    assert counts(made("StatefulSet", template=TEMPLATE)) == {"spec.template": 1}
    assert counts(made("DaemonSet", template=TEMPLATE)) == {"spec.template": None}
    assert counts(made("Job", parallelism=4, completions=4, template=TEMPLATE)) == {"spec.template": 4}
    assert counts(made("Pod", containers=[])) == {"": 1}


def test_an_autoscaled_workload_counts_its_maximum() -> None:
    assert counts(made("Deployment", template=TEMPLATE), scaled("Deployment", 7)) == {"spec.template": 7}
    assert counts(made("Deployment", template=TEMPLATE), scaled("StatefulSet", 7)) == {"spec.template": 1}


def test_a_group_counts_its_leader_once() -> None:
    group = {"size": 4, "leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE}
    assert counts(made("LeaderWorkerSet", leaderWorkerTemplate=group), scaled("LeaderWorkerSet", 5)) == {
        "spec.leaderWorkerTemplate.leaderTemplate": 5,
        "spec.leaderWorkerTemplate.workerTemplate": 15,
    }
    alone = {"size": 4, "workerTemplate": TEMPLATE}
    assert counts(made("LeaderWorkerSet", replicas=2, leaderWorkerTemplate=alone)) == {
        "spec.leaderWorkerTemplate.workerTemplate": 8
    }


def test_a_ray_job_has_a_head_a_submitter_and_workers() -> None:
    cluster = {
        "headGroupSpec": {"template": TEMPLATE},
        "workerGroupSpecs": [{"replicas": 2, "maxReplicas": 6, "numOfHosts": 2, "template": TEMPLATE}],
    }
    assert counts(made("RayJob", rayClusterSpec=cluster, submitterPodTemplate=TEMPLATE)) == {
        "spec.rayClusterSpec.headGroupSpec.template": 1,
        "spec.rayClusterSpec.workerGroupSpecs[0].template": 12,
        "spec.submitterPodTemplate": 1,
    }


def test_a_kind_that_cannot_be_counted_is_an_error_and_not_overlooked() -> None:
    with pytest.raises(ValueError, match=r"rl/Rocket/x holds a pod template at spec\.deep\.stages"):
        counts(made("Rocket", deep={"stages": [{"inner": TEMPLATE}]}))


@pytest.mark.parametrize(
    ("selector", "selects"),
    [
        ({}, True),
        ({"matchLabels": {"a": "b"}}, True),
        ({"matchLabels": {"a": "c"}}, False),
        ({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c"]}]}, True),
    ],
)
def test_label_selectors(selector: dict[str, Any], selects: bool) -> None:
    assert matches(selector, {"a": "b"}) is selects
