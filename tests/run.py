"""`make test`: every check in order, with progress, all of them even after a failure, and what they did not prove."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("lint", ("-m", "ruff", "check", ".")),
    ("format", ("-m", "ruff", "format", "--check", ".")),
    ("types", ("-m", "mypy")),
    ("tests: unit, template, policy", ("-m", "pytest", "-m", "not emulator")),
    ("tests: embedded AWS, real CDK CLI", ("-m", "pytest", "-m", "emulator")),
)

NOT_PROVEN = (
    "AWS itself: capacity, quotas, timing, IAM enforcement, and every service rule that the embedded AWS does not state",
    "Kubernetes: no API server, kubelet or controller ran",
    "EFA, NCCL, DeepEP, GPUs: this machine has none",
    "the pins of a real account: tests use marked fixtures",
)


def main() -> int:
    results: list[tuple[str, bool, float]] = []
    for number, (name, arguments) in enumerate(STEPS, start=1):
        print(f"\n== {number}/{len(STEPS)} {name}", flush=True)
        began = time.monotonic()
        done = subprocess.run((sys.executable, *arguments), cwd=ROOT, check=False)  # noqa: S603 - fixed argument lists
        results.append((name, done.returncode == 0, time.monotonic() - began))
    print("\n== report")
    for name, passed, seconds in results:
        print(f"{'ok    ' if passed else 'FAILED'} {name} ({seconds:.0f} s)")
    print("\nNot proven by these tests:")
    for line in NOT_PROVEN:
        print(f"  - {line}")
    return 0 if all(passed for _, passed, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
