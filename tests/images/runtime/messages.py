"""Texts that are almost messages, for whoever has to read queues."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from moerl_runtime import protocol

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


def bent(body: Any) -> st.SearchStrategy[str]:
    """The message with some fields replaced, added or left out; or any JSON at all; or deeper JSON than can be read."""
    written = json.loads(protocol.encode(body))
    changed = st.dictionaries(st.sampled_from(sorted({*written, "more"})), values, min_size=1, max_size=2)
    fewer = st.sampled_from(sorted(written)).map(lambda name: {key: written[key] for key in written if key != name})
    return st.one_of(
        changed.map(lambda fields: json.dumps(written | fields)),
        fewer.map(json.dumps),
        values.map(json.dumps),
        st.just("[" * 100_000),
    )
