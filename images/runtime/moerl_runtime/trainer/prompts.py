"""Prompts as an endless stream: position 0 is the first prompt of epoch 0, and a position always means the same prompt.

So a checkpoint needs a number and not a list, and a group that comes again after a resume asks the very same question. The
order of an epoch is the one in which Miles' and slime's own data sources would shuffle it.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from moerl_runtime import store
from moerl_runtime.faults import InputFault
from moerl_runtime.protocol import TaskPayload
from moerl_runtime.store import S3Client

DEFAULT_GRADER = "exact"
ORDERS_KEPT = 2
"""Epochs whose order is kept: a late group of the last one comes back beside those of this one."""

Message = Mapping[str, Any]
Render = Callable[[str | Sequence[Message], Sequence[Any] | None], tuple[str, tuple[int, ...]]]
"""(prompt, tools) to the text that a model sees and its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the prompt file."""

    prompt: str | tuple[Message, ...]
    label: str | None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    grader: str | None = None
    tools: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Keys of a row, as the framework's flags name them."""

    prompt: str
    label: str | None
    metadata: str = "metadata"
    tools: str | None = None


class Prompts:
    """Rows in their order, as what an agent needs."""

    def __init__(
        self,
        rows: Sequence[Row],
        *,
        fingerprint: str,
        render: Render,
        samples: int,
        sampling: Mapping[str, Any],
        seed: int = 42,
        shuffle: bool = True,
        grader: str = DEFAULT_GRADER,
        tokens_max: int | None = None,
    ) -> None:
        if not rows:
            raise InputFault("--prompt-data", 0, "holds no prompt", "Write one JSON object a line.")
        self.fingerprint = fingerprint
        """Of the file: a resumed run must read the same one, or positions mean other prompts."""
        self._rows, self._render = rows, render
        self._samples, self._sampling = samples, dict(sampling)
        self._grader, self._tokens_max = grader, tokens_max
        self._order = lru_cache(maxsize=ORDERS_KEPT)(lambda epoch: _order(len(rows), seed + epoch, shuffle))

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, position: int) -> Row:
        epoch, offset = divmod(position, len(self._rows))
        return self._rows[self._order(epoch)[offset]]

    def payload(self, position: int, group: int) -> TaskPayload | None:
        """The task of a group; None for a prompt that is longer than the trainer takes."""
        row = self.row(position)
        text, tokens = self._render(row.prompt, row.tools)
        if not tokens or (self._tokens_max is not None and len(tokens) > self._tokens_max):
            return None
        return TaskPayload(
            group=group,
            prompt=text,
            prompt_tokens=tokens,
            samples=self._samples,
            sampling=self._sampling,
            label=row.label,
            grader=row.grader or self._grader,
            metadata=row.metadata,
        )


def read(source: str, s3: S3Client) -> bytes:
    """The prompt file: s3://BUCKET/KEY, or a path. Raises InputFault where there is none."""
    if source.startswith("s3://"):
        bucket, _, key = source.removeprefix("s3://").partition("/")
        stored = store.get(s3, bucket, key)
        if stored is None:
            raise InputFault("--prompt-data", source, "is not in the bucket", "Upload the prompts before the run.")
        return stored.body
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise InputFault("--prompt-data", source, f"cannot be read: {error.strerror}", "Name a JSONL file.") from error


def fingerprint(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def parse(body: bytes, columns: Columns) -> list[Row]:
    """Rows of a JSONL file. Raises InputFault with the line that is wrong: a skipped one would shift all positions."""
    rows = []
    for number, line in enumerate(body.splitlines(), start=1):
        if line.strip():
            rows.append(_row(number, line, columns))
    return rows


def _row(number: int, line: bytes, columns: Columns) -> Row:
    where = f"--prompt-data, line {number}"
    try:
        written = json.loads(line)
        prompt = written[columns.prompt]
    except (ValueError, KeyError, TypeError) as error:
        raise InputFault(
            where, line[:80].decode(errors="replace"), f"has no {columns.prompt!r}", "Write one JSON object a line."
        ) from error
    label = None if columns.label is None else written.get(columns.label)
    metadata = written.get(columns.metadata) or {}
    tools = None if columns.tools is None else _tools(written.get(columns.tools), where)
    if not isinstance(prompt, str | list):
        raise InputFault(
            where, type(prompt).__name__, "is neither text nor a list of messages", f"Change {columns.prompt!r}."
        )
    if not isinstance(metadata, dict):
        raise InputFault(where, type(metadata).__name__, "is no object", f"Change {columns.metadata!r}.")
    grader = written.get("grader")
    if not (grader is None or isinstance(grader, str)):
        raise InputFault(where, grader, "is no name of a grader", "Change 'grader'.")
    return Row(
        prompt=prompt if isinstance(prompt, str) else tuple(prompt),
        label=None if label is None else label if isinstance(label, str) else json.dumps(label),
        metadata=metadata,
        grader=grader,
        tools=tools,
    )


def _tools(written: Any, where: str) -> tuple[Any, ...] | None:
    """A list, or a text that has one in JSON."""
    try:
        found = json.loads(written) if isinstance(written, str) and written else written
    except ValueError as error:
        raise InputFault(where, written[:80], f"is no JSON: {error}", "Change the tools.") from error
    if found and not isinstance(found, list):
        raise InputFault(where, type(found).__name__, "is no list of tools", "Change the tools.")
    return tuple(found) if found else None


def renderer(tokenizer: Any, *, chat_template: bool, template_arguments: Mapping[str, Any] | None = None) -> Render:
    """Text and tokens by the model's tokenizer, as engines without a template of their own will see them."""

    def render(prompt: str | Sequence[Message], tools: Sequence[Any] | None) -> tuple[str, tuple[int, ...]]:
        if not chat_template:
            if not isinstance(prompt, str):
                raise InputFault(
                    "--apply-chat-template", False, "the prompts are lists of messages", "Set it, or write plain text."
                )
            text = prompt
        else:
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
            text = tokenizer.apply_chat_template(
                messages,
                tools=list(tools) if tools else None,
                tokenize=False,
                add_generation_prompt=True,
                **(template_arguments or {}),
            )
        return text, tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    return render


def _order(count: int, seed: int, shuffle: bool) -> Sequence[int]:
    if not shuffle:
        return range(count)
    order = list(range(count))
    random.Random(seed).shuffle(order)  # noqa: S311 - an order that repeats, not a secret
    return order
