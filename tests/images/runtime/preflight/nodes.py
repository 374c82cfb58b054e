"""Nodes laid out below a folder from fixtures, and the programs that would run on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from moerl_runtime.plan import Node as Document
from moerl_runtime.preflight.check import Check
from moerl_runtime.preflight.collect import IMAGE_DOCUMENT, Facts, Ran, collect
from moerl_runtime.preflight.expected import Expected, expected
from moerl_runtime.preflight.judge import judge
from tests.shipped import Changes, plan_of

FIXTURES = Path(__file__).parent / "fixtures"
TYPES: Mapping[str, str] = {"p5": "p5", "p5en": "reference-p5en", "p6-b200": "p6-b200"}
"""Fixture folder to shipped environment."""
PLUGIN = "opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"
CACHE = "/jit/deep_ep"
ENGINE_OF_ONE_NODE: Changes = {"workload.rollout.gpus_per_engine": 8, "workload.rollout.expert_parallel": 8}
ENGINE_OF_TWO_NODES: Changes = {"workload.rollout.gpus_per_engine": 16, "workload.rollout.expert_parallel": 16}
ENGINE_OF_HALF_A_NODE: Changes = {"workload.rollout.gpus_per_engine": 4, "workload.rollout.expert_parallel": 4}
BASELINE: Changes = {"software": "baseline", **ENGINE_OF_ONE_NODE}


@dataclass
class FakeNode:
    """A healthy node of a type; tests break it by changing files and answers."""

    root: Path
    answers: dict[str, Ran | None]
    variables: dict[str, str] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)

    def run(self, arguments: Sequence[str], seconds: float) -> Ran | None:
        assert seconds > 0
        self.asked.append(list(arguments))
        return next((answer for start, answer in self.answers.items() if " ".join(arguments).startswith(start)), None)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def remove(self, *paths: str) -> None:
        for path in paths:
            (self.root / path).unlink()

    def say(self, program: str, output: str | None, code: int = 0) -> None:
        """What a program prints from now on; None takes it away."""
        self.answers[program] = None if output is None else Ran(code=code, output=output)

    def facts(self) -> Facts:
        return collect(self.root, run=self.run, variables=self.variables)


def document(type_name: str, changes: Changes | None = None) -> Document:
    """plan.json of the environment of that type, read back as the image reads it."""
    plan: dict[str, Any] = json.loads(json.dumps(plan_of(TYPES[type_name], changes).document()))
    return Document(plan, "")


def wanted(
    type_name: str, pool: str = "rollout", *, whole_node: bool = True, changes: Changes | None = None
) -> Expected:
    return expected(document(type_name, changes), pool, whole_node=whole_node)


def healthy(root: Path, type_name: str, needs: Expected) -> FakeNode:
    """A node on which nothing is wrong for `needs`."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (FIXTURES / type_name).iterdir()}
    names = texts["infiniband"].split()
    node = FakeNode(
        root=root,
        answers={
            "nvidia-smi --query-gpu": Ran(code=0, output=texts["nvidia-smi-query"]),
            "nvidia-smi -q": Ran(code=0, output=texts["nvidia-smi-q"]),
            "/opt/amazon/efa/bin/fi_info -p": Ran(code=0, output=texts["fi_info"]),
            "/opt/amazon/efa/bin/fi_info --version": Ran(code=0, output=texts["fi_info-version"]),
            "nm -D --defined-only": Ran(code=0, output=texts["nm"]),
        },
        variables={**needs.variables, "EP_JIT_CACHE_DIR": CACHE},
    )
    for place, name in enumerate(names):
        node.write(f"sys/class/infiniband/{name}/device/vendor", "0x1d0f\n")
        node.write(f"sys/class/infiniband/{name}/device/p2p", "NVIDIA\n")
        node.write(f"dev/infiniband/uverbs{place}", "")
    node.write("sys/module/efa/version", texts["efa-version"])
    node.write("sys/module/gdrdrv/version", texts["gdrdrv-version"])
    node.write("proc/driver/gdrdrv/params", texts["gdrdrv-params"])
    node.write("dev/gdrdrv", "")
    node.write("proc/driver/nvidia/params", texts["nvidia-params"])
    for name in ("meminfo", "self/limits", "self/status"):
        node.write(f"proc/{name}", texts[name.rpartition("/")[2]])
    node.write(PLUGIN, "")
    node.write(IMAGE_DOCUMENT, json.dumps({"cuda_archs": ["9.0", "10.0"]}))
    (root / "jit").mkdir()
    return node


def checks_of(
    node: FakeNode, needs: Expected, *, shm_mib: int | None = None, disks_gib: int | None = None
) -> tuple[Check, ...]:
    """Verdicts over the node. /dev/shm is as large as needed unless said otherwise, and so are its disks, since folders have
    no size."""
    size = needs.shm_mib if shm_mib is None else shm_mib
    disks = needs.ephemeral_gib if disks_gib is None else disks_gib
    return judge(replace(node.facts(), shm_bytes=size * 2**20, ephemeral_bytes=disks * 2**30), needs)


def causes(checks: Sequence[Check], status: str = "failed") -> list[str]:
    return [check.cause for check in checks if check.status == status]


Breaks = Callable[[FakeNode], None]
