"""What a bench is told: one document that the parent writes and every rank reads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["nccl", "deepep"]
Backend = Literal["deep_ep", "nccl", "gloo"]
MIB = 2**20
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
"""Which of a job's pods this is. Set in jobs alone, whose pods have a node to themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A MoE layer as expert traffic sees it."""

    hidden: int
    experts: int
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """`count` groups of `ranks` consecutive ranks, inside which copies of a token are merged."""

    count: int
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Links of one node, from the plan."""

    gpus: int
    efa_devices: int
    efa_gbps: int
    nvlink_gb_per_second: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One shape and number of tokens per rank."""

    name: str
    shape: Shape
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One bench on `nodes` nodes with `ranks_per_node` processes each."""

    kind: Kind
    backend: Backend
    pool: str
    host: str
    port: int
    nodes: int
    node: int
    ranks_per_node: int
    links: Links
    transport: str
    cases: tuple[Case, ...] = ()
    num_sms: int = 0
    """Multiprocessors that DeepEP's kernels take; 0 lets the library choose."""
    num_contexts: int = 0
    """GIN contexts (queue pairs) that DeepEP allocates between nodes; 0 lets the library choose."""
    largest_bytes: int = 1024 * MIB
    """Of one message of the NCCL bench; the broadcast moves that much, the others a share."""
    rings: tuple[int, ...] = ()
    """Distances at which the NCCL bench has ranks send to each other; empty for all, so that every pair meets."""
    repeats: int = 20
    warmups: int = 5
    seed: int = 1
    meet_seconds: float = 300.0
    """How long ranks wait for each other at the start, image pulls included."""
    operation_seconds: float = 180.0
    """Longest collective; after it a rank gives up."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node


def write(settings: Settings, path: Path) -> None:
    path.write_text(json.dumps(asdict(settings)), encoding="utf-8")


def read(path: Path) -> Settings:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    document["links"] = Links(**document["links"])
    document["cases"] = tuple(
        Case(name=case["name"], shape=Shape(**case["shape"]), tokens=case["tokens"]) for case in document["cases"]
    )
    document["rings"] = tuple(document["rings"])
    return Settings(**document)
