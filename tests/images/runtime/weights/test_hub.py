"""The hub's token and client."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moerl_runtime.faults import RuntimeFault
from moerl_runtime.weights import hub
from moerl_runtime.weights.prepare import HUB_FILES


class Secrets:
    def __init__(self, text: str) -> None:
        self.text = text

    def get_secret_value(self, SecretId: str) -> dict[str, str]:
        assert SecretId == "arn:x"
        return {"SecretString": self.text}


def test_the_token_comes_from_the_secret_alone() -> None:
    assert hub.token_of(Secrets("hf_abc\n"), "arn:x") == "hf_abc"
    assert hub.token_of(None, None) is None
    for wrong in ("", "a b", '{"token": "x y"}'):
        with pytest.raises(RuntimeFault, match="is no plain token"):
            hub.token_of(Secrets(wrong), "arn:x")


def test_the_client_is_asked_for_one_commit_and_the_models_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    api = SimpleNamespace(model_info=lambda name: SimpleNamespace(sha=f"commit of {name}"))
    client = SimpleNamespace(
        HfApi=lambda token: asked.append(token) or api,
        snapshot_download=lambda name, **named: asked.append((name, named)),
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    there = hub.HuggingFace("hf_abc")
    assert there.revision("org/Tiny") == "commit of org/Tiny"
    there.download("org/Tiny", "c0ffee", tmp_path)
    named = {"revision": "c0ffee", "local_dir": tmp_path, "token": "hf_abc", "allow_patterns": list(HUB_FILES)}
    assert asked == ["hf_abc", ("org/Tiny", named)]


def test_an_image_without_the_client_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(RuntimeFault, match="is not installed"):
        hub.HuggingFace(None).revision("org/Tiny")
