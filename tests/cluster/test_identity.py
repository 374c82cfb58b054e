"""What each service account may do, asked of the real authorizer with the roles that the manifests and charts bring."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest

from infra.config.plan import Plan
from infra.local.kubernetes.api import Object
from infra.local.kubernetes.fleet import applied
from k8s.names import PREFLIGHT, RUN_NAMESPACE, SERVICE_ACCOUNTS, SYSTEM_NAMESPACE
from tests.k8s.renders import rendered
from tests.shipped import plan_of

from .bed import Bed

pytestmark = pytest.mark.cluster

Ask = tuple[str, str, str, str]
"""Verb, API group, resource, namespace."""

Rule = tuple[str, str, str]
"""Verb, API group, resource."""

READ_NODES = {("get", "", "nodes"), ("list", "", "nodes")}


@pytest.fixture(scope="module")
def bed(start_bed: Callable[[Plan], Bed]) -> Bed:
    made = start_bed(plan_of("reference-p5en"))
    made.define()
    made.apply(applied(rendered("reference-p5en").files))
    return made


@pytest.mark.parametrize("account", sorted({*SERVICE_ACCOUNTS, "default"}))
def test_accounts_of_the_run_may_do_nothing_but_preflight_reads_nodes(bed: Bed, account: str) -> None:
    assert _rules(bed, RUN_NAMESPACE, account) == (READ_NODES if account == PREFLIGHT else set())


def test_agents_of_the_system_namespace_may_do_nothing(bed: Bed) -> None:
    accounts = [item["metadata"]["name"] for item in bed.api.list("v1", "ServiceAccount", SYSTEM_NAMESPACE)]
    assert len(accounts) > 1
    assert {name: rules for name in accounts if (rules := _rules(bed, SYSTEM_NAMESPACE, name))} == {}


def _rules(bed: Bed, namespace: str, account: str) -> set[Rule]:
    """All that the account may do in its namespace and the run's, beyond what everybody
    with an account may."""
    found = {rule for where in (namespace, RUN_NAMESPACE) for rule in _reviewed(bed, namespace, account, where)}
    common = {rule for where in (namespace, RUN_NAMESPACE) for rule in _reviewed(bed, "none", "nobody", where)}
    assert common
    return found - common


def _reviewed(bed: Bed, namespace: str, account: str, where: str) -> set[Rule]:
    review: Object = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": where},
    }
    path = bed.api.path(review["apiVersion"], review["kind"])
    user = f"system:serviceaccount:{namespace}:{account}"
    status = bed.api.request("POST", path, review, as_user=user)[0]["status"]
    assert not status["incomplete"]
    return {
        *((verb, group, resource) for rule in status["resourceRules"] for verb, group, resource in _each(rule)),
        *(
            (verb, "", url)
            for rule in status["nonResourceRules"]
            for verb in rule["verbs"]
            for url in rule["nonResourceURLs"]
        ),
    }


def _each(rule: Object) -> Iterator[Rule]:
    return product(rule["verbs"], rule["apiGroups"], rule["resources"])


@pytest.mark.parametrize(
    ("namespace", "account", "ask", "allowed"),
    [
        ("kuberay-system", "kuberay-operator", ("create", "", "pods", RUN_NAMESPACE), True),
        ("kuberay-system", "kuberay-operator", ("create", "", "pods", SYSTEM_NAMESPACE), False),
        ("kuberay-system", "kuberay-operator", ("get", "", "secrets", RUN_NAMESPACE), False),
        ("kueue-system", "kueue-controller-manager", ("update", "ray.io", "rayjobs", RUN_NAMESPACE), True),
        ("kueue-system", "kueue-controller-manager", ("get", "", "secrets", RUN_NAMESPACE), False),
        ("lws-system", "lws-controller-manager", ("create", "apps", "statefulsets", RUN_NAMESPACE), True),
        # More than it needs, by its own chart: the run keeps no secret for it to find.
        ("lws-system", "lws-controller-manager", ("get", "", "secrets", RUN_NAMESPACE), True),
        ("lws-system", "lws-controller-manager", ("create", "", "pods/exec", RUN_NAMESPACE), False),
    ],
)
def test_controllers_may_do_what_they_are_for(bed: Bed, namespace: str, account: str, ask: Ask, allowed: bool) -> None:
    assert _may(bed, namespace, account, ask) is allowed


def test_no_account_of_the_run_gets_a_token_unasked_but_preflight(bed: Bed) -> None:
    accounts = bed.api.list("v1", "ServiceAccount", RUN_NAMESPACE)
    with_token = {
        item["metadata"]["name"] for item in accounts if item.get("automountServiceAccountToken") is not False
    }
    assert with_token == {PREFLIGHT}


def _may(bed: Bed, namespace: str, account: str, ask: Ask) -> bool:
    verb, group, resource, where = ask
    kind, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": kind, "subresource": subresource, "namespace": where}
    review: Object = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": {
            "user": f"system:serviceaccount:{namespace}:{account}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"],
            "resourceAttributes": attributes,
        },
    }
    return bool(bed.api.create(review).item["status"]["allowed"])
