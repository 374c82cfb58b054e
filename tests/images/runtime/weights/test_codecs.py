"""Packages of Miles' deltas are named where they are missing, and say what Miles says."""

from __future__ import annotations

import pytest
import xxhash

from moerl_runtime.faults import RuntimeFault
from moerl_runtime.weights import codecs


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("moerl_runtime.weights.codecs.importlib.import_module", missing)
    with pytest.raises(RuntimeFault, match="Add xxhash to the image"):
        codecs.checksum("xxh3-128", b"")


def test_the_checksum_of_the_run_is_known_where_its_package_is() -> None:
    assert codecs.checksum("xxh3-128", b"moerl") == xxhash.xxh3_128(b"moerl").hexdigest()
