"""Every object of every shipped environment against the real API server, its admission and the controllers' webhooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from infra.config.plan import Plan
from infra.local.kubernetes.api import ApiFault, Object
from infra.local.kubernetes.fleet import applied, created
from k8s.checks.tree import key_of, tree, where
from k8s.render import manifests
from tests.k8s import broken, drafts
from tests.k8s.admission_cases import CASES, Case
from tests.k8s.renders import outputs_of, rendered
from tests.shipped import IMAGE, SHIPPED, Changes, plan_of

from .bed import Bed, as_pod, refusal

pytestmark = pytest.mark.cluster
REFERENCE = "reference-p5en"


@dataclass(frozen=True)
class Applied:
    bed: Bed
    name: str
    refused: dict[str, str]
    """Object to the server's reason, from the first apply."""


@pytest.fixture(scope="module", params=SHIPPED)
def environment(request: pytest.FixtureRequest, start_bed: Callable[[Plan], Bed]) -> Iterator[Applied]:
    """A control plane to which one environment was applied once, in the order of its files."""
    name: str = request.param
    bed = start_bed(plan_of(name))
    bed.define()
    refused = {}
    for item in applied(rendered(name).files):
        try:
            bed.apply([item])
        except (ApiFault, LookupError) as fault:
            refused[where(item)] = str(fault)
    yield Applied(bed, name, refused)
    bed.group.end()


def test_every_object_is_accepted(environment: Applied) -> None:
    assert environment.refused == {}


def test_a_second_apply_changes_nothing(environment: Applied) -> None:
    """Not a field, not the generation. Status is the controllers' own, and so are the server's notes on who wrote what."""
    api, changed, count = environment.bed.api, [], 0
    for item in applied(rendered(environment.name).files):
        if not environment.bed.knows(item) or where(item) in environment.refused:
            continue
        before = api.get(item["apiVersion"], item["kind"], item["metadata"]["name"], item["metadata"].get("namespace"))
        assert before is not None
        if _content(api.apply(item).item) != _content(before):
            changed.append(where(item))
        count += 1
    assert changed == []
    assert count > 50


def _content(item: Object) -> Object:
    metadata = {
        key: value for key, value in item["metadata"].items() if key not in ("managedFields", "resourceVersion")
    }
    return {**{key: value for key, value in item.items() if key != "status"}, "metadata": metadata}


def test_trainer_and_jobs_can_be_created(environment: Applied) -> None:
    items = created(rendered(environment.name).files)
    refused = {where(item): fault for item in items if (fault := _refused(environment.bed, item))}
    assert refused == {}
    assert {"RayJob", "Job", "ConfigMap"} <= {item["kind"] for item in items}


def test_every_pod_template_is_a_pod(environment: Applied) -> None:
    """Lifted out of RayJob, LeaderWorkerSet and the rest: nobody looks into those before their controller makes pods."""
    templates = tree(rendered(environment.name).files).pods
    refused = {pods.where: fault for pods in templates if (fault := _refused(environment.bed, as_pod(pods)))}
    assert refused == {}
    assert {"RayJob", "LeaderWorkerSet", "DaemonSet", "Job"} <= {pods.kind for pods in templates}


def _refused(bed: Bed, item: Object) -> str:
    """The server's reason for not creating the object, '' when it would."""
    fault = refusal(lambda: bed.api.create(item, dry_run=True))
    return "" if fault is None else fault.message


@pytest.fixture(scope="module")
def reference(start_bed: Callable[[Plan], Bed]) -> Iterator[Bed]:
    bed = start_bed(plan_of(REFERENCE))
    bed.define()
    bed.apply(applied(rendered(REFERENCE).files))
    # The policy counts a moment after it is stored.
    case = next(case for case in CASES if case.name == "host-network")
    bed.until("admission policy", lambda: _refused(bed, _run_pod(case)))
    yield bed
    bed.group.end()


@pytest.mark.parametrize("case", [case for case in CASES if "ephemeralContainers" not in case.pod["spec"]], ids=str)
def test_admission_policy(reference: Bed, case: Case) -> None:
    reason = _refused(reference, _run_pod(case))
    if case.refused_with is None:
        assert reason == ""
    else:
        assert case.refused_with in reason


@pytest.mark.parametrize("case", [case for case in CASES if "ephemeralContainers" in case.pod["spec"]], ids=str)
def test_admission_policy_on_ephemeral_containers(reference: Bed, case: Case) -> None:
    """As `kubectl debug` adds them: through the subresource of a pod that is there."""
    pod = _run_pod(case)
    added = pod["spec"].pop("ephemeralContainers")
    stored = reference.api.create(pod).item
    try:
        path = f"{reference.api.path_of(stored)}/ephemeralcontainers"
        change: Object = {"spec": {"ephemeralContainers": added}}
        fault = refusal(
            lambda: reference.api.request("PATCH", path, change, None, "application/strategic-merge-patch+json")
        )
        if case.refused_with is None:
            assert fault is None
        else:
            assert fault is not None
            assert case.refused_with in fault.message
    finally:
        reference.api.delete(stored, grace_seconds=0)
        reference.until("pod gone", lambda: reference.api.get("v1", "Pod", "case", "rl") is None)


def test_a_pod_on_its_way_out_may_lose_its_finalizers(reference: Bed) -> None:
    """Jobs and LeaderWorkerSet hold their pods by finalizers: a policy that refused this would hold them for ever."""
    pod = _run_pod(next(case for case in CASES if case.name == "restricted-pod"))
    pod["metadata"] = {**pod["metadata"], "finalizers": ["moerl.io/test"]}
    stored = reference.api.create(pod).item
    reference.api.delete(stored, grace_seconds=0)
    assert reference.api.get("v1", "Pod", "case", "rl") is not None
    reference.api.patch(stored, {"metadata": {"finalizers": None}})
    reference.until("pod gone", lambda: reference.api.get("v1", "Pod", "case", "rl") is None)


def _run_pod(case: Case) -> Object:
    pod: dict[str, Any] = case.pod
    return {**pod, "spec": dict(pod["spec"])}


ANOTHER_IMAGE = IMAGE.replace("0" * 64, "1" * 64)
ANOTHER_FILE_SYSTEM = "fs-fedcba98765432100"
EDITS: tuple[tuple[str, Changes], ...] = (
    ("rollout maximum", {"pools.rollout.nodes": {"min": 0, "max": 48}}),
    ("a fixed rollout on demand", {"pools.rollout.nodes": 32, "pools.rollout.capacity": {"type": "on_demand"}}),
    ("fixed environments", {"pools.environments.nodes": 16}),
    ("a range of buffers", {"pools.buffer.nodes": {"min": 1, "max": 4}}),
    ("buffer type", {"pools.buffer.instance_types": ["r7i.16xlarge"]}),
    ("gpus per engine", {"workload.rollout.gpus_per_engine": 8, "workload.rollout.expert_parallel": 8}),
    ("trainer nodes", {"pools.trainer.nodes": 32}),
    ("trainer on demand", {"pools.trainer.capacity": {"type": "on_demand"}}),
    ("scratch on NVMe", {"checkpoints.scratch": "nvme"}),
    ("larger scratch", {"checkpoints.scratch_gib": 38400}),
    ("labels", {"pools.trainer.labels": {"example.com/team": "rl"}}),
    (
        "taints",
        {"pools.trainer.taints": [{"key": "example.com/team", "value": "rl", "effect": "NO_SCHEDULE"}]},
    ),
    ("baseline", {"software": "baseline"}),
    ("steps", {"workload.steps": 2000}),
    (
        "one more pool",
        {
            "pools.more": {
                "role": "rollout",
                "instance_types": ["p5.48xlarge"],
                "nodes": {"min": 0, "max": 8},
                "capacity": {"type": "spot"},
            }
        },
    ),
    (
        "router",
        {"workload.rollout.router": True, "pools.rollout.nodes": 32, "pools.rollout.capacity": {"type": "on_demand"}},
    ),
)
"""What people change in a file, one thing at a time."""


def _edited(changes: Changes, *, image: str = IMAGE, file_system: str | None = None) -> list[Object]:
    plan = plan_of(REFERENCE, changes)
    outputs = outputs_of(plan)
    if file_system:
        outputs = replace(outputs, file_system_id=file_system, file_system_mount_name="hgfedcba")
    return applied(manifests(plan, image=image, outputs=outputs).files)


@pytest.mark.parametrize(
    ("changes", "image", "file_system"),
    [
        *(pytest.param(changes, IMAGE, None, id=name) for name, changes in EDITS),
        pytest.param({}, ANOTHER_IMAGE, None, id="image"),
        pytest.param({}, IMAGE, ANOTHER_FILE_SYSTEM, id="another file system"),
    ],
)
def test_an_edit_is_accepted_over_what_an_earlier_render_left(
    reference: Bed, changes: Changes, image: str, file_system: str | None
) -> None:
    """What cannot be changed in place has another name."""
    before = {key_of(item): item for item in applied(rendered(REFERENCE).files)}
    changed = [
        item
        for item in _edited(changes, image=image, file_system=file_system)
        if before.get(key_of(item)) != item and reference.knows(item)
    ]
    refused = {}
    for item in changed:
        fault = refusal(lambda item=item: reference.api.apply(item, dry_run=True))  # type: ignore[misc]
        if fault is not None:
            refused[where(item)] = fault.message
    assert refused == {}
    assert changed


SERVER_REFUSES = frozenset(
    {
        "8 gpus",
        "GPU limit below the request",
        "IPC_LOCK of a user who is not root",
        "a cluster that outlives its job",
        "account of another name",
        "another capability",
        "autoscaling",
        "both bounds",
        "bounds the wrong way round",
        "container name with a dot",
        "exception outside its network",
        "host IPC",
        "host network",
        "image by tag",
        "label key with a space",
        "label value of 70 letters",
        "memory in GiB",
        "memory overcommitted",
        "mount without a volume",
        "mounted twice",
        "no image",
        "no limits",
        "no memory",
        "no security context",
        "out of the cache and up",
        "port name of 20 letters",
        "ports that end before they begin",
        "priority class that is not rendered",
        "privileged for EFA",
        "root for nothing",
        "selector of other labels",
        "selector that takes in another workload's pods",
        "the host's devices",
        "unknown effect",
        "unknown restart policy",
        "variable twice",
        "volume twice",
    }
)
"""Broken manifests that the API server, its policy or a webhook refuses too. All others only our own checks see."""


def test_broken_manifests_that_the_server_refuses(reference: Bed) -> None:
    if reference.tally.unknown_kinds:
        pytest.skip(f"no definition of {', '.join(sorted(reference.tally.unknown_kinds))}")
    files = rendered(REFERENCE).files
    whole = {key_of(item): item for file in files for item in file.objects}
    templates = {pods.where: as_pod(pods) for pods in tree(files).pods}
    refused = set()
    for _, what, change in broken.BROKEN:
        draft = drafts.draft(files)
        change(draft)
        drafted = drafts.files(draft)
        changed = [item for file in drafted for item in file.objects if whole.get(key_of(item)) != item]
        pods = [as_pod(pods) for pods in tree(drafted).pods if templates.get(pods.where) != as_pod(pods)]
        new = [_renamed(item) for item in changed if reference.knows(item)]
        if any(_refused(reference, item) for item in [*new, *pods]):
            refused.add(what)
    assert refused == SERVER_REFUSES


def _renamed(item: Object) -> Object:
    """As an object of its own, so that it is not refused for what it may not change of the one that is there."""
    return {**item, "metadata": {**item["metadata"], "name": f"{item['metadata']['name']}-2"}}
