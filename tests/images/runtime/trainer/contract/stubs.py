"""Stand-ins for what a CPU machine lacks of the frameworks' imports: attribute access, calls and decorators work, and do
nothing. `ray.remote` gives the class back, so that an actor is a plain object."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from typing import Any

NAMES = frozenset(
    {
        "IPython",
        "PIL",
        "accelerate",
        "aiofiles",
        "aiohttp",
        "anyio",
        "blake3",
        "cloudpickle",
        "datasets",
        "deep_ep",
        "dotenv",
        "einops",
        "fastapi",
        "filelock",
        "httpcore",
        "httpx",
        "huggingface_hub",
        "latex2sympy2_extended",
        "loguru",
        "math_verify",
        "mcp",
        "megatron",
        "mooncake",
        "msgpack",
        "msgspec",
        "openai",
        "orjson",
        "peft",
        "polars",
        "prometheus_client",
        "psutil",
        "pyarrow",
        "pybase64",
        "pylatexenc",
        "qwen_vl_utils",
        "ray",
        "requests",
        "ring_flash_attn",
        "safetensors",
        "setproctitle",
        "sglang",
        "sglang_router",
        "sklearn",
        "starlette",
        "sympy",
        "tensorboard",
        "tokenizers",
        "torch_memory_saver",
        "torchvision",
        "tqdm",
        "transformers",
        "typer",
        "ujson",
        "uvicorn",
        "wandb",
        "word2number",
        "xxhash",
        "zmq",
        "zstandard",
    }
)


class Anything:
    """Takes whatever is done to it."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __call__(self, *given: Any, **named: Any) -> Any:
        if len(given) == 1 and not named and callable(given[0]):
            return given[0]
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __mro_entries__(self, _: object) -> tuple[type, ...]:
        return (object,)

    def __or__(self, _: object) -> Any:
        return self

    __ror__ = __or__

    def __getitem__(self, _: object) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __hash__(self) -> int:
        return id(self)


class Module(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012 - what import looks for in a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last in line, so what is installed is real."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in NAMES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Module(spec.name)

    def exec_module(self, _: types.ModuleType) -> None:
        pass


def install(source: str) -> None:
    """Makes the framework's sources importable."""
    sys.path.insert(0, source)
    sys.meta_path.append(Finder())
