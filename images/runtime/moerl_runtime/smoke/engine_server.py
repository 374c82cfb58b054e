"""SGLang's HTTP surface over the local engine: what a rollout agent meets, its traps included, without a GPU.

Behaviour is that of the releases named in EngineSettings, read in their sources. Among what surprises callers:

    an abort answers 200 with what was made so far; only finish_reason tells it from a finished answer
    aborting rid a_1 also ends a_10; an unknown rid answers 200 as well
    POST /update_weight_version aborts everything unless told not to
    an update with flush_cache (the default) while a pause keeps requests alive ends the process
    /health turns 503 in a long pause or load, and at SIGTERM, after which /generate still works
    after SIGTERM the process ends when no request is left, however long that takes
    a load that fails does not bring the old weights back
    /server_info shows the keys

`serving` runs it in this process, for tests; `smoke engine` is a process of its own.
"""

from __future__ import annotations

import hmac
import json
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from moerl_runtime import serve
from moerl_runtime.smoke import engine_metrics
from moerl_runtime.smoke.engine_core import DuplicateRid, Engine, EngineDead, Generation, QueueFull
from moerl_runtime.smoke.engine_request import BadRequest, GenerateRequest, Malformed, UnknownParameter, parse
from moerl_runtime.smoke.engine_settings import EngineSettings
from moerl_runtime.smoke.stepper import Stepper

BACKLOG = 512
DISCONNECT_TOKENS = 50
"""A request that does not stream looks for its client so often."""
OPEN_PATHS = ("/health", "/health_generate", "/metrics", "/ping")
CONTROL_PATHS = frozenset(
    {
        "/abort_request",
        "/pause_generation",
        "/continue_generation",
        "/flush_cache",
        "/update_weights_from_disk",
        "/update_weight_version",
        "/get_weights_by_name",
        "/weights_checker",
    }
)
PAUSE_MODES = ("abort", "retract", "in_place")


class ClientGone(Exception):
    """The caller closed its connection."""


class EngineServer:
    """Routes and the states of a life: warming up, serving, ending."""

    def __init__(self, engine: Engine, stepper: Stepper, settings: EngineSettings, clock: Callable[[], float]) -> None:
        self.engine, self.settings = engine, settings
        self._stepper, self._clock = stepper, clock
        self._began = clock()
        self.terminating = threading.Event()
        """SIGTERM was received."""
        self.unhealthy = False
        """The last probe failed: then a SIGTERM does not wait for requests."""

    def ready(self) -> bool:
        return self._clock() - self._began >= self.settings.warmup_seconds

    def drained(self) -> bool:
        """Waits for the end of all requests, looking every tick. False: cut short because the engine is unhealthy."""
        while not self.engine.closed:
            if self.unhealthy:
                return False
            self.engine.rest(self.settings.sigterm_tick_seconds)
            if not self.engine.unfinished():
                return True
        return False

    def healthy(self, *, probe: bool) -> bool:
        if self.terminating.is_set() or not self.ready():
            return False
        if not probe:
            return True
        began = self._clock()
        alive = self.engine.probe(self.settings.health_timeout_seconds)
        if not self.terminating.wait(max(0.0, began + self.settings.health_probe_seconds - self._clock())):
            self.unhealthy = not alive
        return alive and not self.terminating.is_set()

    def allowed(self, path: str, authorization: str) -> bool:
        """Control routes take the admin key alone once there is one; with an admin key alone the others are open."""
        api, admin = self.settings.api_key, self.settings.admin_api_key
        if path.startswith(OPEN_PATHS):
            return True
        wanted = admin if admin and path in CONTROL_PATHS else api
        return wanted is None or hmac.compare_digest(authorization.encode(), f"Bearer {wanted}".encode())

    # --- generation ---

    def parse(self, body: Any) -> GenerateRequest:
        return parse(
            body,
            self._stepper,
            context_length=self.settings.context_length,
            preferred={},
            tracked=self.settings.release == "0.5.17",
        )

    def generate(self, request: GenerateRequest, gone: Callable[[], bool]) -> tuple[int, Any]:
        """(status, body) of an answer that does not stream. Raises ClientGone."""
        generations = self.engine.register(request.prompts, stream=False)
        with self._admitted(generations) as refused:
            if refused is not None:
                return refused
            for generation in generations:
                self._finish(generation, generations, gone)
                if generation.overflow:
                    # One item that fails, fails the whole answer; 0.5.19 lets the rest run on for nobody.
                    if self.settings.release == "0.5.17":
                        self.engine.abort_these([other for other in generations if not other.over])
                    return 503, first_shape("The request queue is full.", 503)
            answers = [self._answer(generation, request) for generation in generations]
        return 200, answers if request.batch else answers[0]

    def stream(self, request: GenerateRequest, gone: Callable[[], bool]) -> Iterator[str]:
        """Bodies of the events, the last one [DONE]. Errors are events too. Raises ClientGone."""
        try:
            generations = self.engine.register(request.prompts, stream=True)
        except DuplicateRid as error:
            yield _event_of_error(400, second_shape(f"Duplicate request id: {error}"))
        else:
            with self._admitted(generations) as refused:
                if refused is None:
                    yield from self._events(generations, request, gone)
                else:
                    yield _event_of_error(*refused)
        yield "[DONE]"

    def _events(
        self, generations: list[Generation], request: GenerateRequest, gone: Callable[[], bool]
    ) -> Iterator[str]:
        seen = dict.fromkeys(range(len(generations)), 0)
        try:
            while seen:
                for index in list(seen):
                    generation = generations[index]
                    count, over = self.engine.wait(generation, seen[index], self.settings.stream_disconnect_seconds)
                    if gone():
                        raise ClientGone
                    if generation.overflow:
                        yield _event_of_error(503, first_shape("The request queue is full.", 503))
                    elif count > seen[index] or over:
                        start = seen[index] if self.settings.incremental_streaming_output else 0
                        if over and generation.queued_abort:
                            start = max(0, count - 1)
                        chunk = self._answer(generation, request, start=start, end=count, over=over)
                        yield json.dumps(chunk | ({"index": index} if request.batch else {}))
                        seen[index] = count
                    if over:
                        del seen[index]
        finally:
            if seen:
                self.engine.rest(self.settings.stream_disconnect_seconds)
                self.engine.abort_these(generations)

    @contextmanager
    def _admitted(self, generations: list[Generation]) -> Iterator[tuple[int, Any] | None]:
        """Through the pause gate and the readers' side of the update lock; gives (status, body) where that ends it."""
        try:
            self.engine.pass_pause()
            with self.engine.updates.reading():
                if any(generation.refused for generation in generations):
                    yield 499, second_shape("Request is aborted before it was sent to the scheduler.")
                    return
                try:
                    self.engine.enqueue(generations)
                except QueueFull:
                    yield 503, first_shape("The request queue is full.", 503)
                    return
                yield None
        finally:
            self.engine.forget(generations)

    def _finish(self, generation: Generation, batch: list[Generation], gone: Callable[[], bool]) -> None:
        while True:
            looked = len(generation.tokens)
            deadline = self._clock() + self.settings.disconnect_tick_seconds
            count = looked
            while (left := deadline - self._clock()) > 0 and count < looked + DISCONNECT_TOKENS:
                count, over = self.engine.wait(generation, count, left)
                if over:
                    return
            if gone():
                self.engine.abort_these(batch)
                raise ClientGone

    def _answer(
        self,
        generation: Generation,
        request: GenerateRequest,
        *,
        start: int = 0,
        end: int | None = None,
        over: bool = True,
    ) -> dict[str, Any]:
        end = len(generation.tokens) if end is None else end
        tokens, finish = generation.tokens[:end], generation.finish if over else None
        meta: dict[str, Any] = {
            "id": generation.rid,
            "finish_reason": finish,
            "weight_version": generation.version or self.engine.weight_version,
            "completion_tokens": len(tokens),
        }
        if not generation.queued_abort:
            meta |= {
                "prompt_tokens": len(generation.prompt),
                "cached_tokens": 0,
                "reasoning_tokens": 0,
                "num_retractions": generation.retractions,
            }
        if over and self.settings.spans:
            meta["weight_versions"] = spans = generation.spans
            if spans:
                meta["weight_version"] = spans[-1]["version"]
        if over and generation.finished is not None:
            meta["e2e_latency"] = generation.finished - generation.submitted
        if request.log_probs:
            made = [
                [log_prob, token, self._stepper.decode([token]) if request.token_texts else None]
                for token, log_prob in zip(tokens, generation.log_probs, strict=False)
            ]
            meta |= {
                "input_token_logprobs": [],
                "output_token_logprobs": made[start:],
                "output_token_logprobs_length": len(made),
            }
        answer: dict[str, Any] = {
            "text": self._text(generation, tokens[start:], finish),
            "output_ids": tokens[start:],
            "meta_info": meta,
        }
        if request.prompt_tokens:
            answer["prompt_token_ids"] = list(generation.prompt)
        return answer

    def _text(self, generation: Generation, tokens: list[int], finish: Mapping[str, Any] | None) -> str:
        """Without what it stopped at, unless no_stop_trim."""
        matched = finish["matched"] if finish and finish["type"] == "stop" else None
        if matched is None or not generation.sampling.trim_stop:
            return self._stepper.decode(tokens)
        if isinstance(matched, int):
            return self._stepper.decode(tokens[:-1])
        return self._stepper.decode(tokens).partition(matched)[0]

    # --- control ---

    def control(self, path: str, query: Mapping[str, list[str]], body: Any) -> tuple[int, Any]:
        """(status, body) of the routes that steer the engine. A body of None is empty."""
        engine = self.engine
        if path == "/abort_request":
            fields = _object(body, rid=str, abort_all=bool)
            engine.abort(fields.get("rid") or "", everything=bool(fields.get("abort_all")))
            return 200, None
        if path == "/pause_generation":
            mode = _object(body, mode=str).get("mode", "abort")
            if mode not in PAUSE_MODES:
                raise Malformed(f"mode: one of {', '.join(PAUSE_MODES)}")
            engine.pause(mode)
            return 200, {"message": "Generation paused successfully.", "status": "ok"}
        if path == "/continue_generation":
            _object(body, torch_empty_cache=bool)
            engine.resume()
            return 200, {"message": "Generation continued successfully.", "status": "ok"}
        if path == "/flush_cache":
            done = engine.flush(float(query.get("timeout", ["0"])[0]))
            return (200, "Cache flushed.\n") if done else (400, "Flush cache failed: requests are alive.\n")
        if path == "/update_weights_from_disk":
            return self._update(body)
        if path == "/update_weight_version":
            fields = _object(body, new_version=str, abort_all_requests=bool)
            version = _required(fields, "new_version")
            engine.tag(version, abort_all=fields.get("abort_all_requests", True))
            return 200, {"success": True, "message": "Weight version updated.", "new_version": version}
        if path == "/get_weights_by_name":
            fields = _object(body, name=str, truncate_size=int)
            try:
                values = engine.tensor(_required(fields, "name"))
            except KeyError:
                return 400, second_shape("Get parameter by name failed")
            return 200, values[: fields.get("truncate_size", 100)]
        action = _object(body, action=str, allow_quant_error=bool).get("action")
        if action != "checksum":
            return 400, {"success": False, "message": f"Unsupported action {action!r}: this local engine has checksum."}
        checksum = engine.checksum()
        return 200, {"success": True, "message": "", "ranks": [checksum], "per_engine_checksum": checksum}

    def _update(self, body: Any) -> tuple[int, Any]:
        fields = _object(
            body,
            model_path=str,
            load_format=str,
            abort_all_requests=bool,
            weight_version=str,
            flush_cache=bool,
            torch_empty_cache=bool,
            recapture_cuda_graph=bool,
        )
        success, message = self.engine.update_weights(
            _required(fields, "model_path"),
            version=fields.get("weight_version"),
            abort_all=bool(fields.get("abort_all_requests")),
            flush=fields.get("flush_cache", True),
        )
        return (200 if success else 400), {"success": success, "message": message, "num_paused_requests": 0}

    def model_info(self) -> dict[str, Any]:
        return {
            "model_path": self.engine.model_path,
            "tokenizer_path": self.settings.model_path,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": self.engine.weight_version,
            "model_type": "local",
            "architectures": ["LocalForCausalLM"],
            "has_image_understanding": False,
            "has_audio_understanding": False,
        } | ({"served_model_name": self.engine.served_model_name} if self.settings.spans else {})

    def server_info(self) -> dict[str, Any]:
        """Keys in clear, as SGLang shows them. 0.5.19 shows the weight version of the start."""
        live = {} if self.settings.spans else {"weight_version": self.engine.weight_version}
        return {
            **asdict(self.settings),
            **live,
            "served_model_name": self.engine.served_model_name,
            "max_total_num_tokens": self.engine.snapshot["max_total_num_tokens"],
            "max_req_input_len": self.settings.context_length - 1,
            "startup_time": self.settings.start_seconds,
            "internal_states": [dict(self.engine.snapshot)],
            "version": self.settings.release,
        }

    def loads(self, form: str) -> str:
        numbers = dict(self.engine.snapshot)
        if form == "prometheus":
            shown = {name: value for name, value in numbers.items() if name not in ("timestamp", "dp_rank")}
            return "".join(f'sglang_{name}{{dp_rank="0"}} {float(value)!r}\n' for name, value in shown.items())
        whole = {
            "timestamp": numbers["timestamp"],
            "version": self.settings.release,
            "accelerator": "cpu",
            "num_accelerators": 0,
            "loads": [numbers],
        }
        return json.dumps(whole)

    def metrics(self) -> str:
        return engine_metrics.exposition(
            model_name=self.settings.model_path,
            loads=self.engine.snapshot,
            counts=self.engine.counts,
            durations=self.engine.durations,
            load_seconds=self.engine.load_seconds,
        )


def first_shape(message: str, status: int) -> dict[str, Any]:
    """SGLang's error body for what its framework refuses, and for 503."""
    kind = "Bad Request" if status == 400 else str(status)
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


def second_shape(message: str) -> dict[str, Any]:
    """SGLang's error body for what its own checks refuse."""
    return {"error": {"message": message}}


def _event_of_error(status: int, body: Mapping[str, Any]) -> str:
    message = body["error"]["message"] if "error" in body else body["message"]
    return json.dumps({"error": {"message": message, "type": "error", "code": status, "retryable": False}})


def _object(body: Any, **kinds: type) -> Mapping[str, Any]:
    """The body, of which the named fields have these types or are null. Others are ignored."""
    if not isinstance(body, dict):
        raise Malformed("a JSON object is required as body")
    for name, kind in kinds.items():
        value = body.get(name)
        if value is not None and not isinstance(value, kind):
            raise Malformed(f"{name}: not a {kind.__name__}")
    return {name: value for name, value in body.items() if value is not None}


def _required(fields: Mapping[str, Any], name: str) -> str:
    if name not in fields:
        raise Malformed(f"{name}: field required")
    return str(fields[name])


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
    host, port = serve.address(listen)
    engine = Engine(stepper, settings, clock=clock, on_crash=on_crash)
    routes = EngineServer(engine, stepper, settings, clock)
    with _Listener((host, port), _handler_class(routes)) as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.05,), name="http", daemon=True)
        engine.start()
        thread.start()
        try:
            yield f"http://{host}:{listener.server_address[1]}", routes
        finally:
            engine.close()
            listener.shutdown()
            thread.join()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = BACKLOG

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no event."""


def _handler_class(routes: EngineServer) -> type[BaseHTTPRequestHandler]:
    class Served(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def do_PUT(self) -> None:
            self._serve()

        def log_message(self, format: str, *arguments: object) -> None:
            """Requests are counted, not logged."""

        def _serve(self) -> None:
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
            elif path in CONTROL_PATHS:
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
                self._stream(iter((_event_of_error(400, second_shape(str(error))), "[DONE]")))
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
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

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
