"""Tools and tool messages through a chat template: what the model sees, what is left out, and what a digest covers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from canary.domain.traffic import AnswerForm, Message, Prompt, SamplingParams, ToolCall
from canary.engine.render import encode, left_out, request_digest
from tests.engine.tiny import tiny_tokenizer
from tests.flow.tool_walk import TOOLS, prompts, tokenizer

PARAMS = SamplingParams(4)
CHAT = Prompt("s", "1", "r", "chat/completions", b"", (Message("user", "hi"),), None, PARAMS)


def test_tools_and_calls_reach_the_template() -> None:
    words, (prompt,) = tokenizer(), prompts(1)
    text = words.decode(encode(words, prompt))
    assert text.startswith("<s>tools " + json.dumps(TOOLS))
    assert '<s>assistant clock{"zone": "Rome"}</s><s>tool noon</s>' in text
    without = words.decode(encode(words, replace(prompt, form=AnswerForm())))
    assert "tools" not in without


def test_arguments_that_are_no_object_stay_a_text() -> None:
    words = tokenizer()
    for arguments, shown in (('{"a": 1}', 'f{"a": 1}'), ("[1]", 'f"[1]"'), ("{", 'f"{"'), ("[" * 200, 'f"' + "[" * 200)):
        calling = replace(CHAT, messages=(Message("assistant", None, (ToolCall("1", "f", arguments),)),))
        assert shown in words.decode(encode(words, calling))


def test_what_a_template_leaves_out() -> None:
    words = tokenizer()
    assert left_out(words) == ()
    assert left_out(tiny_tokenizer()) == ("tools", "tool_calls")
    words.chat_template = "{% if tools %}{{ raise_exception('no tools') }}{% endif %}{{ messages[0]['content'] }}"
    assert left_out(words) == ("tool_calls",), "one that raises says so for each request"
    with pytest.raises(ValueError, match=r"cannot express tools: TemplateError: no tools"):
        encode(words, replace(CHAT, form=AnswerForm(tools="[{}]")))


def test_the_digest_covers_the_form() -> None:
    forms = [
        AnswerForm(),
        AnswerForm(response_format="json_object"),
        AnswerForm(response_format="json_schema", schema="{}"),
        AnswerForm(tools="[1]", tool_choice="auto"),
        AnswerForm(tools="[1]", tool_choice="required"),
    ]
    assert len({request_digest([1, 2], PARAMS, form) for form in forms}) == len(forms)
    assert request_digest([1, 2], PARAMS) == "66391889d8e1c5fd60e068cd7ced61ed"
    assert request_digest([1, 2], replace(PARAMS, seed=7)) == request_digest([1, 2], PARAMS)
