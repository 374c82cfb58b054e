"""Each kind of pod has its own account, and a token for the API only where it reads nodes."""

from __future__ import annotations

from k8s.charts import identities
from k8s.charts.network_policies import WITH_API
from k8s.names import MONITORING_NAMESPACE, RUN_NAMESPACE, SERVICE_ACCOUNTS, SYSTEM_NAMESPACE
from tests.shipped import plan_of

OBJECTS = identities.objects(plan_of("reference-p5en"))
ACCOUNTS = {
    (item["metadata"]["namespace"], item["metadata"]["name"]): item["automountServiceAccountToken"]
    for item in OBJECTS
    if item["kind"] == "ServiceAccount"
}


def test_every_account_of_the_run_exists() -> None:
    assert {name for namespace, name in ACCOUNTS if namespace == RUN_NAMESPACE} == {*SERVICE_ACCOUNTS, "default"}


def test_default_accounts_carry_no_token() -> None:
    for namespace in (RUN_NAMESPACE, SYSTEM_NAMESPACE, MONITORING_NAMESPACE):
        assert ACCOUNTS[namespace, "default"] is False


def test_tokens_go_to_those_whom_the_network_lets_reach_the_api() -> None:
    assert {name for (_, name), token in ACCOUNTS.items() if token} == set(WITH_API)


def test_the_one_role_reads_nodes_and_nothing_else() -> None:
    (role,) = (item for item in OBJECTS if item["kind"] == "ClusterRole")
    (binding,) = (item for item in OBJECTS if item["kind"] == "ClusterRoleBinding")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert {(subject["namespace"], subject["name"]) for subject in binding["subjects"]} == {
        key for key, token in ACCOUNTS.items() if token
    }
