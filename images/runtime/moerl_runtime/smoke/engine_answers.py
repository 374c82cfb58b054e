"""Bodies of the local engine's answers and errors, field by field as SGLang writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from moerl_runtime.smoke.engine_generation import Generation
from moerl_runtime.smoke.engine_request import GenerateRequest, Tokenizer


def answer_of(
    generation: Generation,
    request: GenerateRequest,
    tokenizer: Tokenizer,
    *,
    served_version: str,
    spans: bool,
    start: int = 0,
    end: int | None = None,
    over: bool = True,
) -> dict[str, Any]:
    """The answer's tokens from `start` to `end`; `over` says whether it has come to its end. `spans` adds which version
    made which token."""
    end = len(generation.tokens) if end is None else end
    tokens, finish = generation.tokens[:end], generation.finish if over else None
    meta: dict[str, Any] = {
        "id": generation.rid,
        "finish_reason": finish,
        "weight_version": generation.version or served_version,
        "completion_tokens": len(tokens),
    }
    if not generation.queued_abort:
        meta |= {
            "prompt_tokens": len(generation.prompt),
            "cached_tokens": 0,
            "reasoning_tokens": 0,
            "num_retractions": generation.retractions,
        }
    if over and spans:
        meta["weight_versions"] = found = generation.spans
        if found:
            meta["weight_version"] = found[-1]["version"]
    if over and generation.finished is not None:
        meta["e2e_latency"] = generation.finished - generation.submitted
    if request.log_probs:
        made = [
            [log_prob, token, tokenizer.decode([token]) if request.token_texts else None]
            for token, log_prob in zip(tokens, generation.log_probs, strict=False)
        ]
        meta |= {
            "input_token_logprobs": [],
            "output_token_logprobs": made[start:],
            "output_token_logprobs_length": len(made),
        }
    answer: dict[str, Any] = {
        "text": _text(generation, tokenizer, tokens[start:], finish),
        "output_ids": tokens[start:],
        "meta_info": meta,
    }
    if request.prompt_tokens:
        answer["prompt_token_ids"] = list(generation.prompt)
    return answer


def _text(generation: Generation, tokenizer: Tokenizer, tokens: list[int], finish: Mapping[str, Any] | None) -> str:
    """Without what it stopped at, unless no_stop_trim."""
    matched = finish["matched"] if finish and finish["type"] == "stop" else None
    if matched is None or not generation.sampling.trim_stop:
        return tokenizer.decode(tokens)
    if isinstance(matched, int):
        return tokenizer.decode(tokens[:-1])
    return tokenizer.decode(tokens).partition(matched)[0]


def first_shape(message: str, status: int) -> dict[str, Any]:
    """SGLang's error body for what its framework refuses, and for 503."""
    kind = "Bad Request" if status == 400 else str(status)
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


def second_shape(message: str) -> dict[str, Any]:
    """SGLang's error body for what its own checks refuse."""
    return {"error": {"message": message}}


def event_of_error(status: int, body: Mapping[str, Any]) -> str:
    message = body["error"]["message"] if "error" in body else body["message"]
    return json.dumps({"error": {"message": message, "type": "error", "code": status, "retryable": False}})
