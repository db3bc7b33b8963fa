"""Reads what a request asks of its answer's form: `tools`, `tool_choice` and `response_format`, bounded, each error by its field.

It never compiles a schema, so that a mirror spends linear time on a body; whoever judges answers finds out whether it is one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from canary.domain.errors import RequestError, UnsupportedRequestError
from canary.domain.traffic import AnswerForm
from canary.flow.schemas import MAX_BYTES, MAX_NODES, screen
from canary.flow.tools.body_fields import TOOL_KEYS, kind, pointer

MAX_TOOLS = 128
MAX_NAME = 128
Body = Mapping[str, object]


def read_form(fields: Body) -> AnswerForm:
    """What the body asks of its answer's form.

    Raises:
        RequestError: a field is wrong; `where` is a JSON pointer.
        UnsupportedRequestError: it asks for something that no arm can replay.
    """
    tools, names = _tools(fields.get("tools"))
    choice, tool = _choice(fields.get("tool_choice"), names)
    response_format, schema = _response_format(fields.get("response_format"))
    return AnswerForm(tools, choice, tool, response_format, schema)


def text_of(value: object, where: str, remedy: str) -> str:
    """A text of 1 to `MAX_NAME` characters."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME:
        found = f"is {kind(value)}" if not isinstance(value, str) else f"has {len(value)} characters"
        raise RequestError(f"it {found}; it must be a string of 1 to {MAX_NAME}", where=where, remedy=remedy)
    return value


def object_of(value: object, where: str, remedy: str) -> Mapping[str, object]:
    """An object."""
    if not isinstance(value, dict):
        raise RequestError(f"it is {kind(value)}, not an object", where=where, remedy=remedy)
    return value


def a_function(value: Mapping[str, object], where: str) -> None:
    """Refuse a tool or a call that is not of type `function`."""
    named = value.get("type")
    if not isinstance(named, str):
        raise RequestError(f"`type` is {kind(named)}, not a string", where=f"{where}/type", remedy="Send `function`.")
    if named != "function":
        raise UnsupportedRequestError(
            "only functions can be replayed", where=f"{where}/type", remedy="Keep such requests off this route's mirror."
        )


def _tools(value: object) -> tuple[str, tuple[str, ...]]:
    """The tools as JSON text, and their names."""
    if value is None or value == []:
        return "", ()
    remedy = f"Send a list of at most {MAX_TOOLS} functions."
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise RequestError("`tools` is not a list, or is too long", where="/tools", remedy=remedy)
    names: list[str] = []
    room = MAX_NODES
    for at, item in enumerate(value):
        where = f"/tools/{at}"
        function = _function(item, where)
        name = text_of(function.get("name"), f"{where}/function/name", "Name the tool.")
        if name in names:
            raise RequestError("two tools have the same name", where=f"{where}/function/name", remedy="Name each tool once.")
        names.append(name)
        if function.get("parameters") is not None:
            room -= _screened(function["parameters"], f"{where}/function/parameters", room)
    return _bounded(value, "/tools"), tuple(names)


def _function(item: object, where: str) -> Mapping[str, object]:
    tool = object_of(item, where, "Send `type` and `function`.")
    _only(tool, TOOL_KEYS["tool"], where)
    a_function(tool, where)
    function = object_of(tool.get("function"), f"{where}/function", "Send `name` and `parameters`.")
    _only(function, TOOL_KEYS["function"], f"{where}/function")
    _typed(function, {"description": str, "strict": bool}, f"{where}/function")
    return function


def _choice(value: object, names: tuple[str, ...]) -> tuple[str, str]:
    """`tool_choice` in one word, and the tool that it names."""
    if value is None:
        return ("auto" if names else "none"), ""
    if value == "none":
        return "none", ""
    if not names:
        raise RequestError("`tool_choice` is given without `tools`", where="/tool_choice", remedy="Send `tools` too.")
    if value in ("auto", "required"):
        return str(value), ""
    remedy = "Use none, auto, required or one function of `tools`."
    if isinstance(value, dict) and value.get("type") == "function":
        _only(value, TOOL_KEYS["tool"], "/tool_choice")
        function = object_of(value.get("function"), "/tool_choice/function", remedy)
        _only(function, ("name",), "/tool_choice/function")
        name = text_of(function.get("name"), "/tool_choice/function/name", remedy)
        if name not in names:
            raise RequestError("it names a tool that is not in `tools`", where="/tool_choice/function/name", remedy=remedy)
        return "named", name
    if isinstance(value, dict):
        raise UnsupportedRequestError("such a `tool_choice` cannot be replayed", where="/tool_choice", remedy=remedy)
    raise RequestError("`tool_choice` is unknown", where="/tool_choice", remedy=remedy)


def _response_format(value: object) -> tuple[str, str]:
    """`response_format` in one word, "" for text, and its schema as JSON text."""
    where, remedy = "/response_format", "Use text, json_object or json_schema."
    if value is None:
        return "", ""
    given = object_of(value, where, remedy)
    named = given.get("type")
    if not isinstance(named, str):
        raise RequestError(f"`type` is {kind(named)}, not a string", where=f"{where}/type", remedy=remedy)
    if named not in ("text", "json_object", "json_schema"):
        raise UnsupportedRequestError("such a `response_format` cannot be replayed", where=f"{where}/type", remedy=remedy)
    _only(given, ("type", "json_schema") if named == "json_schema" else ("type",), where)
    if named != "json_schema":
        return ("" if named == "text" else "json_object"), ""
    where = f"{where}/json_schema"
    inner = object_of(given.get("json_schema"), where, "Send `name` and `schema`.")
    _only(inner, TOOL_KEYS["json_schema"], where)
    _typed(inner, {"name": str, "description": str, "strict": bool}, where)
    _screened(inner.get("schema"), f"{where}/schema", MAX_NODES)
    return "json_schema", _bounded(inner["schema"], f"{where}/schema")


def _screened(schema: object, where: str, room: int) -> int:
    """The number of values in a schema."""
    object_of(schema, where, "Send a JSON Schema.")
    found = screen(schema, room)
    if found.why:
        raise RequestError(f"the schema is refused: {found.why}", where=where + found.at, remedy="Send a simpler schema.")
    return found.nodes


def _bounded(value: object, where: str) -> str:
    """The value as JSON text with its keys in their order: chat templates show them to the model so."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode()) > MAX_BYTES:
        raise RequestError(
            f"it is longer than {MAX_BYTES} bytes of JSON", where=where, remedy="Send fewer tools, or shorter ones."
        )
    return text


def _only(value: Mapping[str, object], allowed: tuple[str, ...], where: str) -> None:
    for key in value:
        if key not in allowed:
            raise UnsupportedRequestError(
                "the field is unknown and could change the answer",
                where=f"{where}/{pointer(key)[:100]}",
                remedy=f"Known here: {', '.join(allowed)}.",
            )


def _typed(value: Mapping[str, object], types: Mapping[str, type], where: str) -> None:
    for key, wanted in types.items():
        if value.get(key) is not None and not isinstance(value[key], wanted):
            word = {str: "a string", bool: "a boolean"}[wanted]
            raise RequestError(f"`{key}` is {kind(value[key])}, not {word}", where=f"{where}/{key}", remedy=f"Send {word}.")
