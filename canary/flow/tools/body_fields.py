"""The fields of an OpenAI-style body as readable tables: what is understood, what cannot matter, what must stay neutral."""

from __future__ import annotations

from collections.abc import Mapping

MAX_STOPS = 16
MAX_BANS = 1024  # bad words
MAX_IDS = 1024  # stop ids, biased ids
MAX_N = 128
MAX_TOP = 20  # likeliest tokens beside a log-probability
ROLES = ("system", "developer", "user", "assistant", "tool")
# Keys of the objects around tools; an unknown one is refused by name.
TOOL_KEYS: Mapping[str, tuple[str, ...]] = {
    "tool": ("type", "function"),
    "function": ("name", "description", "parameters", "strict"),
    "call": ("id", "type", "function", "index"),
    "json_schema": ("name", "description", "schema", "strict"),
}
INT32, INT64 = 2**31 - 1, 2**63 - 1

# Fields that cannot change which tokens are drawn; any value is legal.
IGNORED = frozenset(
    {
        "metadata",
        "model",
        "parallel_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "user",
    }
)

# Fields that could change the answer in a way that the engine does not replay: only these neutral values pass.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "echo": (None, False),
    "function_call": (None, "none"),
    "functions": (None, []),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "reasoning_effort": (None,),
    "suffix": (None,),
    "web_search_options": (None,),
}

UNDERSTOOD = frozenset(
    {
        "bad_words",
        "frequency_penalty",
        "ignore_eos",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "min_p",
        "min_tokens",
        "n",
        "presence_penalty",
        "prompt",
        "repetition_penalty",
        "response_format",
        "seed",
        "stop",
        "stop_token_ids",
        "stream",
        "temperature",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
        "typical_p",
    }
)


def pointer(key: str) -> str:
    """One key as a token of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def kind(value: object) -> str:
    """The JSON word for a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"
