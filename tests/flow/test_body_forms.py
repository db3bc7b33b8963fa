"""Bodies that ask for tools or JSON: what is understood of them, byte for byte kept, and bounded in time."""

from __future__ import annotations

import json

import pytest

from canary.domain.traffic import PLAIN_FORM, AnswerForm, Message, Prompt, ToolCall
from canary.flow.arms import described
from canary.flow.schemas import MAX_BYTES
from canary.flow.walk.mirror import read_request
from tests.edge.bad_bodies import CALL, CHAT, COMPLETIONS, TOOL, USER, chat, completion, messages


def read(body: bytes, endpoint: str = CHAT) -> Prompt:
    return read_request(body, route="math", endpoint=endpoint, source="gw", request_id="r")


def test_tools_are_kept_in_the_order_that_they_came() -> None:
    tools = [
        TOOL,
        {"function": {"parameters": {"z": 1, "a": "é"}, "strict": True, "name": "g", "description": "d"}, "type": "function"},
    ]
    body = chat(tools=tools, parallel_tool_calls=True)
    prompt = read(body)
    assert prompt.body == body
    assert prompt.form == AnswerForm(json.dumps(tools, separators=(",", ":"), ensure_ascii=False), "auto")
    assert json.loads(prompt.form.tools) == tools
    assert not prompt.form.plain


@pytest.mark.parametrize(
    ("given", "choice", "tool"),
    [
        ("none", "none", ""),
        ("auto", "auto", ""),
        (None, "auto", ""),
        ("required", "required", ""),
        ({"type": "function", "function": {"name": "f"}}, "named", "f"),
    ],
)
def test_the_choice_of_tools(given: object, choice: str, tool: str) -> None:
    form = read(chat(tools=[TOOL], tool_choice=given)).form
    assert (form.tool_choice, form.tool) == (choice, tool)


@pytest.mark.parametrize(
    "fields", [{}, {"tools": []}, {"tools": None, "tool_choice": "none"}, {"response_format": {"type": "text"}}]
)
def test_what_asks_for_nothing_is_plain(fields: dict[str, object]) -> None:
    assert read(chat(**fields)).form == PLAIN_FORM


def test_response_formats() -> None:
    assert read(chat(response_format={"type": "json_object"})).form == AnswerForm(response_format="json_object")
    schema = {"type": "object", "properties": {"b": {"$ref": "#/$defs/x"}, "a": {}}, "$defs": {"x": {"type": "integer"}}}
    asked = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}
    for prompt in (read(chat(response_format=asked)), read(completion(response_format=asked), COMPLETIONS)):
        assert prompt.form == AnswerForm(response_format="json_schema", schema=json.dumps(schema, separators=(",", ":")))


def test_a_history_of_calls_is_kept_as_it_is() -> None:
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL | {"index": 0}, CALL | {"id": "2"}]}
    without = {"role": "assistant", "tool_calls": [CALL]}
    said = {"role": "assistant", "content": "", "tool_calls": None}
    reply = {"role": "tool", "tool_call_id": "1", "content": "", "name": "f"}
    found = read(messages(USER, calling, reply, without, said)).messages
    assert found[1:] == (
        Message("assistant", None, (ToolCall("1", "f", "{}"), ToolCall("2", "f", "{}"))),
        Message("tool", "", (), "1", "f"),
        Message("assistant", None, (ToolCall("1", "f", "{}"),)),
        Message("assistant", ""),
    )


def test_an_error_that_quotes_a_call_or_a_tool_is_kept_without_its_message() -> None:
    described_tool = {"type": "function", "function": {"name": "f", "description": "Looks up a salary."}}
    calling = {
        "role": "assistant",
        "content": None,
        "tool_calls": [CALL | {"function": {"name": "f", "arguments": '{"who": "Ada Lovelace"}'}}],
    }
    prompt = read(json.dumps({"messages": [USER, calling], "tools": [described_tool]}).encode())
    for quoted in ("Ada Lovelace", "up a salary"):
        assert (
            described(ValueError(f"cannot render {quoted}"), [prompt])
            == "ValueError (its message quotes the prompt and is left out)"
        )
    assert described(ValueError("expected a function"), [prompt]) == "ValueError: expected a function"


def test_tools_may_be_as_long_as_the_bound() -> None:
    def sized(extra: int) -> bytes:
        return chat(tools=[{"type": "function", "function": {"name": "f", "description": "x" * extra}}])

    room = MAX_BYTES - len(read(sized(0)).form.tools)
    assert len(read(sized(room)).form.tools) == MAX_BYTES
    with pytest.raises(Exception, match="longer than"):
        read(sized(room + 1))
