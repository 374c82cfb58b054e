"""Reading Python without running it: what a module offers is found, and nothing of it happens."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime.image import sources

TEXT = """
import cuda_that_no_build_machine_has
raise SystemExit("imported")


class Base:
    rollout_id: int


class Input(Base):
    weight_version: int | None = None
    inner = 1

    class Status:
        nested: int

    def save(self, rollout_id, path=None, *, force=False):
        local: int = 3

    @staticmethod
    def load(data: dict): ...

    async def get(self): ...


def hook(args, rollout_id, directory): ...


def call(self):
    self._hook(self.args, directory, list(engines))
    module._hook(args, evaluation=True)
    _hook()


parser.add_argument("--moe-a2a-backend", "--moe", type=str)
HELP = "not a flag: --moe-other is"


@app.get("/health")
@app.api_route("/flush_cache", methods=["GET"])
async def health(): ...


@app.post(PATH)
async def other(): ...


class Environment:
    SGLANG_WARMUP_TIMEOUT = 3
    os.environ.get("NCCL_DEBUG")
    lower = None
"""
TREE = ast.parse(TEXT)


def test_fields_are_annotated_ones_with_those_of_bases_first() -> None:
    assert sources.class_fields(TREE, "Input") == ("rollout_id", "weight_version")
    assert sources.class_fields(TREE, "Absent") is None
    assert sources.class_fields(TREE, "Environment") == ()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("hook", ("args", "rollout_id", "directory")),
        ("Input.save", ("rollout_id", "path")),
        ("Input.load", ("data",)),
        ("Input.get", ()),
        ("Input.absent", None),
        ("Absent.save", None),
        ("absent", None),
    ],
)
def test_parameters_are_positional_ones_without_self(name: str, found: tuple[str, ...] | None) -> None:
    assert sources.parameters(TREE, name) == found


def test_calls_are_found_by_their_last_name() -> None:
    assert sources.calls(TREE, "_hook") == ((3, ()), (1, ("evaluation",)), (0, ()))
    assert sources.calls(TREE, "hook") == ()


def test_texts_are_those_of_one_function_or_class() -> None:
    tree = ast.parse(
        "async def info():\n    return {'weight_version': of('x')}\n\n\n"
        "class Manager:\n    def handle(self, about):\n        about['finish_reason'] = f'{about}'\n"
    )
    assert sources.texts(tree, "info") == {"weight_version", "x"}
    assert sources.texts(tree, "Manager") == {"finish_reason"}
    assert sources.texts(tree, "handle") is None
    assert sources.texts(ast.parse("def bare(): ..."), "bare") == set()


def test_flags_are_written_out_or_fields_and_not_words_of_a_help_text() -> None:
    found = set(sources.flags(TREE))
    assert {
        "--moe-a2a-backend",
        "--moe",
        "--weight-version",
        "--no-weight-version",
        "--disable-weight-version",
    } <= found
    assert not {"--moe-other", "--local", "--inner"} & found


def test_variables_and_routes_are_found_where_they_are_named() -> None:
    assert set(sources.variables(TREE)) == {"SGLANG_WARMUP_TIMEOUT", "NCCL_DEBUG"}
    assert set(sources.routes(TREE)) == {"/health", "/flush_cache"}


def test_packages_and_modules_are_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("one/miles_like/rollout", "two/miles_like"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "one/miles_like/rollout/__init__.py").write_text(TEXT, encoding="utf-8")
    (tmp_path / "one/miles_like/rollout/types.py").write_text(TEXT, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "two")
    monkeypatch.syspath_prepend(tmp_path / "one")
    first, second = sources.package_folders("miles_like")
    assert (first, second) == (tmp_path / "one/miles_like", tmp_path / "two/miles_like")
    assert sources.module_file(first, "miles_like.rollout.types") == first / "rollout/types.py"
    assert sources.module_file(first, "miles_like.rollout") == first / "rollout/__init__.py"
    assert sources.module_file(second, "miles_like.rollout") is None
    assert sources.package_folders("no_such_package_anywhere") == ()
    assert sources.class_fields(sources.parse(first / "rollout/types.py"), "Base") == ("rollout_id",)


def test_a_regular_package_is_not_run_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "regular_like").mkdir()
    (tmp_path / "regular_like/__init__.py").write_text(TEXT, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert sources.package_folders("regular_like") == (tmp_path / "regular_like",)


@given(name=st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True))
def test_a_field_makes_the_flag_that_argparse_would(name: str) -> None:
    try:
        tree = ast.parse(f"class Arguments:\n    {name}: int = 1\n")
    except SyntaxError:  # a keyword
        return
    assert f"--{name.replace('_', '-')}" in set(sources.flags(tree))
