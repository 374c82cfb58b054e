"""A lock file is read whole or refused; what it lacks stays unresolved."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from infra.config.faults import EnvironmentFault
from infra.config.pins import UNRESOLVED, Pins, load_pins, pins_path

LOCK = {
    "resolved_at": "2026-11-29T10:00:00Z",
    "kubernetes_version": "1.35",
    "node_release": "1.35.2-20261012",
    "addons": {"vpc-cni": "v1.21.0-eksbuild.4", "coredns": "v1.13.1-eksbuild.12"},
    "kubectl": {"key": "1.35.2/2026-10-12/bin/linux/amd64/kubectl", "sha256": "ab" * 32},
}


def lock(folder: Path, document: object) -> Path:
    path = folder / "x.lock.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document), encoding="utf-8")
    return path


def test_lock_stands_beside_the_file() -> None:
    assert pins_path(Path("environments/p5.yaml")) == Path("environments/p5.lock.yaml")


def test_no_lock_means_nothing_is_resolved(tmp_path) -> None:
    assert load_pins(tmp_path / "none.lock.yaml") == UNRESOLVED == Pins()
    assert load_pins(lock(tmp_path, "")) == UNRESOLVED
    assert not UNRESOLVED.fixture
    assert (UNRESOLVED.node_release, UNRESOLVED.kubectl, dict(UNRESOLVED.addons)) == (None, None, {})


def test_every_pin_of_a_lock_is_read(tmp_path) -> None:
    pins = load_pins(lock(tmp_path, LOCK))
    assert pins.node_release == "1.35.2-20261012"
    assert pins.addons == LOCK["addons"]
    assert pins.kubectl is not None
    assert pins.kubectl.sha256 == "ab" * 32
    assert pins.kubernetes_version == "1.35"
    assert load_pins(lock(tmp_path, pins.model_dump(mode="json"))) == pins


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        ("node_release", "latest", "node_release"),
        ("node_release", "1.35.2-20261340", "node_release"),
        ("addons", {"vpc-cni": "latest"}, "addons.vpc-cni"),
        ("addons", {"vpc-cni": "v1.21.0"}, "addons.vpc-cni"),
        ("kubectl", {"key": "../../kubectl", "sha256": "ab" * 32}, "kubectl.key"),
        ("kubectl", {"key": "1.35.2/2026-10-12/bin/linux/amd64/kubectl", "sha256": "AB" * 32}, "kubectl.sha256"),
        ("kubectl", {"key": "1.35.2/2026-10-12/bin/linux/amd64/kubectl"}, "kubectl.sha256"),
        ("resolved_at", "2026-11-29T10:00:00", "resolved_at"),
        ("images", {"kueue": "v0.17.0"}, "images.kueue"),
        ("images", {"kueue": "ab" * 32}, "images.kueue"),
        ("charts", {"kueue": "sha256:" + "ab" * 32}, "charts.kueue"),
        ("surprise", 1, "surprise"),
    ],
)
def test_a_lock_of_another_form_is_refused_at_its_key(key, value, where, tmp_path) -> None:
    path = lock(tmp_path, LOCK | {key: value})
    with pytest.raises(EnvironmentFault) as refused:
        load_pins(path)
    (found,) = refused.value.findings
    assert (found.rule, found.key, refused.value.path) == ("file.lock", where, str(path))
    assert "`moerl lock ENV`" in found.fix


@pytest.mark.parametrize(
    "text",
    [
        "a: [1\n",
        "node_release: !!python/object/apply:builtins.str ['1.35.2-20261012']\n",
        "- a\n",
        "words\n",
    ],
)
def test_a_lock_that_is_no_mapping_is_refused_and_no_tag_is_loaded(text, tmp_path) -> None:
    with pytest.raises(EnvironmentFault, match="does not fit a lock file"):
        load_pins(lock(tmp_path, text))


def test_everything_that_is_wrong_in_a_lock_comes_at_once_on_its_line(tmp_path) -> None:
    path = lock(tmp_path, "node_release: latest\nimages: {kueue: v1}\nsurprise:\n  a: 1\nsurprise: 2\n")
    with pytest.raises(EnvironmentFault) as refused:
        load_pins(path)
    assert {(found.rule, found.key, found.line) for found in refused.value.findings} == {
        ("file.lock", "node_release", 1),
        ("file.lock", "images.kueue", 2),
        ("file.lock", "surprise", 5),
        ("file.duplicate-key", "surprise", 5),
    }
    assert "an image digest, sha256: and 64 hex digits" in str(refused.value)
    assert "pattern" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"[1]\n", "[1]"),
        (b"a: \xff\n", "not UTF-8"),
        (b"[" * 3000, "deep"),
        (b"a: [1\n", "expected ',' or ']'"),
        (b"{'a': {'b': 2}}\n", "a mapping"),
    ],
)
def test_a_lock_of_any_content_is_refused_in_one_line_with_a_key(content, value, tmp_path) -> None:
    path = tmp_path / "x.lock.yaml"
    path.write_bytes(content)
    with pytest.raises(EnvironmentFault) as refused:
        load_pins(path)
    (found,) = refused.value.findings
    assert found.key
    assert value in found.document()["value"]
    assert "unicode string" not in found.text("x")
    assert "\\n" not in found.text("x")


def test_a_lock_that_may_not_be_read_is_refused(tmp_path, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    path = lock(tmp_path, LOCK)
    monkeypatch.setattr(Path, "read_text", fail)
    with pytest.raises(EnvironmentFault, match="Permission denied, it cannot be read"):
        load_pins(path)
