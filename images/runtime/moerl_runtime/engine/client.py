"""HTTP client of one engine. Every call has a deadline, none is retried here: the agent decides what a failure means."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import urllib3

from moerl_runtime.engine.answers import Answer, message_of, read

CONNECT_SECONDS = 5.0
CONTROL_SECONDS = 10.0
"""Calls that answer at once: abort, continue, information."""
PauseMode = Literal["retract", "abort", "in_place"]
Found = TypeVar("Found")


class Unreachable(Exception):
    """Nobody answered: refused, reset, or silent past the deadline."""


class NotListening(Unreachable):
    """The port is closed: there is no engine process, or it is still loading."""


class Refused(Exception):
    """The engine answered that it will not."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


class Engine:
    """Thread-safe. Generations have connections of their own, so that a control call never waits for one."""

    def __init__(self, url: str, *, requests_max: int, answer_seconds_max: float, load_seconds_max: float) -> None:
        self.url = url.rstrip("/")
        self._generations = _pool(requests_max)
        self._control = _pool(8)
        self._answer_seconds_max = answer_seconds_max
        self._load_seconds_max = load_seconds_max

    def healthy(self) -> bool:
        """Whether /health says so. Raises Unreachable where nobody listens."""
        return self._ask("GET", "/health", seconds=CONTROL_SECONDS).status == 200

    def weight_tag(self) -> str:
        """What the engine calls its weights. /server_info is no source: it keeps the value of the start, and shows keys."""
        return str(_read("/model_info", lambda shown: shown["weight_version"], self._document("GET", "/model_info")))

    def arguments(self, names: Sequence[str]) -> dict[str, Any]:
        """These arguments, as the engine made them out at its start; None for one that it does not show.

        /server_info shows keys beside them, so nothing else of its answer is handed on.
        """
        shown = self._document("GET", "/server_info")
        return _read("/server_info", lambda shown: {name: shown.get(name) for name in names}, shown)

    def generate(
        self, *, request_id: str, prompt_tokens: Sequence[int], sampling: Mapping[str, Any], cache_key: str
    ) -> Answer:
        """One sample, however long it takes. `cache_key` parts the prefix cache: KV of other weights is never reused.

        Raises Unreachable, Refused or MalformedAnswer.
        """
        body = {
            "rid": request_id,
            "input_ids": list(prompt_tokens),
            "sampling_params": dict(sampling),
            "return_logprob": True,
            "stream": False,
            "extra_key": cache_key,
        }
        return read(self._document("POST", "/generate", body, pool=self._generations, seconds=self._answer_seconds_max))

    def abort(self, request_id: str) -> None:
        """Ends one request; an unknown one is nobody's fault."""
        self._checked("POST", "/abort_request", {"rid": request_id})

    def abort_all(self) -> None:
        self._checked("POST", "/abort_request", {"rid": "", "abort_all": True})

    def pause(self, mode: PauseMode) -> None:
        self._checked("POST", "/pause_generation", {"mode": mode})

    def resume(self) -> None:
        self._checked("POST", "/continue_generation", {})

    def load(self, path: str, *, tag: str, flush: bool) -> None:
        """Loads a full directory. `flush` only while nothing is live: otherwise SGLang's scheduler dies of it.

        Raises Refused where it failed; the engine then holds neither the old weights nor the new ones.
        """
        body = {
            "model_path": path,
            "load_format": "auto",
            "weight_version": tag,
            "flush_cache": flush,
            "abort_all_requests": False,
        }
        path = "/update_weights_from_disk"
        answer = self._document("POST", path, body, seconds=self._load_seconds_max)
        success, message = _read(path, lambda told: (told.get("success"), told.get("message")), answer)
        if success is not True:
            raise Refused(200, str(message)[:500])

    def live_requests(self) -> int:
        """Running and waiting, whoever sent them, by the engine's own count."""
        return _read(
            "/v1/loads",
            lambda shown: sum(int(load["num_running_reqs"]) + int(load["num_waiting_reqs"]) for load in shown["loads"]),
            self._document("GET", "/v1/loads"),
        )

    def metrics(self) -> bytes:
        return bytes(self._checked("GET", "/metrics").data)

    def _document(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        pool: urllib3.PoolManager | None = None,
        seconds: float = CONTROL_SECONDS,
    ) -> Any:
        answer = self._checked(method, path, body, pool=pool, seconds=seconds)
        try:
            return json.loads(answer.data)
        except ValueError as error:
            raise Unreachable(f"{path}: no JSON in the answer") from error

    def _checked(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        pool: urllib3.PoolManager | None = None,
        seconds: float = CONTROL_SECONDS,
    ) -> urllib3.BaseHTTPResponse:
        answer = self._ask(method, path, body, pool=pool, seconds=seconds)
        if answer.status != 200:
            raise Refused(answer.status, message_of(_json_or_none(answer.data), answer.data))
        return answer

    def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        pool: urllib3.PoolManager | None = None,
        seconds: float,
    ) -> urllib3.BaseHTTPResponse:
        try:
            return (pool or self._control).request(
                method,
                f"{self.url}{path}",
                body=None if body is None else json.dumps(body, separators=(",", ":")).encode(),
                headers=None if body is None else {"Content-Type": "application/json"},
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=seconds),
            )
        except urllib3.exceptions.NewConnectionError as error:
            raise NotListening(f"{path}: {error}") from error
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f"{path}: {type(error).__name__}: {error}") from error


def _read(path: str, pick: Callable[[Any], Found], document: Any) -> Found:
    """What is picked out of an answer. Raises Unreachable where it is not there: whoever answers is no engine that is known."""
    try:
        return pick(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unreachable(f"{path}: not as SGLang answers: {type(error).__name__}: {error}") from error


def _pool(connections: int) -> urllib3.PoolManager:
    return urllib3.PoolManager(num_pools=2, maxsize=connections, block=False, retries=False)


def _json_or_none(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None
