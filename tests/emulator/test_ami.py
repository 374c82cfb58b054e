"""The stack that bakes an AMI, in the embedded AWS: it arrives whole, and an edit makes new versions of what it changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from infra.config.plan import Plan
from infra.stacks.names import stack_names
from tests.shipped import plan_of

from .bed import Bed, synthesize

pytestmark = pytest.mark.emulator


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of("starter-p5en", {"images.bake_ami": True})


@pytest.fixture(scope="module")
def bed(beds: Callable[[str], Bed], plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Bed:
    """The starter environment with a bake, deployed."""
    made = beds(plan.region)
    assembly = synthesize(plan, tmp_path_factory.mktemp("assembly"))
    made.bootstrap(plan, assembly)
    made.deploy(assembly)
    return made


def components(bed: Bed, plan: Plan) -> dict[str, str]:
    """Version of each component that the recipe of the pipeline names."""
    client = bed.client("imagebuilder")
    arn = f"arn:aws:imagebuilder:{plan.region}:{plan.account}:image-pipeline/{plan.names.ami_pipeline}"
    pipeline = client.get_image_pipeline(imagePipelineArn=arn)["imagePipeline"]
    recipe = client.get_image_recipe(imageRecipeArn=pipeline["imageRecipeArn"])["imageRecipe"]
    return dict(one["componentArn"].split("/")[1:3] for one in recipe["components"])


def test_every_property_arrives_and_a_second_deploy_changes_nothing(bed: Bed, plan: Plan, tmp_path: Path) -> None:
    assembly = synthesize(plan, tmp_path / "assembly")
    report = bed.read_back(assembly)
    assert report.mismatches == ()
    assert report.stacks == len(stack_names(plan))
    assert f"{plan.name}-ami" in stack_names(plan)
    bed.forget()
    again = bed.deploy(assembly)
    assert again.output.count("(no changes)") == len(stack_names(plan))
    assert bed.operations() == []


def test_another_gdrcopy_is_a_new_component_and_recipe_under_the_same_pipeline(
    bed: Bed, plan: Plan, tmp_path: Path
) -> None:
    assert plan.bake is not None
    before = components(bed, plan)
    changed = replace(plan, bake=replace(plan.bake, gdrcopy="2.6.0"))
    assembly = synthesize(changed, tmp_path / "assembly")
    bed.deploy(assembly)
    after = components(bed, plan)
    names = {name for name in before if before[name] != after[name]}
    assert names == {f"{plan.name}-ami-gdrdrv"}
    (changed_name,) = names
    old = f"arn:aws:imagebuilder:{plan.region}:{plan.account}:component/{changed_name}/{before[changed_name]}/1"
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        bed.client("imagebuilder").get_component(componentBuildVersionArn=old)
    assert bed.read_back(assembly).mismatches == ()
    bed.deploy(synthesize(plan, tmp_path / "back"))
    assert components(bed, plan) == before


def test_an_environment_that_no_longer_asks_for_it_has_the_stack_left_over_and_can_destroy_it(
    bed: Bed, plan: Plan, tmp_path: Path
) -> None:
    assembly = synthesize(plan, tmp_path / "assembly")
    bed.succeed("destroy", "--app", str(assembly), "--force", "ami")
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        components(bed, plan)
