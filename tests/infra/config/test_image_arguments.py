"""Build arguments: the catalog's values, what is open by name, and the document that the image is held to."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.catalog import CATALOG
from infra.catalog.facts import Unresolved, UnresolvedCommit
from infra.catalog.software import Software
from infra.config.image_arguments import (
    CAPABILITIES,
    CHECKOUTS,
    ImageArguments,
    image_arguments,
    unresolved_arguments,
)
from infra.config.pins import Pins

STACKS: list[Software] = list(CATALOG.software)
each_stack = pytest.mark.parametrize("stack", STACKS)
COMMIT = "ab" * 20


def made(stack: Software, **given: object) -> ImageArguments:
    return image_arguments(CATALOG.software[stack], CATALOG.image_sources[stack], **given)  # type: ignore[arg-type]


def document(arguments: ImageArguments) -> dict[str, object]:
    return dict(json.loads(arguments.arguments[CAPABILITIES]))


@each_stack
def test_each_argument_has_a_value_or_the_command_that_resolves_it(stack: Software) -> None:
    ours = made(stack)
    assert not set(ours.arguments) & set(ours.unresolved)
    assert all(ours.arguments.values())
    assert "BASE_DIGEST" in ours.unresolved
    for pin in ours.unresolved.values():
        assert pin.command.split()[0] in {"docker", "git", "curl"}
    shown = ours.document()
    assert set(shown["unresolved"]) == set(ours.unresolved)
    assert shown["dockerfile"] == f"images/{stack}/Dockerfile"
    assert json.loads(json.dumps(shown)) == shown


@each_stack
def test_a_changed_version_in_the_catalog_is_a_changed_argument_and_document(stack: Software) -> None:
    changed = replace(CATALOG.software[stack], nccl="9.9.9")
    ours = image_arguments(changed, CATALOG.image_sources[stack])
    assert ours.arguments["NCCL"] == "9.9.9"
    assert document(ours)["nccl"] == "9.9.9"


@each_stack
def test_resolved_pins_close_exactly_what_is_open(stack: Software) -> None:
    open_ones = unresolved_arguments(CATALOG.software[stack], CATALOG.image_sources[stack])
    ours = made(stack, resolved=dict.fromkeys(open_ones, COMMIT))
    assert ours.unresolved == {}
    assert {name for name, value in ours.arguments.items() if value == COMMIT} == set(open_ones)
    # A value for what the catalog knows is no way around it.
    assert made(stack, resolved={"NCCL": "1.0.0"}).arguments["NCCL"] == CATALOG.software[stack].nccl


@each_stack
def test_the_document_names_every_checkout_that_has_a_commit(stack: Software) -> None:
    open_ones = unresolved_arguments(CATALOG.software[stack], CATALOG.image_sources[stack])
    known = {path for name, path in CHECKOUTS[stack].items() if name not in open_ones}
    assert set(document(made(stack))["checkouts"]) == known  # type: ignore[call-overload]
    whole = document(made(stack, resolved=dict.fromkeys(open_ones, COMMIT)))
    assert set(whole["checkouts"]) == set(CHECKOUTS[stack].values())  # type: ignore[call-overload]


@given(archs=st.lists(st.sampled_from(["9.0", "10.0", "10.3"]), min_size=1, unique=True))
def test_architectures_are_those_of_the_pools(archs: list[str]) -> None:
    ours = made("efa-gda", archs=archs)
    assert ours.arguments["CUDA_ARCHS"] == ";".join(archs)
    assert document(ours)["cuda_archs"] == archs
    assert made("efa-gda").arguments["CUDA_ARCHS"] == ";".join(CATALOG.software["efa-gda"].cuda_archs)


@each_stack
def test_versions_of_open_requirements_and_tools_come_in_one_line_in_order(stack: Software) -> None:
    sources, ours = CATALOG.image_sources[stack], made(stack).arguments
    for name, versions in (("OPEN_REQUIREMENTS", sources.open_requirements), ("BUILD_TOOLS", sources.build_tools)):
        listed = ours.get(name, "").split()
        assert dict(pin.split("==") for pin in listed) == dict(versions)
        assert listed == sorted(listed)


def test_what_a_stack_lacks_has_no_argument() -> None:
    baseline = made("baseline")
    lacking = {"DEEPEP", "DEEPEP_REF", "GDRCOPY", "NVSHMEM", "APEX", "OPEN_REQUIREMENTS", "BUILD_TOOLS"}
    assert not lacking & set(baseline.arguments)
    assert document(baseline)["deepep"] is None
    assert document(baseline)["gin_exports"] == []
    assert document(made("aws-reference"))["gin_exports"] == ["ncclGinPlugin_v13"]
    assert "ncclGinPlugin_v14" in document(made("efa-gda"))["gin_exports"]  # type: ignore[operator]


@each_stack
def test_packages_of_the_document_are_releases(stack: Software) -> None:
    packages = document(made(stack))["packages"]
    assert isinstance(packages, dict)
    assert packages["torch"] == CATALOG.software[stack].torch
    assert all(re.fullmatch(r"[0-9]+(\.[0-9]+)+", version) for version in packages.values())


def test_flags_are_named_once_and_in_order() -> None:
    ours = document(made("efa-gda", trainer_flags=["--b", "--a", "--b"], engine_flags=["--tp-size"]))
    assert (ours["trainer_flags"], ours["engine_flags"]) == (["--a", "--b"], ["--tp-size"])


@each_stack
def test_no_argument_needs_quoting_that_a_build_file_could_get_wrong(stack: Software) -> None:
    for name, value in made(stack).arguments.items():
        assert re.fullmatch(r"[A-Z][A-Z0-9_]*", name)
        assert "\n" not in value
        if name != CAPABILITIES:
            assert not set(value) & set("\"'\\$`")


def test_the_catalog_says_of_each_open_commit_where_it_is_looked_up() -> None:
    for stack in STACKS:
        for pin in unresolved_arguments(CATALOG.software[stack], CATALOG.image_sources[stack]).values():
            if isinstance(pin, UnresolvedCommit):
                assert pin.repository.startswith("https://github.com/")
                assert pin.ref.startswith(("refs/tags/", "refs/heads/"))
                assert pin.repository in pin.command
                assert pin.ref in pin.command
            assert isinstance(pin, Unresolved)


@pytest.mark.parametrize("value", ["main", "abc123", "sha256:xyz", "AB" * 20])
def test_a_lock_takes_commits_and_digests_alone(value: str) -> None:
    Pins.model_validate({"build": {"efa-gda": {"SGLANG_REF": COMMIT, "BASE_DIGEST": f"sha256:{'0' * 64}"}}})
    with pytest.raises(ValueError, match="build"):
        Pins.model_validate({"build": {"efa-gda": {"SGLANG_REF": value}}})
    with pytest.raises(ValueError, match="build"):
        Pins.model_validate({"build": {"no-stack": {}}})
