"""Commits by reference and by merge, from answers in the form of Git and of GitHub."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.operations.registry import RegistryError, Response
from infra.operations.revisions import commit_of_ref, merge_commit

from .registries import advertised

ONE, TWO = "ab" * 20, "cd" * 20
REPOSITORY = "https://github.com/sgl-project/sglang"


def answering(body: bytes, status: int = 200, asked: list[str] | None = None):
    def fetch(url: str, headers: Mapping[str, str]) -> Response:
        assert headers["User-Agent"]
        if asked is not None:
            asked.append(url)
        return Response(status=status, headers={}, body=body)

    return fetch


def test_a_branch_is_its_head_and_no_other_branch_of_a_like_name() -> None:
    asked: list[str] = []
    body = advertised({"HEAD": TWO, "refs/heads/main-2": TWO, "refs/heads/main": ONE})
    assert commit_of_ref(REPOSITORY, "refs/heads/main", answering(body, asked=asked)) == ONE
    assert asked == [f"{REPOSITORY}.git/info/refs?service=git-upload-pack"]


def test_an_annotated_tag_is_the_commit_and_not_the_tag() -> None:
    body = advertised({"refs/tags/v1": TWO, "refs/tags/v1^{}": ONE, "refs/tags/v1.1": TWO})
    assert commit_of_ref(REPOSITORY, "refs/tags/v1", answering(body)) == ONE
    assert commit_of_ref(REPOSITORY, "refs/tags/v1.1", answering(body)) == TWO


def test_what_a_real_git_advertises_is_read(tmp_path: Path) -> None:
    git = shutil.which("git")
    assert git is not None

    def run(*arguments: str) -> bytes:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        command = [git, *identity, *arguments]
        return subprocess.run(  # noqa: S603 - git on a folder of this test
            command, cwd=tmp_path, env=environment, capture_output=True, check=True
        ).stdout

    run("init", "--quiet", "--initial-branch=main")
    run("commit", "--quiet", "--allow-empty", "-m", "one")
    run("tag", "--annotate", "--no-sign", "-m", "release", "v1")
    head = run("rev-parse", "HEAD").decode().strip()
    body = advertised({})[:-4] + run("upload-pack", "--http-backend-info-refs", ".")
    for ref in ("refs/heads/main", "refs/tags/v1"):
        assert commit_of_ref(REPOSITORY, ref, answering(body)) == head


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (advertised({"refs/heads/other": ONE}), 200),
        (b"<html>sign in</html>", 200),
        (b"0002", 200),
        (b"00ff", 200),
        (b"", 404),
    ],
)
def test_another_answer_is_refused_by_name(body: bytes, status: int) -> None:
    with pytest.raises(RegistryError, match="sglang"):
        commit_of_ref(REPOSITORY, "refs/heads/main", answering(body, status))


@given(body=st.binary(max_size=200))
def test_no_answer_is_a_crash_or_endless(body: bytes) -> None:
    with pytest.raises(RegistryError):
        commit_of_ref(REPOSITORY, "refs/heads/main", answering(body))


def test_a_merge_is_the_commit_on_the_target_branch() -> None:
    asked: list[str] = []
    body = json.dumps({"merged": True, "merge_commit_sha": ONE, "head": {"sha": TWO}}).encode()
    assert merge_commit("radixark/miles", 3124, answering(body, asked=asked)) == ONE
    assert asked == ["https://api.github.com/repos/radixark/miles/pulls/3124"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        # GitHub gives an open pull request a trial merge under the same name.
        (json.dumps({"merged": False, "merge_commit_sha": ONE}).encode(), 200),
        (json.dumps({"merged": True, "merge_commit_sha": "main"}).encode(), 200),
        (b"[]", 200),
        (b"{", 200),
        (b"{}", 403),
    ],
)
def test_what_is_not_merged_has_no_commit(body: bytes, status: int) -> None:
    with pytest.raises(RegistryError):
        merge_commit("radixark/miles", 3124, answering(body, status))
