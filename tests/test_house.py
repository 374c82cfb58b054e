"""The rules of the house, read from the source: which way imports run, and who may look at the world outside."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted([ROOT / "app.py", *(ROOT / "infra").rglob("*.py"), *(ROOT / "k8s").rglob("*.py")])

LOOKS_OUTSIDE = ("app.py", "infra/cli.py", "infra/local/")
"""Alone may read environment variables, CDK context and the clock; everything else is handed what it needs."""
CLOCK_AND_CHANCE = {"time", "random", "uuid", "secrets"}
NOW = {"now", "utcnow", "today", "fromtimestamp"}
CONTEXT = {"try_get_context", "get_context", "get_all_context"}

ALLOWED: dict[str, frozenset[str]] = {
    "infra/catalog": frozenset({"infra.catalog"}),
    "infra/config": frozenset({"infra.catalog", "infra.config"}),
    "infra/constructs": frozenset({"infra.catalog", "infra.config", "infra.constructs"}),
    "infra/stacks": frozenset({"infra.catalog", "infra.config", "infra.constructs", "infra.stacks"}),
    "infra/operations": frozenset({"infra.catalog", "infra.config", "infra.constructs", "infra.operations"}),
    "infra/policy": frozenset({"infra.config", "infra.policy"}),
    "k8s": frozenset({"infra.catalog", "infra.config", "k8s"}),
}
"""Package → which parts of this repository it may import. Arrows run one way: stacks → constructs → config → catalog,
and k8s → config."""
FOREIGN: dict[str, frozenset[str]] = {
    "infra/catalog": frozenset(),
    "infra/config": frozenset({"yaml", "pydantic", "pydantic_core"}),
    "infra/constructs": frozenset({"aws_cdk", "constructs", "yaml"}),
    "infra/stacks": frozenset({"aws_cdk", "constructs"}),
    "infra/operations": frozenset({"yaml", "pydantic", "botocore"}),
    "infra/policy": frozenset({"aws_cdk", "cdk_nag"}),
    "k8s": frozenset({"cdk8s", "constructs", "jsonschema_rs", "kubernetes_validate", "torchx", "yaml"}),
}
"""Package → which third-party packages it may import. AWS clients are handed to `operations` by the command line."""


STDLIB = sys.stdlib_module_names


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or node.module is not None
            yield node.module or ""


def outside(tree: ast.AST) -> Iterator[str]:
    """Every look at environment variables, CDK context, the clock or chance, as `LINE: what`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner == "os" and node.attr in {"environ", "environb", "getenv"}:
                yield f"{node.lineno}: os.{node.attr}"
            if node.attr in CONTEXT:
                yield f"{node.lineno}: {node.attr}"
            if node.attr in NOW and owner.rpartition(".")[2] in {"datetime", "date"}:
                yield f"{node.lineno}: {owner}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            yield from (f"{node.lineno}: os.{name.name}" for name in node.names if name.name in {"environ", "getenv"})
    for name in imports(tree):
        if name.partition(".")[0] in CLOCK_AND_CHANCE:
            yield f"import {name}"


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_nothing_below_the_entries_looks_at_environment_context_or_clock() -> None:
    below = [path for path in SOURCES if not str(path.relative_to(ROOT)).startswith(LOOKS_OUTSIDE)]
    assert len(below) > 50
    looks = [f"{path.relative_to(ROOT)}:{look}" for path in below for look in outside(parsed(path))]
    assert looks == []


def first_party(imported: str) -> str | None:
    """`infra.config` of `infra.config.plan`, `k8s` of `k8s.names`; None for what is not of this repository."""
    top, _, rest = imported.partition(".")
    if top == "infra":
        return f"infra.{rest.partition('.')[0]}"
    return top if top in {"app", "benchmarks", "images", "k8s", "tests"} else None


@pytest.mark.parametrize("name", ALLOWED)
def test_imports_run_one_way(name: str) -> None:
    paths = [path for path in SOURCES if str(path.relative_to(ROOT)).startswith(f"{name}/")]
    assert paths
    wrong = []
    for path in paths:
        for imported in imports(parsed(path)):
            ours, top = first_party(imported), imported.partition(".")[0]
            allowed = ours in ALLOWED[name] if ours else top in FOREIGN[name] or top in STDLIB
            if not allowed:
                wrong.append(f"{path.relative_to(ROOT)} imports {imported}")
    assert wrong == []


@pytest.mark.parametrize(
    "source",
    [
        "import os\nx = os.environ['A']",
        "import os\nx = os.getenv('A')",
        "from os import environ",
        "import time",
        "from time import monotonic",
        "import random",
        "import datetime\nx = datetime.datetime.now()",
        "from datetime import date\nx = date.today()",
        "x = self.node.try_get_context('a')",
    ],
)
def test_the_search_finds_what_it_looks_for(source: str) -> None:
    assert list(outside(ast.parse(source)))


RUNTIME = ROOT / "images" / "runtime" / "moerl_runtime"
AT_IMPORT = frozenset({"awscrt", "boto3", "botocore", "s3transfer", "urllib3"})
"""boto3 and what it is made of: the runtime starts in pods that never touch a GPU, and in images of three stacks."""
WITH_TORCH = ("smoke/",)
"""Parts that are nothing without torch; the command line imports them last."""
WHERE_USED = frozenset({"deep_ep", "numpy", "torch"})


def runtime_modules() -> list[Path]:
    found = sorted(RUNTIME.rglob("*.py"))
    assert len(found) > 80
    return found


def at_import(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield from imports(statement)


def test_the_runtime_is_handed_its_numbers() -> None:
    """It imports nothing that makes plans or manifests, and its command line alone reads the environment."""
    wrong = []
    for path in runtime_modules():
        tree, name = parsed(path), str(path.relative_to(RUNTIME))
        wrong += [f"{name} imports {imported}" for imported in imports(tree) if first_party(imported)]
        wrong += [f"{name}:{look}" for look in outside(tree) if "os." in look and name != "cli.py"]
    assert wrong == []


def test_the_runtime_imports_boto3_and_the_standard_library() -> None:
    wrong = []
    for path in runtime_modules():
        tree, name = parsed(path), str(path.relative_to(RUNTIME))
        first = {imported.partition(".")[0] for imported in at_import(tree)} - STDLIB - {"moerl_runtime"}
        later = {imported.partition(".")[0] for imported in imports(tree)} - STDLIB - {"moerl_runtime"} - first
        allowed = AT_IMPORT | (WHERE_USED if name.startswith(WITH_TORCH) else frozenset())
        wrong += [f"{name} imports {top} at import" for top in sorted(first - allowed)]
        wrong += [f"{name} imports {top}" for top in sorted(later - AT_IMPORT - WHERE_USED)]
    assert wrong == []
