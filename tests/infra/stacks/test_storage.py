"""Keys, buckets, repository and scratch: what outlives a stack, and who may reach what."""

from __future__ import annotations

from typing import Any

import pytest

from infra.constructs.buckets import SECONDS_PER_DAY
from moerl_runtime.checkpoint import layout
from moerl_runtime.lease import RENEW_SECONDS

from .resources import ENVIRONMENTS, Plans, Template, Templates, of_type, properties

LUSTRE = {(988, 988), (1018, 1023)}
ADOPTED: dict[str, Any] = {"checkpoints.bucket": "team-checkpoints"}
DESTROYED: dict[str, Any] = {"checkpoints.removal": "destroy", "checkpoints.confirm_destroy": True}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_bucket_key_and_repository_is_retained_on_delete_and_replace(
    name: str, plan: Plans, template: Templates
) -> None:
    storage = template(plan(name), "storage")
    kept = [one for kind in ("S3::Bucket", "KMS::Key", "ECR::Repository") for one in of_type(storage, f"AWS::{kind}")]
    assert [(one["DeletionPolicy"], one["UpdateReplacePolicy"]) for one in kept] == [("Retain", "Retain")] * 6


@pytest.mark.parametrize("changes", [{}, DESTROYED])
def test_nothing_empties_a_bucket(changes: dict[str, Any], plan: Plans, template: Templates) -> None:
    storage = template(plan("reference-p5en", changes), "storage")
    kinds = {resource["Type"] for resource in storage["Resources"].values()}
    assert not {kind for kind in kinds if kind.startswith(("Custom::", "AWS::CloudFormation::", "AWS::Lambda::"))}


def test_only_a_confirmed_destroy_lets_the_checkpoint_bucket_go(plan: Plans, template: Templates) -> None:
    planned = plan("reference-p5en", DESTROYED)
    storage = template(planned, "storage")
    policies = {
        bucket["Properties"]["BucketName"]: bucket["DeletionPolicy"] for bucket in of_type(storage, "AWS::S3::Bucket")
    }
    assert policies == {
        planned.names.checkpoint_bucket: "Delete",
        planned.names.weights_bucket: "Retain",
        planned.names.log_bucket: "Retain",
    }


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_buckets_are_private_and_tls_only(name: str, plan: Plans, template: Templates) -> None:
    planned = plan(name)
    storage = template(planned, "storage")
    buckets = _buckets(storage)
    assert set(buckets) == {
        planned.names.checkpoint_bucket,
        planned.names.weights_bucket,
        planned.names.log_bucket,
    }
    for bucket in buckets.values():
        assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
        assert len(bucket["PublicAccessBlockConfiguration"]) == 4
        assert bucket["OwnershipControls"] == {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    for logical_id in _ids(storage, "AWS::S3::Bucket"):
        (policy,) = [p for p in properties(storage, "AWS::S3::BucketPolicy") if p["Bucket"] == {"Ref": logical_id}]
        denials = [s for s in policy["PolicyDocument"]["Statement"] if s["Effect"] == "Deny"]
        arn = {"Fn::GetAtt": [logical_id, "Arn"]}
        assert denials == [
            {
                "Action": "s3:*",
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
                "Effect": "Deny",
                "Principal": {"AWS": "*"},
                "Resource": [arn, {"Fn::Join": ["", [arn, "/*"]]}],
            }
        ]


def test_every_bucket_aborts_uploads_that_never_complete(plan: Plans, template: Templates) -> None:
    for bucket in _buckets(template(plan("reference-p5en"), "storage")).values():
        aborts = [rule["AbortIncompleteMultipartUpload"] for rule in _lifecycle(bucket) if _aborts_all(rule)]
        assert aborts == [{"DaysAfterInitiation": 3}]


def test_no_rule_expires_a_current_checkpoint(plan: Plans, template: Templates) -> None:
    planned = plan("reference-p5en")
    bucket = _buckets(template(planned, "storage"))[planned.names.checkpoint_bucket]
    for rule in _lifecycle(bucket):
        assert rule.keys().isdisjoint({"ExpirationInDays", "ExpirationDate", "Transition", "Transitions"})
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}


def test_an_overwritten_checkpoint_stays_14_days_and_what_is_rewritten_all_day_only_one(
    plan: Plans, template: Templates
) -> None:
    planned = plan("reference-p5en")
    bucket = _buckets(template(planned, "storage"))[planned.names.checkpoint_bucket]
    expiring = [rule for rule in _lifecycle(bucket) if "NoncurrentVersionExpiration" in rule]
    kept, rewritten = sorted(expiring, key=lambda rule: -rule["NoncurrentVersionExpiration"]["NoncurrentDays"])
    assert kept["NoncurrentVersionExpiration"] == {"NoncurrentDays": 14}
    # The lease lies beside files that are written once: the count alone tells them apart.
    assert SECONDS_PER_DAY / RENEW_SECONDS == 4320
    assert rewritten["NoncurrentVersionExpiration"] == {"NoncurrentDays": 1, "NewerNoncurrentVersions": 100}
    assert "Prefix" not in kept
    assert layout.lease_key(planned.storage.checkpoint_prefix, "any-run").startswith(rewritten["Prefix"])


def test_weights_and_samples_expire_and_base_models_never_do(plan: Plans, template: Templates) -> None:
    planned = plan("reference-p5en")
    bucket = _buckets(template(planned, "storage"))[planned.names.weights_bucket]
    expiring = {
        rule.get("Prefix"): rule["ExpirationInDays"] for rule in _lifecycle(bucket) if "ExpirationInDays" in rule
    }
    assert expiring == {"weights/": 3, "samples/": 15}
    assert expiring["samples/"] * 24 * 3600 > planned.queue.retention_seconds
    assert "VersioningConfiguration" not in bucket


def test_data_buckets_are_under_the_data_key_with_bucket_keys_and_logs_under_sse_s3(
    plan: Plans, template: Templates
) -> None:
    planned = plan("reference-p5en")
    storage = template(planned, "storage")
    buckets = _buckets(storage)
    under_key = {
        "BucketKeyEnabled": True,
        "ServerSideEncryptionByDefault": {
            "KMSMasterKeyID": {"Fn::GetAtt": [_data_key(storage), "Arn"]},
            "SSEAlgorithm": "aws:kms",
        },
    }
    for name in (planned.names.checkpoint_bucket, planned.names.weights_bucket):
        assert buckets[name]["BucketEncryption"]["ServerSideEncryptionConfiguration"] == [under_key]
    logs = buckets[planned.names.log_bucket]
    assert logs["BucketEncryption"]["ServerSideEncryptionConfiguration"] == [
        {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    ]
    assert [rule["ExpirationInDays"] for rule in _lifecycle(logs) if "ExpirationInDays" in rule] == [365]


def test_access_to_data_buckets_is_logged_each_below_its_own_name(plan: Plans, template: Templates) -> None:
    planned = plan("reference-p5en")
    storage = template(planned, "storage")
    targets = {name: bucket.get("LoggingConfiguration") for name, bucket in _buckets(storage).items()}
    (log_id,) = [
        i
        for i in _ids(storage, "AWS::S3::Bucket")
        if storage["Resources"][i]["Properties"]["BucketName"] == planned.names.log_bucket
    ]
    assert targets == {
        planned.names.log_bucket: None,
        **{
            name: {"DestinationBucketName": {"Ref": log_id}, "LogFilePrefix": f"s3/{name}/"}
            for name in (planned.names.checkpoint_bucket, planned.names.weights_bucket)
        },
    }


def test_an_adopted_checkpoint_bucket_is_neither_made_nor_changed(plan: Plans, template: Templates) -> None:
    planned = plan("reference-p5en", ADOPTED)
    storage = template(planned, "storage")
    assert set(_buckets(storage)) == {planned.names.weights_bucket, planned.names.log_bucket}
    assert len(of_type(storage, "AWS::S3::BucketPolicy")) == 2


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_keys_rotate_and_take_a_month_to_die(name: str, plan: Plans, template: Templates) -> None:
    keys = properties(template(plan(name), "storage"), "AWS::KMS::Key")
    assert [(key["EnableKeyRotation"], key["PendingWindowInDays"]) for key in keys] == [(True, 30)] * 2


@pytest.mark.parametrize(("name", "changes"), [*((name, {}) for name in ENVIRONMENTS), ("reference-p5en", ADOPTED)])
def test_keys_are_for_this_account_alone_and_leave_the_rest_to_iam(
    name: str, changes: dict[str, Any], plan: Plans, template: Templates
) -> None:
    planned = plan(name, changes)
    keys = properties(template(planned, "storage"), "AWS::KMS::Key")
    principals = [statement["Principal"] for key in keys for statement in key["KeyPolicy"]["Statement"]]
    assert principals == [{"AWS": f"arn:aws:iam::{planned.account}:root"}] * 2


def test_images_have_immutable_tags_a_scan_and_the_data_key(plan: Plans, template: Templates) -> None:
    planned = plan("reference-p5en")
    storage = template(planned, "storage")
    (repository,) = properties(storage, "AWS::ECR::Repository")
    assert repository["RepositoryName"] == planned.names.repository
    assert repository["ImageTagMutability"] == "IMMUTABLE"
    assert repository["ImageScanningConfiguration"] == {"ScanOnPush": True}
    assert repository["EncryptionConfiguration"] == {
        "EncryptionType": "KMS",
        "KmsKey": {"Fn::GetAtt": [_data_key(storage), "Arn"]},
    }
    assert '"tagStatus":"untagged"' in repository["LifecyclePolicy"]["LifecyclePolicyText"]
    assert '"countNumber":14' in repository["LifecyclePolicy"]["LifecyclePolicyText"]
    assert "tagged" not in repository["LifecyclePolicy"]["LifecyclePolicyText"].replace("untagged", "")


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_file_system_exists_exactly_where_scratch_is_fsx(name: str, plan: Plans, template: Templates) -> None:
    planned = plan(name)
    count = len(of_type(template(planned, "storage"), "AWS::FSx::FileSystem"))
    assert count == (1 if planned.storage.scratch == "fsx" else 0)


@pytest.mark.parametrize("zone", ["us-west-2b", "us-west-2c"])
def test_the_file_system_stands_in_the_accelerator_subnet_of_the_trainers_zone(
    zone: str, plan: Plans, template: Templates
) -> None:
    planned = plan("reference-p5en", {"pools.trainer.zone": zone})
    (system,) = properties(template(planned, "storage"), "AWS::FSx::FileSystem")
    network = template(planned, "network")
    (subnet,) = [_resolved(one, network) for one in system["SubnetIds"]]
    written = network["Resources"][subnet]["Properties"]
    (expected,) = [one for one in planned.network.subnets if (one.kind, one.zone) == ("accelerator", zone)]
    assert (written["AvailabilityZone"], written["CidrBlock"]) == (zone, expected.cidr)


def test_the_file_system_is_persistent_compressed_and_encrypted_at_the_size_asked_for(
    plan: Plans, template: Templates
) -> None:
    storage = template(plan("reference-p5en"), "storage")
    (system,) = of_type(storage, "AWS::FSx::FileSystem")
    written = system["Properties"]
    assert (written["FileSystemType"], written["StorageType"], written["StorageCapacity"]) == ("LUSTRE", "SSD", 19200)
    assert written["KmsKeyId"] == {"Fn::GetAtt": [_data_key(storage), "Arn"]}
    assert written["LustreConfiguration"]["DeploymentType"] == "PERSISTENT_2"
    assert written["LustreConfiguration"]["DataCompressionType"] == "LZ4"
    assert "EfaEnabled" not in written["LustreConfiguration"]
    assert written["LustreConfiguration"]["AutomaticBackupRetentionDays"] == 0
    assert system["DeletionPolicy"] == "Delete"


def test_lustre_ports_are_open_between_file_servers_and_nodes_both_ways(plan: Plans, template: Templates) -> None:
    planned = plan("reference-p5en")
    storage, network = template(planned, "storage"), template(planned, "network")
    opened: dict[tuple[str, str, str], set[tuple[int, int]]] = {}
    for side, peer in (("Ingress", "SourceSecurityGroupId"), ("Egress", "DestinationSecurityGroupId")):
        for rule in properties(storage, f"AWS::EC2::SecurityGroup{side}"):
            assert rule["IpProtocol"] == "tcp"
            place = (side, _resolved(rule["GroupId"], network), _resolved(rule[peer], network))
            opened.setdefault(place, set()).add((rule["FromPort"], rule["ToPort"]))
    files, nodes = "ScratchSecurityGroup", "EfaSecurityGroup"
    # No egress rule on the nodes' group: creating one would revoke its allow-all rule.
    assert opened == dict.fromkeys(
        [
            ("Ingress", files, files),
            ("Ingress", files, nodes),
            ("Ingress", nodes, files),
            ("Egress", files, files),
            ("Egress", files, nodes),
        ],
        LUSTRE,
    )
    (group,) = properties(storage, "AWS::EC2::SecurityGroup")
    assert group.keys().isdisjoint({"SecurityGroupIngress", "SecurityGroupEgress", "GroupName"})


def test_logical_ids_of_state_are_stable(plan: Plans, template: Templates) -> None:
    resources = template(plan("reference-p5en"), "storage")["Resources"]
    stable = {
        "DataKey17AFBB84": "AWS::KMS::Key",
        "SecretsKey317DCF94": "AWS::KMS::Key",
        "CheckpointBucketDFE4871A": "AWS::S3::Bucket",
        "WeightsBucket9726A856": "AWS::S3::Bucket",
        "LogBucketCC3B17E8": "AWS::S3::Bucket",
        "Repository22E53BBD": "AWS::ECR::Repository",
        "FileSystem": "AWS::FSx::FileSystem",
    }
    assert {name: resources[name]["Type"] for name in stable} == stable


def test_stacks_with_state_are_protected_against_termination(plan: Plans) -> None:
    from infra.stacks.network import NetworkStack
    from infra.stacks.platform import build_app
    from infra.stacks.queue import QueueStack
    from infra.stacks.storage import StorageStack

    app, planned = build_app(), plan("starter-p5en")
    network = NetworkStack(app, planned)
    stacks = [network, StorageStack(app, planned, network=network), QueueStack(app, planned)]
    assert [stack.termination_protection for stack in stacks] == [True, True, True]


def _buckets(storage: Template) -> dict[str, dict[str, Any]]:
    return {bucket["BucketName"]: bucket for bucket in properties(storage, "AWS::S3::Bucket")}


def _lifecycle(bucket: dict[str, Any]) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = bucket["LifecycleConfiguration"]["Rules"]
    assert {rule["Status"] for rule in rules} == {"Enabled"}
    return rules


def _aborts_all(rule: dict[str, Any]) -> bool:
    return "AbortIncompleteMultipartUpload" in rule and "Prefix" not in rule


def _ids(template: Template, kind: str) -> list[str]:
    return [name for name, resource in template["Resources"].items() if resource["Type"] == kind]


def _data_key(storage: Template) -> str:
    (found,) = [
        name
        for name in _ids(storage, "AWS::KMS::Key")
        if "checkpoints" in storage["Resources"][name]["Properties"]["Description"]
    ]
    return found


def _resolved(value: dict[str, Any], network: Template) -> str:
    """Logical id behind a reference, through the network stack's outputs where it crosses over."""
    if "Fn::GetStackOutput" in value:
        value = network["Outputs"][value["Fn::GetStackOutput"]["OutputName"]]["Value"]
    found = value["Ref"] if "Ref" in value else value["Fn::GetAtt"][0]
    assert isinstance(found, str)
    return found
