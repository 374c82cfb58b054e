"""The local engine without its HTTP: admission, a scheduler thread with continuous batching, pauses, aborts, weights.

Two layers, as in SGLang. A request first passes the front (pause gate, then the readers' side of the update lock), then
belongs to the scheduler, which makes one token of every running request per step. What a caller sees follows from where
its request stands: aborts reach the scheduler's requests, pauses hold the front's.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, TimeoutError
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from moerl_runtime.smoke.engine_generation import ABORTED, ABORTED_QUEUED, Generation, aborted
from moerl_runtime.smoke.engine_locks import UpdateLock
from moerl_runtime.smoke.engine_metrics import Histogram
from moerl_runtime.smoke.engine_request import Prompt
from moerl_runtime.smoke.engine_settings import EngineSettings
from moerl_runtime.smoke.stepper import Stepper, Turn

PauseMode = Literal["abort", "retract", "in_place"]

FORWARDED_TOKENS = 50
"""Tokens that the scheduler hands on at once for an answer that is not streamed."""


class EngineDead(Exception):
    """The engine's process would be gone: no answer of any kind."""


class QueueFull(Exception):
    """503: more requests wait than the engine was started for."""


class DuplicateRid(Exception):
    """400: a live request has that rid."""


class Engine:
    """Start with `start`, end with `close`. `on_crash` is called once, where SGLang would kill its process tree."""

    def __init__(
        self,
        stepper: Stepper,
        settings: EngineSettings,
        *,
        clock: Callable[[], float],
        on_crash: Callable[[str], None],
    ) -> None:
        self._stepper, self._settings, self._clock, self._on_crash = stepper, settings, clock, on_crash
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._front: dict[str, Generation] = {}
        """Not yet with the scheduler: behind a pause or an update."""
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._commands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._held = False
        """Paused in place or retracted: no step is made."""
        self._held_in_place = False
        self._moved = clock()
        """Of the last step."""
        self._closed = threading.Event()
        self._pause = threading.Condition()
        """Held by a pause by abort as long as anything is in flight, as SGLang holds its own."""
        self._pause_mode: PauseMode | None = None
        self.updates = UpdateLock()
        self._flushing = threading.Lock()
        self._scheduler = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self.model_path = settings.model_path
        self.served_model_name = settings.model_path
        self.weight_version = settings.weight_version
        """What the front tags outputs with."""
        self._loaded_version = settings.weight_version
        """What the scheduler tags tokens with."""
        self.last_output = float("-inf")
        self.counts = {"prompt": 0, "generated": 0, "requests": 0, "aborts": 0, "retracted": 0, "steps": 0}
        self.durations = {name: Histogram() for name in ("first", "whole", "queued", "between")}
        """Seconds until the first token, of whole requests, in the queue, and from token to token."""
        self.load_seconds = 0.0
        self.snapshot: dict[str, Any] = self._load_numbers()

    def start(self) -> None:
        self._scheduler.start()

    def close(self) -> None:
        """Ends the scheduler; whoever still waits gets EngineDead."""
        self._closed.set()
        with self._lock:
            for generation in [*self._front.values(), *self._waiting, *self._running]:
                generation.changed.notify_all()
            for _, answer in self._commands:
                answer.set_exception(EngineDead())
            self._commands.clear()
            self._work.notify_all()
        with self._pause:
            self._pause.notify_all()
        if self._scheduler.is_alive() and threading.current_thread() is not self._scheduler:
            self._scheduler.join()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def rest(self, seconds: float) -> None:
        """Lets time pass, unless the engine ends."""
        self._closed.wait(seconds)

    @property
    def paused(self) -> bool:
        with self._pause:
            return self._pause_mode is not None

    def unfinished(self) -> int:
        """Requests that anyone still waits for, those behind a pause included."""
        with self._lock:
            return len(self._front) + len(self._waiting) + len(self._running)

    # --- the front ---

    def register(self, prompts: tuple[Prompt, ...], *, stream: bool) -> list[Generation]:
        """Makes the requests known, before any gate. Raises DuplicateRid and then keeps none of them."""
        made = [
            Generation(
                rid=prompt.rid or uuid.uuid4().hex,
                prompt=prompt.tokens,
                sampling=prompt.sampling,
                stream=stream,
                changed=threading.Condition(self._lock),
                submitted=self._clock(),
            )
            for prompt in prompts
        ]
        with self._lock:
            live = {entry.rid for entry in (*self._front.values(), *self._waiting, *self._running)}
            for generation in made:
                if generation.rid in live:
                    raise DuplicateRid(generation.rid)
                live.add(generation.rid)
            self._front.update((generation.rid, generation) for generation in made)
        return made

    def pass_pause(self) -> None:
        """Blocks while the engine is paused, without limit."""
        with self._pause:
            self._pause.wait_for(lambda: self._pause_mode is None or self.closed)
        self._raise_if_dead()

    def enqueue(self, generations: list[Generation]) -> None:
        """Hands the requests to the scheduler. Raises QueueFull and then takes none."""
        with self._lock:
            for generation in generations:
                self._front.pop(generation.rid, None)
            most = self._settings.queued_requests_max
            if most is not None and len(self._waiting) + len(generations) > most:
                raise QueueFull
            self._waiting.extend(generations)
            self.counts["requests"] += len(generations)
            self.counts["prompt"] += sum(len(generation.prompt) for generation in generations)
            self._work.notify_all()

    def forget(self, generations: list[Generation]) -> None:
        """Drops what never reached the scheduler."""
        with self._lock:
            for generation in generations:
                self._front.pop(generation.rid, None)

    def wait(self, generation: Generation, seen: int, seconds: float) -> tuple[int, bool]:
        """(tokens, over) as soon as there are more tokens than `seen` or the answer is over; at the latest after `seconds`."""
        with self._lock:
            generation.changed.wait_for(
                lambda: self.closed or generation.over or len(generation.tokens) > seen, seconds
            )
            self._raise_if_dead()
            return len(generation.tokens), generation.over

    def abort(self, rid: str = "", *, everything: bool = False) -> None:
        """Ends requests whose rid begins with `rid`, or all. Returns at once; an unknown rid is nothing special."""
        if not rid and not everything:
            return
        with self._lock:
            self.counts["aborts"] += 1
            for generation in list(self._waiting):
                if everything or generation.rid.startswith(rid):
                    self._waiting.remove(generation)
                    self._end_queued(generation)
            for generation in self._running:
                if everything or generation.rid.startswith(rid):
                    generation.ending = True
            if self._settings.release == "0.5.17":
                for generation in self._front.values():
                    if everything or generation.rid.startswith(rid):
                        generation.refused = True
            self._note_if_idle()

    def abort_these(self, generations: list[Generation]) -> None:
        """Ends exactly these: their client is gone."""
        with self._lock:
            for generation in generations:
                if generation in self._waiting:
                    self._waiting.remove(generation)
                    self._end_queued(generation)
                generation.ending = True
            self._note_if_idle()

    def pause(self, mode: PauseMode) -> None:
        """By abort: returns when nothing is in flight. In place and retract: returns at once."""
        with self._pause:
            self._pause_mode = mode
            if mode == "abort":
                while not self.closed:
                    self.abort(everything=True)
                    if self.updates.wait_unread(self._settings.abort_repeat_seconds):
                        return
                raise EngineDead
            self._command(lambda: self._hold(mode))

    def resume(self) -> None:
        """Blocks behind a pause by abort that cannot end."""
        with self._pause:
            self._pause_mode = None
            self._pause.notify_all()
            self._command(self._release)

    def flush(self, timeout_seconds: float) -> bool:
        """Whether the cache could be flushed: nothing runs or waits, at the latest after the timeout. One at a time."""
        if not self._flushing.acquire(blocking=False):
            return False
        try:
            with self._lock:
                return self._work.wait_for(lambda: not self._running and not self._waiting, timeout_seconds)
        finally:
            self._flushing.release()

    def update_weights(self, path: str, *, version: str | None, abort_all: bool, flush: bool) -> tuple[bool, str]:
        """(success, message). Waits for everything in flight, unless the engine is paused: then it loads at once."""
        paused = self.paused
        if abort_all:
            self.abort(everything=True)
        if paused:
            return self._update(path, version, flush)
        with self.updates.writing():
            return self._update(path, version, flush)

    def tag(self, version: str, *, abort_all: bool) -> None:
        """Names the served version. 0.5.17 changes the front's tag first, so that what it aborts has the new one."""
        if self._settings.release == "0.5.17":
            self.weight_version = self._loaded_version = version
        else:
            self._command(lambda: setattr(self, "_loaded_version", version)).result()
            self.weight_version = version
        if abort_all:
            self.abort(everything=True)

    def probe(self, timeout_seconds: float) -> bool:
        """Whether the scheduler gave a sign of life: it does not while the engine is paused or loads."""
        began = self._clock()
        if not self._pause.acquire(timeout=timeout_seconds):
            return False
        try:
            self._pause.wait_for(lambda: self._pause_mode is None or self.closed, timeout_seconds)
        finally:
            self._pause.release()
        self._raise_if_dead()
        left = timeout_seconds - (self._clock() - began)
        if self.last_output > began:
            return True
        try:
            self._command(self._sign_of_life).result(max(left, 0.0))
        except TimeoutError:
            return self.last_output > began
        return True

    def checksum(self) -> str:
        return str(self._command(self._stepper.checksum).result())

    def tensor(self, name: str) -> list[float]:
        """Raises KeyError for a name that is none."""
        values: list[float] = self._command(lambda: self._stepper.weights(name)).result()
        return values

    def load_numbers(self) -> Mapping[str, Any]:
        """What /v1/loads shows: written after each step and when idle, so it stands still in a pause."""
        return self.snapshot

    # --- the scheduler's thread ---

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except EngineDead:
            return
        finally:
            if not self.closed:
                # The model raised: SGLang ends with its scheduler.
                with suppress(EngineDead), self._lock:
                    self._crash("the scheduler died")

    def _turn(self) -> bool:
        with self._lock:
            if not self._work.wait_for(self._has_work, self._patience()):
                self._crash("watchdog: no forward step while a batch is current")
            if self.closed:
                return False
            command = self._commands.popleft() if self._commands else None
            batch = [] if command else self._batch()
        if command is not None:
            self._serve(*command)
        elif batch:
            self._step(batch)
        return True

    def _has_work(self) -> bool:
        return bool(self.closed or self._commands or (not self._held and (self._running or self._waiting)))

    def _patience(self) -> float | None:
        """Seconds until the watchdog ends an engine that stands still with a batch; None where none is current."""
        if not self._held_in_place or not self._running:
            return None
        return max(0.0, self._moved + self._settings.watchdog_seconds - self._clock())

    def _batch(self) -> list[Generation]:
        while self._waiting and len(self._running) < self._settings.running_requests_max:
            generation = self._waiting.popleft()
            self.durations["queued"].observe(self._clock() - generation.submitted)
            self._running.append(generation)
        return list(self._running)

    def _step(self, batch: list[Generation]) -> None:
        if self._settings.step_seconds and self._closed.wait(self._settings.step_seconds):
            return
        turns = [
            Turn(rid=entry.rid, prompt=entry.prompt, answer=tuple(entry.tokens), sampling=entry.sampling)
            for entry in batch
        ]
        made = self._stepper.step(turns)
        with self._lock:
            now = self._clock()
            self._moved = self.last_output = now
            self.counts["steps"] += 1
            self.counts["generated"] += len(batch)
            for generation, (token, log_prob) in zip(batch, made, strict=True):
                if not generation.tokens:
                    self.durations["first"].observe(now - generation.submitted)
                generation.tokens.append(token)
                generation.log_probs.append(log_prob)
                generation.token_versions.append(self._loaded_version)
                generation.version = self.weight_version
                generation.finish = self._finish(generation, token)
                if generation.finish is not None:
                    self._end(generation, now)
                generation.changed.notify_all()
            self._running = [generation for generation in self._running if generation.finish is None]
            self.snapshot = self._load_numbers()
            self._note_if_idle()

    def _finish(self, generation: Generation, token: int) -> dict[str, Any] | None:
        sampling = generation.sampling
        if generation.ending:
            return aborted(ABORTED)
        if len(generation.tokens) >= sampling.min_new_tokens:
            if token in sampling.stop_tokens or (token == self._stepper.eos and not sampling.ignore_eos):
                return {"type": "stop", "matched": token}
            text = self._stepper.decode(generation.tokens) if sampling.stop else ""
            for stop in sampling.stop:
                if stop in text:
                    return {"type": "stop", "matched": stop}
        if len(generation.tokens) >= sampling.max_new_tokens:
            return {"type": "length", "length": sampling.max_new_tokens}
        return None

    def _end(self, generation: Generation, now: float) -> None:
        generation.finished = now
        self.durations["whole"].observe(now - generation.submitted)
        if len(generation.tokens) > 1:
            self.durations["between"].observe((now - generation.submitted) / (len(generation.tokens) - 1))

    def _end_queued(self, generation: Generation) -> None:
        """In the queue, perhaps after a retraction: then only what was handed on already is left of it."""
        kept = len(generation.tokens)
        if not generation.stream:
            kept = kept // FORWARDED_TOKENS * FORWARDED_TOKENS
        del generation.tokens[kept:], generation.log_probs[kept:], generation.token_versions[kept:]
        generation.queued_abort = True
        generation.version = self.weight_version
        generation.finish = aborted(ABORTED_QUEUED)
        generation.finished = self._clock()
        generation.changed.notify_all()

    def _hold(self, mode: PauseMode) -> None:
        with self._lock:
            self._held, self._held_in_place = True, mode == "in_place"
            self._moved = self._clock()
            if mode != "retract":
                return
            most = self._settings.queued_requests_max
            for generation in reversed(self._running):
                generation.retractions += 1
                self.counts["retracted"] += 1
                if most is not None and len(self._waiting) >= most:
                    generation.overflow = True
                    generation.changed.notify_all()
                else:
                    self._waiting.appendleft(generation)
            self._running = []

    def _release(self) -> None:
        with self._lock:
            self._held = self._held_in_place = False
            self._moved = self._clock()

    def _sign_of_life(self) -> None:
        self.last_output = self._clock()

    def _update(self, path: str, version: str | None, flush: bool) -> tuple[bool, str]:
        outcome: tuple[bool, str] = self._command(lambda: self._load(path, version, flush)).result()
        return outcome

    def _load(self, path: str, version: str | None, flush: bool) -> tuple[bool, str]:
        began = self._clock()
        self._closed.wait(self._settings.load_seconds)
        try:
            self._stepper.load(Path(path))
        except (OSError, ValueError, KeyError) as error:
            # SGLang says that it rolls back, but its reader points at the new path already: the old weights are not restored.
            return False, f"Failed to update weights: {error}.\nRolling back to original weights."
        self.load_seconds = self._clock() - began
        with self._lock:
            if flush and (self._running or self._waiting):
                self._crash("assert self.flush_cache(): requests are alive")
            self.model_path = self.served_model_name = path
            if version is not None:
                self._loaded_version = self.weight_version = version
        said = "Succeeded to update model weights."
        return True, said if version is None else f"{said} Weight version updated to {version}."

    def _command(self, call: Callable[[], Any]) -> Future[Any]:
        """Runs `call` on the scheduler's thread, between two steps."""
        answer: Future[Any] = Future()
        with self._lock:
            self._raise_if_dead()
            self._commands.append((call, answer))
            self._work.notify_all()
        return answer

    def _serve(self, call: Callable[[], Any], answer: Future[Any]) -> None:
        try:
            answer.set_result(call())
        except EngineDead:
            answer.set_exception(EngineDead())
            raise
        except KeyError as error:
            answer.set_exception(error)

    def _crash(self, why: str) -> None:
        """Holds the lock. Nothing of this process answers any more."""
        self._closed.set()
        for generation in [*self._front.values(), *self._waiting, *self._running]:
            generation.changed.notify_all()
        for _, answer in self._commands:
            answer.set_exception(EngineDead())
        self._commands.clear()
        self._on_crash(why)
        raise EngineDead

    def _raise_if_dead(self) -> None:
        if self.closed:
            raise EngineDead

    def _note_if_idle(self) -> None:
        if not self._running and not self._waiting:
            if not self._held:
                self.snapshot = self._load_numbers()
            self._work.notify_all()

    def _load_numbers(self) -> dict[str, Any]:
        used = sum(len(entry.prompt) + len(entry.tokens) for entry in self._running)
        total = self._settings.context_length * self._settings.running_requests_max
        return {
            "timestamp": self._clock(),
            "dp_rank": 0,
            "num_running_reqs": len(self._running),
            "num_waiting_reqs": len(self._waiting),
            "num_used_tokens": used,
            "num_total_tokens": used + sum(len(entry.prompt) for entry in self._waiting),
            "num_active_tokens": used,
            "max_total_num_tokens": total,
            "max_running_requests": self._settings.running_requests_max,
            "token_usage": used / total,
            "gen_throughput": 0.0,
            "cache_hit_rate": 0.0,
            "utilization": len(self._running) / self._settings.running_requests_max,
        }
