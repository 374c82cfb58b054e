"""The model behind the local engine, as the engine sees it; and one that follows a script instead of weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from moerl_runtime.smoke.engine_request import Sampling

WEIGHTS = "*.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a batch, before its next token."""

    rid: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    sampling: Sampling


class Stepper(Protocol):
    """Called by the engine's scheduler thread alone."""

    eos: int

    def encode(self, text: str) -> tuple[int, ...]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def step(self, batch: Sequence[Turn]) -> list[tuple[int, float]]:
        """The next token of each request and its log-probability."""
        ...

    def load(self, path: Path) -> None:
        """Takes over the weights of a directory, tensor by tensor. What was read before a failure stays."""
        ...

    def checksum(self) -> str:
        """Differs between weights that differ."""
        ...

    def weights(self, name: str) -> list[float]:
        """The values of a tensor, flat. Raises KeyError for a name that is none."""
        ...


Script = Callable[[Turn], tuple[int, float]]


def echo(answer_tokens: int | None = None) -> Script:
    """The answer repeats the prompt, once or until it has `answer_tokens` tokens, then ends."""

    def script(turn: Turn) -> tuple[int, float]:
        position = len(turn.answer)
        if position >= (len(turn.prompt) if answer_tokens is None else answer_tokens):
            return ScriptedStepper.eos, -0.01
        return turn.prompt[position % len(turn.prompt)], -0.1

    return script


class ScriptedStepper:
    """Tokens are bytes, and `script` says which comes next. Weights are the files of the directory loaded last."""

    eos = 256

    def __init__(self, script: Script | None = None) -> None:
        self._script = script or echo()
        self._files: dict[str, bytes] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < self.eos).decode(errors="replace")

    def step(self, batch: Sequence[Turn]) -> list[tuple[int, float]]:
        return [self._script(turn) for turn in batch]

    def load(self, path: Path) -> None:
        files = sorted(path.glob(WEIGHTS))
        if not files:
            raise FileNotFoundError(f"no {WEIGHTS} in {path}")
        for file in files:
            content = file.read_bytes()
            if not content:
                raise ValueError(f"{file.name} is empty")
            self._files[file.name] = content

    def checksum(self) -> str:
        whole = hashlib.sha256()
        for name, content in sorted(self._files.items()):
            whole.update(name.encode() + b"\0" + content)
        return whole.hexdigest()

    def weights(self, name: str) -> list[float]:
        return [float(byte) for byte in self._files[name]]
