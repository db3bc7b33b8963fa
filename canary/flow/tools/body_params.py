"""Reads what a request body asks of the sampler: OpenAI's fields, and vLLM's and transformers' beside them.

A value that is out of range or of another type is refused with its field, what is legal, and never with what was sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from canary.domain.errors import RequestError
from canary.domain.traffic import SamplingParams
from canary.flow.tools.body_fields import INT32, INT64, MAX_BANS, MAX_IDS, MAX_N, MAX_STOPS, MAX_TOP, kind, pointer

DEFAULT_MAX_TOKENS = 256

Body = Mapping[str, object]


def read_params(fields: Body, *, chat: bool) -> SamplingParams:
    """The sampling parameters of a body.

    Args:
        chat: whether it is a chat's, whose `logprobs` is a boolean beside `top_logprobs`.

    Raises:
        RequestError: a field is wrong; `where` is a JSON pointer.
    """
    max_tokens = _max_tokens(fields)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_number(fields, "temperature", 1.0, lambda v: 0 <= v <= 2, "between 0 and 2"),
        top_k=max(0, _integer(fields, "top_k", -1, INT32) or 0),
        top_p=_number(fields, "top_p", 1.0, lambda v: 0 < v <= 1, "above 0 and at most 1"),
        stop=_texts(fields.get("stop"), "stop", MAX_STOPS, "a stop string"),
        seed=_integer(fields, "seed", -INT64 - 1, INT64),
        min_p=_number(fields, "min_p", 0.0, lambda v: 0 <= v <= 1, "between 0 and 1"),
        typical_p=_number(fields, "typical_p", 1.0, lambda v: 0 < v <= 1, "above 0 and at most 1"),
        repetition_penalty=_number(fields, "repetition_penalty", 1.0, lambda v: v > 0, "above 0"),
        presence_penalty=_number(fields, "presence_penalty", 0.0, lambda v: -2 <= v <= 2, "between -2 and 2"),
        frequency_penalty=_number(fields, "frequency_penalty", 0.0, lambda v: -2 <= v <= 2, "between -2 and 2"),
        logit_bias=_logit_bias(fields.get("logit_bias")),
        bad_words=_texts(fields.get("bad_words"), "bad_words", MAX_BANS, "a bad word"),
        min_tokens=_min_tokens(fields, max_tokens),
        stop_token_ids=_ids(fields.get("stop_token_ids")),
        ignore_eos=_flag(fields, "ignore_eos"),
        n=_integer(fields, "n", 1, MAX_N) or 1,
        logprobs=_chat_logprobs(fields) if chat else _integer(fields, "logprobs", 0, MAX_TOP),
    )


def _number(fields: Body, name: str, default: float, legal: Callable[[float], bool], words: str) -> float:
    value = fields.get(name)
    return default if value is None else _real(value, name, f"/{name}", legal, words)


def _real(value: object, name: str, where: str, legal: Callable[[float], bool], words: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"`{name}` is {kind(value)}, not a number", where=where, remedy=f"Send a number {words}.")
    if not legal(value) or not math.isfinite(value):
        raise RequestError(f"`{name}` is out of range", where=where, remedy=f"Send a number {words}.")
    return float(value)


def _integer(fields: Body, name: str, low: int, high: int) -> int | None:
    value = fields.get(name)
    return None if value is None else _whole(value, name, f"/{name}", low, high)


def _whole(value: object, name: str, where: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"`{name}` is {kind(value)}, not an integer", where=where, remedy="Send a whole number.")
    if not low <= value <= high:
        raise RequestError(f"`{name}` is out of range", where=where, remedy=f"Send a whole number from {low} to {high}.")
    return value


def _flag(fields: Body, name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"`{name}` is {kind(value)}, not a boolean", where=f"/{name}", remedy="Send true or false.")
    return value is True


def _max_tokens(fields: Body) -> int:
    older = _integer(fields, "max_tokens", 1, INT32)
    newer = _integer(fields, "max_completion_tokens", 1, INT32)
    if older is not None and newer is not None and older != newer:
        raise RequestError(
            "`max_tokens` and `max_completion_tokens` differ", where="/max_completion_tokens", remedy="Send only one of them."
        )
    return newer or older or DEFAULT_MAX_TOKENS


def _min_tokens(fields: Body, max_tokens: int) -> int:
    least = _integer(fields, "min_tokens", 0, INT32) or 0
    if least > max_tokens:
        raise RequestError(
            "`min_tokens` is over `max_tokens`", where="/min_tokens", remedy=f"Send at most {max_tokens}, the answer's limit."
        )
    return least


def _texts(value: object, name: str, most: int, what: str) -> tuple[str, ...]:
    if value is None:
        return ()
    single = name == "stop" and isinstance(value, str)
    items: Any = [value] if single else value
    if not isinstance(items, list) or len(items) > most:
        wanted = "a string or a short list" if name == "stop" else "a short list"
        raise RequestError(f"`{name}` is not {wanted}", where=f"/{name}", remedy=f"Send at most {most} strings.")
    for at, item in enumerate(items):
        if not isinstance(item, str) or not item:
            where = f"/{name}" if single else f"/{name}/{at}"
            raise RequestError(
                f"{what} must be a string of at least one character", where=where, remedy="Send it or leave it out."
            )
    return tuple(items)


def _ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_IDS:
        raise RequestError(
            "`stop_token_ids` is not a short list", where="/stop_token_ids", remedy=f"Send at most {MAX_IDS} token ids."
        )
    return tuple(_whole(item, "stop_token_ids", f"/stop_token_ids/{at}", 0, INT32) for at, item in enumerate(value))


def _logit_bias(value: object) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict) or len(value) > MAX_IDS:
        raise RequestError(
            "`logit_bias` is not an object, or is too long",
            where="/logit_bias",
            remedy=f"Send at most {MAX_IDS} token ids with a number each.",
        )
    found = []
    for token, bias in value.items():
        where = f"/logit_bias/{pointer(token)[:100]}"
        if not token.isascii() or not token.isdigit() or len(token) > 10 or str(int(token)) != token:
            raise RequestError("a key of `logit_bias` is not a token id", where=where, remedy="Send whole numbers as keys.")
        _whole(int(token), "logit_bias", where, 0, INT32)
        found.append((int(token), _real(bias, "logit_bias", where, lambda v: -100 <= v <= 100, "between -100 and 100")))
    return tuple(found)


def _chat_logprobs(fields: Body) -> int | None:
    wanted, most = _flag(fields, "logprobs"), _integer(fields, "top_logprobs", 0, MAX_TOP)
    if most and not wanted:
        raise RequestError(
            "`top_logprobs` is given without `logprobs`", where="/top_logprobs", remedy="Send `logprobs` true, or leave it out."
        )
    return (most or 0) if wanted else None
