"""Pool stacks: launch template and node group of every purchase type, and what an edit may change."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from infra.catalog import CATALOG
from infra.config.loader import load
from infra.config.plan import Plan, build_plan
from infra.config.user_data import parts
from infra.local.pins import fixture_pins

from .resources import ENVIRONMENTS, ROOT, Plans, Template, Templates, by_type, only

GPU_POOLS = [(name, pool) for name in ENVIRONMENTS for pool in ("trainer", "rollout")]


def launch_data(template: Template) -> dict[str, Any]:
    data: dict[str, Any] = only(by_type(template, "AWS::EC2::LaunchTemplate").values())["Properties"][
        "LaunchTemplateData"
    ]
    return data


def group(template: Template) -> dict[str, Any]:
    properties: dict[str, Any] = only(by_type(template, "AWS::EKS::Nodegroup").values())["Properties"]
    return properties


def user_data(template: Template) -> list[tuple[str, str]]:
    return parts(launch_data(template)["UserData"]["Fn::Base64"])


# C1, B01-B03, B06, B07, B66, B69
@pytest.mark.parametrize(("name", "efa"), [("p5", 32), ("reference-p5en", 16), ("starter-p5en", 16), ("p6-b200", 8)])
@pytest.mark.parametrize("pool", ["trainer", "rollout"])
def test_interfaces_are_the_types_own_layout(plan: Plans, template: Templates, name: str, efa: int, pool: str) -> None:
    data = launch_data(template(plan(name), f"pool-{pool}"))
    interfaces = data["NetworkInterfaces"]
    assert sum(nic["InterfaceType"] in ("efa", "efa-only") for nic in interfaces) == efa
    primary = [nic for nic in interfaces if (nic["NetworkCardIndex"], nic["DeviceIndex"]) == (0, 0)]
    assert [nic["InterfaceType"] for nic in primary] == ["interface"]
    pairs = [(nic["NetworkCardIndex"], nic["DeviceIndex"]) for nic in interfaces]
    assert len(set(pairs)) == len(pairs)
    assert {device for _, device in pairs} <= {0, 1}
    for nic in interfaces:
        assert nic["DeleteOnTermination"] is True
        assert not {"SubnetId", "AssociatePublicIpAddress"} & set(nic)
    assert "SecurityGroupIds" not in data


def test_interfaces_with_an_address_carry_the_cluster_group_and_every_one_the_efa_group(
    plan: Plans, template: Templates
) -> None:
    for nic in launch_data(template(plan("reference-p5en"), "pool-trainer"))["NetworkInterfaces"]:
        groups = json.dumps(nic["Groups"])
        assert "EfaSecurityGroup" in groups
        assert ("ClusterSecurityGroupId" in groups) == (nic["InterfaceType"] != "efa-only")


def test_the_classic_layout_is_efa_on_every_card(plan: Plans, template: Templates) -> None:
    classic = plan("p5", {"pools.trainer.efa_layout": "classic"})
    interfaces = launch_data(template(classic, "pool-trainer"))["NetworkInterfaces"]
    assert [nic["InterfaceType"] for nic in interfaces] == ["efa"] * 32
    assert [nic["DeviceIndex"] for nic in interfaces] == [0] + [1] * 31


def test_a_pool_with_efa_off_has_no_interface_list(plan: Plans, template: Templates) -> None:
    off = plan("starter-p5en", {"pools.rollout.efa": False})
    data = launch_data(template(off, "pool-rollout"))
    assert "NetworkInterfaces" not in data
    assert len(data["SecurityGroupIds"]) == 1


# The sentinel: one catalog number, every rendering.
def test_thirteen_efa_devices_in_the_catalog_are_thirteen_interfaces(template: Templates) -> None:
    instances = dict(CATALOG.instances)
    instances["p5en.48xlarge"] = replace(instances["p5en.48xlarge"], efa_devices=13)
    catalog = replace(CATALOG, instances=instances)
    loaded = load(ROOT / "environments/reference-p5en.yaml", catalog, pins=fixture_pins("1.35"))
    sentinel = build_plan(loaded.environment, loaded.pins, loaded.warnings, catalog)
    for pool in ("trainer", "rollout"):
        kinds = [nic["InterfaceType"] for nic in launch_data(template(sentinel, f"pool-{pool}"))["NetworkInterfaces"]]
        assert kinds.count("efa-only") == 13
        assert len(kinds) == 14


# C2, B08, B25, B26
def test_a_capacity_block_has_its_type_market_and_reservation_in_the_template_alone(
    plan: Plans, template: Templates
) -> None:
    built = template(plan("p6-b200"), "pool-trainer")
    data, properties = launch_data(built), group(built)
    assert data["InstanceType"] == "p6-b200.48xlarge"
    assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    target = data["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": "cr-0fedcba9876543210"}
    assert "Placement" not in data
    assert properties["CapacityType"] == "CAPACITY_BLOCK"
    assert "InstanceTypes" not in properties
    assert properties["ScalingConfig"] == {"MinSize": 0, "MaxSize": 8}


def test_a_capacity_blocks_schedule_scales_up_signals_a_save_and_drains_before_eks_does(
    plan: Plans, template: Templates
) -> None:
    built = template(plan("p6-b200"), "pool-trainer")
    schedules = {key: item["Properties"] for key, item in by_type(built, "AWS::Scheduler::Schedule").items()}
    when = {key: item["ScheduleExpression"] for key, item in schedules.items()}
    assert when == {
        "ScaleUp": "at(2026-12-07T11:31:00)",
        "SaveSignal": "at(2026-12-21T10:00:00)",
        "ScaleDown": "at(2026-12-21T10:30:00)",
    }
    calls = {key: item["Target"]["Arn"].rpartition("aws-sdk:")[2] for key, item in schedules.items()}
    assert calls == {
        "ScaleUp": "eks:updateNodegroupConfig",
        "SaveSignal": "ssm:putParameter",
        "ScaleDown": "eks:updateNodegroupConfig",
    }
    assert '"DesiredSize\\":8' in json.dumps(schedules["ScaleUp"]["Target"]["Input"])
    assert '"DesiredSize\\":0' in json.dumps(schedules["ScaleDown"]["Target"]["Input"])


def test_only_capacity_blocks_have_a_schedule(plan: Plans, template: Templates) -> None:
    for name, pool in GPU_POOLS:
        found = by_type(template(plan(name), f"pool-{pool}"), "AWS::Scheduler::Schedule")
        assert bool(found) == ((name, pool) == ("p6-b200", "trainer"))


# C3, B23, B28
@pytest.mark.parametrize(("name", "pool"), GPU_POOLS)
def test_an_efa_group_has_exactly_one_subnet(plan: Plans, template: Templates, name: str, pool: str) -> None:
    assert len(group(template(plan(name), f"pool-{pool}"))["Subnets"]) == 1


# C4, B14, B16, B21, B22
def test_a_spot_pool_of_two_types_names_them_on_the_group_alone(plan: Plans, template: Templates) -> None:
    two = plan("p5", {"pools.rollout.instance_types": ["p5.48xlarge", "p5e.48xlarge"]})
    built = template(two, "pool-rollout")
    assert group(built)["CapacityType"] == "SPOT"
    assert group(built)["InstanceTypes"] == ["p5.48xlarge", "p5e.48xlarge"]
    assert not {"InstanceMarketOptions", "InstanceType"} & set(launch_data(built))


@pytest.mark.parametrize(
    ("name", "pool"), [*GPU_POOLS, ("reference-p5en", "environments"), ("reference-p5en", "buffer")]
)
def test_desired_size_is_written_for_fixed_pools_alone_and_updates_are_never_forced(
    plan: Plans, template: Templates, name: str, pool: str
) -> None:
    properties = group(template(plan(name), f"pool-{pool}"))
    scaling = properties["ScalingConfig"]
    fixed = scaling["MinSize"] == scaling["MaxSize"]
    assert ("DesiredSize" in scaling) == fixed
    assert properties["ForceUpdateEnabled"] is False
    assert "NodegroupName" not in properties
    assert properties["ReleaseVersion"] == "1.35.99-20261012"
    assert "Version" not in properties


def test_changing_a_maximum_changes_nothing_else(plan: Plans, template: Templates) -> None:
    before = template(plan("reference-p5en"), "pool-rollout")
    after = template(plan("reference-p5en", {"pools.rollout.nodes": {"min": 0, "max": 24}}), "pool-rollout")
    edited = json.loads(json.dumps(after))
    only(by_type(edited, "AWS::EKS::Nodegroup").values())["Properties"]["ScalingConfig"]["MaxSize"] = 32
    assert edited == before


@pytest.mark.parametrize(
    "change",
    [
        {"pools.environments.instance_types": ["m7i.4xlarge"]},
        {"pools.environments.zone": "us-west-2a"},
        {"pools.environments.capacity": {"type": "spot"}},
        {"pools.environments.ami": {"id": "ami-0123456789abcdef0"}},
    ],
)
def test_what_replaces_a_group_shows_as_a_new_resource(
    plan: Plans, template: Templates, change: dict[str, Any]
) -> None:
    before = by_type(template(plan("reference-p5en"), "pool-environments"), "AWS::EKS::Nodegroup")
    after = by_type(template(plan("reference-p5en", change), "pool-environments"), "AWS::EKS::Nodegroup")
    assert set(before).isdisjoint(after)


def test_editing_a_tag_reaches_no_launch_template_and_no_placement_group(plan: Plans, template: Templates) -> None:
    placed = {"pools.trainer.placement_group": "cluster"}
    before = template(plan("starter-p5en", placed), "pool-trainer")
    after = template(plan("starter-p5en", {**placed, "tags": {"team": "other"}}), "pool-trainer")
    for kind in ("AWS::EC2::LaunchTemplate", "AWS::EC2::PlacementGroup"):
        stripped = [
            {key: item for key, item in resource["Properties"].items() if key != "TagSpecifications"}
            for built in (before, after)
            for resource in by_type(built, kind).values()
        ]
        assert stripped[0] == stripped[1], kind
    assert launch_data(before) == launch_data(after)
    assert "Tags" not in only(by_type(after, "AWS::EC2::PlacementGroup").values())["Properties"]


# B24, B80
def test_a_reservation_is_targeted_and_joins_no_group_of_ours(plan: Plans, template: Templates) -> None:
    data = launch_data(template(plan("reference-p5en"), "pool-trainer"))
    target = data["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": "cr-0123456789abcdef0"}
    assert "Placement" not in data
    assert "InstanceMarketOptions" not in data


def test_a_reservation_made_in_a_group_launches_into_that_group(plan: Plans, template: Templates) -> None:
    grouped = {"type": "reservation", "id": "cr-0123456789abcdef0", "placement_group": "ultra"}
    built = template(plan("reference-p5en", {"pools.trainer.capacity": grouped}), "pool-trainer")
    assert launch_data(built)["Placement"] == {"GroupName": "ultra"}
    assert by_type(built, "AWS::EC2::PlacementGroup") == {}


def test_on_demand_says_that_open_reservations_are_used(plan: Plans, template: Templates) -> None:
    data = launch_data(template(plan("starter-p5en"), "pool-trainer"))
    assert data["CapacityReservationSpecification"] == {"CapacityReservationPreference": "open"}


# C5, B09, B10, B12
@pytest.mark.parametrize(("name", "pool"), GPU_POOLS)
def test_user_data_is_mime_with_one_node_config_on_raid0(
    plan: Plans, template: Templates, name: str, pool: str
) -> None:
    found = user_data(template(plan(name), f"pool-{pool}"))
    configs = [text for kind, text in found if kind == "application/node.eks.aws"]
    assert len(configs) == 1
    assert "strategy: RAID0" in configs[0]
    *driver, pages = [text for kind, text in found if kind == "text/cloud-boothook"]
    assert len(driver) == (0 if name == "p5" else 1)
    assert all("PeerMappingOverride=1" in text for text in driver)
    # 5128 pages of 2 MiB, as many as the Plan takes from allocatable memory.
    assert plan(name).pool(pool).huge_pages_mib == 5128 * 2
    assert "vm.nr_hugepages = 5128" in pages
    assert "FastImagePull: true" in configs[0]


def test_a_pool_without_efa_or_gpus_gets_no_boothook_and_no_feature_gate(plan: Plans, template: Templates) -> None:
    found = user_data(template(plan("starter-p5en"), "pool-environments"))
    assert [kind for kind, _ in found] == ["application/node.eks.aws"]
    assert "featureGates" not in found[0][1]


def test_the_trainers_nodes_alone_get_a_lustre_client_and_only_for_fsx(plan: Plans, template: Templates) -> None:
    fsx = plan("starter-p5en", {"checkpoints": {"scratch": "fsx", "scratch_gib": 1200}})

    def installs(planned: Plan, pool: str) -> bool:
        return any("lustre-client" in text for _, text in user_data(template(planned, f"pool-{pool}")))

    assert [installs(fsx, pool) for pool in ("trainer", "rollout", "environments")] == [True, False, False]
    assert not installs(plan("starter-p5en"), "trainer")


def test_the_drivers_sources_are_unpacked_exactly_where_a_daemonset_builds_gdrdrv(
    plan: Plans, template: Templates
) -> None:
    ami = {"id": "ami-0123456789abcdef0", "baked": True}
    planned = plan("reference-p5en", {"pools.trainer.ami": ami})

    def unpacks(pool: str) -> bool:
        return "kmod-nvidia-open-dkms" in json.dumps(launch_data(template(planned, f"pool-{pool}"))["UserData"])

    assert [unpacks(pool) for pool in ("trainer", "rollout", "environments")] == [False, True, False]


@pytest.mark.parametrize(("name", "pool"), GPU_POOLS)
def test_metadata_needs_tokens_and_the_root_volume_is_encrypted(
    plan: Plans, template: Templates, name: str, pool: str
) -> None:
    data = launch_data(template(plan(name), f"pool-{pool}"))
    assert data["MetadataOptions"] == {
        "HttpEndpoint": "enabled",
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 2,
    }
    (root,) = data["BlockDeviceMappings"]
    assert root["Ebs"]["Encrypted"] is True
    assert root["Ebs"]["VolumeSize"] == 300


def test_extra_user_data_is_another_part(plan: Plans, template: Templates) -> None:
    extra = plan("starter-p5en", {"pools.rollout.user_data": "#!/bin/bash\necho hello\n"})
    found = user_data(template(extra, "pool-rollout"))
    assert ("text/x-shellscript", "#!/bin/bash\necho hello\n") in found


# C9, B13
@pytest.mark.parametrize(("name", "pool"), GPU_POOLS)
def test_the_nvidia_image_type_is_stated(plan: Plans, template: Templates, name: str, pool: str) -> None:
    assert group(template(plan(name), f"pool-{pool}"))["AmiType"] == "AL2023_x86_64_NVIDIA"


def test_a_custom_image_gets_a_complete_node_config_and_no_image_type(plan: Plans, template: Templates) -> None:
    ami = {"id": "ami-0123456789abcdef0", "efa_driver": "3.3.0", "gdrdrv": "2.5.2"}
    built = template(plan("reference-p5en", {"pools.trainer.ami": ami}), "pool-trainer")
    assert not {"AmiType", "ReleaseVersion"} & set(group(built))
    data = launch_data(built)
    assert data["ImageId"] == "ami-0123456789abcdef0"
    written = json.dumps(data["UserData"])
    for needed in ("apiServerEndpoint", "certificateAuthority", "cidr: 172.20.0.0/16", "name: reference-p5en"):
        assert needed in written
    assert "--register-with-taints=moerl.io/role=trainer:NoSchedule,nvidia.com/gpu=true:NoSchedule" in written


def test_trainers_are_not_repaired_for_soft_reasons(plan: Plans, template: Templates) -> None:
    repair = group(template(plan("reference-p5en"), "pool-trainer"))["NodeRepairConfig"]
    overrides = repair["NodeRepairConfigOverrides"]
    assert repair["Enabled"] is True
    assert "NvidiaXID31Error" in {entry["NodeUnhealthyReason"] for entry in overrides}
    assert {entry["RepairAction"] for entry in overrides} == {"NoAction"}
    rollout = group(template(plan("reference-p5en"), "pool-rollout"))["NodeRepairConfig"]
    assert "NodeRepairConfigOverrides" not in rollout


def test_fixed_capacity_updates_by_taking_nodes_out_first(plan: Plans, template: Templates) -> None:
    built = plan("reference-p5en")
    strategy = {
        pool: group(template(built, f"pool-{pool}"))["UpdateConfig"]["UpdateStrategy"]
        for pool in ("trainer", "rollout")
    }
    assert strategy == {"trainer": "MINIMAL", "rollout": "DEFAULT"}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_pool_stacks_export_their_group_name(plan: Plans, template: Templates, name: str) -> None:
    built = plan(name)
    for pool in built.pools:
        if pool.role != "system":
            assert "NodeGroupName" in template(built, f"pool-{pool.name}")["Outputs"]
