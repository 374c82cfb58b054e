"""Where the real scheduler and the real controllers put everything, and what they do when nodes go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from infra.config.plan import Plan
from infra.config.pool_plan import EFA_RESOURCE, GPU_RESOURCE
from infra.local.kubernetes.api import Object
from k8s.checks.scheduling import reached
from k8s.checks.tree import tree
from k8s.names import BUFFER, ENVIRONMENT, ROLLOUT, RUN_NAMESPACE, SYSTEM_NAMESPACE, TRAINER
from tests.k8s.renders import rendered

from .bed import Bed, pools_of, why_pending
from .fleet import REFERENCE, Fleet, create_trainer, scale_up, start

pytestmark = pytest.mark.cluster

GROUP_LABEL = "leaderworkerset.sigs.k8s.io/group-index"
PART_LABEL = "moerl.io/part"


@pytest.fixture(scope="module")
def fleet(start_bed: Callable[[Plan], Bed]) -> Fleet:
    made = start(start_bed)
    made.bed.apply(made.bed.cluster.deployments)
    create_trainer(made)
    scale_up(made)
    expected = made.expected()
    made.bed.until(
        "every pod of the run running", lambda: {name: len(made.running(name)) for name in expected} == expected
    )
    made.bed.tally.pods_placed += sum(len(made.bed.running(name)) for name in ("", RUN_NAMESPACE, SYSTEM_NAMESPACE))
    return made


def test_nothing_waits(fleet: Fleet) -> None:
    waiting = {pod["metadata"]["name"]: why_pending(pod) for pod in fleet.bed.pods("") if not _runs(pod)}
    fleet.bed.until("every pod of every namespace running", lambda: all(_runs(pod) for pod in fleet.bed.pods("")))
    assert fleet.expected()[TRAINER] == 18, waiting


def _runs(pod: Object) -> bool:
    return bool(pod["status"].get("phase") == "Running")


def test_daemonsets_reach_every_node_that_they_should_and_no_other(fleet: Fleet) -> None:
    """One pod on each node of exactly the pools that our own reading of selectors and taints names."""
    nodes = fleet.bed.api.list("v1", "Node")
    daemons = [pods for pods in tree(rendered(REFERENCE).files).pods if pods.is_daemon]
    assert len(daemons) >= 5
    for pods in daemons:
        name = pods.owner["metadata"]["name"]
        found = [pod for pod in fleet.bed.running(pods.namespace) if _owner(pod) == ("DaemonSet", name)]
        want = {pool: fleet.plan.pool(pool).size.max for pool in reached(pods.spec, fleet.plan)}
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
