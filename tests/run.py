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
    ("build: Kubernetes control plane", ("-m", "tests.cluster.build")),
    ("tests: unit, template, policy", ("-m", "pytest", "-m", "not emulator and not cluster")),
    ("tests: embedded AWS, real CDK CLI", ("-m", "pytest", "-m", "emulator")),
    ("tests: real Kubernetes control plane, simulated nodes", ("-m", "pytest", "-m", "cluster")),
)

REPORTED = ("control plane:", "not applied", "runtime:")
"""Lines of a step's output that begin so are repeated at the end."""

NOT_PROVEN = (
    "AWS itself: capacity, quotas, timing, IAM enforcement, and every service rule that the embedded AWS does not state",
    "Kubernetes: no kubelet, container, network policy or Helm install ran; without Go, no API server or controller either",
    "Ray, SGLang, Miles, slime, KEDA and the cluster autoscaler: their objects were applied and their contracts played by "
    "stand-ins, they did not run; the frameworks' own sources are only tried where MOERL_MILES_SOURCE and "
    "MOERL_SLIME_SOURCE say where they are",
    "the images: Dockerfiles were parsed, linted and held to the catalog; no container engine built one",
    "EFA, NCCL, DeepEP, GPUs: this machine has none; docs/results has what ran on two H200, without EFA",
    "the pins of a real account: tests use marked fixtures",
)


def main() -> int:
    results: list[tuple[str, bool, float]] = []
    reported: list[str] = []
    for number, (name, arguments) in enumerate(STEPS, start=1):
        print(f"\n== {number}/{len(STEPS)} {name}", flush=True)
        began = time.monotonic()
        passed, lines = _run(arguments)
        results.append((name, passed, time.monotonic() - began))
        reported += lines
    print("\n== report")
    for name, passed, seconds in results:
        print(f"{'ok    ' if passed else 'FAILED'} {name} ({seconds:.0f} s)")
    for line in reported:
        print(f"       {line}")
    print("\nNot proven by these tests:")
    for line in NOT_PROVEN:
        print(f"  - {line}")
    return 0 if all(passed for _, passed, _ in results) else 1


def _run(arguments: tuple[str, ...]) -> tuple[bool, list[str]]:
    """Whether the step passed, and its lines for the report. Its output is shown as it comes."""
    kept = []
    with subprocess.Popen(  # noqa: S603 - fixed argument lists
        (sys.executable, "-u", *arguments), cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace"
    ) as step:
        assert step.stdout is not None
        for line in step.stdout:
            print(line, end="", flush=True)
            if line.startswith(REPORTED):
                kept.append(line.rstrip())
    return step.returncode == 0, kept


if __name__ == "__main__":
    sys.exit(main())
