"""The whole render of every shipped environment: strict schemas, every check, order, bytes, and what is left out."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from infra.catalog import CATALOG
from infra.config.faults import EnvironmentFault
from infra.config.loader import load
from infra.config.pins import UNRESOLVED
from infra.config.plan import Plan, build_plan
from infra.config.pool_plan import EFA_RESOURCE
from infra.constructs.apply_script import FIELD_MANAGER
from infra.local.pins import fixture_pins
from infra.local.schemas import local_schemas
from k8s.checks.check import check
from k8s.checks.schema import CustomResources, SchemaFault, next_minor, schema_faults
from k8s.checks.tree import tree
from k8s.manifest import CLUSTER_SCOPED
from k8s.render import TRAINER_FILE, Rendered, manifests
from tests.k8s.drafts import draft, engine, files, group, main, one
from tests.k8s.renders import outputs_of, rendered
from tests.shipped import ENVIRONMENTS, IMAGE, SHIPPED, plan_of

REFERENCE = "reference-p5en"
VERSIONS = ("this", "next")
CUSTOM = CustomResources(resolved=local_schemas(os.environ))
APPLY = "kubectl apply --server-side --field-manager=moerl -f "
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "engines that share a node": (REFERENCE, {"workload.rollout": {"precision": "fp8", "gpus_per_engine": 4}}),
    "engines over four nodes": (
        REFERENCE,
        {"workload.rollout": {"precision": "fp8", "gpus_per_engine": 32, "expert_parallel": 32}},
    ),
    "taints of a user's own": (
        REFERENCE,
        {
            "pools.trainer.taints": [{"key": "team", "value": "rl", "effect": "NO_EXECUTE"}],
            "pools.rollout.taints": [{"key": "team", "value": "rl"}, {"key": "soft", "effect": "PREFER_NO_SCHEDULE"}],
            "pools.environments.taints": [{"key": "team"}],
        },
    ),
    "two rollout pools": (
        "starter-p5en",
        {
            "pools.reserve": {
                "role": "rollout",
                "instance_types": ["p5en.48xlarge"],
                "nodes": {"min": 0, "max": 1},
                "capacity": {"type": "on_demand"},
            }
        },
    ),
    "without EFA": ("starter-p5en", {"pools.rollout.efa": False, "workload.rollout.expert_parallel": 8}),
    "the baseline stack": (
        "starter-p5en",
        {"software": "baseline", "workload.trainer.expert_parallel": 8, "checkpoints.scratch": "fsx"},
    ),
    "the reference stack of AWS": ("starter-p5en", {"software": "aws-reference"}),
    "broadcast mode": (
        "starter-p5en",
        {"pools.rollout.capacity": {"type": "on_demand"}, "workload.rollout.router": True},
    ),
    "smaller CPU nodes": (REFERENCE, {"pools.environments.instance_types": ["m7i.xlarge", "r7i.4xlarge"]}),
    "no CPU pools": (REFERENCE, {"pools.environments": ..., "pools.buffer": ...}),
    "a declared system pool": (
        REFERENCE,
        {
            "pools.base": {
                "role": "system",
                "instance_types": ["m7i.4xlarge"],
                "nodes": 4,
                "capacity": {"type": "on_demand"},
                "taints": [{"key": "CriticalAddonsOnly", "value": "true"}],
            }
        },
    ),
}


@cache
def faults(name: str, version: str) -> tuple[SchemaFault, ...]:
    wanted = plan_of(name).kubernetes.version
    found, _ = schema_faults(
        tree(rendered(name).files),
        wanted if version == "this" else next_minor(wanted),
        CUSTOM,
    )
    return found


@cache
def custom_kinds() -> tuple[str, ...]:
    """GROUP/KIND of every custom resource that any shipped environment renders."""
    groups = {kind.partition("/")[0] for kind in (*local_schemas(os.environ).files, *local_schemas(os.environ).missing)}
    return tuple(
        sorted(
            {
                f"{group}/{item['kind']}"
                for name in SHIPPED
                for item in tree(rendered(name).files).objects
                if (group := item["apiVersion"].partition("/")[0]) in groups
            }
        )
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_object_and_pod_passes_the_strict_schema(name: str, version: str) -> None:
    assert faults(name, version) == ()


@pytest.mark.parametrize("kind", custom_kinds())
def test_custom_resources_are_really_checked(kind: str) -> None:
    if kind in local_schemas(os.environ).missing:
        pytest.skip(f"{kind} was not checked: {local_schemas(os.environ).missing[kind]}")
    item = one(draft(rendered(REFERENCE).files), kind.partition("/")[2])
    assert list(CUSTOM.faults(item)) == []
    item["noSuchField"] = 1
    assert any("noSuchField" in why for why in CUSTOM.faults(item))


def test_schemas_find_what_checks_do_not_look_for() -> None:
    changed = draft(rendered(REFERENCE).files)
    engine(changed)["imagePullPolcy"] = "Never"
    main(group(changed)["workerTemplate"]["spec"])["command"] = "python"
    one(changed, "PodDisruptionBudget")["apiVersion"] = "policy/v1beta1"
    found = {fault.where.partition(":")[0] for fault in schema_faults(tree(files(changed)), "1.35", CUSTOM)[0]}
    assert found == {"rl/LeaderWorkerSet/engines-rollout", "rl/PodDisruptionBudget/trainer"}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_environment_passes_every_check(name: str) -> None:
    assert rendered(name).left_out == ()
    assert [finding.text(name) for finding in check(rendered(name), plan_of(name))] == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_other_environments_pass_every_check(variant: str) -> None:
    plan = plan_of(*VARIANTS[variant])
    made = manifests(plan, image=IMAGE, outputs=outputs_of(plan))
    assert [finding.text(variant) for finding in check(made, plan)] == []
    found, _ = schema_faults(tree(made.files), plan.kubernetes.version, CUSTOM)
    assert found == ()


@given(
    trainers=st.integers(1, 24),
    rollouts=st.integers(1, 40),
    kind=st.sampled_from(["p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "p6-b300.48xlarge"]),
    engine_gpus=st.sampled_from([1, 2, 4, 8, 16, 32]),
    workers=st.integers(1, 20),
    cpu=st.sampled_from(["m7i.xlarge", "m7i.48xlarge", "c7i.4xlarge", "r7i.8xlarge"]),
    effect=st.sampled_from(["NO_SCHEDULE", "NO_EXECUTE", "PREFER_NO_SCHEDULE"]),
)
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
def test_whatever_the_rules_let_through_renders_and_passes_every_check(
    trainers: int, rollouts: int, kind: str, engine_gpus: int, workers: int, cpu: str, effect: str
) -> None:
    taint = [{"key": "team.example.com/owner", "value": "rl", "effect": effect}]
    try:
        plan = plan_of(
            "starter-p5en",
            {
                "pools.trainer.instance_types": [kind],
                "pools.trainer.nodes": trainers,
                "pools.trainer.taints": taint,
                "pools.rollout.instance_types": [kind],
                "pools.rollout.nodes.max": rollouts,
                "pools.rollout.taints": taint,
                "pools.environments.instance_types": [cpu],
                "pools.environments.nodes.max": workers,
                "pools.environments.taints": taint,
                "workload.trainer.expert_parallel": 8,
                "workload.rollout.gpus_per_engine": engine_gpus,
                "workload.rollout.expert_parallel": engine_gpus,
            },
        )
        made = manifests(plan, image=IMAGE, outputs=outputs_of(plan))
    except EnvironmentFault:
        reject()
    assert [finding.text("") for finding in check(made, plan)] == []


def test_pins_that_nobody_has_looked_up_show_and_pass() -> None:
    loaded = load(ENVIRONMENTS / f"{REFERENCE}.yaml", pins=UNRESOLVED)
    plan = build_plan(loaded.environment, loaded.pins)
    made = manifests(plan, image=IMAGE, outputs=outputs_of(plan))
    assert check(made, plan) == ()
    assert "@unresolved" in made.contents()["0200-devices.yaml"]
    assert {finding.rule for finding in check(made, plan_of(REFERENCE))} == {"security.image"}


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_written_is_what_was_checked(name: str) -> None:
    contents = rendered(name).contents()
    for file in rendered(name).files:
        assert list(yaml.safe_load_all(contents[file.name])) == [_listed(item) for item in file.objects]


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items() if item is not None}
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("name", SHIPPED)
def test_the_same_plan_gives_the_same_bytes(name: str) -> None:
    plan = plan_of(name)
    again = manifests(plan, image=IMAGE, outputs=outputs_of(plan))
    assert again.contents() == rendered(name).contents()


@pytest.mark.parametrize("name", SHIPPED)
def test_files_are_in_the_order_of_their_application(name: str) -> None:
    names = [file.name for file in rendered(name).files]
    applied = [file for file in names if not file.startswith("jobs/")]
    assert all(re.fullmatch(r"[0-9]{4}-[a-z-]+\.yaml", file) for file in applied)
    assert applied == sorted(applied)
    assert names[: len(applied)] == applied
    assert len(set(names)) == len(names)
    first = rendered(name).files[0]
    assert {item["kind"] for item in first.objects} == {"Namespace"}


@pytest.mark.parametrize("name", SHIPPED)
def test_only_cluster_scoped_kinds_have_no_namespace(name: str) -> None:
    for item in tree(rendered(name).files).objects:
        assert ("namespace" not in item["metadata"]) == (item["kind"] in CLUSTER_SCOPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_trainer_is_created_and_never_applied(name: str) -> None:
    holding = [file.name for file in rendered(name).files for item in file.objects if item["kind"] in ("RayJob", "Job")]
    assert TRAINER_FILE in holding
    assert all(file.startswith("jobs/") for file in holding)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_readme_names_every_file_once_in_a_command(name: str) -> None:
    made = rendered(name)
    text = made.texts["README.md"]
    commands = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    applied = [line.removeprefix(APPLY) for line in commands if line.startswith(APPLY)]
    created = [line.removeprefix("kubectl create -f ") for line in commands if line.startswith("kubectl create")]
    assert applied + created == [file.name for file in made.files]
    script = next(line.removeprefix("sh ") for line in commands if line.startswith("sh "))
    assert script in made.texts
    assert commands.index(f"sh {script}") == 1
    assert "Left out" not in text


def test_people_and_the_apply_project_are_one_field_manager() -> None:
    """Two managers of one field end in conflicts."""
    assert f"--field-manager={FIELD_MANAGER} " in APPLY


def test_without_an_image_nothing_of_the_run_is_rendered_and_each_thing_is_named() -> None:
    made = manifests(plan_of(REFERENCE), image=None)
    found = tree(made.files)
    assert not {"LeaderWorkerSet", "RayJob", "Job", "Deployment", "StatefulSet", "ScaledObject"} & {
        item["kind"] for item in found.objects
    }
    assert {pods.namespace for pods in found.pods} == {"moerl-system"}
    assert IMAGE not in str(made.contents())
    for reason in made.left_out:
        assert f"- {reason}" in made.texts["README.md"]
    missing = {pods.owner["metadata"]["name"] for pods in tree(rendered(REFERENCE).files).pods if pods.is_daemon}
    missing -= {pods.owner["metadata"]["name"] for pods in found.pods}
    assert missing
    assert all(any(name in reason for reason in made.left_out) for name in missing)


def test_without_outputs_only_what_mounts_the_file_system_is_left_out() -> None:
    made = manifests(plan_of(REFERENCE), image=IMAGE)
    whole = {file.name for file in rendered(REFERENCE).files}
    assert whole - {file.name for file in made.files} == {TRAINER_FILE, "0410-storage.yaml"}
    assert len(made.left_out) == 1
    assert manifests(plan_of("p5"), image=IMAGE).left_out == ()


@pytest.mark.parametrize("image", ["", "repo:latest", "repo@sha256:0", "repo:tag@sha256:" + "g" * 64])
def test_an_image_that_is_not_named_by_digest_is_refused(image: str) -> None:
    with pytest.raises(ValueError, match="not named by digest"):
        manifests(plan_of(REFERENCE), image=image)


@pytest.mark.parametrize(("instance", "name"), [("p5en.48xlarge", REFERENCE), ("p5.48xlarge", "p5")])
def test_another_efa_count_in_the_catalog_shows_in_every_pod_and_queue(instance: str, name: str) -> None:
    made, plan = _with_efa_count(instance, name, 13)
    assert check(made, plan) == ()
    asked = {
        container["resources"][key][EFA_RESOURCE]
        for pods in tree(made.files).pods
        for _, container in pods.containers()
        for key in ("requests", "limits")
        if EFA_RESOURCE in container["resources"][key]
    }
    assert asked == {"13"}
    queue = one(draft(made.files), "ClusterQueue")
    quotas = {
        entry["nominalQuota"]
        for group in queue["spec"]["resourceGroups"]
        for flavor in group["flavors"]
        for entry in flavor["resources"]
        if entry["name"] == EFA_RESOURCE
    }
    assert quotas == {"0", *(str(13 * plan.pool(pool).size.max) for pool in ("trainer", "rollout"))}


def _with_efa_count(instance: str, name: str, count: int) -> tuple[Rendered, Plan]:
    changed = replace(CATALOG.instances[instance], efa_devices=count)
    catalog = replace(CATALOG, instances={**CATALOG.instances, instance: changed})
    loaded = load(ENVIRONMENTS / f"{name}.yaml", pins=fixture_pins("1.35"))
    plan = build_plan(loaded.environment, loaded.pins, catalog=catalog)
    return manifests(plan, image=IMAGE, outputs=outputs_of(plan)), plan
