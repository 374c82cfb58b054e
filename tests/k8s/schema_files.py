"""The locked schemas as tests get them: from the folder of MOERL_SCHEMAS_DIR, from the cache, or from upstream."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from k8s.schemas import Resolved, fetch_https, locked_schemas, resolve

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "schemas"


@cache
def schemas() -> Resolved:
    mirror = os.environ.get("MOERL_SCHEMAS_DIR")
    return resolve(locked_schemas(), mirror=Path(mirror) if mirror else None, cache=CACHE, fetch=fetch_https)
