"""The emulator refuses any ministack but the one it patches, and says what is wrong."""

from __future__ import annotations

import importlib.metadata
import types
from collections.abc import Callable

import pytest

from infra.local.emulator import guard


def _version(value: str) -> Callable[[str], str]:
    return lambda _name: value


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", _version("1.5.34"))
    with pytest.raises(guard.UnsuitableMinistack, match=r"ministack 1\.5\.34 is installed, .* exactly 1\.5\.33"):
        guard.check()


def test_no_ministack_at_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(guard.UnsuitableMinistack, match="ministack is not installed"):
        guard.check()


def test_a_missing_private_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", _version(guard.PINNED_VERSION))

    def modules(name: str) -> types.SimpleNamespace:
        names = {one: None for one in guard.HOOKS[name] if one != "_update_resource"}
        return types.SimpleNamespace(**names)

    monkeypatch.setattr(guard.importlib, "import_module", modules)
    with pytest.raises(guard.UnsuitableMinistack, match=r"lacks .*provisioners\._update_resource"):
        guard.check()
