import re

import pytest

from infra.catalog.facts import Unresolved, commit_of, merge_of
from infra.catalog.image_sources import (
    EFA_KEY_FINGERPRINT,
    EFA_KEY_SOURCE,
    GIN_EXPORT,
    GIN_SOURCE,
    IMAGE_SOURCES,
    ImageSources,
)
from infra.catalog.software import SOFTWARE, Software, SoftwareStack

STACKS = pytest.mark.parametrize("stack", SOFTWARE.values(), ids=SOFTWARE)
COMMIT, RELEASE = r"[0-9a-f]{40}", r"[0-9]+(\.[0-9]+)+"


@STACKS
def test_every_stack_says_what_it_is_built_from(stack: SoftwareStack) -> None:
    sources = IMAGE_SOURCES[stack.name]
    for repository in (sources.sglang_repository, sources.framework_repository, sources.megatron_repository):
        assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", repository)
    assert isinstance(sources.megatron_ref, Unresolved) or re.fullmatch(COMMIT, sources.megatron_ref)
    assert stack.framework in sources.framework_repository


@STACKS
def test_a_base_image_is_a_release_of_a_registry_and_its_digest_is_looked_up(stack: SoftwareStack) -> None:
    base = stack.base_image
    assert base.repository.startswith("docker.io/")
    assert base.tag not in ("latest", "dev")
    assert isinstance(base.digest, Unresolved)
    assert f"{base.repository}:{base.tag}" in base.digest.command


@pytest.mark.parametrize("sources", IMAGE_SOURCES.values(), ids=IMAGE_SOURCES)
def test_packages_of_the_trainer_are_releases_or_commits(sources: ImageSources) -> None:
    for name, version in sources.trainer.items():
        assert re.fullmatch(rf"{COMMIT}|{RELEASE}", version), name


@pytest.mark.parametrize("sources", IMAGE_SOURCES.values(), ids=IMAGE_SOURCES)
def test_what_upstream_leaves_open_is_a_release_under_the_name_by_which_pip_compares(sources: ImageSources) -> None:
    chosen = {**sources.open_requirements, **sources.build_tools}
    assert bool(sources.open_requirements) == bool(sources.build_tools) == bool(sources.trainer)
    assert not set(sources.open_requirements) & set(sources.trainer)
    for name, version in chosen.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name), name
        assert re.fullmatch(RELEASE, version), name


def test_a_trainer_is_whole_or_in_the_base_image() -> None:
    names: dict[Software, set[str]] = {stack: set(sources.trainer) for stack, sources in IMAGE_SOURCES.items()}
    assert names["baseline"] == set()
    # The one whose torch is not its base image's.
    assert names["aws-reference"] - names["efa-gda"] == {"torchaudio", "torchvision"}
    assert names["efa-gda"] < names["aws-reference"]
    assert {"transformer-engine", "flash-attn", "apex", "mbridge"} <= names["efa-gda"]


def test_the_key_of_efa_installers_is_a_whole_fingerprint_with_its_source() -> None:
    # A short key id can be made to order.
    assert re.fullmatch(r"[0-9A-F]{40}", EFA_KEY_FINGERPRINT)
    assert EFA_KEY_SOURCE.url.startswith("https://docs.aws.amazon.com/")


@STACKS
def test_each_device_side_transport_has_the_export_that_proves_it(stack: SoftwareStack) -> None:
    assert {transport for transport in stack.transports if transport != "none"} <= set(GIN_EXPORT)
    assert GIN_EXPORT["gda"] != GIN_EXPORT["proxy"]
    assert "aws-ofi-nccl" in GIN_SOURCE.title


def test_open_commits_carry_where_they_are_and_a_command_that_prints_them() -> None:
    tag = commit_of("a tag", "https://github.com/o/r", "refs/tags/v1")
    assert tag.command == "git ls-remote https://github.com/o/r 'refs/tags/v1^{}' refs/tags/v1"
    assert commit_of("a branch", "https://github.com/o/r", "refs/heads/b").command.endswith("r refs/heads/b")
    merge = merge_of("a merge", "o/r", 7)
    assert (merge.repository, merge.number) == ("o/r", 7)
    assert "/repos/o/r/pulls/7" in merge.command
