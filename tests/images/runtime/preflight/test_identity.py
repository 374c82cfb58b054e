"""A pod has its own role or is stopped: no verdict rests on the node's role."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    EndpointConnectionError,
    ReadTimeoutError,
)

from moerl_runtime.cli import main
from moerl_runtime.preflight import identity
from moerl_runtime.preflight.check import Check
from tests.images.runtime.preflight.nodes import document, wanted

ACCOUNT = "123456789012"
POD = {identity.AGENT_VARIABLE: "http://169.254.170.23/v1/credentials"}
ROLE = f"arn:aws:sts::{ACCOUNT}:assumed-role/reference-p5en-cluster-TrainerRole/eks-reference-p-trainer-x-0b2c"
NODE = f"arn:aws:sts::{ACCOUNT}:assumed-role/reference-p5en-cluster-NodeRole/i-0123456789abcdef0"


def checked(answer: str | Exception, variables: dict[str, str] | None = None) -> Check:
    def ask() -> str:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return identity.check(ACCOUNT, POD if variables is None else variables, ask)


def test_the_pods_own_role_is_shown() -> None:
    found = checked(ROLE)
    assert (found.status, found.found) == ("ok", ROLE)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (NODE, "node-role"),
        (ROLE.replace(ACCOUNT, "210987654321"), "other-account"),
        (ClientError({"Error": {"Code": "ExpiredToken"}}, "GetCallerIdentity"), "pod-identity-refused"),
        (CredentialRetrievalError(provider="container-role", error_msg="403"), "pod-identity-refused"),
    ],
)
def test_another_role_and_refused_credentials_are_told_apart(answer: str | Exception, cause: str) -> None:
    found = checked(answer)
    assert (found.status, found.cause) == ("failed", cause)
    assert "Pod Identity association" in found.fix


def test_without_the_agents_address_nobody_is_asked() -> None:
    found = checked(AssertionError("an SDK would have taken the node's role"), {"AWS_REGION": "us-west-2"})
    assert (found.status, found.cause) == ("failed", "pod-identity-missing")


@pytest.mark.parametrize(
    "error", [EndpointConnectionError(endpoint_url="https://sts"), ReadTimeoutError(endpoint_url="https://sts")]
)
def test_a_service_that_is_away_stops_no_node(error: BotoCoreError) -> None:
    assert checked(error).status == "warning"


def test_sts_is_who_says_it(local_aws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", local_aws)
    assert identity.caller("us-west-2").startswith("arn:aws:sts::123456789012:")


def test_only_pods_with_a_role_are_asked_for_it() -> None:
    assert wanted("p5en", whole_node=False).account == ACCOUNT
    assert wanted("p5en", "rollout", whole_node=False).account == ACCOUNT
    assert wanted("p5en", whole_node=True).account is None
    assert wanted("p5en", "system", whole_node=False).account is None


@pytest.mark.parametrize(("variables", "asked"), [({}, True), ({"JOB_COMPLETION_INDEX": "0"}, False)])
def test_preflight_of_a_pod_fails_without_its_role_and_that_of_a_job_does_not(
    variables: dict[str, str], asked: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(document("p5en").value), encoding="utf-8")
    main(["preflight", "node", "--pool", "trainer", "--plan", str(plan)], variables=variables)
    verdict = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert ("pod-identity-missing" in verdict["causes"]) is asked
