from itertools import pairwise

import pytest

from infra.catalog.ami import (
    AMI_RELEASES,
    BAKED_GDRCOPY_KERNEL,
    DRIVER_TREES_SINCE,
    EFA_DRIVER_FOR_GDA,
    KERNELS,
    AmiType,
    newest_release,
    release_date,
)


def dotted(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_release_date_is_the_last_part_of_a_release_version() -> None:
    assert release_date("1.35.2-20261003") == "20261003"


@pytest.mark.parametrize(
    "release",
    [
        "",
        "20261003",
        "1.35-20261003",
        "1.35.2-2026100",
        "1.35.2-20261303",
        "1.35.2-20261003 ",
        "latest",
        "v1.35.2-20261003",
    ],
)
def test_anything_but_a_release_version_is_refused(release: str) -> None:
    with pytest.raises(ValueError, match="not of the form"):
        release_date(release)


def test_releases_are_in_order_and_drivers_never_go_back() -> None:
    assert list(AMI_RELEASES) == sorted(AMI_RELEASES)
    known = [release for release in AMI_RELEASES.values() if release.efa_driver and release.nvidia_driver]
    for before, after in pairwise(known):
        assert dotted(before.efa_driver or "") <= dotted(after.efa_driver or "")
        assert dotted(before.nvidia_driver or "") <= dotted(after.nvidia_driver or "")


def test_releases_with_the_panicking_kernel_carry_the_problem_and_its_fix() -> None:
    bad = {date for date, release in AMI_RELEASES.items() if release.problem}
    assert bad == {"20260930", "20261003"}
    for date in bad:
        assert "2845" in (AMI_RELEASES[date].problem or "")
        assert "20261012" in (AMI_RELEASES[date].problem or "")
    assert AMI_RELEASES["20261012"].problem is None


def test_no_release_with_known_packages_has_the_driver_that_gpu_direct_needs() -> None:
    # Those whose packages could not be read are unknown, which is not the same as new enough.
    for release in AMI_RELEASES.values():
        assert release.efa_driver is None or dotted(release.efa_driver) < dotted(EFA_DRIVER_FOR_GDA)


def test_a_release_with_two_drivers_is_never_given_one() -> None:
    since = [release for day, release in AMI_RELEASES.items() if day >= DRIVER_TREES_SINCE]
    assert {"20260917", "20260930", "20261003", "20261012"} <= {release.date for release in since}
    assert {release.nvidia_driver for release in since} == {None}


def test_the_baked_gdrcopy_builds_on_the_kernel_of_every_version() -> None:
    assert all(dotted(kernel) <= dotted(BAKED_GDRCOPY_KERNEL) for kernel in KERNELS.values())
    assert list(KERNELS.values()) == sorted(KERNELS.values(), key=dotted)


@pytest.mark.parametrize(
    ("ami_type", "variant"), [("AL2023_x86_64_NVIDIA", "nvidia"), ("AL2023_x86_64_STANDARD", "standard")]
)
def test_newest_release_is_looked_up_for_its_version_and_variant(ami_type: AmiType, variant: str) -> None:
    pin = newest_release("1.35", ami_type)
    assert f"/1.35/amazon-linux-2023/x86_64/{variant}/recommended/release_version" in pin.command


@pytest.mark.parametrize("ami_type", ["AL2_x86_64_GPU", "AL2_x86_64", "CUSTOM"])
def test_types_without_new_releases_have_none_to_look_up(ami_type: AmiType) -> None:
    with pytest.raises(ValueError, match=ami_type):
        newest_release("1.35", ami_type)
