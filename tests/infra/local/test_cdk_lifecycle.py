"""The real CDK CLI against the embedded AWS: bootstrap, deploy twice, diff, update, fail, destroy; each read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.local import cdk
from infra.local.readers.base import optional

from . import changes, resources
from .assembly import synthesize
from .conftest import Embedded, Start
from .resources import resource

pytestmark = pytest.mark.emulator


@pytest.fixture(scope="module")
def deployed(start_embedded: Start, assembly: Path) -> Embedded:
    """An embedded AWS of this module's own: its tests run in order and end by destroying everything."""
    embedded = start_embedded()
    target = f"aws://{embedded.server.account}/{embedded.server.region}"
    run = embedded.cdk(cdk.bootstrap(target, assembly=assembly, qualifier="hnb659fds", toolkit="CDKToolkit"))
    assert run.returncode == 0, run.output
    run = embedded.cdk(cdk.deploy(assembly=assembly))
    assert run.returncode == 0, run.output
    return embedded


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stacks = changes.apply(resources.all_stacks())
    return synthesize(stacks, tmp_path_factory.mktemp("changed") / "cdk.out")


def test_every_property_arrives(deployed: Embedded, assembly: Path) -> None:
    report = deployed.read_back(assembly)
    assert report.ok, "\n".join(map(str, report.mismatches))
    stacks = resources.all_stacks()
    without_service = 1  # AWS::CDK::Metadata
    assert report.stacks == len(stacks)
    assert report.resources == sum(map(len, stacks.values())) - without_service
    assert report.values > 500
    assert report.exceptions_unused == ()


def test_every_property_that_the_emulator_says_it_keeps_is_read_back_here(deployed: Embedded) -> None:
    used: dict[str, set[str]] = {}
    for stacks in (resources.all_stacks(), changes.apply(resources.all_stacks())):
        for body in (one for made in stacks.values() for one in made.values()):
            used.setdefault(body["Type"], set()).update(body.get("Properties", {}))
    for kind, properties in deployed.request("GET", "/_moerl/types").items():
        assert set(properties) <= used.get(kind, set()), kind


def test_a_second_deploy_touches_nothing(deployed: Embedded, assembly: Path) -> None:
    deployed.clear_transcript()
    run = deployed.cdk(cdk.deploy(assembly=assembly))
    assert run.returncode == 0
    assert run.output.count("(no changes)") == len(resources.all_stacks())
    assert deployed.operations() == []
    assert deployed.cdk(cdk.diff(assembly=assembly)).returncode == 0


def test_a_diff_shows_what_would_change(deployed: Embedded, changed: Path) -> None:
    run = deployed.cdk(cdk.diff(assembly=changed))
    assert run.returncode == 1
    assert "MaxSize" in run.output


def test_every_in_place_change_arrives_and_replaces_nothing(deployed: Embedded, changed: Path) -> None:
    before = _physical_ids(deployed)
    run = deployed.cdk(cdk.deploy(assembly=changed))
    assert run.returncode == 0, run.output
    report = deployed.read_back(changed)
    assert report.ok, "\n".join(map(str, report.mismatches))
    assert _physical_ids(deployed) == before


def test_properties_that_a_template_drops_are_gone(deployed: Embedded) -> None:
    iam, s3, ec2 = (deployed.client(name) for name in ("iam", "s3", "ec2"))
    assert "PermissionsBoundary" not in iam.get_role(RoleName="moe-node")["Role"]
    assert "pull" not in iam.list_role_policies(RoleName="moe-node")["PolicyNames"]
    bucket = deployed.physical_id("Data", "Checkpoints")
    assert "LoggingEnabled" not in s3.get_bucket_logging(Bucket=bucket)
    assert "CORSRules" not in optional(
        s3.get_bucket_cors, "NoSuchCORSConfiguration", Bucket=deployed.physical_id("Rare", "Bucket")
    )
    (alarm,) = deployed.client("cloudwatch").describe_alarms(AlarmNames=["moe-depth"])["MetricAlarms"]
    assert alarm["AlarmActions"] == []
    (group,) = deployed.client("logs").describe_log_groups(logGroupNamePrefix=deployed.physical_id("Rare", "Log"))[
        "logGroups"
    ]
    assert "kmsKeyId" not in group
    addon = deployed.client("eks").describe_addon(clusterName="moe", addonName="vpc-cni")["addon"]
    assert addon["podIdentityAssociations"] == []
    (project,) = deployed.client("codebuild").batch_get_projects(names=["moe-apply"])["projects"]
    assert "concurrentBuildLimit" not in project
    tags = ec2.describe_addresses()["Addresses"][0].get("Tags", [])
    assert [tag["Key"] for tag in tags if not tag["Key"].startswith("aws:")] == []


def test_read_back_tells_the_old_template_from_the_new_state(deployed: Embedded, assembly: Path) -> None:
    """The comparison can fail: against the first templates it names every property that was changed to another value."""
    found = {
        (one.stack, one.resource, one.property.partition(".")[0].partition("[")[0])
        for one in deployed.read_back(assembly).mismatches
    }
    expected = {(stack, logical_id, path.partition(".")[0]) for stack, logical_id, path, _ in changes.IN_PLACE}
    # A dropped property is still asked for by the old template; an added one is not.
    added = {("Data", "Key", "RotationPeriodInDays")}
    # An inline policy has no list of its roles: read-back proves the ones asked for, not the absence of others.
    cannot_tell = {("Compute", "PodPolicy", "Roles")}
    # The node group moved to launch template version 2 because the template's data changed.
    follows = {("Compute", "Trainers", "LaunchTemplate")}
    assert found - follows == expected - added - cannot_tell


def test_a_failed_update_rolls_back_to_what_was(deployed: Embedded, changed: Path, tmp_path: Path) -> None:
    stacks = changes.apply(resources.all_stacks())
    stacks["Compute"]["Rollouts"]["Properties"]["ScalingConfig"]["MaxSize"] = 64
    stacks["Compute"]["Extra"] = resource("EC2::PlacementGroup", {"Strategy": "spread"})
    bad = resource("EKS::Nodegroup", {"ClusterName": "absent", "NodeRole": "arn:aws:iam::1:role/x", "Subnets": []})
    stacks["Compute"]["Bad"] = {**bad, "DependsOn": ["Extra", "Rollouts"]}
    run = deployed.cdk(cdk.deploy(assembly=synthesize(stacks, tmp_path / "bad"), stacks=["Compute"]))
    assert run.returncode == 1
    assert "No cluster found for name: absent" in run.output
    assert deployed.wait("Compute") == "UPDATE_ROLLBACK_COMPLETE"
    report = deployed.read_back(changed)
    assert report.ok, "\n".join(map(str, report.mismatches))
    assert deployed.client("ec2").describe_placement_groups()["PlacementGroups"][0]["Strategy"] == "cluster"


def test_deletion_protection_keeps_the_cluster(deployed: Embedded, changed: Path) -> None:
    run = deployed.cdk(cdk.destroy(assembly=changed, stacks=["Compute"]))
    assert run.returncode == 1
    assert "deletion protection is enabled" in run.output
    assert deployed.client("eks").list_clusters()["clusters"] == ["moe"]


def test_destroy_removes_everything_but_what_is_retained(deployed: Embedded, tmp_path: Path) -> None:
    deployed.client("eks").update_cluster_config(name="moe", deletionProtection=False)
    stacks = resources.all_stacks()
    run = deployed.cdk(cdk.destroy(assembly=synthesize(stacks, tmp_path / "last")))
    assert run.returncode == 0, run.output
    ec2 = deployed.client("ec2")
    assert deployed.client("eks").list_clusters()["clusters"] == []
    assert ec2.describe_vpcs()["Vpcs"] == []
    assert ec2.describe_launch_templates()["LaunchTemplates"] == []
    assert deployed.client("fsx").describe_file_systems()["FileSystems"] == []
    buckets = [one["Name"] for one in deployed.client("s3").list_buckets()["Buckets"]]
    assert [name for name in buckets if not name.startswith("cdk-")] == ["checkpoints-123456789012"]


def _physical_ids(embedded: Embedded) -> dict[str, str]:
    cloudformation = embedded.client("cloudformation")
    return {
        f"{stack}/{row['LogicalResourceId']}": row["PhysicalResourceId"]
        for stack in resources.all_stacks()
        for row in cloudformation.list_stack_resources(StackName=stack)["StackResourceSummaries"]
    }
