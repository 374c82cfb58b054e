"""Made-up pins for the embedded AWS and for tests. Each is marked, and nothing but the embedded AWS accepts them."""

from __future__ import annotations

from infra.catalog import CATALOG
from infra.config.pins import Kubectl, Pins

FIXTURE_RELEASE_DATE = "20261012"
FIXTURE_ADDON_VERSION = "v0.0.1-eksbuild.1"
FIXTURE_SHA256 = "0" * 64


def fixture_image(account: str, region: str) -> str:
    """A reference of the run's image that no registry holds."""
    return f"{account}.dkr.ecr.{region}.amazonaws.com/fixture@sha256:{FIXTURE_SHA256}"


def fixture_pins(kubernetes_version: str) -> Pins:
    """A complete set of pins whose values no AWS account knows."""
    return Pins(
        fixture=True,
        kubernetes_version=kubernetes_version,
        node_release=f"{kubernetes_version}.99-{FIXTURE_RELEASE_DATE}",
        addons=dict.fromkeys(CATALOG.addons, FIXTURE_ADDON_VERSION),
        kubectl=Kubectl(key=f"{kubernetes_version}.99/2026-10-12/bin/linux/amd64/kubectl", sha256=FIXTURE_SHA256),
        images=dict.fromkeys(CATALOG.images, f"sha256:{FIXTURE_SHA256}"),
        charts={name: FIXTURE_SHA256 for name, controller in CATALOG.controllers.items() if controller.helm},
    )
