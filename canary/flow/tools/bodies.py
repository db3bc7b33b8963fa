"""Reads an OpenAI-style request body into a `Prompt`, strictly: what the engine could not replay exactly is refused by name.

It never changes the bytes, never guesses a value and never repeats the body's text in an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NoReturn

from canary.domain.errors import RequestError, TooLargeError, UnsupportedRequestError
from canary.domain.traffic import Message, Prompt
from canary.flow.tools.body_fields import IGNORED, NEUTRAL, UNDERSTOOD, kind, pointer
from canary.flow.tools.body_forms import read_form
from canary.flow.tools.body_messages import read_messages
from canary.flow.tools.body_params import read_params

CHAT = "chat/completions"
COMPLETIONS = "completions"
MAX_BODY = 4 * 1024 * 1024
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")

Body = Mapping[str, object]


def read_request(body: bytes, *, route: str, endpoint: str, source: str, request_id: str, max_body: int = MAX_BODY) -> Prompt:
    """Understand one mirrored body.

    Args:
        body: the bytes as they came; kept exactly.
        endpoint: `chat/completions` or `completions`.
        max_body: largest body in bytes.

    Raises:
        TooLargeError: the body is over `max_body`.
        RequestError: the body is wrong; `where` is a JSON pointer ("" is the whole body).
        UnsupportedRequestError: the body is legal but cannot be replayed exactly; `where` as above.
    """
    if len(body) > max_body:
        raise too_large(max_body)
    if endpoint not in (CHAT, COMPLETIONS):
        raise RequestError(f"unknown endpoint {endpoint!r}", remedy=f"Use `{CHAT}` or `{COMPLETIONS}`.")
    fields = _parse(body)
    _refuse_unreplayable(fields)
    messages: tuple[Message, ...] = ()
    text: str | None = None
    if endpoint == CHAT:
        _refuse_field(fields, "prompt", f"`prompt` belongs to `{COMPLETIONS}`")
        messages = read_messages(fields)
    else:
        for name in ("messages", "tools", "tool_choice"):
            _refuse_field(fields, name, f"`{name}` belongs to `{CHAT}`")
        text = _text(fields)
        _refuse_field(fields, "top_logprobs", f"`top_logprobs` belongs to `{CHAT}`")
    form, stream = read_form(fields), fields.get("stream") is True
    params = read_params(fields, chat=endpoint == CHAT)
    return Prompt(source, request_id, route, endpoint, body, messages, text, params, form=form, stream=stream)


def too_large(max_body: int) -> TooLargeError:
    """The error for a body over the limit, whether it was announced, streamed or read."""
    return TooLargeError(
        f"the body is over the limit of {max_body} bytes", remedy="Mirror smaller requests, or raise CANARY_MAX_BODY_BYTES."
    )


def _parse(body: bytes) -> Body:
    """The body as a JSON object without lone surrogates."""
    try:
        decoded = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8 at byte {error.start}", remedy="Send JSON as UTF-8.") from None
    try:
        value = json.loads(decoded, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        detail = f"the body is not JSON at line {error.lineno} column {error.colno}: {error.msg}"
        raise RequestError(detail, remedy="Send one JSON object.") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply", remedy="Send a flatter JSON object.") from None
    except ValueError:
        raise RequestError("the body holds a number that is too long", remedy="Send numbers of an ordinary length.") from None
    if not isinstance(value, dict):
        raise RequestError(f"the body is {kind(value)}, not an object", remedy="Send one JSON object.")
    if _SURROGATE_ESCAPE.search(body):
        _refuse_lone_surrogates(value)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise RequestError(f"the body holds {name}, which is not JSON", remedy="Send finite numbers.")


def _refuse_lone_surrogates(value: object) -> None:
    """Raise at the first string that UTF-8 cannot hold: replacing it would change the tokens."""
    todo: list[tuple[str, object]] = [("", value)]
    while todo:
        where, item = todo.pop()
        if isinstance(item, str) and not _encodable(item):
            raise RequestError("the string holds a lone surrogate", where=where, remedy="Send whole surrogate pairs.")
        if isinstance(item, dict):
            if not all(_encodable(key) for key in item):
                raise RequestError("a key holds a lone surrogate", where=where, remedy="Send whole surrogate pairs.")
            todo.extend((f"{where}/{pointer(key)}", item[key]) for key in reversed(item))
        elif isinstance(item, list):
            todo.extend((f"{where}/{at}", item[at]) for at in reversed(range(len(item))))


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _refuse_unreplayable(fields: Body) -> None:
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise RequestError(f"`stream` is {kind(stream)}, not a boolean", where="/stream", remedy="Send true or false.")
    for name, value in fields.items():
        if name in IGNORED or name in UNDERSTOOD:
            continue
        if name not in NEUTRAL:
            raise UnsupportedRequestError(
                "the field is unknown and could change the answer",
                where=f"/{pointer(name)[:100]}",
                remedy="Leave it out, or keep such requests off this route's mirror.",
            )
        if not any(value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in NEUTRAL[name]):
            raise UnsupportedRequestError(
                f"`{name}` asks for something that the engine cannot replay",
                where=f"/{name}",
                remedy=f"Only {_neutral_words(name)} can be mirrored; keep such requests off this route's mirror.",
            )


def _neutral_words(name: str) -> str:
    return " or ".join("no value" if v is None else json.dumps(v) for v in NEUTRAL[name])


def _refuse_field(fields: Body, name: str, detail: str) -> None:
    if fields.get(name) is not None:
        raise RequestError(detail, where=f"/{name}", remedy="Send the request to the other endpoint.")


def _text(fields: Body) -> str:
    value = fields.get("prompt")
    if isinstance(value, list):
        raise UnsupportedRequestError(
            "a list of prompts cannot be replayed", where="/prompt", remedy="Send one prompt as a string."
        )
    if not isinstance(value, str):
        detail = "`prompt` is missing" if value is None else f"`prompt` is {kind(value)}, not a string"
        raise RequestError(detail, where="/prompt", remedy="Send one prompt as a string.")
    if not value:
        raise RequestError("`prompt` is empty", where="/prompt", remedy="Send at least one character.")
    return value
