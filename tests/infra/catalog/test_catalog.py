import ast
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import infra.catalog
from infra.catalog import AS_OF, CATALOG, Source, Unresolved
from infra.catalog.facts import Pin

MODULES = sorted(Path(infra.catalog.__file__).parent.glob("*.py"))
TABLES = [field.name for field in fields(CATALOG) if field.name != "as_of"]


def walk(value: object) -> Iterator[object]:
    yield value
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from walk(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from walk(entry)
    elif isinstance(value, tuple):
        for entry in value:
            yield from walk(entry)


def entries(table: str) -> tuple[object, ...]:
    value = getattr(CATALOG, table)
    return tuple(value.values()) if isinstance(value, Mapping) else value


@pytest.mark.parametrize("table", TABLES)
def test_every_entry_says_where_it_was_read_and_when(table: str) -> None:
    rows = entries(table)
    assert rows
    for row in rows:
        source = row.source  # type: ignore[attr-defined]
        assert isinstance(source, Source)
        assert source.as_of <= AS_OF
        assert source.url.startswith("https://") or (source.computed and not source.url)


def test_mapping_keys_are_the_names_of_their_entries() -> None:
    for table in ("instances", "software", "addons", "controllers", "models"):
        assert all(key == entry.name for key, entry in getattr(CATALOG, table).items()), table
    assert all(key == entry.version for key, entry in CATALOG.kubernetes_versions.items())
    assert all(key == entry.date for key, entry in CATALOG.ami_releases.items())


def test_every_unresolved_pin_carries_a_command_to_run() -> None:
    pins = [value for value in walk(CATALOG) if isinstance(value, Unresolved)]
    assert len(pins) > len(CATALOG.addons)
    for pin in pins:
        assert pin.what
        assert pin.command.split()[0] in {"aws", "curl", "docker", "git", "helm"}, pin


def test_tables_cannot_be_changed_in_place() -> None:
    for table in ("instances", "kubernetes_versions", "ami_releases", "software", "addons", "controllers", "models"):
        with pytest.raises(TypeError):
            getattr(CATALOG, table)["x"] = None


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_catalog_imports_only_the_standard_library_and_itself(module: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    allowed = {"collections.abc", "dataclasses", "datetime", "re", "types", "typing"}
    assert {name for name in imported if not name.startswith("infra.catalog")} <= allowed


def test_pin_is_a_string_or_unresolved() -> None:
    assert set(Pin.__args__) == {str, Unresolved}
