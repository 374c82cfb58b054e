"""Scratch: the file system that the storage stack made, or the nodes' own disks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from infra.config.outputs import Outputs
from k8s.charts import storage
from tests.shipped import plan_of

FSX, NVME = "reference-p5en", "p5"
OUTPUTS = Outputs(
    cluster_endpoint="https://example.eks.amazonaws.com",
    data_key_arn="arn:aws:kms:us-west-2:123456789012:key/x",
    repository_uri="123456789012.dkr.ecr.us-west-2.amazonaws.com/x",
    file_system_id="fs-0123456789abcdef0",
    file_system_mount_name="abcdefgh",
    node_groups={},
)


def test_volume_and_claim_name_each_other_and_the_file_system() -> None:
    plan = plan_of(FSX)
    volume, claim = storage.objects(plan, OUTPUTS)
    csi = volume["spec"]["csi"]
    assert csi["volumeHandle"] == "fs-0123456789abcdef0"
    assert csi["volumeAttributes"] == {
        "dnsname": "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
        "mountname": "abcdefgh",
    }
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    reference = volume["spec"]["claimRef"]
    assert (reference["namespace"], reference["name"]) == (claim["metadata"]["namespace"], claim["metadata"]["name"])
    assert volume["metadata"]["name"] == claim["metadata"]["name"] == "scratch-fs-0123456789abcdef0"
    # An empty class: the default one would provision a disk for the claim.
    assert volume["spec"]["storageClassName"] == claim["spec"]["storageClassName"] == ""
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_a_larger_file_system_changes_nothing_and_another_one_has_other_names() -> None:
    """A static claim cannot grow, and neither volume nor claim can be led to another file system."""
    before = storage.objects(plan_of(FSX), OUTPUTS)
    assert storage.objects(plan_of(FSX, {"checkpoints.scratch_gib": 38400}), OUTPUTS) == before
    volume, claim = before
    assert volume["spec"]["capacity"] == claim["spec"]["resources"]["requests"]
    other = storage.objects(plan_of(FSX), replace(OUTPUTS, file_system_id="fs-00000000000000001"))
    assert not {item["metadata"]["name"] for item in before} & {item["metadata"]["name"] for item in other}


def test_china_has_its_own_suffix() -> None:
    plan = plan_of(FSX, {"region": "cn-north-1", "network.zones": ["cn-north-1a", "cn-north-1b"]} | CHINA)
    volume, _ = storage.objects(plan, OUTPUTS)
    assert volume["spec"]["csi"]["volumeAttributes"]["dnsname"].endswith(".fsx.cn-north-1.amazonaws.com.cn")


CHINA = {
    "network.accelerator_zone": "cn-north-1a",
    "kubernetes.admins": ["arn:aws-cn:iam::123456789012:role/platform-admin"],
}


@pytest.mark.parametrize(
    ("name", "outputs", "ready", "objects"),
    [(FSX, None, False, 0), (FSX, OUTPUTS, True, 2), (NVME, None, True, 0), (NVME, OUTPUTS, True, 0)],
)
def test_what_a_render_needs_before_trainer_pods_can_mount_scratch(name, outputs, ready, objects) -> None:
    assert storage.ready(plan_of(name), outputs) is ready
    assert len(storage.objects(plan_of(name), outputs)) == objects


def test_before_the_deploy_nobody_can_name_the_claim() -> None:
    with pytest.raises(ValueError, match="known after the deploy"):
        storage.claim_name(plan_of(FSX), None)


@pytest.mark.parametrize("name", [FSX, NVME])
def test_the_mount_is_the_parent_of_the_checkpoint_directory(name) -> None:
    plan = plan_of(name)
    volume, mount = storage.scratch(plan, storage.claim_name(plan, OUTPUTS))
    assert volume["name"] == mount["name"]
    assert mount["mountPath"] == str(PurePosixPath(plan.storage.checkpoint_path).parent)
    assert ("persistentVolumeClaim" in volume) == (plan.storage.scratch == "fsx")
    assert ("hostPath" in volume) == (plan.storage.scratch == "nvme")
