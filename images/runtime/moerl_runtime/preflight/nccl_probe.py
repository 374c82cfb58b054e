"""`python -m moerl_runtime.preflight.nccl_probe MODULE...`: imports them in order, then prints which NCCL is loaded.

In a process of its own, before ranks start: DeepEP ends at import a process that has two files of NCCL, or one that it was not
built with (`check_nccl_so` in deep_ep/__init__.py of 2.1.0). What is loaded is printed all the same, the traceback after it.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from moerl_runtime.bench.loaded import loaded_nccl


def probe(modules: Sequence[str]) -> None:
    try:
        for name in modules:
            importlib.import_module(name)
    finally:
        print(json.dumps(asdict(loaded_nccl())), flush=True)


if __name__ == "__main__":
    probe(sys.argv[1:])
