"""Replies of SGLang 0.5.17 and 0.5.19 to /generate, read strictly.

An abort is HTTP 200 with a finish reason, so the reason decides and never the status. 0.5.17 names one version of weights,
the one at the end of the answer; 0.5.19 names spans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

Ending = Literal["completed", "truncated", "aborted"]
ENDINGS: Mapping[str, Ending] = {"stop": "completed", "length": "truncated", "abort": "aborted"}


class MalformedAnswer(Exception):
    """The engine answered, but not with what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One reply. An aborted one has no tokens here: it is never stored."""

    ending: Ending
    tokens: tuple[int, ...] = ()
    text: str = ""
    log_probs: tuple[float, ...] = ()
    tags: tuple[str, ...] = ()
    """Weights that served it, oldest first, as the engine was told to call them."""
    spans: bool = False
    """Whether `tags` are complete. If not there is one, of the end."""


def read(document: Any) -> Answer:
    """The reply to a request for one sample with log probabilities. Raises MalformedAnswer."""
    try:
        about = document["meta_info"]
        reason = about["finish_reason"]["type"]
        if ENDINGS.get(reason) == "aborted":
            return Answer(ending="aborted")
        tokens = tuple(document["output_ids"])
        answer = Answer(
            ending=ENDINGS[reason],
            tokens=tokens,
            text=str(document["text"]),
            log_probs=tuple(float(entry[0]) for entry in about["output_token_logprobs"]),
            tags=_tags(about),
            spans="weight_versions" in about,
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise MalformedAnswer(f"{type(error).__name__}: {error}") from error
    if len(answer.log_probs) != len(tokens):
        raise MalformedAnswer(f"{len(tokens)} tokens with {len(answer.log_probs)} log probabilities")
    if not all(isfinite(value) for value in answer.log_probs):
        raise MalformedAnswer("a log probability is no finite number")
    if not all(type(token) is int for token in tokens):
        raise MalformedAnswer("a token id is no integer")
    return answer


def message_of(document: Any, raw: bytes) -> str:
    """What an error reply says, in either of SGLang's two shapes, or its first characters."""
    if isinstance(document, dict):
        inner = document.get("error")
        found = inner.get("message") if isinstance(inner, dict) else document.get("message", inner)
        if isinstance(found, str):
            return found[:500]
    return raw[:200].decode(errors="replace")


def _tags(about: Mapping[str, Any]) -> tuple[str, ...]:
    spans = about.get("weight_versions") or ({"version": about["weight_version"]},)
    ordered: dict[str, None] = {str(span["version"]): None for span in spans}
    return tuple(ordered)
