"""A small HTTP server for probes, metrics and what pods of one group tell each other.

Requests are short and few: a thread each, a read timeout, a bound on bodies, and nothing but the given address.
"""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar

from moerl_runtime.arguments import digits, host_port
from moerl_runtime.faults import InputFault, RuntimeFault

BODY_BYTES_MAX = 64 * 2**20
READ_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    """Without the query."""
    query: str = ""
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"


Handler = Callable[[Request], Answer]
S = TypeVar("S", bound=ThreadingHTTPServer)


def address(listen: str) -> tuple[str, int]:
    """(host, port) of HOST:PORT. Raises InputFault for anything else, and for a host that means every interface."""
    found = host_port(listen)
    if found is None:
        raise InputFault("--listen", listen, "is not HOST:PORT", "Write the pod's address and a port.")
    if found[0] in ("", "::", "*") or _is_zero(found[0]):
        raise InputFault("--listen", listen, "would listen on every interface", "Write the pod's own address.")
    return found


def _is_zero(host: str) -> bool:
    """Whether the resolver reads the host as 0.0.0.0, which has many spellings: `0`, `0x0`, `00.0`."""
    try:
        return socket.inet_aton(host) == bytes(4)
    except OSError:
        return False


def bound(
    kind: Callable[[tuple[str, int], type[BaseHTTPRequestHandler]], S],
    listen: str,
    connection: type[BaseHTTPRequestHandler],
) -> S:
    """A server that listens. Raises RuntimeFault for an address that cannot be bound, InputFault for one that may not."""
    try:
        return kind(address(listen), connection)
    except OSError as error:
        raise RuntimeFault(
            "address",
            listen,
            f"cannot be bound: {error.strerror or error}",
            "Write an address of this pod and a port that nothing listens on (`ss -ltn` shows those).",
        ) from error


@contextmanager
def serving(listen: str, handler: Handler) -> Iterator[str]:
    """Serves until the block ends; gives the URL, with the port that was free where `listen` says 0.

    Raises RuntimeFault for an address that cannot be bound, InputFault for one that may not.
    """
    server = bound(ThreadingHTTPServer, listen, _connection_class(handler))
    server.daemon_threads = True
    with running(server) as url:
        yield url


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[str]:
    """Lets a server answer, in a thread, until the block ends; gives its URL."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True, name="serve")
    thread.start()
    try:
        host, port = server.server_address[:2]
        yield f"http://{host!s}:{port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Connection(BaseHTTPRequestHandler, ABC):
    """One connection: each of its requests comes to `serve`, whatever the method."""

    protocol_version = "HTTP/1.1"

    @abstractmethod
    def serve(self) -> None: ...

    def do_GET(self) -> None:
        self.serve()

    def do_POST(self) -> None:
        self.serve()

    def do_PUT(self) -> None:
        self.serve()

    def do_DELETE(self) -> None:
        self.serve()

    def log_message(self, format: str, *arguments: object) -> None:
        """Probes come every few seconds: not worth a line each."""

    def reply(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)


def _connection_class(handler: Handler) -> type[Connection]:
    class Served(Connection):
        timeout = READ_TIMEOUT_SECONDS

        def serve(self) -> None:
            length = digits(self.headers.get("Content-Length") or "0")
            if length is None or length > BODY_BYTES_MAX:
                self.reply(Answer(status=400 if length is None else 413))
                self.close_connection = True
                return
            path, _, query = self.path.partition("?")
            request = Request(
                method=self.command,
                path=path,
                query=query,
                body=self.rfile.read(length) if length else b"",
                headers=dict(self.headers.items()),
            )
            self.reply(handler(request))

    return Served
