"""Reads the body of /generate as SGLang 0.5.17 and 0.5.19 do (field names, defaults, limits, and who gets which error).

Penalties, biases, grammars and log-probabilities of the input are known but not computed by this engine: asking for them
is refused, since an answer without them would look like one with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

GREEDY_BELOW = 1e-6
"""Temperatures below it mean the most probable token."""
NOT_COMPUTED: Mapping[str, Any] = {
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "stop_regex": None,
    "json_schema": None,
    "regex": None,
    "ebnf": None,
    "structural_tag": None,
    "logit_bias": None,
}
"""Sampling parameters that this engine takes at their defaults only."""
ACCEPTED = frozenset(
    {
        "max_new_tokens",
        "min_new_tokens",
        "n",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "no_stop_trim",
        "sampling_seed",
        "custom_params",
        "stream_interval",
        *NOT_COMPUTED,
    }
)


class BadRequest(Exception):
    """400 in SGLang's second shape, `{error: {message}}`."""


class Malformed(Exception):
    """400 in SGLang's first shape: bad JSON, a wrong type, no body."""


class UnknownParameter(Exception):
    """A sampling parameter that does not exist: SGLang answers 500."""


class Tokenizer(Protocol):
    """Text to tokens and back, as the model behind the engine has it."""

    def encode(self, text: str) -> tuple[int, ...]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Checked sampling parameters of one request."""

    max_new_tokens: int
    min_new_tokens: int
    samples: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    stop: tuple[str, ...]
    stop_tokens: frozenset[int]
    ignore_eos: bool
    trim_stop: bool
    seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One answer that is asked for. `rid` None: the engine makes one up."""

    rid: str | None
    tokens: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """All answers of one call, in order; `batch` says whether the reply is a list."""

    prompts: tuple[Prompt, ...]
    batch: bool
    stream: bool
    log_probs: bool
    token_texts: bool
    prompt_tokens: bool


def parse(
    body: Any, tokenizer: Tokenizer, *, context_length: int, preferred: Mapping[str, Any], tracked: bool
) -> GenerateRequest:
    """`tracked`: whether samples of one prompt keep its rid as their beginning (0.5.17)."""
    if not isinstance(body, dict):
        raise Malformed("body is not a JSON object")
    stream, log_probs = _flag(body, "stream"), _flag(body, "return_logprob")
    if body.get("logprob_start_len", -1) not in (-1, None) or body.get("top_logprobs_num"):
        raise BadRequest("this local engine has log-probabilities of sampled tokens only")
    prompts, batch = _prompts(body, tokenizer)
    rids = _rids(body.get("rid"), len(prompts), batch)
    written = body.get("sampling_params")
    if written is not None and not isinstance(written, dict | list):
        raise Malformed("sampling_params: an object or a list of objects")
    if isinstance(written, list) and len(written) != len(prompts):
        raise BadRequest("The length of sampling_params should be equal to the number of prompts.")
    made: list[Prompt] = []
    for position, tokens in enumerate(prompts):
        own = written[position] if isinstance(written, list) else written or {}
        if not isinstance(own, dict):
            raise Malformed("sampling_params: an object or a list of objects")
        sampling = _sampling({**preferred, **own}, len(tokens), context_length)
        many = sampling.samples > 1
        batch = batch or many
        for number in range(sampling.samples):
            rid = rids[position]
            if many and rid is not None:
                rid = f"{rid}_{number}" if tracked else None
            made.append(Prompt(rid=rid, tokens=tokens, sampling=sampling))
    return GenerateRequest(
        prompts=tuple(made),
        batch=batch,
        stream=stream,
        log_probs=log_probs,
        token_texts=_flag(body, "return_text_in_logprobs"),
        prompt_tokens=_flag(body, "return_prompt_token_ids"),
    )


def _prompts(body: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[list[tuple[int, ...]], bool]:
    """(token lists, whether a list was asked). With both given, the text decides that and the ids are what runs."""
    text: Any = body.get("text")
    ids: Any = body.get("input_ids")
    if body.get("input_embeds") is not None:
        raise BadRequest("this local engine takes text or input_ids")
    if text is None and ids is None:
        raise BadRequest("Either text, input_ids or input_embeds should be provided.")
    if text is not None and not (isinstance(text, str) or _all(text, str)):
        raise Malformed("text: a string or a list of strings")
    if ids is not None and not (_all(ids, int) or (_all(ids, list) and all(_all(entry, int) for entry in ids))):
        raise Malformed("input_ids: a list of integers or a list of such lists")
    if ids is not None and (not ids or any(isinstance(entry, list) and not entry for entry in ids)):
        raise BadRequest("input_ids cannot be empty.")
    if ids is None:
        batch = isinstance(text, list)
        encoded = [tokenizer.encode(entry) for entry in (text if isinstance(text, list) else [text])]
        if not encoded or not all(encoded):
            raise BadRequest("The prompt cannot be empty.")
        return encoded, batch
    several = isinstance(ids[0], list)
    batch = isinstance(text, list) if text is not None else several
    return [tuple(entry) for entry in (ids if several else [ids])], batch


def _rids(rid: Any, prompts: int, batch: bool) -> list[str | None]:
    if rid is None:
        return [None] * prompts
    if isinstance(rid, str):
        return [f"{rid}_{number}" for number in range(prompts)] if batch else [rid]
    if not _all(rid, str):
        raise Malformed("rid: a string or a list of strings")
    if len(rid) != prompts:
        raise BadRequest("The length of rid should be equal to the number of prompts.")
    if len(set(rid)) != len(rid):
        raise BadRequest("Duplicate request ids in one batch.")
    return list(rid)


def _sampling(written: Mapping[str, Any], prompt: int, context_length: int) -> Sampling:
    unknown = sorted(set(written) - ACCEPTED)
    if unknown:
        raise UnknownParameter(f"SamplingParams.__init__() got an unexpected keyword argument '{unknown[0]}'")
    for name, default in NOT_COMPUTED.items():
        if written.get(name, default) not in (default, None):
            raise BadRequest(f"{name}: this local engine does not compute it")
    most = written.get("max_new_tokens", 128)
    room = context_length - prompt
    if room <= 0:
        raise BadRequest(
            f"The input ({prompt} tokens) is longer than the model's context length ({context_length} tokens)."
        )
    if most is None:
        most = room
    _within(most, int, 0, None, "max_new_tokens")
    if most > room:
        raise BadRequest(
            f"Requested token count exceeds the model's maximum context length of {context_length} tokens: {prompt} of the"
            f" input and {most} to be generated."
        )
    least = _within(written.get("min_new_tokens", 0), int, 0, most, "min_new_tokens")
    temperature = _within(written.get("temperature", 1.0), float, 0.0, None, "temperature")
    top_p = _within(written.get("top_p", 1.0), float, 0.0, 1.0, "top_p")
    if top_p == 0:
        raise BadRequest("top_p must be in (0, 1], got 0.")
    top_k = _within(written.get("top_k", -1), int, -1, None, "top_k")
    if top_k == 0:
        raise BadRequest("top_k must be -1 (disable), or at least 1, got 0.")
    stop = written.get("stop") or ()
    return Sampling(
        max_new_tokens=most,
        min_new_tokens=least,
        samples=_within(written.get("n", 1), int, 1, None, "n"),
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=_within(written.get("min_p", 0.0), float, 0.0, 1.0, "min_p"),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_tokens=frozenset(written.get("stop_token_ids") or ()),
        ignore_eos=bool(written.get("ignore_eos", False)),
        trim_stop=not written.get("no_stop_trim", False),
        seed=written.get("sampling_seed"),
    )


def _within(value: Any, kind: type, low: float, high: float | None, name: str) -> Any:
    number = isinstance(value, int) or (kind is float and isinstance(value, float))
    if not number or isinstance(value, bool) or not isfinite(value):
        raise BadRequest(f"{name} must be a {'whole number' if kind is int else 'number'}, got {value!r}.")
    if value < low or (high is not None and value > high):
        raise BadRequest(f"{name} must be in [{low}, {'inf' if high is None else high}], got {value}.")
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if isinstance(value, list) and value and all(isinstance(entry, bool) for entry in value):
        return any(value)
    if value is not None and not isinstance(value, bool):
        raise Malformed(f"{name}: true or false")
    return bool(value)


def _all(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(entry, kind) and not isinstance(entry, bool) for entry in value)
