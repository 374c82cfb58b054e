"""Commits that branches, tags and merges of Git repositories name now, over https and without credentials.

Protocol: Git's smart HTTP, the list of references (gitprotocol-http, gitprotocol-common); GitHub's REST API for merges.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from infra.operations.registry import Fetch, RegistryError

_AGENT = {"User-Agent": "git/2.0 (moerl)"}
_COMMIT = re.compile(r"[0-9a-f]{40}")


def commit_of_ref(repository: str, ref: str, fetch: Fetch) -> str:
    """The commit of a full reference name; that of an annotated tag is the one that the tag points to."""
    url = f"{repository.removesuffix('.git')}.git/info/refs?service=git-upload-pack"
    answer = fetch(url, _AGENT)
    if answer.status != 200:
        raise RegistryError(f"{url} answered {answer.status}")
    found = dict(_references(answer.body, url))
    commit = found.get(f"{ref}^{{}}", found.get(ref))
    if commit is None:
        raise RegistryError(f"{repository} has no {ref}")
    return commit


def merge_commit(repository: str, number: int, fetch: Fetch) -> str:
    """The commit on the target branch. Raises RegistryError for a pull request that is not merged."""
    url = f"https://api.github.com/repos/{repository}/pulls/{number}"
    answer = fetch(url, {**_AGENT, "Accept": "application/vnd.github+json"})
    if answer.status != 200:
        raise RegistryError(f"{url} answered {answer.status}")
    try:
        document = json.loads(answer.body)
    except ValueError as error:
        raise RegistryError(f"{url} is not JSON") from error
    commit = document.get("merge_commit_sha") if isinstance(document, dict) and document.get("merged") else None
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise RegistryError(f"pull request {number} of {repository} is not merged")
    return commit


def _references(body: bytes, url: str) -> Iterator[tuple[str, str]]:
    """(name, commit) of each packet: four hexadecimal digits of length, itself included, then `COMMIT NAME`."""
    place = 0
    while place < len(body):
        try:
            length = int(body[place : place + 4], 16)
        except ValueError as error:
            raise RegistryError(f"{url} answered in another form than Git's") from error
        if 0 < length < 4 or place + length > len(body):
            raise RegistryError(f"{url} answered in another form than Git's")
        line = body[place + 4 : place + length].partition(b"\0")[0].decode(errors="replace").strip()
        commit, _, name = line.partition(" ")
        if _COMMIT.fullmatch(commit):
            yield name, commit
        # A packet of length 0 ends a section and is four bytes long.
        place += length or 4
