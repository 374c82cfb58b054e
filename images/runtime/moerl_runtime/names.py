"""Numbers in names of S3 objects. Each has one text, of a fixed width; whatever is written otherwise, nobody of the run has
written. It is passed over: one object that a person left would end the run, and each try of it, otherwise."""

from __future__ import annotations

import logging
from functools import lru_cache

from moerl_runtime.arguments import digits

log = logging.getLogger(__name__)

LOGGED_MAX = 1_000


def number(text: str, width: int, *, key: str) -> int | None:
    """The number that is written so, with zeros in front up to `width` digits; None for other text, and `key` is logged."""
    found = digits(text)
    if found is not None and f"{found:0{width}d}" == text:
        return found
    pass_over(key)
    return None


@lru_cache(maxsize=LOGGED_MAX)
def pass_over(key: str) -> None:
    """Logs the key, once a process: listings are repeated each minute."""
    log.warning("%s is nothing that this run wrote, and is passed over", key)
