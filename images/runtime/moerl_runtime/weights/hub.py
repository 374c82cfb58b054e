"""The Hugging Face hub, through the client that the image has."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from moerl_runtime.faults import RuntimeFault
from moerl_runtime.weights.prepare import HUB_FILES


class HuggingFace:
    """A hub with a token, or None for public models."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def revision(self, name: str) -> str:
        return str(_client().HfApi(token=self._token).model_info(name).sha)

    def download(self, name: str, revision: str, directory: Path) -> None:
        _client().snapshot_download(
            name, revision=revision, local_dir=directory, token=self._token, allow_patterns=list(HUB_FILES)
        )


def token_of(secrets: Any, arn: str | None) -> str | None:
    """The hub's token out of Secrets Manager; None where the environment names no secret."""
    if arn is None:
        return None
    found = str(secrets.get_secret_value(SecretId=arn)["SecretString"]).strip()
    if not found or any(sign.isspace() for sign in found):
        raise RuntimeFault("hub_token_secret_arn", arn, "is no plain token", "Store the token itself as the secret.")
    return found


def _client() -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise RuntimeFault(
            "huggingface_hub", None, "is not installed", "Run `weights prepare` in the run's image."
        ) from error
