"""What Python sources offer, read without importing them.

Importing Miles or SGLang initialises CUDA, Ray and a dozen compiled packages, none of which works on a build machine; what
this package relies on is in the text: classes, signatures, flags, routes.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

FLAG = re.compile(r"--[a-z0-9][a-zA-Z0-9_-]*")
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")


def package_folders(package: str) -> tuple[Path, ...]:
    """Folders of a top-level package, which is looked up and not imported; several where distributions share its name."""
    spec = importlib.util.find_spec(package)
    return tuple(Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ())


def module_file(folder: Path, module: str) -> Path | None:
    """File of a dotted module below the folder of its top-level package."""
    inner = folder.joinpath(*module.split(".")[1:])
    return next((path for path in (inner.with_suffix(".py"), inner / "__init__.py") if path.is_file()), None)


def class_fields(tree: ast.Module, name: str) -> tuple[str, ...] | None:
    """Annotated fields of a class, those of its bases in the same module first; None where it is not there."""
    found = _class(tree, name)
    if found is None:
        return None
    inherited = [field for base in found.bases for field in class_fields(tree, ast.unparse(base)) or ()]
    return (*inherited, *_fields(found))


def parameters(tree: ast.Module, name: str) -> tuple[str, ...] | None:
    """Positional parameters of a function or of `Class.method`, less self; None where it is not there."""
    owner, _, function = name.rpartition(".")
    scope = _class(tree, owner) if owner else tree
    for item in scope.body if scope else ():
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name == function:
            names = [argument.arg for argument in (*item.args.posonlyargs, *item.args.args)]
            return tuple(names[1:] if names[:1] in (["self"], ["cls"]) else names)
    return None


def calls(tree: ast.Module, name: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Every call of something whose last name is `name`, as (positional arguments, keywords)."""
    return tuple(
        (len(node.args), tuple(keyword.arg for keyword in node.keywords if keyword.arg))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == name
    )


def texts(tree: ast.Module, name: str) -> frozenset[str] | None:
    """Strings that are written in a top-level function or class; None where it is not there."""
    named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = next((item for item in tree.body if isinstance(item, named) and item.name == name), None)
    if found is None:
        return None
    written = (node.value for node in ast.walk(found) if isinstance(node, ast.Constant))
    return frozenset(text for text in written if isinstance(text, str))


def flags(tree: ast.Module) -> Iterator[str]:
    """Flags that a module may take: those written out, and those that argument parsers make of the fields of classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and FLAG.fullmatch(node.value):
            yield node.value
        elif isinstance(node, ast.ClassDef):
            for name in _fields(node):
                flag = name.replace("_", "-")
                yield from (f"--{flag}", f"--no-{flag}", f"--disable-{flag}")


def variables(tree: ast.Module) -> Iterator[str]:
    """Names of environment variables, as attributes and as texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and VARIABLE.fullmatch(node.id):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and VARIABLE.fullmatch(node.value):
            yield node.value


def routes(tree: ast.Module) -> Iterator[str]:
    """Paths of the HTTP routes that decorators of the module register."""
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", ()):
            if isinstance(decorator, ast.Call) and decorator.args and isinstance(decorator.args[0], ast.Constant):
                path = decorator.args[0].value
                if isinstance(path, str) and path.startswith("/"):
                    yield path


def parse(path: Path) -> ast.Module:
    """Syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8", errors="replace"), filename=str(path))


def _class(tree: ast.Module, name: str) -> ast.ClassDef | None:
    return next((item for item in tree.body if isinstance(item, ast.ClassDef) and item.name == name), None)


def _fields(found: ast.ClassDef) -> list[str]:
    return [
        item.target.id for item in found.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]
