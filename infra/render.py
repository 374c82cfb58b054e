"""Plan → files, all or none: everything is written beside the target first and moved in when it is complete."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.config.faults import EnvironmentFault
from infra.config.outputs import Outputs
from infra.config.plan import Plan
from infra.stacks.names import stack_names
from infra.stacks.platform import build_app, build_platform
from k8s.checks.check import check
from k8s.render import manifests

TEMPLATES, MANIFESTS, PLAN_FILE = "cloudformation", "k8s", "plan.json"
SUFFIX = ".template.json"
RENDERED = ".rendered"
"""Names of the files of the last render, one a line: of these a later one removes what it does not write."""
OWNED = (f"{TEMPLATES}/*{SUFFIX}", f"{MANIFESTS}/[0-9]*.yaml", f"{MANIFESTS}/jobs/*.yaml", f"{MANIFESTS}/helm/*")
"""What renders call their files. One that no render listed is somebody's own, and stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    files: tuple[Path, ...]
    """Sorted."""
    left_out: tuple[str, ...]
    """What the environment has and these files have not, each with the reason."""
    kept: tuple[Path, ...]
    """Files beside them, named as a render names its own, that no render listed. Sorted."""


def render(plan: Plan, out: Path, *, image: str | None = None, outputs: Outputs | None = None) -> Written:
    """Writes OUT/plan.json, OUT/cloudformation/STACK.template.json and OUT/k8s.

    `image` is the run's, by digest; without it what runs it is left out. The same plan gives the same bytes. What an earlier
    render listed in OUT/.rendered and this one does not write is removed; other files are left alone. Raises
    EnvironmentFault when the manifests fail a check; nothing is written then.
    """
    rendered = manifests(plan, image=image, outputs=outputs)
    findings = check(rendered, plan)
    if findings:
        raise EnvironmentFault(f"{plan.name} as rendered", findings)
    texts = {PLAN_FILE: plan_text(plan, outputs), **_templates(plan, out)}
    texts |= {f"{MANIFESTS}/{name}": text for name, text in rendered.contents().items()}
    texts[RENDERED] = "".join(f"{name}\n" for name in sorted(texts))
    listed = _listed(out)
    with _beside(out) as scratch:
        for name, text in texts.items():
            _write(Path(scratch) / name, text)
        for name in texts:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(Path(scratch) / name, out / name)
    files = {out / name for name in texts}
    others = {path for pattern in OWNED for path in out.glob(pattern)} - files
    for stale in others & listed:
        stale.unlink()
    return Written(files=tuple(sorted(files)), left_out=rendered.left_out, kept=tuple(sorted(others - listed)))


def _listed(out: Path) -> set[Path]:
    """The files of the last render into OUT; none where there was no render."""
    record = out / RENDERED
    if not record.is_file():
        return set()
    return {out / name for name in record.read_text(encoding="utf-8", errors="replace").splitlines()}


def plan_text(plan: Plan, outputs: Outputs | None = None) -> str:
    """plan.json: the plan, and the deploy's outputs where they are known."""
    document = plan.document()
    if outputs is not None:
        document["outputs"] = asdict(outputs)
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _templates(plan: Plan, out: Path) -> dict[str, str]:
    """Every stack's template by its path below OUT."""
    with _beside(out) as scratch:
        app = build_app(outdir=Path(scratch) / "assembly")
        build_platform(app, plan)
        artifacts = app.synth().stacks_recursively
        texts = {
            f"{TEMPLATES}/{artifact.stack_name}{SUFFIX}": json.dumps(
                json.loads(Path(artifact.template_full_path).read_text(encoding="utf-8")), indent=1
            )
            + "\n"
            for artifact in artifacts
        }
    made = sorted(artifact.stack_name for artifact in artifacts)
    if made != sorted(stack_names(plan)):
        raise RuntimeError(f"rendered stacks {made} differ from the planned ones {sorted(stack_names(plan))}")
    return texts


def _beside(out: Path) -> tempfile.TemporaryDirectory[str]:
    """A scratch folder on the target's own file system, so that files move in whole.

    Absolute, since Node writes the assembly and keeps the working directory that it was started in.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix=".render-", dir=out.parent.resolve())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
