"""From a prompt to tokens, through the model's own chat template, tools and tool messages included; the same for both arms.

Nothing of a request is mended for a template: what it cannot express ends that request, and what it leaves out is told.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from transformers import PreTrainedTokenizerBase

from canary.domain.traffic import PLAIN_FORM, AnswerForm, Message, Prompt, SamplingParams, ToolCall

PROBE = "canary_probe"  # the name of a tool that no chat template knows
# Chats on which templates that are not the same give themselves away.
CHATS: tuple[tuple[dict[str, str], ...], ...] = (
    ({"role": "user", "content": "Hi"},),
    ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "  Hi \n"}),
    (
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "Three?"},
    ),
)


def encode(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> tuple[int, ...]:
    """A prompt's tokens; a plain text is taken as it is.

    `tool_choice` and `response_format` are no part of any chat template, so the model does not see them.

    Raises:
        ValueError: the chat template fails on a request with tools; names what the request has.
    """
    if prompt.text is not None:
        return tuple(tokenizer(prompt.text)["input_ids"])
    parts = _parts(prompt)
    try:
        text = _render(tokenizer, prompt.messages, prompt.form)
    except Exception as error:  # a chat template is a program of the model's and may raise anything
        if not parts:
            raise
        raise ValueError(f"the chat template cannot express {' and '.join(parts)}: {type(error).__name__}: {error}") from error
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def request_digest(token_ids: Sequence[int], params: SamplingParams, form: AnswerForm = PLAIN_FORM) -> str:
    """Of what an arm ran: the prompt's tokens, the sampling parameters and the answer's form; the client's seed is never used
    and left out."""
    asked: list[Any] = [list(token_ids), {**asdict(params), "seed": None}]
    if form != PLAIN_FORM:
        asked.append(asdict(form))
    return hashlib.blake2b(json.dumps(asked).encode(), digest_size=16).hexdigest()


def renderings(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """What a chat template makes of a few chats; a failure is its error's name, and without a template there is nothing."""
    if tokenizer.chat_template is None:
        return ("",) * len(CHATS)
    made = []
    for chat in CHATS:
        try:
            made.append(str(tokenizer.apply_chat_template(list(chat), add_generation_prompt=True, tokenize=False)))
        except Exception as error:  # a chat template is a program of the model's and may raise anything
            made.append(f"<{type(error).__name__}>")
    return tuple(made)


def left_out(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Of `tools` and `tool_calls`, what the chat template leaves out without a word; one that raises is not silent."""
    function = {"name": PROBE, "description": "", "parameters": {"type": "object", "properties": {}}}
    user = Message("user", "x")
    called = Message("assistant", "", (ToolCall("c1", PROBE, "{}"),))
    probes = {
        "tools": ((user,), AnswerForm(tools=json.dumps([{"type": "function", "function": function}]))),
        "tool_calls": ((user, called, Message("tool", "y", tool_call_id="c1")), PLAIN_FORM),
    }
    silent = []
    for part, (messages, form) in probes.items():
        try:
            if PROBE not in _render(tokenizer, messages, form):
                silent.append(part)
        except Exception:  # as in `encode`
            continue
    return tuple(silent)


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], form: AnswerForm) -> str:
    plain: Any = [_plain(message) for message in messages]
    given = {"tools": json.loads(form.tools)} if form.tools else {}
    return str(tokenizer.apply_chat_template(plain, add_generation_prompt=True, tokenize=False, **given))


def _plain(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call.arguments)}}
            for call in message.tool_calls
        ]
    return found | {key: value for key in ("tool_call_id", "name") if (value := getattr(message, key)) is not None}


def _arguments(text: str) -> Any:
    """A call's arguments as templates expect them, an object; what is none stays the text that the model once wrote."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _parts(prompt: Prompt) -> list[str]:
    found = {
        "tools": bool(prompt.form.tools),
        "tool calls": any(m.tool_calls for m in prompt.messages),
        "content null": any(m.content is None for m in prompt.messages),
        "tool messages": any(m.role == "tool" for m in prompt.messages),
    }
    return [name for name, is_there in found.items() if is_there]
