"""Mirrored requests and the sampling parameters that they ask for.

Reading a body never changes it: the bytes are kept as they came, this is only what Canary understands of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


class Stratum(StrEnum):
    """Requests that are tested together: their exactness means different things."""

    GREEDY = "greedy"
    SAMPLED = "sampled"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's distribution is processed before a token is drawn, and where an answer ends.

    The order is bias, penalties (repetition, frequency, presence), bans, minimum length, temperature, top-k, top-p, min-p,
    typical-p: that of transformers' `generate`, which has no frequency and presence penalty. vLLM bans before it biases and takes
    min-p before top-k.

    Args:
        max_tokens: most tokens to emit.
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: 1 is off.
        stop: strings that end the answer; the text ends before them.
        seed: the client's own seed, stored and never used for draws.
        min_p: least probability of a token over that of the likeliest one; 0 is off.
        typical_p: mass of the tokens nearest to the row's entropy (Meister et al., 2202.00666); 1 is off.
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or answer; 1 is off.
        presence_penalty: taken once off the logit of every token in the answer.
        frequency_penalty: taken off it as often as the answer has the token.
        logit_bias: token ids and what is added to their logits.
        bad_words: texts that may not be said. The last token of one is banned where the others stand before it, prompt included.
        min_tokens: until so many tokens nothing ends the answer; tokens that would are banned.
        stop_token_ids: tokens that end the answer beside EOS; they are no part of its text.
        ignore_eos: EOS ends nothing.
        n: answers that were asked for; the shadow gives the first.
        logprobs: likeliest tokens to tell beside each emitted one's log-probability; None tells nothing.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SamplingParams:
        """The inverse of `dataclasses.asdict` and a trip through JSON, which makes lists of tuples.

        Raises:
            TypeError: a field is unknown.
        """
        return cls(**{name: _as_tuples(value) for name, value in fields.items()})

    @property
    def penalised(self) -> bool:
        """Whether tokens that were there before lower or raise their own logits."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def shaped(self) -> bool:
        """Whether anything changes the logits before the temperature does, which is so under greedy too."""
        return self.penalised or bool(self.logit_bias) or bool(self.bad_words) or self.min_tokens > 0

    @property
    def filtered(self) -> bool:
        """Whether sampling drops tokens of a row."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0 or self.typical_p < 1

    @property
    def stratum(self) -> Stratum:
        return Stratum.GREEDY if self.temperature == 0 else Stratum.SAMPLED

    def clamped(self, max_tokens: int) -> SamplingParams:
        """The same parameters with at most `max_tokens` new tokens."""
        return replace(self, max_tokens=min(self.max_tokens, max_tokens))


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(each) for each in value) if isinstance(value, list) else value


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
