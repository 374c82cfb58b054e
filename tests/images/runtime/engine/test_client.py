"""The client against the local engine, which has SGLang's behaviours and traps."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from moerl_runtime.engine.answers import Answer
from moerl_runtime.engine.client import Engine, NotListening, PauseMode, Refused, Unreachable
from moerl_runtime.serve import Answer as HttpAnswer
from moerl_runtime.serve import serving
from tests.images.runtime.smoke.engines import Bench, bench

PROMPT = tuple(b"abc")


def client(url: str, *, answer_seconds_max: float = 20.0) -> Engine:
    return Engine(url, requests_max=8, answer_seconds_max=answer_seconds_max, load_seconds_max=20.0)


@pytest.fixture(params=["0.5.17", "0.5.19"])
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[Bench, Engine]]:
    with bench(release=request.param, weight_version="0") as made:
        yield made, client(made.url)


def ask(made: Bench, engine: Engine, name: str = "r-1", **sampling: object) -> Future[Answer]:
    return made.pool.submit(engine.generate, request_id=name, prompt_tokens=PROMPT, sampling=sampling, cache_key="0")


def hold(made: Bench, engine: Engine, mode: PauseMode) -> None:
    """Pauses, and lets the step that was begun before it come to its end."""
    engine.pause(mode)
    made.stepper.turn()
    made.until(lambda: made.server.engine._held)


def weights(path: Path, content: bytes = b"w") -> str:
    path.mkdir()
    (path / "model.safetensors").write_bytes(content)
    return str(path)


def test_a_finished_answer_has_tokens_log_probabilities_and_the_weights_tag(engine: tuple[Bench, Engine]) -> None:
    made, ours = engine
    made.stepper.free.set()
    answer = ask(made, ours).result()
    assert answer.ending == "completed"
    assert answer.tokens == (*PROMPT, 256)
    assert answer.text == "abc"
    assert answer.log_probs == (-0.1, -0.1, -0.1, -0.01)
    assert answer.tags == ("0",)
    assert answer.spans == made.server.settings.spans


def test_the_engines_arguments_are_read_without_its_keys() -> None:
    with bench(api_key=None, admin_api_key="secret", ep_size=16, moe_a2a_backend="deepep_v2") as made:
        found = client(made.url).arguments(("ep_size", "moe_a2a_backend", "deepep_v2_mode"))
    assert found == {"ep_size": 16, "moe_a2a_backend": "deepep_v2", "deepep_v2_mode": None}


def test_an_answer_that_hits_its_length_is_truncated(engine: tuple[Bench, Engine]) -> None:
    made, ours = engine
    made.stepper.free.set()
    assert ask(made, ours, max_new_tokens=2).result().ending == "truncated"


def test_an_abort_is_known_by_its_reason_running_or_queued(engine: tuple[Bench, Engine]) -> None:
    made, ours = engine
    asked = ask(made, ours)
    made.until_numbers(running=1)
    ours.abort("r-1")
    made.stepper.free.set()
    assert asked.result() == Answer(ending="aborted")


def test_a_thin_queued_abort_is_read_too() -> None:
    with bench(running_requests_max=1) as made:
        ours = client(made.url)
        first, second = ask(made, ours, "r-1"), None
        made.until_numbers(running=1)
        second = ask(made, ours, "r-2")
        made.until_numbers(waiting=1)
        ours.abort_all()
        assert second.result() == Answer(ending="aborted")
        made.stepper.free.set()
        assert first.result() == Answer(ending="aborted")


def test_a_reload_under_live_requests_by_the_agents_order(engine: tuple[Bench, Engine], tmp_path: Path) -> None:
    made, ours = engine
    asked = ask(made, ours)
    made.until_numbers(running=1)
    made.steps(1)
    hold(made, ours, "retract")
    made.until_numbers(running=0, waiting=1)
    ours.load(weights(tmp_path / "v1"), tag="00000100000001", flush=False)
    assert ours.weight_tag() == "00000100000001"
    made.stepper.free.set()
    ours.resume()
    answer = asked.result()
    assert answer.ending == "completed"
    expected = ("0", "00000100000001") if made.server.settings.spans else ("00000100000001",)
    assert answer.tags == expected
    assert made.crashes == []


def test_a_flush_under_live_requests_would_end_the_engine(engine: tuple[Bench, Engine], tmp_path: Path) -> None:
    """Why the agent never asks for it."""
    made, ours = engine
    ask(made, ours)
    made.until_numbers(running=1)
    hold(made, ours, "in_place")
    with pytest.raises((Unreachable, Refused)):
        ours.load(weights(tmp_path / "v1"), tag="1", flush=True)
    made.until(lambda: bool(made.crashes), "the crash")


def test_an_idle_engine_loads_with_a_flush(engine: tuple[Bench, Engine], tmp_path: Path) -> None:
    made, ours = engine
    ours.load(weights(tmp_path / "v1"), tag="00000100000001", flush=True)
    assert ours.weight_tag() == "00000100000001"
    assert made.crashes == []


def test_refused_weights_are_an_error_and_the_tag_stays_though_the_weights_do_not(
    engine: tuple[Bench, Engine], tmp_path: Path
) -> None:
    """Why the agent never believes the first tag once something was loaded."""
    _, ours = engine
    with pytest.raises(Refused, match="HTTP 400"):
        ours.load(weights(tmp_path / "bad", b""), tag="00000100000001", flush=True)
    assert ours.weight_tag() == "0"


@pytest.mark.parametrize(
    ("sampling", "tokens", "status"),
    [({"temperature": -1}, PROMPT, 400), ({}, (), 400), ({"best_of": 3}, PROMPT, 500)],
)
def test_a_refusal_has_the_engines_status_and_message(
    engine: tuple[Bench, Engine], sampling: dict[str, object], tokens: tuple[int, ...], status: int
) -> None:
    made, ours = engine
    made.stepper.free.set()
    with pytest.raises(Refused, match=f"HTTP {status}: .+") as refused:
        ours.generate(request_id="r", prompt_tokens=tokens, sampling=sampling, cache_key="0")
    assert refused.value.status == status


def test_health_live_requests_and_metrics_are_asked_beside_generations(engine: tuple[Bench, Engine]) -> None:
    made, ours = engine
    asked = [ask(made, ours, f"r-{number}") for number in range(3)]
    made.until(lambda: sum(made.numbers().values()) == 3)
    made.stepper.turn()
    made.until(lambda: ours.live_requests() == 3)
    assert b"sglang:num_running_reqs" in ours.metrics()
    made.stepper.free.set()
    assert all(each.result().ending == "completed" for each in asked)
    assert ours.healthy()


def test_an_engine_that_warms_up_or_ends_is_not_well() -> None:
    with bench(warmup_seconds=1e6) as made:
        assert not client(made.url).healthy()
        assert client(made.url).weight_tag() == "default"


def test_a_closed_port_is_told_from_silence() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        ours = client(f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(NotListening):
            ours.healthy()


def test_a_generation_has_a_deadline() -> None:
    with bench() as made:
        ours = client(made.url, answer_seconds_max=0.05)
        with pytest.raises(Unreachable) as silent:
            ours.generate(request_id="r", prompt_tokens=PROMPT, sampling={}, cache_key="0")
        assert not isinstance(silent.value, NotListening)


def test_an_answer_that_is_no_json_is_as_good_as_none() -> None:
    with (
        serving("127.0.0.1:0", lambda _: HttpAnswer(body=b"<html>")) as url,
        pytest.raises(Unreachable, match="no JSON"),
    ):
        client(url).weight_tag()


@pytest.mark.parametrize("body", [b"[]", b"{}", b"null", b'{"loads": [{}]}'])
def test_an_answer_of_another_shape_is_as_good_as_none_too(body: bytes) -> None:
    """Not an error of the agent, which would end with it."""
    with serving("127.0.0.1:0", lambda _: HttpAnswer(body=body)) as url:
        ours = client(url)
        with pytest.raises(Unreachable, match="/model_info: not as SGLang answers"):
            ours.weight_tag()
        with pytest.raises(Unreachable, match="/v1/loads: not as SGLang answers"):
            ours.live_requests()
        with pytest.raises((Unreachable, Refused)):
            ours.load("/models/x", tag="1", flush=True)
        if not body.startswith(b"{"):
            with pytest.raises(Unreachable, match="/server_info: not as SGLang answers"):
                ours.arguments(("tp_size",))
