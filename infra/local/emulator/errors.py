"""The one error type that services raise; the wire layer renders it in each protocol."""

from __future__ import annotations


class ServiceError(Exception):
    """An AWS error reply.

    code: error code as the service's API reference spells it. status: HTTP status.
    """

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"
