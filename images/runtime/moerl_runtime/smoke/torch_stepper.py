"""The tiny model behind the local engine. Every step runs the whole sequences: with so few tokens there is nothing to cache."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from moerl_runtime.faults import RuntimeFault
from moerl_runtime.smoke import model_files, task
from moerl_runtime.smoke.dispatch import Alone
from moerl_runtime.smoke.engine_request import Sampling
from moerl_runtime.smoke.model import TinyMoe
from moerl_runtime.smoke.stepper import Turn


class TorchStepper:
    """Samples are those of `seed`, of each request's own where it brings one."""

    eos = task.END

    def __init__(self, base: Path, *, seed: int) -> None:
        torch.set_num_threads(1)
        self._model = TinyMoe(model_files.read_shape(base), Alone())
        self._chance = torch.Generator().manual_seed(seed)
        self.load(base)

    def encode(self, text: str) -> tuple[int, ...]:
        return task.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return task.decode(tokens)

    def step(self, batch: Sequence[Turn]) -> list[tuple[int, float]]:
        sequences = [[*turn.prompt, *turn.answer] for turn in batch]
        length = max(len(sequence) for sequence in sequences)
        tokens = torch.zeros(len(batch), length, dtype=torch.long)
        real = torch.zeros(len(batch), length, dtype=torch.bool)
        for row, sequence in enumerate(sequences):
            tokens[row, : len(sequence)] = torch.tensor(sequence)
            real[row, : len(sequence)] = True
        with torch.inference_mode():
            log_probs, _ = self._model(tokens, real)
        return [
            self._choose(log_probs[row, len(sequence) - 1], turn)
            for row, (sequence, turn) in enumerate(zip(sequences, batch, strict=True))
        ]

    def load(self, path: Path) -> None:
        """Tensor by tensor, into place, as SGLang does: a failure leaves a mixture."""
        own = self._model.state_dict()
        try:
            for name, tensor in model_files.tensors(path):
                own[name].copy_(tensor)
        except (RuntimeFault, RuntimeError) as error:
            raise ValueError(str(error)) from error

    def checksum(self) -> str:
        whole = hashlib.sha256()
        for name, tensor in sorted(self._model.state_dict().items()):
            whole.update(name.encode() + tensor.contiguous().numpy().tobytes())
        return whole.hexdigest()

    def weights(self, name: str) -> list[float]:
        values: list[float] = self._model.state_dict()[name].flatten().tolist()
        return values

    def _choose(self, log_probs: Tensor, turn: Turn) -> tuple[int, float]:
        """The log-probability is that of the distribution which was sampled from."""
        sampled = _shaped(log_probs, turn.sampling)
        if turn.sampling.temperature == 0:
            token = int(sampled.argmax())
        elif turn.sampling.seed is None:
            token = int(torch.multinomial(sampled.exp(), 1, generator=self._chance))
        else:
            # A step of its own for every place, as SGLang's seeded sampling has.
            own = torch.Generator().manual_seed(turn.sampling.seed * 1_000_003 + len(turn.answer))
            token = int(torch.multinomial(sampled.exp(), 1, generator=own))
        return token, float(sampled[token])


def _shaped(log_probs: Tensor, sampling: Sampling) -> Tensor:
    """After temperature, top_k, top_p and min_p, normalised again."""
    if sampling.temperature > 0:
        log_probs = torch.log_softmax(log_probs / sampling.temperature, dim=-1)
    ordered, order = log_probs.sort(descending=True)
    share = ordered.exp()
    kept = share.cumsum(0) - share < sampling.top_p
    kept &= share >= sampling.min_p * share[0]
    if sampling.top_k > 0:
        kept &= torch.arange(len(kept)) < sampling.top_k
    masked = torch.full_like(log_probs, float("-inf")).index_copy(0, order[kept], ordered[kept])
    return torch.log_softmax(masked, dim=-1)
