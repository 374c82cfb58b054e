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

`engine_http.serving` runs it in this process, for tests; `smoke engine` is a process of its own.
"""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from moerl_runtime.smoke import engine_metrics
from moerl_runtime.smoke.engine_answers import answer_of, event_of_error, first_shape, second_shape
from moerl_runtime.smoke.engine_core import DuplicateRid, Engine, QueueFull
from moerl_runtime.smoke.engine_generation import Generation
from moerl_runtime.smoke.engine_request import GenerateRequest, Malformed, parse
from moerl_runtime.smoke.engine_settings import EngineSettings
from moerl_runtime.smoke.stepper import Stepper

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

    def steers(self, path: str) -> bool:
        """Whether `control` answers it."""
        return path in CONTROL_PATHS

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
            yield event_of_error(400, second_shape(f"Duplicate request id: {error}"))
        else:
            with self._admitted(generations) as refused:
                if refused is None:
                    yield from self._events(generations, request, gone)
                else:
                    yield event_of_error(*refused)
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
                        yield event_of_error(503, first_shape("The request queue is full.", 503))
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

    def _answer(self, generation: Generation, request: GenerateRequest, **part: Any) -> dict[str, Any]:
        version, spans = self.engine.weight_version, self.settings.spans
        return answer_of(generation, request, self._stepper, served_version=version, spans=spans, **part)

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
