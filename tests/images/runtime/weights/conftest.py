"""Deltas are tested with the zstandard that is installed, and with a stand-in where none is."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest

from . import zstandard_standin


@pytest.fixture(autouse=True)
def _zstandard(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("zstandard") is None:
        monkeypatch.setitem(sys.modules, "zstandard", zstandard_standin)


@pytest.fixture(autouse=True)
def _no_power_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are killed here, machines are not: hundreds of directories need not reach the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
