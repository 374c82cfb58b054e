"""DaemonSets of this package: placed by pool alone, on the account that every node keeps for them."""

from __future__ import annotations

import pytest

from infra.catalog.daemonsets import DAEMONSETS
from infra.config.pod_plan import daemonset_load
from k8s.charts import devices, exporters
from k8s.checks.quantities import pod_requests
from k8s.checks.scheduling import reached
from k8s.daemonsets import daemonset, requests
from k8s.manifest import Object
from k8s.pods import container
from tests.shipped import IMAGE, SHIPPED, plan_of

STRANGE = [
    {"key": "example.com/gpu", "value": "present", "effect": "NO_EXECUTE"},
    {"key": "example.com/dedicated", "value": "x"},
    {"key": "example.com/soft", "effect": "PREFER_NO_SCHEDULE"},
]


def daemons(name: str = "reference-p5en", **changes: object) -> dict[str, Object]:
    plan = plan_of(name, changes or None)
    rendered = (*devices.objects(plan, image=IMAGE), *exporters.objects(plan, image=IMAGE))
    return {item["metadata"]["name"]: item for item in rendered if item["kind"] == "DaemonSet"}


def spec_of(item: Object) -> Object:
    spec: Object = item["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("name", SHIPPED)
def test_b34_b36_each_reaches_every_pool_with_its_devices_and_no_other(name: str) -> None:
    plan = plan_of(name)
    gpu = tuple(pool.name for pool in plan.pools if pool.is_gpu)
    efa = tuple(pool.name for pool in plan.pools if pool.efa_per_node)
    found = {daemon: reached(spec_of(item), plan) for daemon, item in daemons(name).items()}
    assert found == {
        "nvidia-device-plugin": gpu,
        "efa-device-plugin": efa,
        "gdrcopy-loader": efa,
        "image-pull": gpu,
        "dcgm-exporter": gpu,
        "efa-exporter": efa,
    }
    assert set(gpu) == {"trainer", "rollout"}


def test_b37_no_taint_that_a_user_adds_keeps_one_off_its_pool() -> None:
    changes = {"pools.rollout.taints": STRANGE, "pools.trainer.taints": STRANGE}
    plan = plan_of("reference-p5en", changes)
    assert all(len(pool.taints) == 5 for pool in plan.pools if pool.is_gpu)
    for daemon, item in daemons("reference-p5en", **changes).items():
        assert reached(spec_of(item), plan) == ("trainer", "rollout"), daemon


def test_b34_a_pool_of_a_name_and_type_that_no_list_holds_is_reached_too() -> None:
    second = {
        "role": "rollout",
        "instance_types": ["p6-b200.48xlarge"],
        "nodes": {"min": 0, "max": 2},
        "capacity": {"type": "spot"},
    }
    plan = plan_of("p6-b200", {"pools.blackwell-2": second})
    found = daemons("p6-b200", **{"pools.blackwell-2": second})
    for daemon in ("nvidia-device-plugin", "efa-device-plugin", "dcgm-exporter"):
        assert reached(spec_of(found[daemon]), plan) == ("trainer", "rollout", "blackwell-2")


def test_pools_without_efa_interfaces_get_no_efa_agents() -> None:
    off = {"pools.rollout.efa": False, "workload.rollout.gpus_per_engine": 8, "workload.rollout.expert_parallel": 8}
    plan, found = plan_of("reference-p5en", off), daemons("reference-p5en", **off)
    assert {daemon for daemon, item in found.items() if "rollout" not in reached(spec_of(item), plan)} == {
        "efa-device-plugin",
        "efa-exporter",
        "gdrcopy-loader",
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_together_they_ask_for_no_more_than_the_plan_takes_off_a_node(name: str) -> None:
    plan = plan_of(name)
    for pool in plan.pools:
        if not pool.is_gpu:
            continue
        asked = [
            pod_requests(spec_of(item)) for item in daemons(name).values() if pool.name in reached(spec_of(item), plan)
        ]
        cpu, memory = daemonset_load(pool, DAEMONSETS)
        ours = [entry for entry in DAEMONSETS if entry.name in daemons(name)]
        assert sum(one["cpu"] for one in asked) * 1000 == sum(entry.cpu_millis for entry in ours) <= cpu
        assert sum(one["memory"] for one in asked) == sum(entry.memory_mib for entry in ours) << 20
        assert sum(entry.memory_mib for entry in ours) <= memory


def test_requests_are_limits_and_the_selector_is_the_pods_label() -> None:
    for daemon, item in daemons().items():
        (one,) = spec_of(item)["containers"]
        assert one["resources"]["requests"] == one["resources"]["limits"]
        selector, labels = item["spec"]["selector"]["matchLabels"], item["spec"]["template"]["metadata"]["labels"]
        assert selector == {"moerl.io/component": daemon}
        assert selector.items() <= labels.items()


def test_none_has_a_token_of_the_api_server() -> None:
    for item in daemons().values():
        spec = spec_of(item)
        assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("agents", False)
        assert spec["enableServiceLinks"] is False


def test_a_daemonset_that_the_catalog_does_not_list_is_refused() -> None:
    with pytest.raises(KeyError, match="surprise"):
        requests("surprise")


def test_a_daemonset_for_no_pool_is_refused() -> None:
    one = container("image-pull", IMAGE, requests("image-pull"))
    with pytest.raises(ValueError, match="at least one pool"):
        daemonset("image-pull", (), one, priority="x", max_unavailable=1, grace_seconds=1)
