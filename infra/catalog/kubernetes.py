"""EKS Kubernetes versions and their support dates."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import Literal

from infra.catalog.facts import Source

_CALENDAR = Source(
    title="Amazon EKS user guide, Kubernetes release calendar (up to 1.34)",
    url="https://github.com/awsdocs/amazon-eks-user-guide/blob/013856044148d6eeed4723027a45aa2180536bcb/latest/ug/versioning/kubernetes-versions.adoc",
    as_of=date(2025, 11, 26),
)
_END_OF_LIFE = Source(
    title="endoflife.date, Amazon EKS (which restates the EKS release calendar)",
    url="https://endoflife.date/amazon-eks",
    as_of=date(2026, 8, 22),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesVersion:
    """One minor version as EKS offers it. That kind of support ends when its `until` day begins, in UTC."""

    version: str
    released: date
    standard_until: date
    extended_until: date
    source: Source


# 1.37 is left out: its node images exist since October 2026, but no source read gives its general-availability date.
KUBERNETES_VERSIONS: Mapping[str, KubernetesVersion] = MappingProxyType(
    {
        entry.version: entry
        for entry in (
            KubernetesVersion(
                version="1.31",
                released=date(2024, 9, 26),
                standard_until=date(2025, 11, 26),
                extended_until=date(2026, 11, 26),
                source=_CALENDAR,
            ),
            KubernetesVersion(
                version="1.32",
                released=date(2025, 1, 23),
                standard_until=date(2026, 3, 23),
                extended_until=date(2027, 3, 23),
                source=_CALENDAR,
            ),
            KubernetesVersion(
                version="1.33",
                released=date(2025, 5, 29),
                standard_until=date(2026, 7, 29),
                extended_until=date(2027, 7, 29),
                source=_CALENDAR,
            ),
            KubernetesVersion(
                version="1.34",
                released=date(2025, 10, 2),
                standard_until=date(2026, 12, 2),
                extended_until=date(2027, 12, 2),
                source=_CALENDAR,
            ),
            KubernetesVersion(
                version="1.35",
                released=date(2026, 1, 28),
                standard_until=date(2027, 3, 27),
                extended_until=date(2028, 3, 27),
                source=_END_OF_LIFE,
            ),
            KubernetesVersion(
                version="1.36",
                released=date(2026, 6, 2),
                standard_until=date(2027, 8, 2),
                extended_until=date(2028, 8, 2),
                source=_END_OF_LIFE,
            ),
        )
    }
)

FLOOR = "1.31"
"""The oldest version this package accepts; one past its end on the catalog date is accepted with a warning."""

DEFAULT = "1.35"

EXTENDED_SUPPORT_USD_PER_HOUR = 0.50
"""Added per cluster-hour, on top of the standard price, in extended support."""

EXTENDED_SUPPORT_SOURCE = Source(
    title="Amazon EKS pricing: extended support is 0.60 USD per cluster-hour against 0.10 USD",
    url="https://aws.amazon.com/eks/pricing/",
    as_of=date(2026, 8, 22),
)


def support(version: KubernetesVersion, on: date) -> Literal["standard", "extended", "ended"]:
    """Which support a version has on a day, in UTC.

    The day itself that ends standard support is billed as extended (EKS guide, release calendar).
    """
    if on < version.standard_until:
        return "standard"
    return "extended" if on < version.extended_until else "ended"
