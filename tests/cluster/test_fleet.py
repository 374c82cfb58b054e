"""Where the real scheduler and the real controllers put everything, and what they do when nodes go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from infra.catalog import CATALOG
from infra.config.plan import Plan
from infra.config.pool_plan import EFA_RESOURCE, GPU_RESOURCE
from infra.local.kubernetes.api import Object
from infra.local.kubernetes.fleet import applied, expected_pods, scale_up, why_pending
from k8s.checks.tree import tree
from k8s.names import BUFFER, ENVIRONMENT, ROLLOUT, RUN_NAMESPACE, SYSTEM_NAMESPACE, TRAINER
from tests.k8s.renders import rendered

from .bed import Bed, pools_of, refusal
from .fleet import REFERENCE, Fleet, create_trainer, kill, reclaim, replace, silent, start

pytestmark = pytest.mark.cluster

GROUP_LABEL = "leaderworkerset.sigs.k8s.io/group-index"
PART_LABEL = "moerl.io/part"
NOT_READY = "node.kubernetes.io/not-ready"


@pytest.fixture(scope="module")
def fleet(start_bed: Callable[[Plan], Bed]) -> Fleet:
    made = start(start_bed)
    made.bed.apply(made.bed.cluster.deployments)
    create_trainer(made)
    scale_up(made.bed.api, made.plan)
    made.wait_for_all()
    made.bed.until("every pod of every namespace running", lambda: all(_runs(pod) for pod in made.bed.pods("")))
    made.bed.tally.pods_placed += len(made.bed.running(""))
    return made


def test_an_apply_over_the_scaled_run_takes_nothing_away(fleet: Fleet) -> None:
    """No conflict with whoever scales, and no count that goes back."""
    before = _identities(fleet.bed.pods())
    fleet.bed.apply(applied(rendered(REFERENCE).files))
    fleet.wait_for_all()
    assert _identities(fleet.bed.pods()) == before


def test_everything_runs_with_every_pool_full(fleet: Fleet) -> None:
    found = {name: len(fleet.running(name)) for name in (TRAINER, ROLLOUT, ENVIRONMENT, BUFFER)}
    assert found == {TRAINER: 18, ROLLOUT: 32, ENVIRONMENT: 16, BUFFER: 2} == expected_pods(fleet.plan)


def _runs(pod: Object) -> bool:
    return bool(pod["status"].get("phase") == "Running")


def test_daemonsets_reach_every_node_that_they_should_and_no_other(fleet: Fleet) -> None:
    """One pod on each node of exactly the pools whose nodes have what the catalog says it is for."""
    nodes = fleet.bed.api.list("v1", "Node")
    daemons = [pods for pods in tree(rendered(REFERENCE).files).pods if pods.is_daemon]
    assert len(daemons) >= 5
    for pods in daemons:
        name = pods.owner["metadata"]["name"]
        found = [pod for pod in fleet.bed.running(pods.namespace) if _owner(pod) == ("DaemonSet", name)]
        of = next(item for item in CATALOG.daemonsets if item.name == name)
        want = {
            pool.name: pool.size.max
            for pool in fleet.plan.pools
            if (pool.gpus_per_node or not of.gpu_only) and (pool.efa_per_node or not of.efa_only)
        }
        assert pools_of(found, nodes) == want, name
        assert len({pod["spec"]["nodeName"] for pod in found}) == len(found)


def test_device_plugins_stand_on_the_48_gpu_nodes(fleet: Fleet) -> None:
    running = Counter(_owner(pod)[1] for pod in fleet.bed.running(SYSTEM_NAMESPACE))
    assert running["nvidia-device-plugin"] == running["efa-device-plugin"] == 48


def _owner(pod: Object) -> tuple[str, str]:
    owner = pod["metadata"].get("ownerReferences", [{"kind": "", "name": ""}])[0]
    return owner["kind"], owner["name"]


def test_trainer_workers_have_a_node_each_and_the_head_stands_beside_one(fleet: Fleet) -> None:
    parts: dict[str, list[Object]] = {}
    for pod in fleet.running(TRAINER):
        assert fleet.node_of(pod)["metadata"]["labels"]["moerl.io/pool"] == fleet.plan.workload.trainer.pool
        parts.setdefault(pod["metadata"]["labels"][PART_LABEL], []).append(pod)
    assert {part: len(pods) for part, pods in parts.items()} == {"worker": 16, "head": 1, "submitter": 1}
    places = {pod["spec"]["nodeName"] for pod in parts["worker"]}
    assert len(places) == 16
    assert {pod["spec"]["nodeName"] for pod in parts["head"]} <= places


def test_engines_stand_on_spot_nodes_alone_each_pod_on_its_own(fleet: Fleet) -> None:
    groups: dict[str, list[Object]] = {}
    for pod in fleet.running(ROLLOUT):
        assert fleet.node_of(pod)["metadata"]["labels"]["eks.amazonaws.com/capacityType"] == "SPOT"
        groups.setdefault(pod["metadata"]["labels"][GROUP_LABEL], []).append(pod)
    (rollout,) = fleet.plan.workload.rollouts
    assert len(groups) == rollout.geometry.engines_max
    assert {len(pods) for pods in groups.values()} == {rollout.pods.pods_per_group}
    assert len({pod["spec"]["nodeName"] for pod in fleet.running(ROLLOUT)}) == len(fleet.running(ROLLOUT))


@pytest.mark.parametrize("role", [ENVIRONMENT, BUFFER])
def test_cpu_workers_stand_on_their_pools_one_a_node(fleet: Fleet, role: str) -> None:
    pods, pools = fleet.running(role), {pool.name: pool for pool in fleet.plan.pools if pool.role == role}
    assert pools
    assert pools_of(pods, fleet.bed.api.list("v1", "Node")) == {name: pool.size.max for name, pool in pools.items()}
    assert len({pod["spec"]["nodeName"] for pod in pods}) == len(pods)


def test_controllers_of_the_charts_stand_on_the_system_pool(fleet: Fleet) -> None:
    """Under the namespaces' restricted level, with the values that Helm gets."""
    namespaces = {item["metadata"]["namespace"] for item in fleet.bed.cluster.deployments}
    wanted = sum(item["spec"]["replicas"] for item in fleet.bed.cluster.deployments)
    pods = [pod for name in namespaces for pod in fleet.bed.running(name)]
    assert len(pods) == wanted == 4
    system = [pool.name for pool in fleet.plan.pools if pool.role == "system"]
    assert set(pools_of(pods, fleet.bed.api.list("v1", "Node"))) == set(system)


def test_no_device_is_left_over_or_promised_twice(fleet: Fleet) -> None:
    """Every GPU and EFA device of the 48 nodes is requested once."""
    for resource, per_node in ((GPU_RESOURCE, 8), (EFA_RESOURCE, 16)):
        asked: Counter[str] = Counter()
        for pod in fleet.bed.running(RUN_NAMESPACE):
            asked[pod["spec"]["nodeName"]] += _most(pod, resource)
        assert {count for count in asked.values() if count} == {per_node}
        assert sum(1 for count in asked.values() if count) == 48


def _most(pod: Object, resource: str) -> int:
    """What the pod holds: init containers that end hand their devices on."""
    spec = pod["spec"]
    lasting = [item for item in spec.get("initContainers", ()) if item.get("restartPolicy") == "Always"]
    ending = [item for item in spec.get("initContainers", ()) if item.get("restartPolicy") != "Always"]
    held = sum(_request(item, resource) for item in [*spec["containers"], *lasting])
    return max([held, *(_request(item, resource) for item in ending)])


def _request(container: Object, resource: str) -> int:
    return int(container["resources"].get("requests", {}).get(resource, "0"))


# From here on things break, each test on parts of its own; the last one ends the run.


def test_a_voluntary_eviction_of_a_trainer_pod_is_refused(fleet: Fleet) -> None:
    for pod in fleet.running(TRAINER):
        fault = refusal(lambda pod=pod: fleet.bed.api.evict(pod))  # type: ignore[misc]
        assert fault is not None
        assert (fault.status, "disruption budget" in fault.message) == (429, True)


def test_the_trainers_budget_counts_its_pods(fleet: Fleet) -> None:
    """A budget whose controller cannot count refuses evictions too, but by a fault, which a later release may settle."""

    def counted() -> Object | None:
        found = fleet.bed.api.get("policy/v1", "PodDisruptionBudget", TRAINER, RUN_NAMESPACE)
        status = (found or {}).get("status", {})
        return status if status.get("currentHealthy") else None

    status = fleet.bed.until("budget counted", counted)
    assert status["desiredHealthy"] == len(fleet.running(TRAINER)) == status["currentHealthy"]
    assert [item["reason"] for item in status["conditions"]] == ["InsufficientPods"]


def test_a_trainer_node_that_is_not_ready_for_a_while_does_not_end_the_run(fleet: Fleet) -> None:
    """With its node replacement on, Kueue suspends a run half a minute after one of its nodes stops to be ready: an agent
    that is restarted, a moment without a network. Pods have five minutes until their node is taken for lost."""
    before, node = _identities(fleet.running(TRAINER)), fleet.node_of(fleet.running(TRAINER)[0])
    with silent(fleet, node):
        fleet.bed.until("the taint", lambda: NOT_READY in _taints(fleet, node))
        # Kueue acts at once on a node that has not been ready for that long.
        with pytest.raises(TimeoutError):
            fleet.bed.until("change", lambda: _identities(fleet.running(TRAINER)) != before, seconds=10)
        assert NOT_READY in _taints(fleet, node)
        assert not _ray_job(fleet)["spec"].get("suspend")
    fleet.bed.until("the taint gone", lambda: NOT_READY not in _taints(fleet, node))


def _taints(fleet: Fleet, node: Object) -> set[str]:
    found = fleet.bed.api.get("v1", "Node", node["metadata"]["name"])
    assert found is not None
    return {taint["key"] for taint in found["spec"].get("taints", ())}


def test_a_reclaimed_spot_node_takes_its_engine_and_no_other(fleet: Fleet) -> None:
    trainer, groups = _identities(fleet.running(TRAINER)), _groups(fleet)
    lost = sorted(groups)[0]
    node = next(iter(groups[lost].values()))[1]
    reclaim(fleet, [node])
    # The group is made anew, whole, and waits for a node; all others go on.
    fleet.bed.until("group made anew", lambda: _renewed(groups[lost], _groups(fleet).get(lost, {})))
    waiting = [pod for pod in fleet.pods(ROLLOUT) if not _runs(pod)]
    assert [pod["metadata"]["labels"][GROUP_LABEL] for pod in waiting] == [lost]
    reason = fleet.bed.until("a reason", lambda: why_pending(_again(fleet, waiting[0])))
    assert f"Insufficient {GPU_RESOURCE}" in reason
    assert {name: pods for name, pods in _groups(fleet).items() if name != lost} == {
        name: pods for name, pods in groups.items() if name != lost
    }
    assert _identities(fleet.running(TRAINER)) == trainer
    replace(fleet, "rollout", 1)
    fleet.wait_for_all()


def test_losing_a_third_of_the_spot_pool_leaves_trainer_and_other_engines_alone(fleet: Fleet) -> None:
    trainer, groups = _identities(fleet.running(TRAINER)), _groups(fleet)
    nodes = sorted(node for pods in groups.values() for _, node in pods.values())[: 32 // 3]
    hit = {name for name, pods in groups.items() if {node for _, node in pods.values()} & set(nodes)}
    assert 0 < len(hit) < len(groups)
    reclaim(fleet, nodes)
    now = _groups(fleet)
    assert {name: now.get(name) for name in groups if name not in hit} == {
        name: pods for name, pods in groups.items() if name not in hit
    }
    assert _identities(fleet.running(TRAINER)) == trainer
    replace(fleet, "rollout", len(nodes))
    # A follower may outlive its leader by a moment.
    fleet.bed.until("hit groups made anew", lambda: _all_renewed(fleet, groups, hit))
    fleet.wait_for_all()
    assert _identities(fleet.running(TRAINER)) == trainer
    now = _groups(fleet)
    assert {name for name in groups if now[name] == groups[name]} == set(groups) - hit


def test_a_spot_node_that_is_lost_without_notice_takes_its_engine_and_no_other(fleet: Fleet) -> None:
    trainer, groups = _identities(fleet.running(TRAINER)), _groups(fleet)
    lost = sorted(groups)[-1]
    follower = max(groups[lost])
    kill(fleet, fleet.node_of(next(pod for pod in fleet.pods(ROLLOUT) if pod["metadata"]["name"] == follower)))
    replace(fleet, "rollout", 1)
    fleet.bed.until("group made anew", lambda: _all_renewed(fleet, groups, {lost}))
    fleet.wait_for_all()
    now = _groups(fleet)
    assert {name for name in groups if now[name] != groups[name]} == {lost}
    assert _identities(fleet.running(TRAINER)) == trainer


@pytest.mark.parametrize("part", ["worker", "head"])
def test_a_killed_trainer_node_ends_the_attempt_and_the_next_waits_for_the_node(fleet: Fleet, part: str) -> None:
    """Never half a gang: Kueue takes the whole RayCluster down, and starts one anew when all nodes are there again."""
    before = _identities(fleet.running(TRAINER))
    (old,) = fleet.bed.api.list("ray.io/v1", "RayCluster", RUN_NAMESPACE)
    node = fleet.node_of(next(pod for pod in fleet.running(TRAINER) if pod["metadata"]["labels"][PART_LABEL] == part))
    kill(fleet, node)
    fleet.bed.until("no pod of the old attempt", lambda: not before & _identities(fleet.pods(TRAINER)))
    fleet.bed.until("suspended", lambda: _ray_job(fleet)["spec"].get("suspend"))
    assert fleet.pods(TRAINER) == []
    assert "EvictedDueToNodeFailures" in _workload_events(fleet)
    replace(fleet, fleet.plan.workload.trainer.pool, 1)
    fleet.wait_for_all()
    (new,) = fleet.bed.api.list("ray.io/v1", "RayCluster", RUN_NAMESPACE)
    assert new["metadata"]["name"] != old["metadata"]["name"]


def _workload_events(fleet: Fleet) -> set[str]:
    events = fleet.bed.api.list("v1", "Event", RUN_NAMESPACE)
    return {event["reason"] for event in events if event["involvedObject"]["kind"] in ("Workload", "RayJob")}


def _ray_job(fleet: Fleet) -> Object:
    (job,) = fleet.bed.api.list("ray.io/v1", "RayJob", RUN_NAMESPACE)
    return job


def _identities(pods: list[Object]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def _groups(fleet: Fleet) -> dict[str, dict[str, tuple[str, str]]]:
    """Engine group → pod name → (uid, node or '')."""
    groups: dict[str, dict[str, tuple[str, str]]] = {}
    for pod in fleet.pods(ROLLOUT):
        metadata = pod["metadata"]
        place = (metadata["uid"], pod["spec"].get("nodeName", ""))
        groups.setdefault(metadata["labels"][GROUP_LABEL], {})[metadata["name"]] = place
    return groups


def _renewed(before: dict[str, tuple[str, str]], now: dict[str, tuple[str, str]]) -> bool:
    """Whether all pods of a group are there again and none is the one that it was."""
    return before.keys() == now.keys() and all(before[name][0] != now[name][0] for name in before)


def _all_renewed(fleet: Fleet, before: dict[str, dict[str, tuple[str, str]]], names: set[str]) -> bool:
    now = _groups(fleet)
    return all(_renewed(before[name], now.get(name, {})) for name in names)


def _again(fleet: Fleet, pod: Object) -> Object:
    found = fleet.bed.api.get("v1", "Pod", pod["metadata"]["name"], RUN_NAMESPACE)
    assert found is not None
    return found
