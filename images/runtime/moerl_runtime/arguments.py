"""Kinds of arguments: each refuses, before a command begins, what it could not work with."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

LAST_PORT = 65_535


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number from `least` to `most`."""
    wanted = f"a whole number from {least} to {most}" if most is not None else f"a whole number of {least} or more"

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError as error:
            raise ArgumentTypeError(f"{text!r} is not {wanted}") from error
        if value < least or (most is not None and value > most):
            raise ArgumentTypeError(f"{text!r} is not {wanted}")
        return value

    return number


def port(text: str) -> int:
    """A TCP port, or 0 for any that is free."""
    return whole(0, LAST_PORT)(text)


def host_port(text: str) -> tuple[str, int] | None:
    """(host, port) of HOST:PORT, without the brackets of an IPv6 address; None for any other text. The host may be empty."""
    host, colon, written = text.rpartition(":")
    number = digits(written)
    if not colon or number is None or number > LAST_PORT:
        return None
    return host.strip("[]"), number


def digits(text: str) -> int | None:
    """The number that is written in the digits 0 to 9; None for any other text. Python takes more for digits, such as `²`."""
    return int(text) if text.isascii() and text.isdigit() else None


def url(text: str) -> str:
    """http://HOST or https://HOST, with what may follow."""
    try:
        parts = urlsplit(text)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise ArgumentTypeError(f"{text!r} is not http://HOST:PORT")
    return text


def output(text: str) -> Path:
    """A file that can be written. It is not made yet."""
    path = Path(text)
    if path.is_dir():
        raise ArgumentTypeError(f"{text} is a folder")
    if not path.parent.is_dir():
        raise ArgumentTypeError(f"there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ArgumentTypeError(f"{text} cannot be written")
    return path
