"""Cluster stack: what EKS is told, in which order, and who may do what."""

from __future__ import annotations

import json

import pytest

from infra.stacks.cluster import CONTROL_PLANE_LOGS

from .resources import ENVIRONMENTS, Plans, Template, Templates, by_type, only

EKS = "AWS::EKS::"


@pytest.fixture
def cluster(plan: Plans, template: Templates) -> Template:
    return template(plan("reference-p5en"), "cluster")


def after(template: Template, earlier: str, later: str) -> bool:
    """Whether `later` depends on `earlier`, through DependsOn, Ref or GetAtt, over any number of steps."""
    resources = template["Resources"]

    def needs(logical_id: str) -> set[str]:
        resource = resources[logical_id]
        written = resource.get("DependsOn", [])
        found = {written} if isinstance(written, str) else set(written)

        def walk(value: object) -> None:
            if isinstance(value, dict):
                if "Ref" in value:
                    found.add(str(value["Ref"]))
                if "Fn::GetAtt" in value:
                    found.add(str(value["Fn::GetAtt"][0]))
                for item in value.values():
                    walk(item)
            elif isinstance(value, list):
                for item in value:
                    walk(item)

        walk(resource.get("Properties", {}))
        return found & set(resources)

    seen, waiting = set(), [later]
    while waiting:
        for step in needs(waiting.pop()) - seen:
            seen.add(step)
            waiting.append(step)
    return earlier in seen


def addon(template: Template, name: str) -> str:
    return only(
        logical_id
        for logical_id, resource in by_type(template, EKS + "Addon").items()
        if resource["Properties"]["AddonName"] == name
    )


def association(template: Template, service_account: str) -> str:
    return only(
        logical_id
        for logical_id, resource in by_type(template, EKS + "PodIdentityAssociation").items()
        if resource["Properties"]["ServiceAccount"] == service_account
    )


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_network_addons_come_before_the_first_node_and_the_others_after_it(
    plan: Plans, template: Templates, name: str
) -> None:
    built = template(plan(name), "cluster")
    node_group = only(by_type(built, EKS + "Nodegroup"))
    for addon_name in ("vpc-cni", "kube-proxy", "eks-pod-identity-agent"):
        assert after(built, addon(built, addon_name), node_group), addon_name
    for addon_name in ("coredns", "metrics-server", "aws-ebs-csi-driver", "eks-node-monitoring-agent"):
        assert after(built, node_group, addon(built, addon_name)), addon_name


@pytest.mark.parametrize(
    ("service_account", "addon_name"),
    [
        ("aws-node", "vpc-cni"),
        ("ebs-csi-controller-sa", "aws-ebs-csi-driver"),
        ("fsx-csi-controller-sa", "aws-fsx-csi-driver"),
        ("cloudwatch-agent", "amazon-cloudwatch-observability"),
    ],
)
def test_an_association_exists_before_the_addon_that_uses_it(
    cluster: Template, service_account: str, addon_name: str
) -> None:
    assert after(cluster, association(cluster, service_account), addon(cluster, addon_name))


def test_the_agents_log_groups_exist_before_the_agent_could_make_them(cluster: Template) -> None:
    names = {
        resource["Properties"]["LogGroupName"]: logical_id
        for logical_id, resource in by_type(cluster, "AWS::Logs::LogGroup").items()
    }
    agent = addon(cluster, "amazon-cloudwatch-observability")
    for kind in ("application", "dataplane", "host", "performance"):
        assert after(cluster, names[f"/aws/containerinsights/reference-p5en/{kind}"], agent)


def test_control_plane_is_private_logged_encrypted_and_has_no_creator_admin(cluster: Template) -> None:
    properties = only(by_type(cluster, EKS + "Cluster").values())["Properties"]
    vpc = properties["ResourcesVpcConfig"]
    assert (vpc["EndpointPrivateAccess"], vpc["EndpointPublicAccess"]) == (True, False)
    assert len(vpc["SubnetIds"]) == 3
    assert properties["AccessConfig"] == {
        "AuthenticationMode": "API",
        "BootstrapClusterCreatorAdminPermissions": False,
    }
    enabled = {entry["Type"] for entry in properties["Logging"]["ClusterLogging"]["EnabledTypes"]}
    assert enabled == set(CONTROL_PLANE_LOGS) == {"api", "audit", "authenticator", "controllerManager", "scheduler"}
    assert properties["EncryptionConfig"][0]["Resources"] == ["secrets"]
    assert properties["DeletionProtection"] is True
    assert properties["UpgradePolicy"] == {"SupportType": "STANDARD"}
    assert properties["BootstrapSelfManagedAddons"] is False


def test_a_public_endpoint_opens_to_the_named_networks_alone(plan: Plans, template: Templates) -> None:
    opened = plan("starter-p5en", {"kubernetes.endpoint": {"public_cidrs": ["203.0.113.0/24"]}})
    vpc = only(by_type(template(opened, "cluster"), EKS + "Cluster").values())["Properties"]["ResourcesVpcConfig"]
    assert vpc["EndpointPublicAccess"] is True
    assert vpc["EndpointPrivateAccess"] is True
    assert vpc["PublicAccessCidrs"] == ["203.0.113.0/24"]


def test_a_version_in_extended_support_says_so(plan: Plans, template: Templates) -> None:
    older = plan("starter-p5en", {"kubernetes.version": "1.33"})
    properties = only(by_type(template(older, "cluster"), EKS + "Cluster").values())["Properties"]
    assert properties["UpgradePolicy"] == {"SupportType": "EXTENDED"}


def test_protection_can_be_lifted_for_a_teardown(plan: Plans, template: Templates) -> None:
    lifted = template(plan("starter-p5en", {"protected": False}), "cluster")
    assert only(by_type(lifted, EKS + "Cluster").values())["Properties"]["DeletionProtection"] is False


def test_cni_enforces_network_policy_and_keeps_few_warm_addresses(cluster: Template) -> None:
    properties = cluster["Resources"][addon(cluster, "vpc-cni")]["Properties"]
    values = json.loads(properties["ConfigurationValues"])
    assert values["enableNetworkPolicy"] == "true"
    assert values["env"] == {"MINIMUM_IP_TARGET": "16", "WARM_IP_TARGET": "4", "WARM_ENI_TARGET": "0"}


def test_an_admin_who_comes_or_goes_leaves_the_others_entries_alone(plan: Plans, template: Templates) -> None:
    """EKS takes one entry for each principal: an entry that changed hands would meet the one that still stands."""

    def entries(*names: str) -> dict[str, str]:
        admins = [f"arn:aws:iam::123456789012:role/{name}" for name in names]
        built = template(plan("starter-p5en", {"kubernetes.admins": admins}), "cluster")
        return {key: one["Properties"]["PrincipalArn"] for key, one in by_type(built, EKS + "AccessEntry").items()}

    before = entries("first", "second")
    assert len(before) == 2
    for after in (entries("second"), entries("new", "first", "second"), entries("second", "first")):
        shared = before.keys() & after.keys()
        assert {before[key] for key in shared} == set(before.values()) & set(after.values())
        assert all(before[key] == after[key] for key in shared)


def test_every_admin_gets_an_access_entry(plan: Plans, template: Templates) -> None:
    admins = ["arn:aws:iam::123456789012:role/one", "arn:aws:iam::123456789012:user/two"]
    built = template(plan("starter-p5en", {"kubernetes.admins": admins}), "cluster")
    entries = [entry["Properties"] for entry in by_type(built, EKS + "AccessEntry").values()]
    assert [entry["PrincipalArn"] for entry in entries] == admins
    for entry in entries:
        (policy,) = entry["AccessPolicies"]
        assert policy["PolicyArn"] == "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
        assert policy["AccessScope"] == {"Type": "cluster"}


def test_pod_identity_trust_has_both_actions_and_names_cluster_namespace_and_account(cluster: Template) -> None:
    associations = by_type(cluster, EKS + "PodIdentityAssociation").values()
    wanted = {
        ("kube-system", "aws-node"),
        ("kube-system", "ebs-csi-controller-sa"),
        ("kube-system", "fsx-csi-controller-sa"),
        ("amazon-cloudwatch", "cloudwatch-agent"),
        ("kube-system", "cluster-autoscaler"),
        ("keda", "keda-operator"),
        ("rl", "trainer"),
        ("rl", "rollout"),
        ("rl", "prepare"),
    }
    assert {(item["Properties"]["Namespace"], item["Properties"]["ServiceAccount"]) for item in associations} == wanted
    for item in associations:
        role = cluster["Resources"][item["Properties"]["RoleArn"]["Fn::GetAtt"][0]]["Properties"]
        (statement,) = role["AssumeRolePolicyDocument"]["Statement"]
        assert sorted(statement["Action"]) == ["sts:AssumeRole", "sts:TagSession"]
        assert statement["Principal"] == {"Service": "pods.eks.amazonaws.com"}
        condition = statement["Condition"]
        assert condition["StringEquals"] == {
            "aws:SourceAccount": "123456789012",
            "aws:RequestTag/kubernetes-namespace": item["Properties"]["Namespace"],
            "aws:RequestTag/kubernetes-service-account": item["Properties"]["ServiceAccount"],
        }
        assert condition["ArnEquals"]["aws:SourceArn"] == ("arn:aws:eks:us-west-2:123456789012:cluster/reference-p5en")


def statements(template: Template, service_account: str) -> list[dict[str, object]]:
    """Inline policy statements of the role behind a service account."""
    role = template["Resources"][association(template, service_account)]["Properties"]["RoleArn"]["Fn::GetAtt"][0]
    policies = by_type(template, "AWS::IAM::Policy").values()
    return [
        statement
        for policy in policies
        if {"Ref": role} in policy["Properties"]["Roles"]
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
    ]


def actions(found: list[dict[str, object]]) -> set[str]:
    return {
        action
        for statement in found
        for action in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
    }


def test_the_trainer_writes_below_its_prefixes_with_multipart_and_key_and_creates_no_bucket(cluster: Template) -> None:
    found = statements(cluster, "trainer")
    allowed = actions(found)
    assert {"s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"} <= allowed
    assert {"kms:Decrypt", "kms:GenerateDataKey"} <= allowed
    assert "s3:CreateBucket" not in allowed
    assert not any("*" in action for action in allowed)
    (writes,) = [item for item in found if "s3:PutObject" in item["Action"]]
    bucket = "arn:aws:s3:::reference-p5en-checkpoints-123456789012-us-west-2"
    assert f"{bucket}/checkpoints/*" in writes["Resource"]
    assert all(not resource.endswith(":::*") and "/" in resource for resource in writes["Resource"])


def test_a_rollout_worker_cannot_touch_checkpoints_or_weights(cluster: Template) -> None:
    found = statements(cluster, "rollout")
    assert "checkpoints" not in json.dumps(found)
    (writes,) = [item for item in found if "s3:PutObject" in item["Action"]]
    assert writes["Resource"] == "arn:aws:s3:::reference-p5en-weights-123456789012-us-west-2/samples/*"


def test_a_rollout_worker_may_send_what_it_failed_at_again_and_takes_no_results(cluster: Template) -> None:
    queues = "arn:aws:sqs:us-west-2:123456789012:reference-p5en-"
    allowed = {
        (action, resource.removeprefix(queues))
        for item in statements(cluster, "rollout")
        for action in item["Action"]
        for resource in ([item["Resource"]] if isinstance(item["Resource"], str) else item["Resource"])
        if action.startswith("sqs:")
    }
    assert allowed == {
        ("sqs:ReceiveMessage", "tasks"),
        ("sqs:DeleteMessage", "tasks"),
        ("sqs:ChangeMessageVisibility", "tasks"),
        ("sqs:SendMessage", "tasks"),
        ("sqs:SendMessage", "results"),
        ("sqs:GetQueueAttributes", "results"),
        ("sqs:SendMessage", "dead-letter"),
        ("sqs:GetQueueAttributes", "dead-letter"),
    }


def test_the_prepare_job_alone_reads_the_hub_token(plan: Plans, template: Templates) -> None:
    secret = "arn:aws:secretsmanager:us-west-2:123456789012:secret:hub-token-AbCdEf"  # noqa: S105 - a name
    built = template(plan("starter-p5en", {"workload.hub_token_secret_arn": secret}), "cluster")
    readers = {name for name in ("trainer", "rollout", "prepare") if secret in json.dumps(statements(built, name))}
    assert readers == {"prepare"}
    (writes,) = [item for item in statements(built, "prepare") if "s3:PutObject" in item["Action"]]
    assert writes["Resource"] == "arn:aws:s3:::starter-p5en-weights-123456789012-us-west-2/models/*"


def test_the_autoscaler_may_change_the_groups_that_it_scales_alone(plan: Plans, cluster: Template) -> None:
    (change,) = [
        item for item in statements(cluster, "cluster-autoscaler") if "autoscaling:SetDesiredCapacity" in item["Action"]
    ]
    assert change["Condition"] == {
        "StringEquals": {
            "aws:ResourceTag/k8s.io/cluster-autoscaler/reference-p5en": "owned",
            "aws:ResourceTag/moerl.io/scaled-by": "autoscaler",
        }
    }
    tagged = {pool.name for pool in plan("reference-p5en").pools if pool.scaler_tags.get("moerl.io/scaled-by")}
    assert "rollout" in tagged
    assert "trainer" not in tagged


def test_the_node_role_has_no_access_to_data(cluster: Template) -> None:
    (role,) = [
        (logical_id, item["Properties"])
        for logical_id, item in by_type(cluster, "AWS::IAM::Role").items()
        if "ec2.amazonaws.com" in json.dumps(item["Properties"]["AssumeRolePolicyDocument"])
    ]
    managed = json.dumps(role[1]["ManagedPolicyArns"])
    for name in ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly", "AmazonSSMManagedInstanceCore"):
        assert name in managed
    assert len(role[1]["ManagedPolicyArns"]) == 3
    attached = [
        p for p in by_type(cluster, "AWS::IAM::Policy").values() if {"Ref": role[0]} in p["Properties"]["Roles"]
    ]
    assert attached == []
    assert "Policies" not in role[1]


def test_a_capacity_block_trainer_may_read_its_save_signal(plan: Plans, template: Templates) -> None:
    found = statements(template(plan("p6-b200"), "cluster"), "trainer")
    (read,) = [item for item in found if item["Action"] == "ssm:GetParameter"]
    assert read["Resource"] == "arn:aws:ssm:us-west-2:123456789012:parameter/moerl/p6-b200/trainer/save-signal"


def test_the_system_group_spans_every_zone_and_is_fixed(cluster: Template) -> None:
    properties = only(by_type(cluster, EKS + "Nodegroup").values())["Properties"]
    assert len(properties["Subnets"]) == 3
    assert properties["ScalingConfig"] == {"MinSize": 3, "MaxSize": 3, "DesiredSize": 3}
    assert properties["AmiType"] == "AL2023_x86_64_STANDARD"


def test_unresolved_pins_show_in_the_render(plan: Plans, template: Templates) -> None:
    from dataclasses import replace

    known = plan("starter-p5en")
    bare = replace(known, addons=tuple(replace(item, version=None) for item in known.addons))
    versions = {
        item["Properties"]["AddonVersion"] for item in by_type(template(bare, "cluster"), EKS + "Addon").values()
    }
    assert versions == {"unresolved"}


def test_the_cluster_keeps_its_logical_id(cluster: Template) -> None:
    assert list(by_type(cluster, EKS + "Cluster")) == ["Cluster"]
