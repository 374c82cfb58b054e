"""Looking up pins: what is taken, what contradicts itself, and that the written lock is read back as it was."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.catalog import CATALOG
from infra.catalog.facts import UnresolvedCommit, UnresolvedMerge
from infra.config.faults import EnvironmentFault
from infra.config.image_arguments import unresolved_arguments
from infra.config.loader import load
from infra.config.pins import Kubectl, Pins, load_pins
from infra.config.plan import Plan, build_plan
from infra.operations.lock import LockError, lock_text, newest_kubectl, resolve
from tests.shipped import unpinned_plan_of

from .registries import Registries, advertised, chart_manifest, manifest, packets, sha256, unreachable
from .scripted import refused, scripted

ROOT = Path(__file__).resolve().parents[3]
NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
DIGEST = "ab" * 32
IMAGE = manifest(manifests=[])
COMMIT = "cd" * 20


@pytest.fixture(scope="module")
def plan() -> Plan:
    return unpinned_plan_of("reference-p5en")


@dataclass
class Account:
    """What one account answers for Kubernetes 1.35."""

    releases: dict[str, str] = field(
        default_factory=lambda: {"nvidia": "1.35.2-20261015", "standard": "1.35.2-20261015"}
    )
    kubectl: tuple[str, ...] = ("1.35.9/2026-09-01", "1.35.10/2026-10-01", "1.35.10/2026-10-12", "1.35.2/2026-11-01")
    digest: str = f"{DIGEST}  kubectl\n"
    without: tuple[str, ...] = ()
    """Add-ons that EKS does not offer."""
    efa_plugin: tuple[str, ...] = (f"sha256:{DIGEST}",)
    """Digests that the registry of EKS has for the EFA plugin's tag."""
    registries: Registries = field(default_factory=lambda: all_registries())

    def __post_init__(self) -> None:
        self.eks, self.eks_calls = scripted("eks", {"DescribeAddonVersions": self._addon})
        self.ssm, _ = scripted("ssm", {"GetParameter": self._parameter})
        self.s3, self.s3_calls = scripted("s3", {"ListObjectsV2": self._list, "GetObject": self._get})
        self.ecr, self.ecr_calls = scripted("ecr", {"BatchGetImage": self._image})

    def _addon(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Newest first and default for one version alone, as EKS answers."""
        name = asked["addonName"]
        builds = [
            ("v1.9.0-eksbuild.2", "1.35", False),
            ("v1.8.0-eksbuild.1", "1.34", True),
            ("v1.8.3-eksbuild.4", "1.35", True),
        ]
        versions = [
            {
                "addonVersion": build,
                "compatibilities": [{"clusterVersion": version, "defaultVersion": default}],
            }
            for build, version, default in builds
        ]
        return {"addons": [] if name in self.without else [{"addonName": name, "addonVersions": versions}]}

    def _parameter(self, asked: dict[str, Any]) -> dict[str, Any]:
        _, _, _, _, _, version, system, arch, variant, *_ = asked["Name"].split("/")
        assert (version, system, arch) == ("1.35", "amazon-linux-2023", "x86_64")
        return {"Parameter": {"Name": asked["Name"], "Value": self.releases[variant]}}

    def _list(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Two pages, in the order of bytes, with what else lies beside a build."""
        assert asked["Bucket"] == "amazon-eks"
        names = ("bin/linux/amd64/kubectl", "bin/linux/amd64/kubectl.sha256", "bin/linux/arm64/kubectl")
        keys = sorted(f"{build}/{name}" for build in self.kubectl for name in names)
        keys = [key for key in keys if key.startswith(asked["Prefix"])]
        cut = len(keys) // 2
        if "ContinuationToken" in asked:
            return {"IsTruncated": False, "Contents": [{"Key": key} for key in keys[cut:]]}
        return {"IsTruncated": True, "NextContinuationToken": "2", "Contents": [{"Key": key} for key in keys[:cut]]}

    def _get(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert asked["Key"].endswith("/kubectl.sha256")
        return {"Body": io.BytesIO(self.digest.encode())}

    def _image(self, asked: dict[str, Any]) -> dict[str, Any]:
        images = [{"imageId": {"imageDigest": digest, **asked["imageIds"][0]}} for digest in self.efa_plugin]
        failures = [] if images else [{"failureCode": "ImageNotFound", "failureReason": "Requested image not found"}]
        return {"images": images, "failures": failures}

    def resolve(self, plan: Plan, *, embedded: bool = False) -> tuple[Pins, list[str]]:
        lines: list[str] = []
        pins = resolve(
            plan,
            CATALOG,
            eks=self.eks,
            ssm=self.ssm,
            s3=self.s3,
            ecr=self.ecr,
            fetch=self.registries.fetch,
            now=NOW,
            embedded=embedded,
            report=lines.append,
        )
        return pins, lines


def all_registries() -> Registries:
    """Every image, chart and open commit of the catalog, at the versions of Kubernetes 1.35; NVIDIA's want a token."""
    known = Registries(guarded=frozenset({"nvcr.io", "registry-1.docker.io"}))
    for stack in CATALOG.software.values():
        base = stack.base_image
        known.manifests[f"registry-1.{base.repository}:{base.tag}"] = IMAGE
        for pin in unresolved_arguments(stack, CATALOG.image_sources[stack.name]).values():
            if isinstance(pin, UnresolvedCommit):
                page = f"{pin.repository}.git/info/refs?service=git-upload-pack"
                known.pages[page] = known.pages.get(page, advertised({}))[:-4] + packets({pin.ref: COMMIT}) + b"0000"
            elif isinstance(pin, UnresolvedMerge):
                page = f"https://api.github.com/repos/{pin.repository}/pulls/{pin.number}"
                known.pages[page] = json.dumps({"merged": True, "merge_commit_sha": COMMIT}).encode()
    for image in CATALOG.images.values():
        if not image.in_eks_registry:
            known.manifests[f"{image.repository}:{image.tag_for('1.35')}"] = IMAGE
    for chart in CATALOG.controllers.values():
        if chart.repository.startswith("oci://"):
            name = f"{chart.repository.removeprefix('oci://')}/{chart.chart}:{chart.version}"
            known.manifests[name] = chart_manifest(f"sha256:{DIGEST}")
        else:
            index = known.indexes.setdefault(f"{chart.repository.rstrip('/')}/index.yaml", {"entries": {}})
            index["entries"][chart.chart] = [{"version": chart.version, "digest": DIGEST}]
    return known


def test_every_open_build_argument_of_the_plans_stack_is_looked_up(plan: Plan) -> None:
    pins, lines = Account().resolve(plan)
    open_ones = unresolved_arguments(CATALOG.software[plan.software], CATALOG.image_sources[plan.software])
    assert len(open_ones) >= 3
    wanted = {name: f"sha256:{sha256(IMAGE)}" if name == "BASE_DIGEST" else COMMIT for name in open_ones}
    assert pins.build == {plan.software: wanted}
    assert all(any(line.startswith(f"build argument {name}: ") for line in lines) for name in open_ones)


def test_a_build_argument_that_cannot_be_had_stays_open_and_is_said(plan: Plan) -> None:
    account = Account()
    pin = unresolved_arguments(CATALOG.software[plan.software], CATALOG.image_sources[plan.software])["SGLANG_REF"]
    assert isinstance(pin, UnresolvedCommit)
    account.registries.pages[f"{pin.repository}.git/info/refs?service=git-upload-pack"] = advertised({"HEAD": COMMIT})
    pins, lines = account.resolve(plan)
    assert "SGLANG_REF" not in pins.build[plan.software]
    assert "FRAMEWORK_REF" in pins.build[plan.software]
    (warning,) = [line for line in lines if line.startswith("warning: build argument SGLANG_REF")]
    assert pin.ref in warning
    assert pin.command in warning


def test_every_unresolved_pin_of_a_plan_is_looked_up(plan: Plan) -> None:
    account = Account()
    pins, lines = account.resolve(plan)
    assert pins.addons == dict.fromkeys([addon.name for addon in plan.addons], "v1.8.3-eksbuild.4")
    assert pins.node_release == "1.35.2-20261015"
    assert pins.kubectl == Kubectl(key="1.35.10/2026-10-12/bin/linux/amd64/kubectl", sha256=DIGEST)
    assert (pins.kubernetes_version, pins.resolved_at, pins.fixture) == ("1.35", NOW, False)
    assert {asked["kubernetesVersion"] for _, asked in account.eks_calls} == {"1.35"}
    loaded = load(ROOT / "environments/reference-p5en.yaml", pins=pins)
    assert build_plan(loaded.environment, pins).unresolved == ()
    for name in (*pins.addons, *pins.images, *pins.charts):
        assert any(name in line for line in lines)
    assert pins.charts == dict.fromkeys(plan.charts, DIGEST)
    assert pins.images == dict.fromkeys(CATALOG.images, f"sha256:{sha256(IMAGE)}") | {
        "efa-device-plugin": f"sha256:{DIGEST}"
    }


def test_the_efa_plugin_is_asked_of_the_registry_of_eks_in_the_plans_region(plan: Plan) -> None:
    account = Account()
    account.resolve(plan)
    ((_, asked),) = account.ecr_calls
    assert (asked["registryId"], asked["repositoryName"]) == ("602401143452", "eks/aws-efa-k8s-device-plugin")
    assert asked["imageIds"] == [{"imageTag": "v0.5.20"}]
    assert asked["acceptedMediaTypes"][0] == "application/vnd.oci.image.index.v1+json"


@pytest.mark.parametrize("found", [(), (f"sha256:{DIGEST}", f"sha256:{'cd' * 32}")], ids=["none", "two"])
def test_an_efa_plugin_that_is_not_one_image_is_refused(found: tuple[str, ...], plan: Plan) -> None:
    with pytest.raises(LockError, match=r"eks/aws-efa-k8s-device-plugin:v0\.5\.20 is not one image"):
        Account(efa_plugin=found).resolve(plan)


def test_a_registry_that_cannot_be_reached_is_a_lock_error(plan: Plan) -> None:
    account = Account()
    account.registries.fetch = unreachable  # type: ignore[method-assign]
    with pytest.raises(LockError, match=r"nvcr\.io cannot be reached"):
        account.resolve(plan)


def test_an_image_of_the_catalog_that_its_registry_lacks_is_refused(plan: Plan) -> None:
    account = Account()
    del account.registries.manifests["registry.k8s.io/kueue/kueue:v0.17.0"]
    with pytest.raises(LockError, match=r"kueue/kueue/manifests/v0\.17\.0 answered 404"):
        account.resolve(plan)


def test_add_ons_that_the_environment_does_not_use_are_not_looked_up() -> None:
    nvme, fsx = Account(), Account()
    assert "aws-fsx-csi-driver" not in nvme.resolve(unpinned_plan_of("starter-p5en"))[0].addons
    assert "aws-fsx-csi-driver" in fsx.resolve(unpinned_plan_of("reference-p5en"))[0].addons


def test_an_emulators_answers_are_marked_as_made_up(plan: Plan) -> None:
    pins, _ = Account().resolve(plan, embedded=True)
    assert pins.fixture is True
    assert "# FIXTURE" in lock_text("x", pins)


def test_gpu_and_cpu_images_of_different_releases_are_refused(plan: Plan) -> None:
    account = Account(releases={"nvidia": "1.35.2-20261001", "standard": "1.35.2-20261015"})
    with pytest.raises(LockError, match=r"nvidia 1\.35\.2-20261001, standard 1\.35\.2-20261015.*run again"):
        account.resolve(plan)


def test_an_add_on_that_eks_does_not_offer_is_refused_by_name(plan: Plan) -> None:
    with pytest.raises(LockError, match=r"no default version of add-on coredns for Kubernetes 1\.35"):
        Account(without=("coredns",)).resolve(plan)


def test_a_version_without_a_kubectl_build_is_refused(plan: Plan) -> None:
    with pytest.raises(LockError, match=r"s3://amazon-eks has no kubectl build for Kubernetes 1\.35"):
        Account(kubectl=("1.3.5/2026-10-01", "1.350.1/2026-10-01")).resolve(plan)


@pytest.mark.parametrize(
    "account",
    [Account(digest=""), Account(digest="<html>"), Account(releases={"nvidia": "latest", "standard": "latest"})],
    ids=["empty digest", "not a digest", "not a release"],
)
def test_an_answer_that_no_lock_can_hold_is_a_lock_error(account: Account, plan: Plan) -> None:
    with pytest.raises(LockError):
        account.resolve(plan)


def test_a_refusal_by_aws_is_passed_on(plan: Plan) -> None:
    account = Account()

    def deny(_: dict[str, Any]) -> dict[str, Any]:
        raise refused("GetParameter", "AccessDeniedException", "not allowed")

    account.ssm, _ = scripted("ssm", {"GetParameter": deny})
    with pytest.raises(ClientError, match="not allowed"):
        account.resolve(plan)


def test_a_release_with_a_known_problem_is_announced(plan: Plan) -> None:
    day = next(day for day, release in CATALOG.ami_releases.items() if release.problem)
    release = f"1.35.2-{day}"
    _, lines = Account(releases={"nvidia": release, "standard": release}).resolve(plan)
    assert [line for line in lines if line.startswith("warning: ") and "node_release" in line]


BUCKET = Account()
DAYS = st.dates(date(2025, 1, 1), date(2026, 12, 31))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), DAYS), min_size=1))
def test_the_newest_kubectl_is_the_greatest_number_then_the_latest_day(builds: list[tuple[int, date]]) -> None:
    patch, day = max(builds)
    BUCKET.kubectl = tuple(f"1.35.{number}/{when:%Y-%m-%d}" for number, when in builds)
    found = newest_kubectl(BUCKET.s3, "1.35")
    assert found.key == f"1.35.{patch}/{day:%Y-%m-%d}/bin/linux/amd64/kubectl"
    assert BUCKET.s3_calls[-1] == ("GetObject", {"Bucket": "amazon-eks", "Key": f"{found.key}.sha256"})


def test_a_written_lock_is_read_back_as_it_was(plan: Plan, tmp_path: Path) -> None:
    pins, _ = Account().resolve(plan)
    path = tmp_path / "x.lock.yaml"
    path.write_text(lock_text("x", pins), encoding="utf-8")
    assert load_pins(path) == pins
    assert "moerl lock x" in path.read_text(encoding="utf-8").splitlines()[0]


def test_a_lock_for_another_minor_version_is_refused(plan: Plan, tmp_path: Path) -> None:
    pins, _ = Account().resolve(plan)
    text = (ROOT / "environments/reference-p5en.yaml").read_text(encoding="utf-8")
    path = tmp_path / "moved.yaml"
    path.write_text(text.replace('version: "1.35"', 'version: "1.34"'), encoding="utf-8")
    path.with_suffix(".lock.yaml").write_text(lock_text("moved", pins), encoding="utf-8")
    with pytest.raises(EnvironmentFault) as refusal:
        load(path)
    faults = [finding for finding in refusal.value.findings if finding.severity == "fault"]
    assert [fault.rule for fault in faults] == ["software.pins-version"]
    assert "moerl lock" in faults[0].fix
