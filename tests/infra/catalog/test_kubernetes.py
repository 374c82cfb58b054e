from datetime import date, timedelta

import pytest

from infra.catalog.facts import AS_OF
from infra.catalog.kubernetes import DEFAULT, FLOOR, KUBERNETES_VERSIONS, KubernetesVersion, support


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("1.31", "ended"),
        ("1.32", "extended"),
        ("1.33", "extended"),
        ("1.34", "standard"),
        ("1.35", "standard"),
        ("1.36", "standard"),
    ],
)
def test_support_on_the_catalog_date(version: str, state: str) -> None:
    assert support(KUBERNETES_VERSIONS[version], AS_OF) == state


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS.values(), ids=KUBERNETES_VERSIONS)
def test_a_kind_of_support_ends_when_its_day_begins(version: KubernetesVersion) -> None:
    day = timedelta(days=1)
    assert support(version, version.standard_until - day) == "standard"
    assert support(version, version.standard_until) == "extended"
    assert support(version, version.extended_until - day) == "extended"
    assert support(version, version.extended_until) == "ended"


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS.values(), ids=KUBERNETES_VERSIONS)
def test_standard_support_is_about_14_months_and_extended_one_year_more(version: KubernetesVersion) -> None:
    assert 400 < (version.standard_until - version.released).days < 440
    assert version.extended_until == version.standard_until.replace(year=version.standard_until.year + 1)


def test_versions_are_consecutive_from_the_floor_and_released_in_order() -> None:
    versions = list(KUBERNETES_VERSIONS.values())
    assert [entry.version for entry in versions] == [f"1.{minor}" for minor in range(31, 37)]
    assert versions[0].version == FLOOR
    assert [entry.released for entry in versions] == sorted(entry.released for entry in versions)
    assert versions[-1].released < AS_OF


def test_default_version_is_in_standard_support() -> None:
    assert support(KUBERNETES_VERSIONS[DEFAULT], AS_OF) == "standard"
    assert KUBERNETES_VERSIONS[DEFAULT].standard_until > date(2027, 1, 1)
