"""README.md of a rendered folder: what to run, in which order, word for word."""

from __future__ import annotations

from collections.abc import Sequence

from infra.config.plan import Plan
from k8s.helm import FIELD_MANAGER, FOLDER, SCRIPT
from k8s.names import RUN_NAMESPACE

APPLY = f"kubectl apply --server-side --field-manager={FIELD_MANAGER} -f"
JOBS = "jobs/"


def readme(plan: Plan, *, namespaces: str, files: Sequence[str], left_out: Sequence[str]) -> str:
    """Commands for the rendered `files`, of which `namespaces` goes before the controllers."""
    applied = [name for name in files if not name.startswith(JOBS)]
    jobs = [name for name in files if name.startswith(JOBS)]
    rest = [name for name in applied if name != namespaces]
    lines = [
        f"# Kubernetes objects of {plan.name}",
        "",
        "Written by `moerl render`: change the environment file and render again. Run everything in this folder, with a",
        "kubectl that reaches the cluster (the API endpoint may be private: see the project's README for the way in).",
        "",
        "## On a new cluster",
        "",
        "Namespaces, then the controllers with their CustomResourceDefinitions, then the rest in the order of the names:",
        "",
        f"    {APPLY} {namespaces}",
        f"    sh {FOLDER}/{SCRIPT}",
        *(f"    {APPLY} {name}" for name in rest),
        "",
        "Always server-side: the CustomResourceDefinitions and dashboards are too large for the annotation that a",
        "client-side apply keeps. On a cluster that has the controllers, `moerl apply` does the same from inside the VPC:",
        "",
        f"    moerl apply {plan.name} --folder . --diff",
        f"    moerl apply {plan.name} --folder .",
        "",
    ]
    if jobs:
        lines += [
            "## By hand",
            "",
            "These are created, never applied: they start suspended, and Kueue starts them when all of their pods fit. Prepare",
            "and preflight go before the first run.",
            "",
            *(f"    kubectl create -f {name}" for name in jobs),
            "",
            f"What waits, and why: `kubectl -n {RUN_NAMESPACE} get workloads` and `describe` the one that waits. To run a",
            "job again, delete it first.",
            "",
        ]
    if left_out:
        lines += [
            "## Left out",
            "",
            *(f"- {reason}" for reason in left_out),
            "",
            "Render again with `--image` and `--outputs` once they are known.",
            "",
        ]
    return "\n".join(lines)
