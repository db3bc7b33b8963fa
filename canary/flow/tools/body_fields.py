"""The fields of an OpenAI-style body as readable tables: what is understood, what cannot matter, what must stay neutral."""

from __future__ import annotations

from collections.abc import Mapping

MAX_STOPS = 16
ROLES = ("system", "developer", "user", "assistant")
TOOL_ROLES = ("tool", "function")
INT32, INT64 = 2**31 - 1, 2**63 - 1

# Fields that cannot change which tokens are drawn; any value is legal.
IGNORED = frozenset(
    {
        "logprobs",
        "metadata",
        "model",
        "parallel_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "top_logprobs",
        "user",
    }
)

# Fields that could change the answer in a way that the engine does not replay: only these neutral values pass.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "modalities": (None, ["text"]),
    "n": (None, 1),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "reasoning_effort": (None,),
    "repetition_penalty": (None, 1),
    "response_format": (None, {"type": "text"}),
    "stop_token_ids": (None, []),
    "suffix": (None,),
    "tool_choice": (None, "none"),
    "tools": (None, []),
    "web_search_options": (None,),
}

UNDERSTOOD = frozenset(
    {"messages", "prompt", "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "stop", "seed", "stream"}
)


def pointer(key: str) -> str:
    """One key as a token of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
