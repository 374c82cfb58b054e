"""Helm values of the controllers: who they are, where they stand, what they may touch, and what keeps a run safe from them."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
import yaml

from infra.catalog.controllers import CONTROLLERS
from infra.config.pool_plan import AUTOSCALER_TAG, scaled_outside
from infra.constructs.workload_access import identities
from k8s.charts import scaling
from k8s.checks.quantities import quantity
from k8s.controllers import (
    CONTROLLER_VALUES,
    JOIN_MINUTES,
    READ_MIB_PER_SECOND,
    REQUEUES,
    kueue_configuration,
    pods_ready_minutes,
)
from k8s.helm_values import Values
from k8s.monitoring_stack import NODE_EXPORTER, RETENTION_GIB, VOLUME_GIB
from moerl_runtime.preflight import fabric
from tests.shipped import SHIPPED, plan_of

TAINTED = {
    "pools.base": {
        "role": "system",
        "instance_types": ["m7i.2xlarge"],
        "nodes": 3,
        "capacity": {"type": "on_demand"},
        "taints": [{"key": "example.com/system", "value": "yes"}],
    }
}
EACH = pytest.mark.parametrize("controller", CONTROLLER_VALUES)


def values(controller: str, **changes: object) -> Values:
    return CONTROLLER_VALUES[controller](plan_of("reference-p5en", changes or None))


def blocks(value: Any, key: str, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, block) of every mapping under that key, at any depth."""
    if isinstance(value, dict):
        for name, inner in value.items():
            where = f"{path}.{name}"
            if name == key:
                yield where, inner
            yield from blocks(inner, key, where)
    elif isinstance(value, list):
        for item in value:
            yield from blocks(item, key, path)


def requests(value: Any) -> Iterator[tuple[str, dict[str, str]]]:
    for where, block in blocks(value, "requests"):
        if "cpu" in block:
            yield where, block


def test_every_chart_that_helm_installs_has_values_and_no_other() -> None:
    assert set(CONTROLLER_VALUES) == {name for name, controller in CONTROLLERS.items() if controller.helm}
    assert next(iter(CONTROLLER_VALUES)) == "kube-prometheus-stack"


@EACH
def test_requests_are_limits_wherever_resources_are_stated(controller: str) -> None:
    stated = [(where, block) for where, block in blocks(values(controller), "resources") if isinstance(block, dict)]
    found = [
        (where, one)
        for where, block in stated
        for one in ([block] if "requests" in block else block.values())
        if "storage" not in one.get("requests", {})
    ]
    assert found
    for where, one in found:
        assert one["requests"] == one["limits"], where


@EACH
def test_pods_stand_on_the_system_pool_whatever_its_taints(controller: str) -> None:
    plain, tainted = values(controller), values(controller, **TAINTED)
    selectors = [block for _, block in blocks(plain, "nodeSelector")]
    assert selectors
    assert all(block == {"moerl.io/role": "system"} for block in selectors)
    tolerations = [block for where, block in blocks(tainted, "tolerations") if NODE_EXPORTER not in where]
    wanted = {"key": "example.com/system", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
    assert tolerations == [[wanted]] * len(selectors)


@pytest.mark.parametrize("name", SHIPPED)
def test_all_controllers_fit_on_the_system_pool_beside_each_other(name: str) -> None:
    plan = plan_of(name)
    (system,) = (pool for pool in plan.pools if pool.role == "system")
    cpu, memory = Fraction(0), Fraction(0)
    for controller, made in CONTROLLER_VALUES.items():
        replicas = 2 if controller in ("kueue", "lws") else 1
        for where, block in requests(made(plan)):
            if NODE_EXPORTER in where:
                continue
            cpu += replicas * (quantity(block["cpu"]) or 0) * 1000
            memory += replicas * (quantity(block["memory"]) or 0) / (1 << 20)
            # And the largest one on a single node, with room for what add-ons bring.
            assert (quantity(block["memory"]) or 0) / (1 << 20) < system.allocatable.memory_mib // 2
    assert 0 < cpu < system.allocatable.cpu_millis * system.size.max // 2
    assert 0 < memory < system.allocatable.memory_mib * system.size.max // 2


@pytest.mark.parametrize(
    ("controller", "image", "path"),
    [
        ("kuberay-operator", "kuberay-operator", ("image",)),
        ("kueue", "kueue", ("controllerManager", "manager", "image")),
        ("lws", "lws", ("image", "manager")),
        ("cluster-autoscaler", "cluster-autoscaler", ("image",)),
        ("keda", "keda-operator", ("image", "keda")),
        ("keda", "keda-metrics-apiserver", ("image", "metricsApiServer")),
        ("keda", "keda-admission-webhooks", ("image", "webhooks")),
    ],
)
def test_images_are_the_plans_by_digest_as_the_chart_joins_them(
    controller: str, image: str, path: tuple[str, ...]
) -> None:
    found = values(controller)
    for step in path:
        found = found[step]
    repository = "/".join(part for part in (found.get("registry"), found["repository"]) if part)
    joined = f"{repository}:{found['tag']}"
    assert joined == plan_of("reference-p5en").images[image]
    assert "@sha256:" in joined


def test_service_accounts_are_those_that_have_an_aws_role() -> None:
    plan = plan_of("reference-p5en")
    roles = {(one.namespace, one.service_account) for one in identities(plan, data_key_arn="arn:aws:kms:::key/x")}
    keda, autoscaler = values("keda"), values("cluster-autoscaler")
    for controller, account in (
        ("keda", keda["serviceAccount"]["operator"]["name"]),
        ("cluster-autoscaler", autoscaler["rbac"]["serviceAccount"]["name"]),
    ):
        assert (CONTROLLERS[controller].namespace, account) in roles


# --- KubeRay


def test_kuberay_has_one_namespace_and_no_scheduler_of_its_own() -> None:
    made = values("kuberay-operator")
    assert (made["watchNamespace"], made["singleNamespaceInstall"], made["crNamespacedRbacEnable"]) == (
        ["rl"],
        True,
        True,
    )
    assert made["batchScheduler"] == {"enabled": False, "name": ""}
    assert {"name": "ENABLE_PROBES_INJECTION", "value": "false"} in made["env"]


# --- Kueue


def test_kueue_queues_jobs_and_ray_jobs_of_the_run_alone() -> None:
    configuration = yaml.safe_load(values("kueue")["managerConfig"]["controllerManagerConfigYaml"])
    assert configuration == kueue_configuration(plan_of("reference-p5en"))
    assert configuration["integrations"]["frameworks"] == ["batch/job", "ray.io/rayjob"]
    assert configuration["managedJobsNamespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "rl"}}
    assert configuration["manageJobsWithoutQueueName"] is False


def test_kueue_admits_all_pods_or_none_within_a_time_and_gives_up_in_the_end() -> None:
    waits = kueue_configuration(plan_of("reference-p5en"))["waitForPodsReady"]
    # 3064 GiB of checkpoint and twice 438 GiB of model at 2 GiB/s, after half an hour for node, image and preflight, and
    # before twelve minutes for the links.
    assert waits["timeout"] == waits["recoveryTimeout"] == "75m"
    assert waits["blockAdmission"] is False
    assert waits["requeuingStrategy"]["backoffLimitCount"] == REQUEUES > 0


@pytest.mark.parametrize("name", SHIPPED)
def test_a_gang_has_the_time_to_read_what_it_starts_from(name: str) -> None:
    """A timeout below it starts a large run again and again, and after a few times not at all."""
    plan = plan_of(name)
    read_seconds = plan.workload.trainer.checkpoint_gib * 1024 / READ_MIB_PER_SECOND
    assert pods_ready_minutes(plan) * 60 > JOIN_MINUTES * 60 + read_seconds


def test_a_gang_has_the_time_to_prove_its_links_where_it_does() -> None:
    """A verdict that comes after the eviction is nobody's. Nodes that come later than the others are in the time to join."""
    proves, not_ = (
        pods_ready_minutes(plan_of("starter-p5en", {"workload.trainer.prove_fabric": proven}))
        for proven in (True, False)
    )
    assert (proves - not_) * 60 >= sum(fabric.SECONDS.values())
    assert fabric.PEERS_SECONDS <= JOIN_MINUTES * 60


def test_controllers_whose_webhooks_fail_closed_have_two_replicas() -> None:
    assert values("kueue")["controllerManager"]["replicas"] == 2
    assert values("kueue")["controllerManager"]["podDisruptionBudget"]["minAvailable"] == 1
    assert values("lws")["replicaCount"] == 2


# --- KEDA


def test_keda_scales_what_the_run_scales_and_reads_no_secret_of_others() -> None:
    made = values("keda")
    assert made["watchNamespace"] == "rl"
    assert made["permissions"]["operator"]["restrict"]["secret"] is True
    assert made["permissions"]["metricServer"]["restrict"]["secret"] is True
    allowed = {(one["apiGroup"], one["kind"]) for one in made["rbac"]["scaledRefKinds"]}
    targets = {
        (target["apiVersion"].partition("/")[0], f"{target['kind'].lower()}s")
        for item in scaling.objects(plan_of("reference-p5en"))
        if item["kind"] == "ScaledObject"
        for target in [item["spec"]["scaleTargetRef"]]
    }
    assert {target for target in targets if target[0] != "apps"} == allowed


# --- Cluster autoscaler


def test_the_autoscaler_finds_tagged_groups_of_this_cluster_alone() -> None:
    discovery = values("cluster-autoscaler")["autoDiscovery"]
    assert discovery["clusterName"] == "reference-p5en"
    assert set(discovery["tags"]) == {
        "k8s.io/cluster-autoscaler/enabled",
        "k8s.io/cluster-autoscaler/reference-p5en",
        AUTOSCALER_TAG,
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_no_trainer_pool_has_the_tag_by_which_the_autoscaler_finds_groups(name: str) -> None:
    plan = plan_of(name)
    found = {pool.name for pool in plan.pools if AUTOSCALER_TAG in pool.scaler_tags}
    assert found == {pool.name for pool in plan.pools if scaled_outside(pool) == "autoscaler"}
    assert not found & {pool.name for pool in plan.pools if pool.role in ("trainer", "system")}


def test_the_autoscaler_ends_nearly_empty_nodes_only_and_balances_nothing() -> None:
    told = values("cluster-autoscaler")["extraArgs"]
    assert told["balance-similar-node-groups"] == "false"
    assert told["ignore-daemonsets-utilization"] == "true"
    plan = plan_of("reference-p5en")
    for key in ("scale-down-utilization-threshold", "scale-down-gpu-utilization-threshold"):
        for rollout in plan.workload.rollouts:
            pool = plan.pool(rollout.pool)
            share = Fraction(rollout.pods.engine.cpu_millis, pool.allocatable.cpu_millis)
            assert Fraction(told[key]) < min(share, Fraction(rollout.pods.engine.gpus, pool.gpus_per_node))
    assert all(isinstance(value, str) for value in told.values())


def test_the_autoscaler_is_of_the_clusters_own_minor_version() -> None:
    plan = plan_of("reference-p5en")
    assert values("cluster-autoscaler")["image"]["tag"].startswith(f"v{plan.kubernetes.version}.")


# --- kube-prometheus-stack


def test_the_node_exporter_is_everywhere_asks_for_its_account_and_listens_on_the_nodes_address() -> None:
    made = values("kube-prometheus-stack")[NODE_EXPORTER]
    assert made["tolerations"] == [{"operator": "Exists"}]
    assert made["service"]["listenOnAllInterfaces"] is False
    assert made["resources"]["requests"] == {"cpu": "100m", "memory": "128Mi"}


def test_nothing_of_the_monitoring_stack_is_published_and_no_password_is_set() -> None:
    made = values("kube-prometheus-stack")
    assert not list(blocks(made, "ingress"))
    assert not list(blocks(made, "adminPassword"))
    assert {block["type"] for where, block in blocks(made, "service") if "type" in block} == {"ClusterIP"}


def test_prometheus_stays_below_its_volume_on_an_encrypted_class_that_the_chart_makes() -> None:
    made = values("kube-prometheus-stack")
    spec = made["prometheus"]["prometheusSpec"]
    claim = spec["storageSpec"]["volumeClaimTemplate"]["spec"]
    (storage_class,) = made["extraManifests"]
    assert claim["storageClassName"] == storage_class["metadata"]["name"]
    assert storage_class["parameters"]["encrypted"] == "true"
    assert spec["retentionSize"] == f"{RETENTION_GIB}GB"
    assert RETENTION_GIB < VOLUME_GIB
