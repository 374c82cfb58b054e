"""The apply project's script, run by bash with stand-ins for the AWS CLI and kubectl."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from infra.constructs.apply_script import SCRIPT
from infra.operations.apply import archive

# `aws s3 cp` copies from a folder that stands for S3; `aws eks update-kubeconfig` writes the file it is asked for.
AWS = """#!/bin/bash
printf '%s\\n' "aws $*" >> "$CALLS"
if [[ "$1 $2" == "s3 cp" ]]; then
  source="${@: -2:1}" target="${@: -1}"
  cp "$STORE/${source#s3://}" "$target"
elif [[ "$1 $2" == "eks update-kubeconfig" ]]; then
  touch "${@: -1}"
fi
"""
KUBECTL = """#!/bin/bash
[[ -f "$KUBECONFIG" ]] || exit 9
printf '%s\\n' "kubectl $*" >> "$CALLS"
[[ "$1" != diff ]] || exit "${DIFF_STATUS:-0}"
[[ "$*" != *"${FAILS_ON:-never}"* ]]
"""
BUCKET, KEY = "starter-apply", "1.35.0/2026-01-01/bin/linux/amd64/kubectl"


class Cluster:
    """A run of the script over a folder of manifests."""

    def __init__(self, folder: Path) -> None:
        self.store, self.calls = folder / "s3", folder / "calls"
        self.manifests = folder / "manifests"
        tools = folder / "bin"
        for made in (self.manifests, tools):
            made.mkdir()
        (tools / "aws").write_text(AWS, encoding="utf-8")
        (tools / "aws").chmod(0o755)
        self.put("amazon-eks", KEY, KUBECTL.encode())
        self.variables = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "TMPDIR": str(folder),
            "CALLS": str(self.calls),
            "STORE": str(self.store),
            "CLUSTER": "starter",
            "SOURCE_BUCKET": BUCKET,
            "ACTION": "apply",
            "KUBECTL_BUCKET": "amazon-eks",
            "KUBECTL_KEY": KEY,
            "KUBECTL_SHA256": hashlib.sha256(KUBECTL.encode()).hexdigest(),
        }

    def put(self, bucket: str, key: str, body: bytes) -> None:
        path = self.store / bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def write(self, **manifests: str) -> None:
        for name, text in manifests.items():
            (self.manifests / f"{name.removeprefix('_')}.yaml").write_text(text, encoding="utf-8")

    def upload(self) -> None:
        packed = archive(self.manifests)
        self.put(BUCKET, packed.key, packed.body)
        self.variables["SOURCE_KEY"] = packed.key

    def run(self, **changed: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - the script under test
            ["bash", "-c", SCRIPT],  # noqa: S607 - CodeBuild finds bash by PATH too
            env={**self.variables, **changed},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def kubectl(self) -> list[str]:
        lines = self.calls.read_text(encoding="utf-8").splitlines() if self.calls.exists() else []
        return [line.removeprefix("kubectl ") for line in lines if line.startswith("kubectl ")]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_files_are_applied_server_side_in_the_order_of_their_numbers(cluster: Cluster) -> None:
    cluster.write(_0100="kind: B\n", _0020="kind: A\n", _0003="kind: Namespace\n")
    cluster.upload()
    done = cluster.run()
    assert done.returncode == 0, done.stderr
    assert cluster.kubectl() == [
        f"apply --server-side --field-manager=moerl -f manifests/{name}.yaml" for name in ("0003", "0020", "0100")
    ]
    assert done.stdout.endswith("apply: 3 files applied\n")


def test_definitions_are_established_before_the_next_file(cluster: Cluster) -> None:
    cluster.write(_0001="kind: CustomResourceDefinition\n", _0002="kind: RayJob\n")
    cluster.upload()
    assert cluster.run().returncode == 0
    waits = "wait --for=condition=Established --timeout=120s customresourcedefinitions --all"
    assert [call if call.startswith("wait") else "apply" for call in cluster.kubectl()] == ["apply", waits, "apply"]


def test_the_first_failure_stops_the_build(cluster: Cluster) -> None:
    cluster.write(_0001="kind: A\n", _0002="kind: B\n", _0003="kind: C\n")
    cluster.upload()
    assert cluster.run(FAILS_ON="0002.yaml").returncode != 0
    assert len(cluster.kubectl()) == 2


@pytest.mark.parametrize(("status", "text"), [("0", "the cluster has it all"), ("1", "the cluster differs")])
def test_a_diff_changes_nothing_and_says_whether_there_is_one(cluster: Cluster, status: str, text: str) -> None:
    cluster.write(_0001="kind: CustomResourceDefinition\n")
    cluster.upload()
    done = cluster.run(ACTION="diff", DIFF_STATUS=status)
    assert done.returncode == 0, done.stderr
    assert text in done.stdout
    assert [call.split()[0] for call in cluster.kubectl()] == ["diff"]


def test_a_diff_that_fails_is_no_difference(cluster: Cluster) -> None:
    cluster.write(_0001="kind: A\n")
    cluster.upload()
    assert cluster.run(ACTION="diff", DIFF_STATUS="2").returncode != 0


@pytest.mark.parametrize(
    "key",
    [
        "",
        "rendered/latest.zip",
        "../rendered/" + "a" * 64 + ".zip",
        "rendered/" + "a" * 64 + ".zip; touch owned",
        "$(touch owned)",
        "other\nrendered/" + "a" * 64 + ".zip",
        "rendered/" + "a" * 64 + ".zip\n",
    ],
)
def test_a_key_of_another_form_is_refused_before_anything_is_fetched(cluster: Cluster, key: str) -> None:
    done = cluster.run(SOURCE_KEY=key)
    assert done.returncode != 0
    assert "SOURCE_KEY" in done.stderr
    assert not cluster.calls.exists()


@pytest.mark.parametrize("action", ["", "delete", "apply; true"])
def test_an_unknown_action_is_refused(cluster: Cluster, action: str) -> None:
    cluster.write(_0001="kind: A\n")
    cluster.upload()
    done = cluster.run(ACTION=action)
    assert done.returncode != 0
    assert "ACTION" in done.stderr


def test_an_archive_that_is_not_the_one_its_key_names_is_not_applied(cluster: Cluster) -> None:
    cluster.write(_0001="kind: A\n")
    cluster.upload()
    cluster.put(BUCKET, cluster.variables["SOURCE_KEY"], b"another archive")
    assert "not the one" in cluster.run().stderr
    assert not cluster.kubectl()


def test_a_kubectl_with_another_digest_never_runs(cluster: Cluster) -> None:
    cluster.write(_0001="kind: A\n")
    cluster.upload()
    assert "pinned digest" in cluster.run(KUBECTL_SHA256="0" * 64).stderr
    assert not cluster.kubectl()


def test_an_unpinned_kubectl_says_what_to_run(cluster: Cluster) -> None:
    cluster.write(_0001="kind: A\n")
    cluster.upload()
    done = cluster.run(KUBECTL_KEY="", KUBECTL_SHA256="")
    assert done.returncode != 0
    assert "moerl lock" in done.stderr


def test_the_public_bucket_is_read_unsigned_in_its_own_region_and_ours_is_not(cluster: Cluster) -> None:
    cluster.write(_0001="kind: A\n")
    cluster.upload()
    cluster.put(BUCKET, f"kubectl/{KEY}", KUBECTL.encode())
    assert cluster.run().returncode == 0
    assert cluster.run(KUBECTL_BUCKET=BUCKET, KUBECTL_KEY=f"kubectl/{KEY}").returncode == 0
    fetched = [line for line in cluster.calls.read_text(encoding="utf-8").splitlines() if line.endswith(" kubectl")]
    assert ["--no-sign-request --region us-west-2" in line for line in fetched] == [True, False]
