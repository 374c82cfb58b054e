"""Where services keep their resources, and the identifiers that they give out."""

from __future__ import annotations

import datetime
import secrets
from typing import Any

from ministack.core.responses import AccountRegionScopedDict, get_account_id, get_region

Store = AccountRegionScopedDict


def account() -> str:
    return str(get_account_id())


def region() -> str:
    return str(get_region())


def hex_id(prefix: str, digits: int = 17) -> str:
    """An EC2-style identifier, such as 'subnet-0a1b2c…'."""
    return f"{prefix}-{secrets.token_hex(9)[:digits]}"


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def arn(service: str, resource: str, *, regional: bool = True) -> str:
    return f"arn:aws:{service}:{region() if regional else ''}:{account()}:{resource}"


def scoped(store: Store) -> dict[Any, Any]:
    """This account's and region's entries of a store."""
    return dict(store.items())
