"""What a rollout agent meets at SGLang's HTTP surface, in the local engine: the contract's points and its ten traps."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.images.runtime.smoke.engines import Bench, bench


@pytest.fixture
def engine() -> Iterator[Bench]:
    with bench() as made:
        yield made


@pytest.fixture
def older() -> Iterator[Bench]:
    """As 0.5.17 is."""
    with bench(release="0.5.17") as made:
        yield made


def finish(answer: tuple[int, Any]) -> Any:
    assert answer[0] == 200, answer
    return answer[1]["meta_info"]["finish_reason"]


def weights(path: Path, content: bytes = b"w") -> str:
    path.mkdir()
    (path / "model.safetensors").write_bytes(content)
    return str(path)


# --- (a) fields, defaults, errors, batches ---


def test_an_answer_has_text_ids_and_meta_info(engine: Bench) -> None:
    engine.stepper.free.set()
    status, answer = engine.post("/generate", {"text": "abc", "rid": "r", "return_logprob": True})
    assert status == 200
    assert answer["text"] == "abc"
    assert answer["output_ids"] == [97, 98, 99, 256], "ids keep the stop token, text drops it"
    meta = answer["meta_info"]
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("r", 3, 4)
    assert meta["finish_reason"] == {"type": "stop", "matched": 256}
    assert meta["output_token_logprobs"] == [[-0.1, 97, None], [-0.1, 98, None], [-0.1, 99, None], [-0.01, 256, None]]
    assert meta["weight_versions"] == [{"version": "default", "start": 0, "end": 4}]


def test_text_decides_the_form_of_the_reply_and_ids_are_what_runs(engine: Bench) -> None:
    engine.stepper.free.set()
    status, answer = engine.post("/generate", {"text": ["zz"], "input_ids": [[65, 66]]})
    assert status == 200
    assert [entry["text"] for entry in answer] == ["AB"]


def test_a_batch_and_n_give_lists_in_order(engine: Bench) -> None:
    engine.stepper.free.set()
    _, answer = engine.post("/generate", {"text": ["ab", "cd"], "rid": "r", "sampling_params": {"n": 2}})
    assert [entry["text"] for entry in answer] == ["ab", "ab", "cd", "cd"]
    _, answer = engine.post("/generate", {"text": ["ab", "cd"], "rid": "r"})
    assert [entry["meta_info"]["id"] for entry in answer] == ["r_0", "r_1"]


def test_answers_end_at_length_at_stop_tokens_and_at_stop_texts(engine: Bench) -> None:
    engine.stepper.free.set()

    def ask(**sampling: Any) -> Any:
        return engine.post("/generate", {"text": "abcdef", "sampling_params": sampling})[1]

    assert ask(max_new_tokens=2)["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
    assert ask(stop_token_ids=[99])["text"] == "ab"
    assert ask(stop="cd")["text"] == "ab"
    assert ask(stop="cd", no_stop_trim=True)["text"] == "abcd"
    assert ask(ignore_eos=True, max_new_tokens=9)["output_ids"][-3:] == [256, 256, 256]


@pytest.mark.parametrize(
    "raw", [b"{", b"[]", b"", b'{"text": 3}', b'{"input_ids": ["a"]}', b'{"text": "a", "stream": 1}']
)
def test_what_the_framework_refuses_is_400_never_422(engine: Bench, raw: bytes) -> None:
    status, body = engine.post("/generate", raw)
    assert status == 400
    assert (body["object"], body["type"], body["code"], body["param"]) == ("error", "Bad Request", 400, None)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input_ids": []},
        {"text": "a", "sampling_params": {"max_new_tokens": -1}},
        {"text": "a", "sampling_params": {"max_new_tokens": 4, "min_new_tokens": 5}},
        {"text": "a", "sampling_params": {"temperature": -1}},
        {"text": "a", "sampling_params": {"top_p": 0}},
        {"text": "a", "sampling_params": {"top_k": 0}},
        {"text": "a", "sampling_params": {"frequency_penalty": 1}},
        {"text": "a" * 5000},
        {"text": "a" * 4000, "sampling_params": {"max_new_tokens": 500}},
        {"text": ["a", "b"], "rid": ["x", "x"]},
        {"text": ["a", "b"], "rid": ["x"]},
    ],
)
def test_what_its_own_checks_refuse_has_the_second_shape(engine: Bench, body: Any) -> None:
    status, answer = engine.post("/generate", body)
    assert status == 400
    assert set(answer) == {"error"}
    assert answer["error"]["message"]


def test_an_unknown_sampling_key_is_500_and_an_unknown_field_is_nothing(engine: Bench) -> None:
    engine.stepper.free.set()
    assert engine.post("/generate", {"text": "a", "sampling_params": {"best_of": 3}})[0] == 500
    assert engine.post("/generate", {"text": "a", "colour": "blue"})[0] == 200


def test_a_live_rid_cannot_be_used_twice(engine: Bench) -> None:
    first = engine.ask("abc", "r")
    engine.until_numbers(running=1)
    assert engine.post("/generate", {"text": "x", "rid": "r"})[0] == 400
    engine.stepper.free.set()
    assert first.result()[0] == 200
    assert engine.post("/generate", {"text": "x", "rid": "r"})[0] == 200, "free again"


def test_a_full_queue_answers_503_in_the_first_shape() -> None:
    with bench(running_requests_max=1, queued_requests_max=1) as engine:
        asked = [engine.ask("ab")]
        engine.until_numbers(running=1)
        asked.append(engine.ask("ab"))
        engine.until_numbers(waiting=1)
        status, body = engine.post("/generate", {"text": "ab"})
        assert (status, body["object"], body["type"]) == (503, "error", "503")
        engine.stepper.free.set()
        assert [call.result()[0] for call in asked] == [200, 200]


# --- (b) aborts; traps 1, 6, 7 ---


def test_aborting_a_running_request_is_200_with_one_more_step(engine: Bench) -> None:
    asked = engine.ask("abcdef", "r-1", return_logprob=True)
    engine.until_numbers(running=1)
    engine.steps(2)
    assert engine.post("/abort_request", {"rid": "r-1"}) == (200, "")
    engine.steps(1)
    answer = asked.result()
    assert finish(answer) == {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    assert answer[1]["text"] == "abc", "two tokens, and the one of the step after the abort"
    assert len(answer[1]["meta_info"]["output_token_logprobs"]) == 3
    assert answer[1]["meta_info"]["prompt_tokens"] == 6


def test_aborting_a_queued_request_ends_it_at_once_with_a_thin_meta_info() -> None:
    with bench(running_requests_max=1) as engine:
        first = engine.ask("ab", "r-1")
        engine.until_numbers(running=1)
        second = engine.ask("cd", "r-2")
        engine.until_numbers(waiting=1)
        engine.post("/abort_request", {"rid": "r-2"})
        answer = second.result()
        assert finish(answer)["message"] == "Abort in waiting queue"
        assert answer[1]["output_ids"] == []
        assert set(answer[1]["meta_info"]) == {
            "id", "finish_reason", "weight_version", "weight_versions", "e2e_latency", "completion_tokens",
        }  # fmt: skip
        assert not first.done()


def test_an_abort_hits_every_rid_that_begins_so(engine: Bench) -> None:
    asked = engine.begin("/generate", {"text": ["abcdef"] * 3, "rid": ["x_1", "x_10", "y_1"]})
    engine.until_numbers(running=3)
    engine.post("/abort_request", {"rid": "x_1"})
    engine.stepper.free.set()
    kinds = [entry["meta_info"]["finish_reason"]["type"] for entry in asked.result()[1]]
    assert kinds == ["abort", "abort", "stop"]


def test_unknown_and_empty_rids_are_200_and_nothing_happens(engine: Bench) -> None:
    asked = engine.ask("ab", "r")
    engine.until_numbers(running=1)
    assert engine.post("/abort_request", {"rid": "gone"})[0] == 200
    assert engine.post("/abort_request", {"rid": ""})[0] == 200
    engine.stepper.free.set()
    assert finish(asked.result())["type"] == "stop"


def test_an_abort_needs_a_body_and_one_string(engine: Bench) -> None:
    assert engine.post("/abort_request")[0] == 400
    assert engine.post("/abort_request", {"rid": ["a", "b"]})[0] == 400


def test_with_n_only_the_older_release_knows_the_callers_rid(engine: Bench, older: Bench) -> None:
    for server, ended in ((older, True), (engine, False)):
        asked = server.ask("abcdef", "group", sampling={"n": 2})
        server.until_numbers(running=2)
        server.post("/abort_request", {"rid": "group"})
        server.steps(1)
        server.stepper.free.set()
        kinds = {entry["meta_info"]["finish_reason"]["type"] for entry in asked.result()[1]}
        assert kinds == ({"abort"} if ended else {"stop"})


# --- (c) the update lock ---


def test_an_update_waits_for_what_runs_and_holds_what_comes(engine: Bench, tmp_path: Path) -> None:
    before = engine.ask("ab")
    engine.until_numbers(running=1)
    update = engine.begin("/update_weights_from_disk", {"model_path": weights(tmp_path / "v1"), "weight_version": "1"})
    engine.until(lambda: engine.server.engine.updates._writers == 1)
    after = engine.ask("cd")
    engine.until_numbers(front=1)
    assert not update.done()
    engine.stepper.free.set()
    assert before.result()[1]["meta_info"]["weight_version"] == "default"
    status, body = update.result()
    assert (status, body["success"], body["num_paused_requests"]) == (200, True, 0)
    assert body["message"].startswith("Succeeded to update model weights.")
    assert after.result()[1]["meta_info"]["weight_version"] == "1"


def test_an_update_may_abort_first(engine: Bench, tmp_path: Path) -> None:
    asked = engine.ask("abcdef")
    engine.until_numbers(running=1)
    update = engine.begin(
        "/update_weights_from_disk", {"model_path": weights(tmp_path / "v1"), "abort_all_requests": True}
    )
    engine.until(lambda: engine.server.engine.counts["aborts"] == 1)
    engine.stepper.free.set()
    assert finish(asked.result())["type"] == "abort"
    assert update.result()[0] == 200


# --- (d) pauses ---


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
def test_a_pause_holds_new_requests_and_refuses_none(engine: Bench, mode: str) -> None:
    assert engine.post("/pause_generation", {"mode": mode}) == (
        200,
        {"message": "Generation paused successfully.", "status": "ok"},
    )
    asked = engine.ask("ab")
    engine.until_numbers(front=1)
    engine.stepper.free.set()
    assert engine.numbers() == {"front": 1, "waiting": 0, "running": 0}
    engine.post("/continue_generation", {})
    assert finish(asked.result())["type"] == "stop"


def test_a_pause_by_abort_returns_when_nothing_is_in_flight(engine: Bench) -> None:
    asked = engine.ask("abcdef")
    engine.until_numbers(running=1)
    paused = engine.begin("/pause_generation", {})
    engine.until(lambda: engine.server.engine.counts["aborts"] > 1, "a repeated abort")
    assert not paused.done()
    engine.steps(1)
    assert finish(asked.result())["type"] == "abort"
    assert paused.result()[0] == 200


def test_in_place_keeps_requests_and_aborts_wait_for_the_continue(engine: Bench) -> None:
    asked = engine.ask("abcdef", "r")
    engine.until_numbers(running=1)
    engine.steps(2)
    hold_in_place(engine)
    engine.stepper.free.set()
    engine.post("/abort_request", {"rid": "r"})
    assert engine.numbers()["running"] == 1, "no step happens, so it does not end"
    engine.post("/continue_generation", {})
    answer = asked.result()
    assert (finish(answer)["type"], answer[1]["text"]) == ("abort", "abcd")


def test_retract_puts_requests_back_into_the_queue(engine: Bench) -> None:
    asked = engine.begin("/generate", {"text": ["abcdef", "ghijkl"], "rid": ["kept", "dropped"]})
    engine.until_numbers(running=2)
    hold_in_place(engine, "retract")
    engine.until_numbers(running=0, waiting=2)
    engine.post("/abort_request", {"rid": "dropped"})
    engine.until_numbers(waiting=1)
    engine.stepper.free.set()
    engine.post("/continue_generation", {})
    kept, dropped = asked.result()[1]
    assert (kept["text"], kept["meta_info"]["num_retractions"]) == ("abcdef", 1)
    assert dropped["meta_info"]["finish_reason"]["message"] == "Abort in waiting queue"
    assert dropped["output_ids"] == [], "up to 49 tokens lost"


def test_in_place_and_then_a_pause_by_abort_is_a_deadlock_until_clients_hang_up(engine: Bench) -> None:
    connection = open_generate(engine, "abcdef")
    engine.until_numbers(running=1)
    hold_in_place(engine)
    second = engine.begin("/pause_generation", {"mode": "abort"})
    engine.until(lambda: engine.server.engine.counts["aborts"] >= 1)
    resumed = engine.begin("/continue_generation", {})
    engine.until(lambda: engine.server.engine.counts["aborts"] >= 4)
    assert not second.done()
    assert not resumed.done()
    connection.close()
    assert second.result()[0] == 200
    assert resumed.result()[0] == 200


# --- (e) flush; trap 3 ---


def test_a_flush_works_only_when_idle(engine: Bench) -> None:
    asked = engine.ask("ab")
    engine.until_numbers(running=1)
    assert engine.post("/flush_cache")[0] == 400
    waiting = engine.begin("/flush_cache?timeout=15")
    engine.stepper.free.set()
    assert waiting.result()[0] == 200
    assert asked.result()[0] == 200


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_an_update_that_flushes_in_a_live_pause_ends_the_process(engine: Bench, tmp_path: Path, mode: str) -> None:
    asked = engine.ask("abcdef")
    engine.until_numbers(running=1)
    hold_in_place(engine, mode)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        engine.post("/update_weights_from_disk", {"model_path": weights(tmp_path / "v1")})
    assert len(engine.crashes) == 1
    assert "flush_cache" in engine.crashes[0]
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        asked.result()
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        engine.get("/health")


def test_without_the_flush_a_paused_request_goes_on_under_new_weights(engine: Bench, tmp_path: Path) -> None:
    asked = engine.ask("abcdef")
    engine.until_numbers(running=1)
    hold_in_place(engine)
    status, _ = engine.post(
        "/update_weights_from_disk",
        {"model_path": weights(tmp_path / "v1"), "weight_version": "1", "flush_cache": False},
    )
    assert status == 200
    engine.stepper.free.set()
    engine.post("/continue_generation", {})
    meta = asked.result()[1]["meta_info"]
    assert meta["weight_versions"] == [
        {"version": "default", "start": 0, "end": 1},
        {"version": "1", "start": 1, "end": 7},
    ]
    assert meta["weight_version"] == "1"


# --- (f) versions and 499; trap 2 ---


def test_the_older_release_shows_the_newer_version_only(older: Bench, tmp_path: Path) -> None:
    asked = older.ask("abcdef")
    older.until_numbers(running=1)
    hold_in_place(older)
    body = {"model_path": weights(tmp_path / "v1"), "weight_version": "1", "flush_cache": False}
    older.post("/update_weights_from_disk", body)
    older.stepper.free.set()
    older.post("/continue_generation", {})
    meta = asked.result()[1]["meta_info"]
    assert meta["weight_version"] == "1"
    assert "weight_versions" not in meta


def test_renaming_the_version_aborts_unless_told_not_to(engine: Bench, older: Bench) -> None:
    for server, tag in ((older, "7"), (engine, "7")):
        asked = server.ask("abcdef")
        server.until_numbers(running=1)
        renamed = server.begin("/update_weight_version", {"new_version": "7"})
        server.stepper.free.set()
        assert renamed.result() == (200, {"success": True, "message": "Weight version updated.", "new_version": "7"})
        assert finish(asked.result())["type"] in {"abort", "stop"}
        assert server.get("/model_info")[1]["weight_version"] == tag
        assert server.server.engine.counts["aborts"] == 1
        server.post("/update_weight_version", {"new_version": "8", "abort_all_requests": False})
        assert server.server.engine.counts["aborts"] == 1


def test_an_abort_of_a_held_request_is_499_in_the_older_release_and_none_in_the_newer(
    engine: Bench, older: Bench
) -> None:
    for server, status in ((older, 499), (engine, 200)):
        server.post("/pause_generation", {"mode": "in_place"})
        asked = server.ask("ab", "r")
        server.until_numbers(front=1)
        server.post("/abort_request", {"abort_all": True})
        server.stepper.free.set()
        assert not asked.done(), "delivered only at the continue"
        server.post("/continue_generation", {})
        code, body = asked.result()
        assert code == status
        assert ("error" in body) == (status == 499)


# --- (g) health; trap 4 ---


def test_health_is_503_in_the_warm_up_while_generate_works_already() -> None:
    with bench(warmup_seconds=3600.0) as engine:
        engine.stepper.free.set()
        assert engine.get("/health")[0] == 503
        assert engine.get("/model_info")[0] == 200
        assert engine.post("/generate", {"text": "a"})[0] == 200


def test_health_takes_its_second() -> None:
    with bench(health_probe_seconds=0.3) as engine:
        began = time.monotonic()
        assert engine.get("/health")[0] == 200
        assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
def test_health_turns_503_in_a_long_pause_unless_it_does_not_generate(mode: str) -> None:
    with bench(health_timeout_seconds=0.05) as engine:
        engine.post("/pause_generation", {"mode": mode})
        assert engine.get("/health")[0] == 503
        assert engine.server.unhealthy
        engine.post("/continue_generation", {})
        assert engine.get("/health")[0] == 200
        assert not engine.server.unhealthy
    with bench(health_timeout_seconds=0.05, health_generation=False) as engine:
        engine.post("/pause_generation", {"mode": mode})
        assert engine.get("/health")[0] == 200
        assert engine.get("/health_generate")[0] == 503


def test_health_turns_503_in_a_long_load(tmp_path: Path) -> None:
    with bench(health_timeout_seconds=0.05, load_seconds=1.0) as engine:
        update = engine.begin("/update_weights_from_disk", {"model_path": weights(tmp_path / "v1")})
        engine.until(lambda: engine.server.engine.updates._written)
        assert engine.get("/health")[0] == 503
        assert update.result()[0] == 200
        assert engine.get("/health")[0] == 200


def test_the_watchdog_ends_a_pause_in_place_and_spares_the_others() -> None:
    for mode in ("in_place", "retract"):
        with bench(watchdog_seconds=0.1) as engine:
            engine.ask("abcdef").add_done_callback(lambda call: call.exception())
            engine.until_numbers(running=1)
            hold_in_place(engine, mode)
            if mode == "in_place":
                engine.until(lambda: bool(engine.crashes))
                assert "watchdog" in engine.crashes[0]
            else:
                time.sleep(0.3)
                assert not engine.crashes


# --- (h) SIGTERM; trap 5 ---


def test_after_sigterm_health_is_503_and_generate_still_works(engine: Bench) -> None:
    engine.stepper.free.set()
    engine.server.terminating.set()
    assert engine.get("/health")[0] == 503
    assert engine.post("/generate", {"text": "a"})[0] == 200


def test_after_sigterm_health_is_503_without_a_probe_as_well() -> None:
    with bench(health_generation=False) as engine:
        assert engine.get("/health")[0] == 200
        engine.server.terminating.set()
        assert engine.get("/health")[0] == 503


def test_the_drain_has_no_deadline_and_requests_behind_a_pause_count(engine: Bench) -> None:
    engine.post("/pause_generation", {"mode": "in_place"})
    connection = open_generate(engine, "ab")
    engine.until_numbers(front=1)
    connection.close()
    engine.server.terminating.set()
    drained = engine.pool.submit(engine.server.drained)
    time.sleep(0.3)
    assert not drained.done(), "fifteen ticks, and the client hung up long ago"
    engine.stepper.free.set()
    engine.post("/continue_generation", {})
    assert drained.result() is True


def test_an_unhealthy_engine_does_not_wait_for_its_requests(engine: Bench) -> None:
    engine.ask("ab").add_done_callback(lambda call: call.exception())
    engine.until_numbers(running=1)
    engine.server.unhealthy = True
    assert engine.server.drained() is False


# --- (i) streams ---


def test_a_stream_is_cumulative_and_ends_with_done(engine: Bench) -> None:
    engine.stepper.free.set()
    events = stream(engine, {"text": "abc", "stream": True})
    assert events[-1] == "[DONE]"
    bodies = [json.loads(event) for event in events[:-1]]
    assert bodies[-1]["text"] == "abc"
    assert bodies[-1]["meta_info"]["finish_reason"]["type"] == "stop"
    for earlier, later in pairwise(bodies):
        assert earlier["meta_info"]["finish_reason"] is None
        assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]


def test_an_incremental_stream_has_every_token_once() -> None:
    with bench(incremental_streaming_output=True) as engine:
        engine.stepper.free.set()
        events = stream(engine, {"text": "abc", "stream": True})
        assert [token for event in events[:-1] for token in json.loads(event)["output_ids"]] == [97, 98, 99, 256]


def test_chunks_of_a_batch_say_whose_they_are(engine: Bench) -> None:
    engine.stepper.free.set()
    events = [json.loads(event) for event in stream(engine, {"text": ["ab", "cd"], "stream": True})[:-1]]
    last = {event["index"]: event["text"] for event in events}
    assert last == {0: "ab", 1: "cd"}


@pytest.mark.parametrize(
    "body", [{"text": "a", "sampling_params": {"top_p": 0}}, {"text": ["a", "b"], "rid": ["x", "x"]}]
)
def test_errors_of_a_stream_are_events_under_200(engine: Bench, body: Any) -> None:
    events = stream(engine, {**body, "stream": True})
    error = json.loads(events[0])["error"]
    assert (error["code"], error["retryable"], events[1:]) == (400, False, ["[DONE]"])


def test_a_client_that_hangs_up_ends_its_request(engine: Bench) -> None:
    for more in ({}, {"stream": True}):
        connection = open_generate(engine, "a" * 100, **more)
        engine.until_numbers(running=1)
        engine.steps(1)
        connection.close()
        # Only the step after the abort ends it.
        engine.until(lambda: _ending(engine))
        engine.steps(1)
        engine.until_numbers(running=0)


# --- (j) names and loads that fail ---


def test_the_served_name_becomes_the_path(engine: Bench, tmp_path: Path) -> None:
    path = weights(tmp_path / "v1")
    assert engine.post("/update_weights_from_disk", {"model_path": path})[0] == 200
    info = engine.get("/model_info")[1]
    assert (info["model_path"], info["served_model_name"]) == (path, path)
    assert 'model_name="local"' in engine.get("/metrics")[1], "labels keep the old name"


def test_a_failed_load_says_that_it_rolls_back_and_does_not(engine: Bench, tmp_path: Path) -> None:
    engine.post("/update_weights_from_disk", {"model_path": weights(tmp_path / "v1"), "weight_version": "1"})
    good = engine.post("/weights_checker", {"action": "checksum"})[1]["per_engine_checksum"]
    broken = tmp_path / "v2"
    weights(broken, b"other")
    (broken / "z.safetensors").write_bytes(b"")
    status, body = engine.post("/update_weights_from_disk", {"model_path": str(broken), "weight_version": "2"})
    assert (status, body["success"]) == (400, False)
    assert "Rolling back" in body["message"]
    info = engine.get("/model_info")[1]
    assert (info["weight_version"], info["model_path"]) == ("1", str(tmp_path / "v1")), "it says that all is as before"
    assert engine.post("/weights_checker", {"action": "checksum"})[1]["per_engine_checksum"] != good
    assert engine.post("/update_weights_from_disk", {"model_path": str(tmp_path / "none")})[0] == 400


def test_a_version_that_is_not_sent_does_not_change(engine: Bench, tmp_path: Path) -> None:
    engine.post("/update_weights_from_disk", {"model_path": weights(tmp_path / "v1"), "weight_version": "1"})
    engine.post("/update_weights_from_disk", {"model_path": weights(tmp_path / "v2", b"x")})
    assert engine.get("/model_info")[1]["weight_version"] == "1"
    assert engine.post("/get_weights_by_name", {"name": "model.safetensors"})[1] == [120.0]
    assert engine.post("/get_weights_by_name", {"name": "gone"})[0] == 400


# --- (k) keys; trap 9 ---


def test_control_routes_take_the_admin_key_alone() -> None:
    with bench(api_key="user", admin_api_key="admin") as engine:
        engine.stepper.free.set()
        assert engine.get("/health")[0] == 200
        assert engine.get("/metrics")[0] == 200
        assert engine.post("/generate", {"text": "a"}) == (401, {"error": "Unauthorized"})
        engine.headers = {"Authorization": "Bearer user"}
        assert engine.post("/generate", {"text": "a"})[0] == 200
        assert engine.post("/abort_request", {"abort_all": True})[0] == 401
        shown = engine.get("/server_info")[1]
        assert (shown["api_key"], shown["admin_api_key"]) == ("user", "admin"), "it leaks them"
        engine.headers = {"Authorization": "Bearer admin"}
        assert engine.post("/abort_request", {"abort_all": True})[0] == 200
        assert engine.post("/generate", {"text": "a"})[0] == 401


def test_an_admin_key_alone_leaves_the_rest_open() -> None:
    with bench(admin_api_key="admin") as engine:
        engine.stepper.free.set()
        assert engine.post("/generate", {"text": "a"})[0] == 200
        assert engine.post("/pause_generation", {})[0] == 401


def test_server_info_says_what_was_asked_for() -> None:
    with bench(tp_size=16, ep_size=16, dp_size=2, moe_a2a_backend="deepep_v2") as engine:
        shown = engine.get("/server_info")[1]
    assert [shown[name] for name in ("tp_size", "ep_size", "dp_size")] == [16, 16, 2]
    assert shown["moe_a2a_backend"] == "deepep_v2"


def test_only_the_older_release_shows_the_live_version_in_server_info(engine: Bench, older: Bench) -> None:
    for server, shown in ((older, "9"), (engine, "default")):
        server.post("/update_weight_version", {"new_version": "9"})
        assert server.get("/server_info")[1]["weight_version"] == shown
        assert server.get("/model_info")[1]["weight_version"] == "9"


# --- (l) metrics and loads ---


def test_metrics_have_the_names_that_rules_and_dashboards_use(engine: Bench) -> None:
    from k8s.metrics import METRICS, SGLANG

    engine.stepper.free.set()
    engine.post("/generate", {"text": "abc"})
    text = engine.get("/metrics")[1]
    for name, metric in METRICS.items():
        if metric.exporter is SGLANG:
            line = next(line for line in text.splitlines() if line.startswith(f"{name}{{"))
            assert all(f'{label}="' in line for label in metric.labels if label != "dp_rank")
            assert f"# TYPE {name} {metric.kind}" in text
    assert "sglang:generation_tokens_total" in text
    assert 'sglang:time_to_first_token_seconds_bucket{model_name="local",engine_type="unified",le="+Inf"} 1' in text
    with bench(enable_metrics=False) as silent:
        assert silent.get("/metrics")[0] == 404


def test_loads_stand_still_in_a_pause(engine: Bench) -> None:
    asked = engine.ask("abcdef")
    engine.until_numbers(running=1)
    hold_in_place(engine)
    engine.ask("gh").add_done_callback(lambda call: call.exception())
    engine.until_numbers(front=1)
    load = engine.get("/v1/loads")[1]["loads"][0]
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (1, 0)
    assert "sglang_num_running_reqs" in engine.get("/v1/loads?format=prometheus")[1]
    engine.stepper.free.set()
    engine.post("/continue_generation", {})
    asked.result()
    engine.until(lambda: engine.get("/v1/loads")[1]["loads"][0]["num_running_reqs"] == 0)


def test_loads_do_not_see_an_abort_in_a_pause(engine: Bench) -> None:
    asked = engine.ask("abcdef")
    engine.until_numbers(running=1)
    hold_in_place(engine, "retract")
    engine.until_numbers(waiting=1, running=0)
    engine.post("/abort_request", {"abort_all": True})
    assert finish(asked.result())["message"] == "Abort in waiting queue"
    load = engine.get("/v1/loads")[1]["loads"][0]
    assert load["num_running_reqs"] == 1, "as of the last step"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_model_that_raises_ends_the_process(engine: Bench) -> None:
    def broken(_: Any) -> Any:
        raise RuntimeError("no memory")

    engine.stepper.step = broken  # type: ignore[method-assign]
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        engine.post("/generate", {"text": "a"})
    assert engine.crashes == ["the scheduler died"]


# --- helpers ---


def hold_in_place(engine: Bench, mode: str = "in_place") -> None:
    """Pauses, and lets the step that was begun before it come to its end."""
    assert engine.post("/pause_generation", {"mode": mode})[0] == 200
    engine.stepper.turn()
    engine.until(lambda: engine.server.engine._held)


def open_generate(engine: Bench, text: str, **more: Any) -> socket.socket:
    """A request whose answer nobody reads."""
    where = urlsplit(engine.url)
    body = json.dumps({"text": text, "sampling_params": {"max_new_tokens": 1000}, **more}).encode()
    connection = socket.create_connection((where.hostname or "", where.port or 0))
    connection.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return connection


def stream(engine: Bench, body: Any) -> list[str]:
    status, text = engine.post("/generate", body)
    assert status == 200
    lines = text.split("\n\n")
    assert lines[-1] == ""
    return [line.removeprefix("data: ") for line in lines[:-1]]


def _ending(engine: Bench) -> bool:
    with engine.server.engine._lock:
        return all(entry.ending for entry in engine.server.engine._running)
