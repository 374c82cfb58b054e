"""The tiny model as a directory that is published, checkpointed and loaded: config.json and one safetensors file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from moerl_runtime.smoke.model import ModelShape
from moerl_runtime.weights import safetensors

TENSORS_NAME, CONFIG_NAME, COMPLETE_NAME = "model.safetensors", "config.json", ".complete"


def write(directory: Path, shape: ModelShape, state: Mapping[str, Tensor]) -> None:
    """Writes beside the name and renames at the end, so that a directory of that name is whole."""
    partial = directory.with_name(f".{directory.name}.{os.getpid()}")
    partial.mkdir(parents=True)
    tensors = {name: ("F32", tuple(state[name].shape), data) for name, data in raw(state).items()}
    safetensors.write(partial / TENSORS_NAME, tensors, {"format": "pt"})
    (partial / CONFIG_NAME).write_text(json.dumps(asdict(shape)), encoding="utf-8")
    # The marker that Miles leaves of an export that came to its end.
    (partial / COMPLETE_NAME).touch()
    partial.rename(directory)


def raw(state: Mapping[str, Tensor]) -> dict[str, bytes]:
    """The bytes of each tensor, as they lie in a file."""
    return {name: tensor.detach().contiguous().numpy().tobytes() for name, tensor in sorted(state.items())}


def read_shape(directory: Path) -> ModelShape:
    return ModelShape(**json.loads((directory / CONFIG_NAME).read_text(encoding="utf-8")))


def tensors(directory: Path) -> Iterator[tuple[str, Tensor]]:
    """One after the other, as SGLang's loader reads them. Raises OSError for a directory without any."""
    paths = sorted(directory.glob(f"*{safetensors.SUFFIX}"))
    if not paths:
        raise FileNotFoundError(f"no tensors in {directory}")
    for path in paths:
        header = safetensors.read_header(path)
        with path.open("rb") as file:
            for name, tensor in header.tensors.items():
                if tensor.dtype != "F32" or tensor.size_bytes != 4 * math.prod(tensor.shape):
                    raise ValueError(f"{name} in {path} is {tensor.dtype} {tensor.shape} in {tensor.size_bytes} bytes")
                file.seek(tensor.offset)
                data = bytearray(file.read(tensor.size_bytes))
                yield name, torch.frombuffer(data, dtype=torch.float32).view(tensor.shape)
