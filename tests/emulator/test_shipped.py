"""Every shipped environment through app.py and the real CDK CLI: deployed, read back, deployed again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from infra.local.pins import fixture_pins
from infra.operations.lock import lock_text
from infra.stacks.names import stack_names
from tests.shipped import ROOT, SHIPPED, plan_of

from .bed import Bed

pytestmark = pytest.mark.emulator


@pytest.mark.parametrize("name", SHIPPED)
def test_it_deploys_arrives_whole_and_a_second_deploy_changes_nothing(
    name: str, beds: Callable[[str], Bed], tmp_path: Path
) -> None:
    plan = plan_of(name)
    bed = beds(plan.region)
    lock, assembly = tmp_path / "fixture.lock.yaml", tmp_path / "cdk.out"
    lock.write_text(lock_text(name, fixture_pins(plan.kubernetes.version)), encoding="utf-8")
    synth = bed.cli("synth", "-q", "-o", str(assembly), "-c", f"environment={name}", "-c", f"pins={lock}", cwd=ROOT)
    assert synth.returncode == 0, synth.output[-4000:]
    bed.bootstrap(plan, assembly)
    bed.deploy(assembly)

    report = bed.read_back(assembly)
    assert report.mismatches == ()
    assert report.stacks == len(stack_names(plan))

    bed.forget()
    again = bed.deploy(assembly)
    assert again.output.count("(no changes)") == len(stack_names(plan))
    assert bed.operations() == []


def test_synth_passes_the_cdks_built_in_validation(beds: Callable[[str], Bed], tmp_path: Path) -> None:
    lock, assembly = tmp_path / "fixture.lock.yaml", tmp_path / "cdk.out"
    lock.write_text(lock_text("x", fixture_pins("1.35")), encoding="utf-8")
    synth = beds("us-west-2").cli(
        *("synth", "-q", "-o", str(assembly), "-c", "environment=reference-p5en"),
        *("-c", f"pins={lock}", "-c", "validate=true"),
        cwd=ROOT,
    )
    assert synth.returncode == 0, synth.output[-4000:]
    report = json.loads((assembly / "validation-report.json").read_text(encoding="utf-8"))
    conclusions = {entry["pluginName"]: entry["conclusion"] for entry in report["pluginReports"]}
    assert conclusions == {"CloudFormation Validate": "success", "Construct Annotations": "success"}


def test_unresolved_pins_stop_a_deploy(beds: Callable[[str], Bed], tmp_path: Path) -> None:
    synth = beds("us-west-2").cli(
        "deploy", "--all", "-o", str(tmp_path / "cdk.out"), "-c", "environment=starter-p5en", cwd=ROOT
    )
    assert synth.returncode != 0
    assert "moerl lock starter-p5en" in synth.output


def test_made_up_pins_are_refused_where_the_endpoint_is_not_the_embedded_one(
    beds: Callable[[str], Bed], tmp_path: Path
) -> None:
    lock = tmp_path / "fixture.lock.yaml"
    lock.write_text(lock_text("x", fixture_pins("1.35")), encoding="utf-8")
    bed = beds("us-west-2")
    from infra.local import cdk

    elsewhere = {key: value for key, value in bed.variables.items() if not key.startswith("AWS_ENDPOINT")}
    arguments = ("synth", "-q", "-o", str(tmp_path / "o"), "-c", "environment=starter-p5en", "-c", f"pins={lock}")
    done = cdk.run(arguments, project_root=ROOT, environment=elsewhere, log=tmp_path / "log")
    assert done.returncode != 0
    assert "made up" in done.output


def test_a_wrong_file_stops_synth_with_its_faults_and_writes_nothing(
    beds: Callable[[str], Bed], tmp_path: Path
) -> None:
    document = yaml.safe_load((ROOT / "environments/starter-p5en.yaml").read_text(encoding="utf-8"))
    document["pools"]["trainer"]["capacity"] = {"type": "spot"}
    document["kubernetes"]["admins"] = []
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(yaml.safe_dump(document), encoding="utf-8")
    done = beds("us-west-2").cli("synth", "-q", "-o", str(tmp_path / "cdk.out"), "-c", f"environment={wrong}", cwd=ROOT)
    assert done.returncode != 0
    assert "pools.trainer.capacity.type: spot" in done.output
    assert "kubernetes.admins" in done.output
    assert not (tmp_path / "cdk.out" / "manifest.json").exists()
