"""What EKS and EC2 are asked to do when one line of the file is edited and everything is deployed again.

The edits build on one another, in the order of the tests, on one deployment: as a team's commits do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.config.plan import Plan
from tests.shipped import Changes, plan_of

from .bed import Bed, synthesize

pytestmark = pytest.mark.emulator

BASE: dict[str, Any] = {"pools.trainer.placement_group": "cluster"}


class Deployment:
    """One environment on one embedded AWS, and the edits made to it so far."""

    def __init__(self, bed: Bed, folder: Path) -> None:
        self.bed, self.folder, self.edits = bed, folder, dict(BASE)
        self.count = 0
        self.plan = self._deploy()

    def _deploy(self) -> Plan:
        plan = plan_of("starter-p5en", self.edits)
        self.count += 1
        assembly = synthesize(plan, self.folder / f"assembly-{self.count}")
        if self.count == 1:
            self.bed.bootstrap(plan, assembly)
        self.bed.forget()
        self.bed.deploy(assembly)
        self.assembly = assembly
        return plan

    def edit(self, changes: Changes) -> list[tuple[str, str]]:
        """Deploys with one more edit; returns what CloudFormation caused, in order."""
        self.edits |= changes
        self.plan = self._deploy()
        return self.bed.operations()


@pytest.fixture(scope="module")
def deployment(beds: Callable[[str], Bed], tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return Deployment(beds("us-west-2"), tmp_path_factory.mktemp("transcript"))


def called(operations: list[tuple[str, str]]) -> list[str]:
    return [operation for operation, _ in operations]


def test_a_maximum_changes_one_setting_of_one_group_and_rolls_nothing(deployment: Deployment) -> None:
    operations = deployment.edit({"pools.rollout.nodes": {"min": 0, "max": 1}})
    assert called(operations) == ["eks:UpdateNodegroupConfig"]
    entry = deployment.bed.transcript()[0]
    assert entry["parameters"]["scalingConfig"] == {"minSize": 0, "maxSize": 1}
    assert entry["stack"] == "starter-p5en-pool-rollout"


def test_a_launch_template_edit_makes_a_version_and_rolls_that_pool_alone(deployment: Deployment) -> None:
    operations = deployment.edit({"pools.environments.root_volume_gib": 200})
    assert called(operations) == ["ec2:CreateLaunchTemplateVersion", "eks:UpdateNodegroupVersion"]
    assert {entry["stack"] for entry in deployment.bed.transcript() if entry["origin"] == "cloudformation"} == {
        "starter-p5en-pool-environments"
    }


def test_an_instance_type_makes_the_new_group_before_the_old_one_goes(deployment: Deployment) -> None:
    operations = called(deployment.edit({"pools.environments.instance_types": ["m7i.8xlarge"]}))
    assert operations.index("eks:CreateNodegroup") < operations.index("eks:DeleteNodegroup")
    assert operations.count("eks:CreateNodegroup") == operations.count("eks:DeleteNodegroup") == 1
    names = deployment.bed.client("eks").list_nodegroups(clusterName="starter-p5en")["nodegroups"]
    assert len(names) == 4
    assert not any("error" in entry for entry in deployment.bed.transcript())


def test_a_tag_replaces_no_placement_group_and_rolls_no_node(deployment: Deployment) -> None:
    before = deployment.bed.client("ec2").describe_placement_groups()["PlacementGroups"]
    operations = called(deployment.edit({"tags": {"team": "rl", "cost-centre": "42"}}))
    assert operations
    rolling = {"eks:UpdateNodegroupVersion", "eks:CreateNodegroup", "eks:DeleteNodegroup", "eks:UpdateClusterVersion"}
    assert rolling.isdisjoint(operations)
    assert not any("PlacementGroup" in operation or "LaunchTemplateVersion" in operation for operation in operations)
    assert deployment.bed.client("ec2").describe_placement_groups()["PlacementGroups"] == before


def test_a_node_release_rolls_managed_groups_and_makes_no_template(deployment: Deployment) -> None:
    operations = called(deployment.edit({"kubernetes.node_release": "1.35.98-20260728"}))
    assert set(operations) == {"eks:UpdateNodegroupVersion"}
    assert len(operations) == 4
    releases = {
        entry["parameters"].get("releaseVersion")
        for entry in deployment.bed.transcript()
        if entry["origin"] == "cloudformation"
    }
    assert releases == {"1.35.98-20260728"}


def test_a_kubernetes_version_upgrades_the_cluster_in_place(deployment: Deployment) -> None:
    edits = {"kubernetes.version": "1.36", "kubernetes.node_release": "1.36.99-20260728"}
    operations = called(deployment.edit(edits))
    assert operations.count("eks:UpdateClusterVersion") == 1
    assert operations.index("eks:UpdateClusterVersion") < operations.index("eks:UpdateNodegroupVersion")
    assert not {"eks:CreateCluster", "eks:DeleteCluster", "eks:CreateNodegroup", "eks:DeleteNodegroup"} & set(
        operations
    )
    assert deployment.bed.client("eks").describe_cluster(name="starter-p5en")["cluster"]["version"] == "1.36"


def test_after_every_edit_the_deployment_is_what_the_templates_say(deployment: Deployment) -> None:
    assert deployment.bed.read_back(deployment.assembly).mismatches == ()


def test_the_edits_so_far_deployed_once_more_cause_nothing(deployment: Deployment) -> None:
    assert deployment.edit({}) == []
