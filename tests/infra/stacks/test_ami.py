"""Ami: what is baked and how the pipeline is bounded; absent unless a file asks for it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from infra.config.bake_plan import bake_plan
from infra.config.loader import load_text
from infra.config.pins import UNRESOLVED
from infra.config.plan import Plan
from infra.constructs.ami_components import components
from infra.stacks.names import stack_names
from tests.shipped import text_of

from .resources import ENVIRONMENTS, Plans, Template, Templates, by_type, only, properties

BAKE = {"images.bake_ami": True}
BASE = "starter-p5en"


@pytest.fixture(scope="session")
def baking(plan: Plans) -> Plan:
    found: Plan = plan(BASE, BAKE)
    return found


@pytest.fixture(scope="session")
def stack(baking: Plan, template: Templates) -> Template:
    return template(baking, "ami")


def documents(stack: Template) -> dict[str, dict[str, Any]]:
    """Component documents by the last word of the component's name."""
    found = properties(stack, "AWS::ImageBuilder::Component")
    return {one["Name"].rpartition("-")[2]: yaml.safe_load(one["Data"]) for one in found}


def scripts(document: dict[str, Any], phase: str) -> list[str]:
    steps = next(one["steps"] for one in document["phases"] if one["name"] == phase)
    return [only(step["inputs"]["commands"]) for step in steps if step["action"] == "ExecuteBash"]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_no_shipped_environment_bakes(name: str, plan: Plans) -> None:
    assert plan(name).bake is None
    assert f"{name}-ami" not in stack_names(plan(name))


def test_the_parent_is_the_pinned_release_of_the_eks_image(baking: Plan, stack: Template) -> None:
    recipe = only(properties(stack, "AWS::ImageBuilder::ImageRecipe"))
    assert recipe["ParentImage"] == (
        "ssm:/aws/service/eks/optimized-ami/1.35/amazon-linux-2023/x86_64/nvidia"
        "/amazon-eks-node-al2023-x86_64-nvidia-1.35-v20261012/image_id"
    )
    assert baking.bake is not None
    assert baking.bake.parent_release == "1.35.99-20261012"
    assert "recommended" not in recipe["ParentImage"]


def test_without_a_release_the_parent_is_unresolved_and_a_deploy_is_refused() -> None:
    environment = load_text(text_of(BASE, BAKE), "x", pins=UNRESOLVED).environment
    found = bake_plan(environment, UNRESOLVED)
    assert found is not None
    assert "/unresolved/" in found.parent_parameter


def test_components_run_in_order_and_each_restarts_before_it_is_judged(stack: Template) -> None:
    recipe = only(properties(stack, "AWS::ImageBuilder::ImageRecipe"))
    resources = by_type(stack, "AWS::ImageBuilder::Component")
    order = [resources[one["ComponentArn"]["Fn::GetAtt"][0]]["Properties"]["Name"] for one in recipe["Components"]]
    assert [name.rpartition("-")[2] for name in order] == ["efa", "gdrdrv", "host"]
    for document in documents(stack).values():
        assert document["schemaVersion"] == 1.0
        assert [phase["name"] for phase in document["phases"]] == ["build", "validate"]
        assert document["phases"][0]["steps"][-1]["action"] == "Reboot"
        assert all(step["onFailure"] == "Abort" for step in document["phases"][0]["steps"])


def test_every_script_stops_at_its_first_failure_and_holds_no_template_of_image_builders(stack: Template) -> None:
    for document in documents(stack).values():
        assert "{{" not in json.dumps(document)
        for phase in ("build", "validate"):
            for text in scripts(document, phase):
                assert text.startswith(("set -euo pipefail\n", "#!/bin/"))


def test_the_efa_installer_is_the_one_for_gpu_direct_and_its_signature_is_checked_before_it_runs(
    stack: Template,
) -> None:
    (text,) = scripts(documents(stack)["efa"], "build")
    assert "aws-efa-installer-1.50.0.tar.gz" in text
    assert text.index("VALIDSIG .* 4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC") < text.index("./efa_installer.sh")
    (judged,) = scripts(documents(stack)["efa"], "validate")
    assert "== 3.3.0" in judged


def test_gdrdrv_is_loaded_after_the_driver_and_before_the_kubelet(stack: Template) -> None:
    (text,) = scripts(documents(stack)["gdrdrv"], "build")
    assert "https://github.com/NVIDIA/gdrcopy c91ad9f178e5fb729fc5b6dc62a77c3bb364d6c9\n" in text
    # Of images since 20260917, and of those before; a unit that is not there orders nothing.
    assert "After=nvidia-setup.service nvidia-kmod-load.service\n" in text
    assert "Before=nodeadm-run.service" in text


def test_the_host_component_writes_what_user_data_would(baking: Plan, stack: Template) -> None:
    host = scripts(documents(stack)["host"], "build")
    assert any("PeerMappingOverride=1" in text for text in host)
    pages = {pool.host.huge_pages for pool in baking.pools if pool.host.huge_pages}
    assert [f"vm.nr_hugepages = {count}" for count in pages] == ["vm.nr_hugepages = 5128"]
    assert any("vm.nr_hugepages = 5128" in text for text in host)
    assert any("lustre-client" in text for text in host)


def test_versions_follow_from_content_so_that_a_change_never_meets_its_old_self(baking: Plan) -> None:
    assert baking.bake is not None
    before = {one.name: one.version for one in components(baking.bake)}
    assert before == {one.name: one.version for one in components(baking.bake)}
    after = {one.name: one.version for one in components(replace(baking.bake, gdrcopy="2.6.0"))}
    assert {name for name in before if before[name] != after[name]} == {"gdrdrv"}
    for version in before.values():
        assert all(int(part) < 2**30 for part in version.split("."))


def test_another_parent_is_another_version_of_the_recipe(baking: Plan, template: Templates) -> None:
    assert baking.bake is not None
    other = replace(baking, bake=replace(baking.bake, parent_parameter="/other"))
    versions = [
        only(properties(template(one, "ami"), "AWS::ImageBuilder::ImageRecipe"))["Version"] for one in (baking, other)
    ]
    assert versions[0] != versions[1]


def test_builders_are_private_ask_for_tokens_and_are_gone_after_a_failure(stack: Template) -> None:
    builder = only(properties(stack, "AWS::ImageBuilder::InfrastructureConfiguration"))
    assert builder["InstanceMetadataOptions"] == {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}
    assert builder["TerminateInstanceOnFailure"] is True
    assert "PrivateSubnet" in builder["SubnetId"]["Fn::GetStackOutput"]["OutputName"]
    assert "KeyPair" not in builder
    group = only(properties(stack, "AWS::EC2::SecurityGroup"))
    assert "SecurityGroupIngress" not in group
    assert [(one["FromPort"], one["ToPort"]) for one in group["SecurityGroupEgress"]] == [(443, 443)]


def test_builders_can_do_what_image_builder_asks_of_them_and_nothing_else(stack: Template) -> None:
    role = only(properties(stack, "AWS::IAM::Role"))
    assert "Policies" not in role
    assert [one["Fn::Join"][1][-1] for one in role["ManagedPolicyArns"]] == [
        ":iam::aws:policy/EC2InstanceProfileForImageBuilder",
        ":iam::aws:policy/AmazonSSMManagedInstanceCore",
    ]
    assert by_type(stack, "AWS::IAM::Policy") == {}


def test_the_ami_is_encrypted_stays_in_the_account_and_is_named_in_a_parameter(stack: Template) -> None:
    recipe = only(properties(stack, "AWS::ImageBuilder::ImageRecipe"))
    assert only(recipe["BlockDeviceMappings"])["Ebs"]["Encrypted"] is True
    target = only(only(properties(stack, "AWS::ImageBuilder::DistributionConfiguration"))["Distributions"])
    assert target["Region"] == "us-west-2"
    assert "LaunchPermissionConfiguration" not in target["AmiDistributionConfiguration"]
    assert "TargetAccountIds" not in target["AmiDistributionConfiguration"]
    parameter = only(target["SsmParameterConfigurations"])
    assert parameter == {"DataType": "aws:ec2:image", "ParameterName": f"/imagebuilder/{BASE}/ami"}


def test_the_pipeline_runs_when_it_is_started_and_logs_to_a_group_that_forgets(stack: Template) -> None:
    pipeline = only(properties(stack, "AWS::ImageBuilder::ImagePipeline"))
    assert "Schedule" not in pipeline
    logical_id, group = only(by_type(stack, "AWS::Logs::LogGroup").items())
    assert set(map(json.dumps, pipeline["LoggingConfiguration"].values())) == {json.dumps({"Ref": logical_id})}
    assert group["Properties"]["RetentionInDays"] == 90
