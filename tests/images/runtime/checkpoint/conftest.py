"""No test here cuts the power, and a disk's own flush takes longer than everything else."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
