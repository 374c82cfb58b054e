"""The operations as users run them, `moerl` in a process of its own, on a deployment in the embedded AWS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.config.image_arguments import ImageArguments
from infra.config.names import repository_uri
from infra.config.plan import Plan
from infra.operations import image as images
from tests.shipped import ROOT, plan_of

from .bed import Bed, synthesize

pytestmark = pytest.mark.emulator

MOERL = Path(sys.executable).parent / "moerl"
ENVIRONMENT = "starter-p5en"


def moerl(*arguments: str, variables: dict[str, str], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [str(MOERL), *arguments]
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)  # noqa: S603


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of(ENVIRONMENT)


@pytest.fixture(scope="module")
def bed(beds: Callable[[str], Bed], plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Bed:
    """The starter environment, deployed."""
    made = beds(plan.region)
    assembly = synthesize(plan, tmp_path_factory.mktemp("assembly"))
    made.bootstrap(plan, assembly)
    made.deploy(assembly)
    return made


def node_group(bed: Bed, pool: str) -> dict[str, Any]:
    eks = bed.client("eks")
    names = eks.list_nodegroups(clusterName=ENVIRONMENT)["nodegroups"]
    groups = [eks.describe_nodegroup(clusterName=ENVIRONMENT, nodegroupName=name)["nodegroup"] for name in names]
    (found,) = [group for group in groups if group["labels"]["moerl.io/pool"] == pool]
    return dict(found)


def scaling_group(bed: Bed, pool: str) -> dict[str, Any]:
    name = node_group(bed, pool)["resources"]["autoScalingGroups"][0]["name"]
    groups = bed.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    return dict(groups[0])


@pytest.fixture
def no_capacity(bed: Bed) -> Iterator[None]:
    """The rollout node group as EKS shows it when EC2 has nothing to give."""
    url = f"{bed.running.url}/_moerl/nodegroups/{ENVIRONMENT}/{node_group(bed, 'rollout')['nodegroupName']}/health"

    def ask(method: str) -> None:
        urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10).close()  # noqa: S310

    ask("POST")
    yield
    ask("DELETE")


@pytest.mark.parametrize("pool", ["rollout", "trainer", "environments"])
def test_tags_of_a_pool_arrive_at_its_scaling_group_beside_those_of_eks(pool: str, bed: Bed, plan: Plan) -> None:
    before = {tag["Key"]: tag["Value"] for tag in scaling_group(bed, pool)["Tags"]}
    done = moerl("pool", "tag", ENVIRONMENT, pool, "--json", variables=bed.variables)
    assert done.returncode == 0, done.stderr
    after = {tag["Key"]: (tag["Value"], tag["PropagateAtLaunch"]) for tag in scaling_group(bed, pool)["Tags"]}
    scaler, own = plan.pool(pool).scaler_tags, plan.tags
    assert {key: after[key] for key in scaler} == {key: (value, False) for key, value in scaler.items()}
    assert {key: after[key] for key in own} == {key: (value, True) for key, value in own.items()}
    assert {key: after[key][0] for key in before} == before
    assert set(after) == {*before, *scaler, *own}
    assert json.loads(done.stdout) == {
        "auto_scaling_group": scaling_group(bed, pool)["AutoScalingGroupName"],
        "tags": {**scaler, **own},
    }


def test_tagging_twice_changes_nothing(bed: Bed) -> None:
    def tagged() -> list[dict[str, Any]]:
        assert moerl("pool", "tag", ENVIRONMENT, "rollout", variables=bed.variables).returncode == 0
        return sorted(scaling_group(bed, "rollout")["Tags"], key=lambda tag: str(tag["Key"]))

    assert tagged() == tagged()


def scale(bed: Bed, pool: str, nodes: int) -> subprocess.CompletedProcess[str]:
    arguments = ("pool", "scale", ENVIRONMENT, pool, "--nodes", str(nodes), "--timeout-minutes", "0", "--json")
    return moerl(*arguments, variables=bed.variables)


@pytest.mark.usefixtures("no_capacity")
def test_a_pool_that_gets_no_capacity_is_sized_all_the_same_and_says_why_it_waits(bed: Bed) -> None:
    done = scale(bed, "rollout", 2)
    assert done.returncode == 3, done.stderr
    result = json.loads(done.stdout)
    assert (result["outcome"], result["wanted"], result["in_service"]) == ("timed-out", 2, 0)
    assert len(result["problems"]) == 1
    assert "InsufficientInstanceCapacity" in result["problems"][0]
    assert node_group(bed, "rollout")["scalingConfig"] == {"minSize": 0, "maxSize": 2, "desiredSize": 2}
    assert scaling_group(bed, "rollout")["DesiredCapacity"] == 2


def test_a_pool_goes_back_to_nothing(bed: Bed) -> None:
    assert scale(bed, "rollout", 1).returncode == 3, "the embedded AWS launches no instance"
    done = scale(bed, "rollout", 0)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["outcome"], result["problems"]) == ("reached", [])
    assert scaling_group(bed, "rollout")["DesiredCapacity"] == 0


def test_a_deploy_leaves_the_size_where_the_command_put_it(bed: Bed, plan: Plan, tmp_path: Path) -> None:
    scale(bed, "rollout", 2)
    bed.forget()
    bed.deploy(synthesize(plan, tmp_path / "assembly"))
    assert bed.operations() == []
    assert scaling_group(bed, "rollout")["DesiredCapacity"] == 2


@pytest.mark.parametrize(("pool", "nodes"), [("trainer", 1), ("rollout", 3)], ids=["fixed", "above its maximum"])
def test_a_size_that_the_file_does_not_allow_changes_nothing(pool: str, nodes: int, bed: Bed) -> None:
    before = node_group(bed, pool)["scalingConfig"]
    done = scale(bed, pool, nodes)
    assert done.returncode == 2
    assert json.loads(done.stdout)["outcome"] == "wrong input"
    assert node_group(bed, pool)["scalingConfig"] == before


def test_a_cluster_that_is_not_deployed_is_a_failure_in_one_line(bed: Bed) -> None:
    done = moerl("pool", "tag", "p6-b200", "rollout", variables=bed.variables)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("failed ")
    assert "No cluster found for name: p6-b200" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_lock_that_cannot_be_completed_writes_nothing(bed: Bed, tmp_path: Path) -> None:
    """The embedded AWS answers for add-ons, and has neither the public AMI parameters nor the kubectl bucket."""
    target = tmp_path / "x.lock.yaml"
    done = moerl("lock", ENVIRONMENT, "--out", str(target), variables=bed.variables)
    assert (done.returncode, done.stdout) == (1, "")
    *progress, last = done.stderr.splitlines()
    assert any(line.startswith("add-on coredns: v") for line in progress)
    assert "/aws/service/eks/optimized-ami/1.35/" in last
    assert not target.exists()


# --- moerl image


def test_an_image_is_not_built_here_and_the_command_says_so(bed: Bed) -> None:
    done = moerl("image", "build", "efa-gda", "--env", ENVIRONMENT, variables=bed.variables)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("not built here ")
    assert bed.client("codebuild").list_builds_for_project(projectName=f"{ENVIRONMENT}-image")["ids"] == []


def test_a_source_arrives_where_the_image_project_reads_it(bed: Bed, plan: Plan) -> None:
    arguments = ImageArguments(stack="efa-gda", arguments={"NCCL": "2.31.2"}, unresolved={})
    made = images.source(ROOT, arguments)
    images.upload(made, plan, s3=bed.client("s3"), report=lambda _: None)
    (project,) = bed.client("codebuild").batch_get_projects(names=[plan.names.image_project])["projects"]
    told = {one["name"]: one["value"] for one in project["environment"]["environmentVariables"]}
    stored = bed.client("s3").get_object(Bucket=told["SOURCE_BUCKET"], Key=made.key)["Body"].read()
    assert stored == made.packed.body
    repositories = bed.client("ecr").describe_repositories(repositoryNames=[told["REPOSITORY"]])["repositories"]
    assert repositories[0]["imageTagMutability"] == "IMMUTABLE"


def test_the_digest_is_printed_once_a_build_has_written_it(bed: Bed, plan: Plan) -> None:
    before = moerl("image", "digest", ENVIRONMENT, variables=bed.variables)
    assert (before.returncode, before.stdout) == (1, "")
    assert f"moerl image build efa-gda --env {ENVIRONMENT}" in before.stderr
    image = f"{repository_uri(plan.region, plan.account, plan.names.repository)}@sha256:{'a' * 64}"
    bed.client("ssm").put_parameter(Name=f"/moerl/{ENVIRONMENT}/image/efa-gda", Type="String", Value=image)
    done = moerl("image", "digest", ENVIRONMENT, variables=bed.variables)
    assert (done.returncode, done.stdout) == (0, f"{image}\n")


# --- moerl local


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_local_up_exports_a_shell_can_use_and_down_leaves_no_process(tmp_path: Path) -> None:
    variables = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    folder = ("--dir", str(tmp_path / "state"))
    up = moerl("local", "up", *folder, "--account", "111122223333", variables=variables)
    try:
        assert up.returncode == 0, up.stderr
        pid = json.loads((tmp_path / "state/emulator.json").read_text(encoding="utf-8"))["pid"]
        assert alive(pid)
        again = moerl("local", "up", *folder, variables=variables)
        assert again.returncode == 1
        assert "already runs here" in again.stderr
        script = (
            f'eval "$("{MOERL}" local status --export --dir "$1")" && exec "{sys.executable}" -c '
            '\'import boto3; print(boto3.client("sts").get_caller_identity()["Account"])\''
        )
        asked = subprocess.run(  # noqa: S603
            ["/bin/sh", "-c", script, "sh", folder[1]],
            cwd=ROOT,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert asked.stdout == "111122223333\n", asked.stderr
        status = json.loads(moerl("local", "status", *folder, "--json", variables=variables).stdout)
        assert status["running"] is True
        assert status["environment"]["AWS_ENDPOINT_URL"] == status["url"]
    finally:
        down = moerl("local", "down", *folder, variables=variables)
    assert (down.returncode, down.stdout) == (0, "stopped\n")
    assert not alive(pid)
    assert moerl("local", "status", *folder, variables=variables).returncode == 1
    assert moerl("local", "down", *folder, variables=variables).stdout == "nothing was running\n"
