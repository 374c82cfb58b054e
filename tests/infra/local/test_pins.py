"""Made-up pins: complete for every shipped environment and always marked."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.catalog import CATALOG
from infra.config.loader import load
from infra.config.pins import load_pins
from infra.config.plan import build_plan
from infra.local.pins import fixture_pins
from infra.operations.lock import lock_text

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = sorted(path for path in (ROOT / "environments").glob("*.yaml") if not path.stem.endswith(".lock"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_they_resolve_everything_and_mark_the_plan(path: Path) -> None:
    version = load(path).environment.kubernetes.version
    loaded = load(path, pins=fixture_pins(version))
    plan = build_plan(loaded.environment, loaded.pins)
    assert plan.unresolved == ()
    assert plan.fixture_pins is True


@pytest.mark.parametrize("version", sorted(CATALOG.kubernetes_versions))
def test_a_lock_file_keeps_the_mark(version: str, tmp_path: Path) -> None:
    pins = fixture_pins(version)
    path = tmp_path / "x.lock.yaml"
    path.write_text(lock_text("x", pins), encoding="utf-8")
    assert load_pins(path) == pins
    assert load_pins(path).fixture is True
    assert "only the embedded aws accepts them" in path.read_text(encoding="utf-8").lower()


def test_no_value_could_be_a_real_one() -> None:
    pins = fixture_pins("1.35")
    assert pins.kubectl is not None
    assert set(pins.kubectl.sha256) == {"0"}
    assert set(pins.addons.values()) == {"v0.0.1-eksbuild.1"}
    assert pins.node_release is not None
    assert pins.node_release.startswith("1.35.99-")


def test_no_shipped_lock_is_a_fixture() -> None:
    for lock in (ROOT / "environments").glob("*.lock.yaml"):
        assert load_pins(lock).fixture is False
