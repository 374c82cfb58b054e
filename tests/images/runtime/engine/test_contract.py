"""What the client sends and asks is what an image's check holds SGLang to: neither changes without the other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import urllib3

from moerl_runtime.engine.client import Engine
from moerl_runtime.image.contracts import ENGINE_POINTS, ENGINE_ROUTES, ExtensionPoint
from moerl_runtime.trainer import data_source

BODIES: Mapping[str, str] = {
    "/generate": "GenerateReqInput",
    "/abort_request": "AbortReq",
    "/pause_generation": "PauseGenerationReqInput",
    "/update_weights_from_disk": "UpdateWeightFromDiskReqInput",
}
ANSWER: Mapping[str, Any] = {
    "text": "8",
    "output_ids": [8],
    "meta_info": {
        "finish_reason": {"type": "stop"},
        "output_token_logprobs": [[-0.5, 8, None]],
        "weight_version": "run/1",
    },
    "weight_version": "run/1",
    "success": True,
    "message": "",
    "loads": [{"num_running_reqs": 1, "num_waiting_reqs": 2}],
}
"""All answers in one: each method reads its own part."""
PROBES = {"/flush_cache", "/health_generate"}
"""Asked by the pod's probes and by people, not by this client."""


def points(framework: str) -> dict[str, ExtensionPoint]:
    return {point.name: point for point in ENGINE_POINTS[framework]}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Keys of the bodies by path, from a call of every method."""
    found: dict[str, set[str]] = {}

    def ask(_: Engine, method: str, path: str, body: Any = None, **options: Any) -> urllib3.HTTPResponse:
        del method, options
        found.setdefault(path, set()).update(body or ())
        return urllib3.HTTPResponse(body=json.dumps(ANSWER).encode(), status=200, preload_content=True)

    monkeypatch.setattr(Engine, "_ask", ask)
    engine = Engine("http://127.0.0.1:30000", requests_max=1, answer_seconds_max=1.0, load_seconds_max=1.0)
    calls = {
        "healthy": engine.healthy,
        "weight_tag": engine.weight_tag,
        "arguments": lambda: engine.arguments(("tp_size",)),
        "generate": lambda: engine.generate(request_id="r", prompt_tokens=(7,), sampling={}, cache_key="k"),
        "abort": lambda: engine.abort("r"),
        "abort_all": engine.abort_all,
        "pause": lambda: engine.pause("retract"),
        "resume": engine.resume,
        "load": lambda: engine.load("/weights", tag="run/2", flush=True),
        "live_requests": engine.live_requests,
        "metrics": engine.metrics,
    }
    assert set(calls) == {name for name in vars(Engine) if not name.startswith("_")}
    for call in calls.values():
        call()
    return found


def test_every_route_that_is_asked_is_checked(asked: dict[str, set[str]]) -> None:
    # /metrics is mounted by SGLang and no route of its sources.
    assert set(asked) - {"/metrics"} == set(ENGINE_ROUTES) - PROBES


@pytest.mark.parametrize("framework", ENGINE_POINTS)
def test_every_field_that_is_sent_is_checked(framework: str, asked: dict[str, set[str]]) -> None:
    for path, keys in asked.items():
        if keys:
            assert keys == set(points(framework)[BODIES[path]].expects), path


def test_every_sampling_parameter_that_the_trainer_writes_is_checked() -> None:
    class Arguments:
        def __getattr__(self, name: str) -> int:
            return 1

    written = set(data_source._sampling(Arguments())) | {"sampling_seed"}
    assert written == set(points("miles")["SamplingParams"].expects)


@pytest.mark.parametrize("framework", ENGINE_POINTS)
def test_every_part_of_an_answer_that_is_read_is_checked(framework: str) -> None:
    known = points(framework)
    read = {*ANSWER, *ANSWER["meta_info"]} - {"loads"}
    loads = known.get("LoadSnapshot") or known["GetLoadsReqOutput"]
    assert read == {
        text for name in ("TokenizerManager", "model_info", "update_weights_from_disk") for text in known[name].expects
    }
    assert known["get_loads"].expects == ("loads",)
    assert set(loads.expects) == set(ANSWER["loads"][0])
