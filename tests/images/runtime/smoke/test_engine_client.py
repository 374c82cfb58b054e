"""The agent's client against the local engine: what it asks is what SGLang takes, and it reads every answer as it is meant."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Literal

import pytest

from moerl_runtime.engine.answers import Answer
from moerl_runtime.engine.client import Engine, Refused, Unreachable
from tests.images.runtime.smoke.engines import PATIENCE_SECONDS, Bench, bench

PROMPT = tuple(b"abcdef")


@pytest.fixture(params=["0.5.17", "0.5.19"])
def engine(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench(release=request.param) as made:
        yield made


def client(engine: Bench) -> Engine:
    return Engine(engine.url, requests_max=8, answer_seconds_max=PATIENCE_SECONDS, load_seconds_max=PATIENCE_SECONDS)


def ask(engine: Bench, rid: str = "000001-0000000001-0000-000001") -> Future[Answer]:
    return engine.pool.submit(
        client(engine).generate,
        request_id=rid,
        prompt_tokens=PROMPT,
        sampling={"temperature": 1.0, "max_new_tokens": 16, "no_stop_trim": True, "skip_special_tokens": True},
        cache_key="0",
    )


def weights(path: Path, content: bytes = b"w") -> str:
    path.mkdir()
    (path / "model.safetensors").write_bytes(content)
    return str(path)


def newer(engine: Bench) -> bool:
    return engine.server.settings.spans


def test_an_answer_is_read_whole(engine: Bench) -> None:
    engine.stepper.free.set()
    answer = ask(engine).result()
    assert (answer.ending, answer.text, answer.tokens) == ("completed", "abcdef", (*PROMPT, 256))
    assert answer.log_probs == (-0.1,) * 6 + (-0.01,)
    assert (answer.tags, answer.spans) == (("default",), newer(engine))


def test_an_abort_is_an_aborted_answer(engine: Bench) -> None:
    asked = ask(engine)
    engine.until_numbers(running=1)
    client(engine).abort_all()
    engine.stepper.free.set()
    assert asked.result().ending == "aborted"


def test_the_agents_way_to_load_under_work_keeps_it_and_names_both_versions(engine: Bench, tmp_path: Path) -> None:
    """Pause by retract, load without a flush, continue."""
    asked, calls = ask(engine), client(engine)
    engine.until_numbers(running=1)
    calls.pause("retract")
    engine.stepper.turn()
    engine.until_numbers(waiting=1, running=0)
    calls.load(weights(tmp_path / "v1"), tag="00000100000001", flush=False)
    assert calls.weight_tag() == "00000100000001"
    engine.stepper.free.set()
    calls.resume()
    answer = asked.result()
    assert answer.ending == "completed"
    assert answer.tags == (("default", "00000100000001") if newer(engine) else ("00000100000001",))


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_flush_under_work_loses_the_engine(
    engine: Bench, tmp_path: Path, mode: Literal["retract", "in_place"]
) -> None:
    asked, calls = ask(engine), client(engine)
    engine.until_numbers(running=1)
    calls.pause(mode)
    engine.stepper.turn()
    engine.until(lambda: engine.server.engine._held)
    with pytest.raises(Unreachable):
        calls.load(weights(tmp_path / "v1"), tag="1", flush=True)
    with pytest.raises(Unreachable):
        asked.result()


def test_a_load_that_fails_is_refused(engine: Bench, tmp_path: Path) -> None:
    calls = client(engine)
    with pytest.raises(Refused, match="Rolling back") as refused:
        calls.load(str(tmp_path / "none"), tag="1", flush=True)
    assert refused.value.status == 400
    assert calls.weight_tag() == "default"


def test_an_abort_of_a_held_request_is_refused_by_the_older_release_and_lost_in_the_newer(engine: Bench) -> None:
    calls = client(engine)
    calls.pause("in_place")
    asked = ask(engine)
    engine.until_numbers(front=1)
    calls.abort_all()
    engine.stepper.free.set()
    calls.resume()
    if newer(engine):
        assert asked.result().ending == "completed"
    else:
        with pytest.raises(Refused) as refused:
            asked.result()
        assert refused.value.status == 499


def test_live_requests_are_those_that_run_and_wait() -> None:
    with bench(running_requests_max=1) as engine:
        first = ask(engine, "000001-0000000001-0000-000001")
        engine.until_numbers(running=1)
        engine.steps(1)
        second = ask(engine, "000001-0000000001-0001-000001")
        engine.until_numbers(waiting=1)
        engine.steps(1)
        assert client(engine).live_requests() == 2
        engine.stepper.free.set()
        assert {first.result().ending, second.result().ending} == {"completed"}
        assert client(engine).live_requests() == 0


def test_health_and_metrics_are_read(engine: Bench) -> None:
    engine.stepper.free.set()
    calls = client(engine)
    assert calls.healthy()
    assert b"sglang:num_running_reqs" in calls.metrics()
    engine.server.terminating.set()
    assert not calls.healthy()


def test_a_full_queue_is_refused_with_its_status() -> None:
    with bench(running_requests_max=1, queued_requests_max=0) as engine, pytest.raises(Refused) as refused:
        ask(engine).result()
    assert refused.value.status == 503
