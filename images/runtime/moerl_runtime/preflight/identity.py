"""Whose AWS credentials this pod has.

EKS puts the address of its credential agent into pods whose service account has a role. Without it an SDK goes on to the
node's metadata and takes the node's role: what works then works by accident, and the rest fails far from here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import boto3
from botocore import exceptions
from botocore.config import Config

from moerl_runtime.preflight.check import Check, judged

AGENT_VARIABLE = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
_NODE_SESSION = re.compile(r":assumed-role/[^/]+/i-[0-9a-f]+$")
"""EC2 names a session of an instance's role after the instance."""
NAME = "AWS identity"
_FIX = (
    "Check that the service account has its Pod Identity association (`aws eks list-pod-identity-associations`) and that "
    "eks-pod-identity-agent runs on this node; then delete the pod, which gets its credentials at its start."
)


def caller(region: str) -> str:
    """Asks STS."""
    client = boto3.client(
        "sts",
        region_name=region,
        config=Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 3}),
    )
    return str(client.get_caller_identity()["Arn"])


def check(account: str, variables: Mapping[str, str], ask: Callable[[], str]) -> Check:
    """The verdict for a pod that has a role of its own. `ask` gives the caller's ARN or raises botocore's errors; it is called
    only where the agent's address is there."""
    if AGENT_VARIABLE not in variables:
        return _judged(False, f"no {AGENT_VARIABLE}: an SDK would take the node's role", "pod-identity-missing")
    try:
        found = ask()
    except (exceptions.ConnectionError, exceptions.HTTPClientError) as error:
        # Credentials were not refused; whether they are right stays open.
        return judged(
            NAME,
            False,
            found=f"no answer: {error}",
            needed="an answer of STS",
            fix="Open the way to sts in the VPC: an endpoint, or NAT.",
            cause="sts-unreachable",
            severity="warning",
        )
    except (exceptions.BotoCoreError, exceptions.ClientError) as error:
        return _judged(False, str(error), "pod-identity-refused")
    if _NODE_SESSION.search(found):
        return _judged(False, f"{found}, the node's role", "node-role")
    return _judged(f":{account}:" in found, found, "other-account", f"a role of account {account}")


def _judged(good: bool, found: str, cause: str, needed: str = "the role of the pod's service account") -> Check:
    return judged(NAME, good, found=found, needed=needed, fix=_FIX, cause=cause)
