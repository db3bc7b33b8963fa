"""Reads the `messages` of a chat body, tool calls and tool replies included; null content stays null and roles stay as they are.

Nothing is repaired and nothing is left out: a history that could not be replayed as it is, is refused by field.
"""

from __future__ import annotations

from collections.abc import Mapping

from canary.domain.errors import RequestError, UnsupportedRequestError
from canary.domain.traffic import Message, ToolCall
from canary.flow.tools.body_fields import ROLES, TOOL_KEYS, kind, pointer
from canary.flow.tools.body_forms import MAX_TOOLS, a_function, object_of, text_of

Body = Mapping[str, object]


def read_messages(fields: Body) -> tuple[Message, ...]:
    """The chat of a body.

    Raises:
        RequestError: a message is wrong; `where` is a JSON pointer.
        UnsupportedRequestError: a message is legal but cannot be replayed exactly.
    """
    value = fields.get("messages")
    if value is None:
        raise RequestError("`messages` is missing", where="/messages", remedy="Send at least one message.")
    if not isinstance(value, list):
        raise RequestError(f"`messages` is {kind(value)}, not a list", where="/messages", remedy="Send a list of messages.")
    if not value:
        raise RequestError("`messages` is empty", where="/messages", remedy="Send at least one message.")
    return tuple(_message(item, f"/messages/{at}") for at, item in enumerate(value))


def _message(item: object, where: str) -> Message:
    if not isinstance(item, dict):
        raise RequestError(f"the message is {kind(item)}, not an object", where=where, remedy="Send `role` and `content`.")
    role = item.get("role")
    if role == "function" or item.get("function_call"):
        raise UnsupportedRequestError(
            "`function` messages and `function_call` cannot be replayed", where=where, remedy="Send `tool` and `tool_calls`."
        )
    if role not in ROLES:
        raise RequestError("the role is unknown", where=f"{where}/role", remedy=f"Use one of {', '.join(ROLES)}.")
    calls = _calls(item.get("tool_calls"), role, where)
    content = _content(item.get("content"), where, may_be_null=bool(calls))
    if role != "tool":
        return Message(str(role), content, calls)
    answers = text_of(item.get("tool_call_id"), f"{where}/tool_call_id", "Say which call it answers.")
    name = item.get("name")
    return Message(str(role), content, (), answers, None if name is None else text_of(name, f"{where}/name", "Name the tool."))


def _content(content: object, where: str, *, may_be_null: bool) -> str | None:
    if content is None and may_be_null:
        return None
    if isinstance(content, list):
        raise UnsupportedRequestError(
            "content in parts (text, images, audio) cannot be replayed",
            where=f"{where}/content",
            remedy="Send content as one string, or keep such requests off this route's mirror.",
        )
    if not isinstance(content, str):
        raise RequestError(f"`content` is {kind(content)}, not a string", where=f"{where}/content", remedy="Send a string.")
    return content


def _calls(value: object, role: object, where: str) -> tuple[ToolCall, ...]:
    where = f"{where}/tool_calls"
    if value is None or value == []:
        return ()
    if role != "assistant":
        raise RequestError("only an assistant calls tools", where=where, remedy="Leave it out.")
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise RequestError("`tool_calls` is not a list, or is too long", where=where, remedy=f"Send at most {MAX_TOOLS} calls.")
    return tuple(_call(item, f"{where}/{at}") for at, item in enumerate(value))


def _call(item: object, where: str) -> ToolCall:
    remedy = "Send `id`, `type` and `function` with `name` and `arguments`."
    call = object_of(item, where, remedy)
    a_function(call, where)
    function = object_of(call.get("function"), f"{where}/function", remedy)
    for given, allowed, at in ((call, TOOL_KEYS["call"], where), (function, ("name", "arguments"), f"{where}/function")):
        for key in given:
            if key not in allowed:
                raise UnsupportedRequestError(
                    "the field is unknown", where=f"{at}/{pointer(key)[:100]}", remedy=f"Known here: {', '.join(allowed)}."
                )
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        raise RequestError(
            f"`arguments` is {kind(arguments)}, not a string",
            where=f"{where}/function/arguments",
            remedy="Send JSON as a string.",
        )
    return ToolCall(
        text_of(call.get("id"), f"{where}/id", remedy), text_of(function.get("name"), f"{where}/function/name", remedy), arguments
    )
