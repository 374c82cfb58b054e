"""Where services keep their resources, and the identifiers that they give out."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Iterator, MutableMapping
from typing import Any

from ministack.core.responses import get_account_id, get_region


class Store(MutableMapping[Any, Any]):
    """The resources of one kind. Every access sees only the account and region of the request that is being served."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: dict[tuple[str, str, Any], Any] = {}

    def __getitem__(self, key: Any) -> Any:
        return self._items[account(), region(), key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._items[account(), region(), key] = value

    def __delitem__(self, key: Any) -> None:
        del self._items[account(), region(), key]

    def __iter__(self) -> Iterator[Any]:
        here = (account(), region())
        return iter([key for *where, key in self._items if tuple(where) == here])

    def __len__(self) -> int:
        return sum(1 for _ in self)


def account() -> str:
    return str(get_account_id())


def region() -> str:
    return str(get_region())


def hex_id(prefix: str, digits: int = 17) -> str:
    """An EC2-style identifier, such as 'subnet-0a1b2c...'."""
    return f"{prefix}-{secrets.token_hex(9)[:digits]}"


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def arn(service: str, resource: str, *, regional: bool = True) -> str:
    return f"arn:aws:{service}:{region() if regional else ''}:{account()}:{resource}"
