"""Weights are written and read again many times over."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_power_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are killed here, machines are not: hundreds of directories need not reach the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
