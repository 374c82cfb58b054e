"""The admission policy admits the pods of a run and refuses, with the right message, what goes beyond them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s.charts import admission
from tests.k8s.admission_cases import ADMITTED, CASES, REFUSED, Case, Pod, changed, plain
from tests.k8s.cel import EvalError, compiled
from tests.shipped import plan_of

POLICY, BINDING = admission.objects(plan_of("reference-p5en"))
SPEC = POLICY["spec"]
VARIABLES = [(item["name"], compiled(item["expression"])) for item in SPEC["variables"]]
CONDITIONS = [compiled(item["expression"]) for item in SPEC["matchConditions"]]
VALIDATIONS = [(compiled(item["expression"]), item["message"]) for item in SPEC["validations"]]


def refusals(pod: Pod, subresource: str = "") -> list[str]:
    """Messages of every validation that fails; an error counts as a failure, as failurePolicy Fail makes it."""
    # As the API server has it: no key for a request that names no subresource.
    request = {"subResource": subresource} if subresource else {}
    scope: dict[str, Any] = {"object": pod, "request": request, "variables": {}}
    if not all(condition(scope) for condition in CONDITIONS):
        return []
    for name, value in VARIABLES:
        scope["variables"][name] = value(scope)
    return [message for holds, message in VALIDATIONS if not _true(holds, scope)]


def _true(holds: Any, scope: dict[str, Any]) -> bool:
    try:
        return holds(scope) is True
    except EvalError:
        return False


@pytest.mark.parametrize("case", ADMITTED, ids=str)
def test_pod_of_a_run_is_admitted(case: Case) -> None:
    assert refusals(case.pod) == []


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_pod_that_asks_for_more_is_refused_and_told_what(case: Case) -> None:
    assert case.refused_with
    assert any(case.refused_with in message for message in refusals(case.pod))


def test_every_rule_refuses_a_pod_that_no_other_rule_does() -> None:
    alone = {tuple(refusals(case.pod)) for case in REFUSED}
    assert {(message,) for _, message in VALIDATIONS} <= alone


def test_case_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 40


@given(st.sets(st.sampled_from(["CHOWN", "SYS_ADMIN", "NET_ADMIN", "SYS_MODULE", "ALL", "IPC_LOCK"]), min_size=1))
def test_capabilities_other_than_ipc_lock_never_pass(added: set[str]) -> None:
    context = {"runAsUser": 0, "capabilities": {"add": sorted(added | {"IPC_LOCK"})}}
    pod = changed(plain, lambda spec: spec["containers"][0].update(securityContext=context))
    assert bool(refusals(pod)) == bool(added - {"IPC_LOCK"})


@given(st.text(alphabet="abz09/.-_\n", max_size=12))
def test_only_one_plain_directory_below_the_cache_passes(rest: str) -> None:
    volumes = [{"name": "v", "hostPath": {"path": f"/mnt/k8s-disks/0/moerl/{rest}", "type": "Directory"}}]
    pod = changed(plain, lambda spec: spec.update(volumes=volumes))
    harmless = rest != "" and rest.replace("-", "").isalnum() and not rest.startswith("-")
    assert (refusals(pod) == []) == harmless


def test_pod_that_is_leaving_may_lose_its_finalizers() -> None:
    pod = changed(plain, lambda spec: spec.update(hostNetwork=True))
    pod["metadata"]["deletionTimestamp"] = "2026-11-29T00:00:00Z"
    assert refusals(pod) == []
    assert refusals(pod, "ephemeralcontainers") != []


def test_policy_fails_closed_and_covers_every_way_to_change_containers() -> None:
    assert SPEC["failurePolicy"] == "Fail"
    (rule,) = SPEC["matchConstraints"]["resourceRules"]
    assert set(rule["resources"]) == {"pods", "pods/ephemeralcontainers", "pods/resize"}
    assert set(rule["operations"]) == {"CREATE", "UPDATE"}
    assert "Deny" in BINDING["spec"]["validationActions"]
    assert BINDING["spec"]["policyName"] == POLICY["metadata"]["name"]
    assert BINDING["spec"]["matchResources"]["namespaceSelector"] == {
        "matchLabels": {"kubernetes.io/metadata.name": "rl"}
    }
