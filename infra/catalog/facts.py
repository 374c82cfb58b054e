"""What every catalog table shares: where a fact comes from, and pins that no table can hold."""

from dataclasses import dataclass
from datetime import date

AS_OF = date(2026, 11, 29)
"""The catalog's own date. Rules that need a 'today' take this one, so the same input gives the same output for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a fact was read.

    `url` may be empty only when `computed` is true: then `title` names the formula and what it was fitted to.
    `as_of` is the date of the state that was read, not of the day it was copied.
    """

    title: str
    url: str
    as_of: date
    computed: bool = False

    def __post_init__(self) -> None:
        if not self.title:
            raise ValueError("a source needs a title")
        if not self.url and not self.computed:
            raise ValueError(f"source {self.title!r} has no url and is not computed")
        if self.as_of > AS_OF:
            raise ValueError(f"source {self.title!r} is dated {self.as_of}, after the catalog ({AS_OF})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresolved:
    """A pin that cannot be looked up offline, with the shell command that prints it.

    Words in angle brackets in `command` (`<version>`, `<region>`) are for the caller to fill in.
    """

    what: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnresolvedCommit(Unresolved):
    """The commit that a tag or branch of a Git repository names; `moerl lock` looks it up."""

    repository: str
    ref: str
    """Full name: refs/tags/... or refs/heads/..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnresolvedMerge(Unresolved):
    """The commit with which a pull request of a GitHub repository was merged; `moerl lock` looks it up."""

    repository: str
    number: int


Pin = str | Unresolved


def commit_of(what: str, repository: str, ref: str) -> UnresolvedCommit:
    """`what` names the commit in one phrase. An annotated tag stands twice in the list; the line with ^{} is the commit."""
    peeled = f" '{ref}^{{}}'" if ref.startswith("refs/tags/") else ""
    return UnresolvedCommit(
        what=what, command=f"git ls-remote {repository}{peeled} {ref}", repository=repository, ref=ref
    )


def merge_of(what: str, repository: str, number: int) -> UnresolvedMerge:
    """`repository` is OWNER/NAME on GitHub."""
    url = f"https://api.github.com/repos/{repository}/pulls/{number}"
    return UnresolvedMerge(
        what=what, command=f"curl -fsS {url} | jq -r .merge_commit_sha", repository=repository, number=number
    )
