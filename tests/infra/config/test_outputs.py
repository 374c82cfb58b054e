"""The deploy's outputs as a render's input: read whole, or refused with everything that is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.config.faults import EnvironmentFault
from infra.config.outputs import Outputs, load_outputs
from infra.config.plan import Plan

Written = dict[str, dict[str, Any]]


def deployed(plan: Plan) -> Written:
    """What `cdk deploy --all --outputs-file FILE` writes for a plan."""
    storage = {"DataKeyArn": "arn:aws:kms:us-west-2:123456789012:key/1", "RepositoryUri": "registry/moerl"}
    if plan.storage.scratch == "fsx":
        storage |= {"FileSystemId": "fs-0123456789abcdef0", "FileSystemMountName": "abcdefgh"}
    pools = [pool.name for pool in plan.pools if pool.role != "system"]
    return {
        f"{plan.name}-cluster": {"ClusterEndpoint": "https://example.invalid", "Another": "kept aside"},
        f"{plan.name}-storage": storage,
        **{f"{plan.name}-pool-{name}": {"NodeGroupName": f"{name}-7f"} for name in pools},
        "another-stack": {"X": "y"},
    }


@pytest.fixture
def read(tmp_path: Path) -> Callable[[Any, Plan], Outputs]:
    def load(written: Any, plan: Plan) -> Outputs:
        path = tmp_path / "outputs.json"
        path.write_text(json.dumps(written), encoding="utf-8")
        return load_outputs(path, plan)

    return load


@pytest.fixture
def refused(read: Callable[[Any, Plan], Outputs]) -> Callable[[Any, Plan], list[str]]:
    """Keys of the faults, in their order."""

    def keys(written: Any, plan: Plan) -> list[str]:
        with pytest.raises(EnvironmentFault) as refusal:
            read(written, plan)
        for finding in refusal.value.findings:
            assert "--outputs-file" in finding.fix
            assert finding.severity == "fault"
        return [finding.key for finding in refusal.value.findings]

    return keys


def test_outputs_of_a_deploy_are_read_whole(read: Callable[[Any, Plan], Outputs], planned: Callable[..., Plan]) -> None:
    plan = planned("reference-p5en")
    assert read(deployed(plan), plan) == Outputs(
        cluster_endpoint="https://example.invalid",
        data_key_arn="arn:aws:kms:us-west-2:123456789012:key/1",
        repository_uri="registry/moerl",
        file_system_id="fs-0123456789abcdef0",
        file_system_mount_name="abcdefgh",
        node_groups={
            "trainer": "trainer-7f",
            "rollout": "rollout-7f",
            "environments": "environments-7f",
            "buffer": "buffer-7f",
        },
    )


def test_without_fsx_there_is_no_file_system(
    read: Callable[[Any, Plan], Outputs], planned: Callable[..., Plan]
) -> None:
    plan = planned("starter-p5en")
    outputs = read(deployed(plan), plan)
    assert (outputs.file_system_id, outputs.file_system_mount_name) == (None, None)


def test_every_missing_stack_and_output_is_named_at_once(
    refused: Callable[[Any, Plan], list[str]], planned: Callable[..., Plan]
) -> None:
    plan = planned("reference-p5en")
    written = deployed(plan)
    del written["reference-p5en-pool-rollout"]
    del written["reference-p5en-storage"]["FileSystemId"]
    written["reference-p5en-cluster"]["ClusterEndpoint"] = 7
    assert refused(written, plan) == [
        "reference-p5en-cluster.ClusterEndpoint",
        "reference-p5en-storage.FileSystemId",
        "reference-p5en-pool-rollout.NodeGroupName",
    ]


@pytest.mark.parametrize(
    "shape", [[], "text", None, {"starter-p5en-cluster": []}, {"starter-p5en-cluster": "x"}], ids=repr
)
def test_a_file_of_another_shape_is_refused(
    shape: Any, refused: Callable[[Any, Plan], list[str]], planned: Callable[..., Plan]
) -> None:
    plan = planned("starter-p5en")
    assert "starter-p5en-cluster.ClusterEndpoint" in refused(shape, plan)


def test_outputs_of_another_environment_are_refused(
    refused: Callable[[Any, Plan], list[str]], planned: Callable[..., Plan]
) -> None:
    assert refused(deployed(planned("p5")), planned("starter-p5en"))


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", None], ids=["not JSON", "not UTF-8", "no file"])
def test_a_file_that_cannot_be_read_is_refused_with_how_to_write_it(
    content: bytes | None, tmp_path: Path, planned: Callable[..., Plan]
) -> None:
    path = tmp_path / "outputs.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EnvironmentFault) as refusal:
        load_outputs(path, planned("starter-p5en"))
    (finding,) = refusal.value.findings
    assert (finding.rule, finding.value) == ("file.outputs", str(path))
    assert "cannot be read as JSON" in finding.why
