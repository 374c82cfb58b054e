"""Dated facts with their source: what the package knows of AWS and of the software it deploys, and from when.

Nothing here is computed from an environment, and nothing here reads an account. A fact that cannot be known offline
is an `Unresolved` with the command that resolves it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from infra.catalog.addons import ADDONS, Addon
from infra.catalog.ami import AMI_RELEASES, AmiRelease
from infra.catalog.controllers import CONTROLLERS, Controller
from infra.catalog.daemonsets import DAEMONSETS, DaemonSet
from infra.catalog.facts import AS_OF, Pin, Source, Unresolved
from infra.catalog.image_sources import IMAGE_SOURCES, ImageSources
from infra.catalog.images import IMAGES, ContainerImage
from infra.catalog.instances import INSTANCES, InstanceType
from infra.catalog.kubernetes import KUBERNETES_VERSIONS, KubernetesVersion
from infra.catalog.models import MODELS, Model
from infra.catalog.prices import PRICES, Price
from infra.catalog.regions import REGIONS, Region
from infra.catalog.software import SOFTWARE, Software, SoftwareStack

__all__ = ["AS_OF", "CATALOG", "Catalog", "Pin", "Software", "Source", "Unresolved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All tables together, so that a test can hand a plan a changed one (`dataclasses.replace`)."""

    as_of: date
    regions: Mapping[str, Region]
    instances: Mapping[str, InstanceType]
    kubernetes_versions: Mapping[str, KubernetesVersion]
    ami_releases: Mapping[str, AmiRelease]
    software: Mapping[Software, SoftwareStack]
    image_sources: Mapping[Software, ImageSources]
    addons: Mapping[str, Addon]
    controllers: Mapping[str, Controller]
    images: Mapping[str, ContainerImage]
    models: Mapping[str, Model]
    prices: tuple[Price, ...]
    daemonsets: tuple[DaemonSet, ...]


CATALOG = Catalog(
    as_of=AS_OF,
    regions=REGIONS,
    instances=INSTANCES,
    kubernetes_versions=KUBERNETES_VERSIONS,
    ami_releases=AMI_RELEASES,
    software=SOFTWARE,
    image_sources=IMAGE_SOURCES,
    addons=ADDONS,
    controllers=CONTROLLERS,
    images=IMAGES,
    models=MODELS,
    prices=PRICES,
    daemonsets=DAEMONSETS,
)
