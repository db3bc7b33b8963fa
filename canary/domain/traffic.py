"""Mirrored requests and the sampling parameters that they ask for.

Reading a body never changes it: the bytes are kept as they came, this is only what Canary understands of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import StrEnum


class Stratum(StrEnum):
    """Requests that are tested together: their exactness means different things."""

    GREEDY = "greedy"
    SAMPLED = "sampled"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's distribution is processed before a token is drawn.

    Args:
        max_tokens: most tokens to emit.
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: 1 is off.
        stop: strings that end the answer; the text ends before them.
        seed: the client's own seed, stored and never used for draws.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None

    @property
    def stratum(self) -> Stratum:
        return Stratum.GREEDY if self.temperature == 0 else Stratum.SAMPLED

    def clamped(self, max_tokens: int) -> SamplingParams:
        """The same parameters with at most `max_tokens` new tokens."""
        return replace(self, max_tokens=min(self.max_tokens, max_tokens))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call in a chat's history; `arguments` is the JSON text as it came."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message; `content` None is a tool call's null and stays null.

    Args:
        tool_calls: what an assistant called.
        tool_call_id: of a tool's reply, the call that it answers.
        name: of a tool's reply, the tool, where the client says it.
    """

    role: str
    content: str | None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What a request asks of its answer's form. No engine is held to it here: it is compared with what both arms wrote.

    Args:
        tools: the request's `tools` as JSON text in the order that they came, "" without.
        tool_choice: `none`, `auto` or `required`; `named` where one tool must be called.
        tool: that tool's name.
        response_format: `json_object` or `json_schema`, "" for text.
        schema: the JSON Schema of `json_schema` as JSON text.
    """

    tools: str = ""
    tool_choice: str = "none"
    tool: str = ""
    response_format: str = ""
    schema: str = ""

    @property
    def plain(self) -> bool:
        """Whether it asks for nothing but text."""
        return not self.tools and not self.response_format


PLAIN_FORM = AnswerForm()


@dataclass(frozen=True, slots=True)
class Prompt:
    """One mirrored request, understood.

    Args:
        source: who mirrored it (gateway name).
        request_id: the source's own id; (source, request_id) is unique.
        route: the route whose policy decides about it.
        endpoint: `chat/completions` or `completions`.
        body: the request's bytes, exactly as they came.
        messages: the chat, empty for a plain completion.
        text: the plain prompt, None for a chat.
        params: what it asks of the sampler.
        form: what it asks of the answer's form.
        stream: whether the client asked for a stream; it changes no token.
    """

    source: str
    request_id: str
    route: str
    endpoint: str
    body: bytes
    messages: tuple[Message, ...]
    text: str | None
    params: SamplingParams
    form: AnswerForm = PLAIN_FORM
    stream: bool = False

    @property
    def num_characters(self) -> int:
        """Characters of its content, as far as that is text; what a mirror knows of its length without a tokenizer."""
        return len(self.text or "") + sum(len(message.content or "") for message in self.messages)


def pair_id(source: str, request_id: str, route: str, epoch: str, attempt: int) -> str:
    """The identity of one request's pair: 32 hex digits; a retry has the same one and so the same draws."""
    parts = (source, request_id, route, epoch, str(attempt))
    return hashlib.blake2b("\x1f".join(parts).encode(), digest_size=16).hexdigest()
