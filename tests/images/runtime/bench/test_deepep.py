"""DeepEP takes NCCL's plugin for EFA for a second NCCL, so every program loads it before NCCL opens plugins."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moerl_runtime.bench import meeting, rank
from moerl_runtime.bench.settings import Links, Settings
from moerl_runtime.smoke import gpu

torch = pytest.importorskip("torch")

BENCH = Settings(
    kind="deepep",
    backend="deep_ep",
    pool="rollout",
    host="127.0.0.1",
    port=29_500,
    nodes=1,
    node=0,
    ranks_per_node=2,
    links=Links(gpus=8, efa_devices=16, efa_gbps=200, nvlink_gb_per_second=450),
    transport="gda",
    cases=(),
)
SMOKE = gpu.Comparison(dispatcher="deep_ep", ranks=2)


def bench(folder: Path) -> None:
    rank.run(BENCH, folder, 0, clock=time.monotonic, pause=threading.Event().wait)


def smoke(folder: Path) -> None:
    gpu._rank(0, SMOKE, str(folder))


class Reached(Exception):
    """NCCL would be set up now."""


@pytest.mark.parametrize("program", [bench, smoke])
def test_the_library_is_loaded_before_nccl_is_set_up(
    program: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "deep_ep.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "deep_ep", raising=False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    monkeypatch.setattr(meeting, "store", lambda *_arguments, **_fields: object())
    loaded: list[bool] = []

    def set_up(*_arguments: Any, **_fields: Any) -> None:
        loaded.append("deep_ep" in sys.modules)
        raise Reached

    monkeypatch.setattr(torch.distributed, "init_process_group", set_up)
    with pytest.raises(Reached):
        program(tmp_path)
    assert loaded == [True]
