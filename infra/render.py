"""Plan → files, all or none: everything is written beside the target first and moved in when it is complete."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

from infra.config.outputs import Outputs
from infra.config.plan import Plan
from infra.stacks.names import stack_names
from infra.stacks.platform import build_app, build_platform

TEMPLATES, PLAN_FILE = "cloudformation", "plan.json"
SUFFIX = ".template.json"


def render(plan: Plan, out: Path, *, outputs: Outputs | None = None) -> tuple[Path, ...]:
    """Writes OUT/plan.json and OUT/cloudformation/STACK.template.json; returns the files, sorted.

    The same plan gives the same bytes. Other files in OUT are left alone; stale templates are not.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    # Absolute, since Node writes the assembly and keeps the working directory that it was started in.
    with tempfile.TemporaryDirectory(prefix=".render-", dir=out.parent.resolve()) as scratch:
        fresh = Path(scratch) / "fresh"
        (fresh / TEMPLATES).mkdir(parents=True)
        (fresh / PLAN_FILE).write_text(plan_text(plan, outputs), encoding="utf-8")
        assembly = Path(scratch) / "assembly"
        app = build_app(outdir=assembly)
        build_platform(app, plan)
        for artifact in app.synth().stacks_recursively:
            text = json.dumps(json.loads(Path(artifact.template_full_path).read_text(encoding="utf-8")), indent=1)
            (fresh / TEMPLATES / f"{artifact.stack_name}{SUFFIX}").write_text(text + "\n", encoding="utf-8")
        written = sorted(path.name.removesuffix(SUFFIX) for path in (fresh / TEMPLATES).iterdir())
        if written != sorted(stack_names(plan)):
            raise RuntimeError(f"rendered stacks {written} differ from the planned ones {sorted(stack_names(plan))}")
        files = [Path(PLAN_FILE), *(Path(TEMPLATES) / f"{name}{SUFFIX}" for name in written)]
        (out / TEMPLATES).mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.move(fresh / file, out / file)
        for stale in set((out / TEMPLATES).glob(f"*{SUFFIX}")) - {out / file for file in files}:
            stale.unlink()
    return tuple(sorted(out / file for file in files))


def plan_text(plan: Plan, outputs: Outputs | None = None) -> str:
    """plan.json: the plan, and the deploy's outputs where they are known."""
    document = plan.document()
    if outputs is not None:
        document["outputs"] = asdict(outputs)
    return json.dumps(document, indent=2, sort_keys=True) + "\n"
