"""HTTP of the local engine: connections, streams, and clients that hang up."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from moerl_runtime import serve
from moerl_runtime.serve import Answer, Connection
from moerl_runtime.smoke.engine_answers import event_of_error, first_shape, second_shape
from moerl_runtime.smoke.engine_core import DuplicateRid, Engine, EngineDead
from moerl_runtime.smoke.engine_request import BadRequest, Malformed, UnknownParameter
from moerl_runtime.smoke.engine_server import ClientGone, EngineServer
from moerl_runtime.smoke.engine_settings import EngineSettings
from moerl_runtime.smoke.stepper import Stepper

BACKLOG = 512


@contextmanager
def serving(
    stepper: Stepper,
    settings: EngineSettings,
    *,
    clock: Callable[[], float],
    listen: str = "127.0.0.1:0",
    on_crash: Callable[[str], None],
) -> Iterator[tuple[str, EngineServer]]:
    """(URL, server) of an engine in this process. After a crash nothing answers any more, as if the process were gone."""
    engine = Engine(stepper, settings, clock=clock, on_crash=on_crash)
    routes = EngineServer(engine, stepper, settings, clock)
    listener = serve.bound(Listener, listen, _connection_class(routes))
    engine.start()
    with serve.running(listener) as url:
        try:
            yield url, routes
        finally:
            engine.close()


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = BACKLOG

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no event."""


def _connection_class(routes: EngineServer) -> type[Connection]:
    class Served(Connection):
        disable_nagle_algorithm = True

        def serve(self) -> None:
            path, _, query = self.path.partition("?")
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length) if length else b""
            try:
                self._route(path, parse_qs(query), raw)
            except (EngineDead, ClientGone, BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            except Malformed as error:
                self._json(400, first_shape(str(error), 400))
            except BadRequest as error:
                self._json(400, second_shape(str(error)))
            except DuplicateRid as error:
                self._json(400, second_shape(f"Duplicate request id: {error}"))
            except UnknownParameter as error:
                self._json(500, first_shape(str(error), 500))

        def _route(self, path: str, query: Mapping[str, list[str]], raw: bytes) -> None:
            if routes.engine.closed:
                raise EngineDead
            if not routes.allowed(path, self.headers.get("Authorization", "")):
                self._json(401, {"error": "Unauthorized"})
            elif path == "/ping":
                self._bytes(200, b"", "text/plain")
            elif path in ("/health", "/health_generate"):
                probe = path == "/health_generate" or routes.settings.health_generation
                self._bytes(200 if routes.healthy(probe=probe) else 503, b"", "text/plain")
            elif path == "/metrics" and routes.settings.enable_metrics:
                self._bytes(200, routes.metrics().encode(), "text/plain; version=0.0.4; charset=utf-8")
            elif path in ("/model_info", "/get_model_info"):
                self._json(200, routes.model_info())
            elif path in ("/server_info", "/get_server_info"):
                self._json(200, routes.server_info())
            elif path == "/v1/loads":
                form = query.get("format", ["json"])[0]
                kind = "text/plain" if form == "prometheus" else "application/json"
                self._bytes(200, routes.loads(form).encode(), kind)
            elif path == "/generate" and self.command != "GET":
                self._generate(_decoded(raw))
            elif routes.steers(path):
                status, body = routes.control(path, query, _decoded(raw) if path != "/flush_cache" else None)
                if body is None or isinstance(body, str):
                    self._bytes(status, (body or "").encode(), "text/plain")
                else:
                    self._json(status, body)
            else:
                self._json(404, {"detail": "Not Found"})

        def _generate(self, body: Any) -> None:
            try:
                request = routes.parse(body)
            except BadRequest as error:
                if not body.get("stream"):
                    raise
                self._stream(iter((event_of_error(400, second_shape(str(error))), "[DONE]")))
                return
            if request.stream:
                self._stream(routes.stream(request, self._gone))
            else:
                self._json(*routes.generate(request, self._gone))

        def _stream(self, events: Iterator[str]) -> None:
            """The status is 200 whatever happens: errors are events."""
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in events:
                self._chunk(f"data: {event}\n\n")
            self._chunk("")

        def _gone(self) -> bool:
            """Whether the client closed its side: readable and at its end."""
            readable, _, _ = select.select([self.connection], [], [], 0)
            if not readable:
                return False
            try:
                return not self.connection.recv(1, socket.MSG_PEEK)
            except OSError:
                return True

        def _json(self, status: int, body: Any) -> None:
            self._bytes(status, json.dumps(body).encode(), "application/json")

        def _bytes(self, status: int, body: bytes, content_type: str) -> None:
            self.reply(Answer(status=status, body=body, content_type=content_type))

        def _chunk(self, text: str) -> None:
            data = text.encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

    return Served


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise Malformed("the body is not JSON") from error
