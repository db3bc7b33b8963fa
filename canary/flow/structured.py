"""Whether an answer of a structured route is one that the route's clients can read: well-formed, and as its schema says.

It looks at texts so that statistics need not, and it keeps nothing of them: three words per pair leave this file. A schema never
reaches out to the network, and tools are never called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from canary.domain.errors import UsageError
from canary.domain.live_policy import Structured
from canary.domain.pairs import Generation
from canary.domain.traffic import PLAIN_FORM, AnswerForm
from canary.flow.schemas import Compiled, OutOfBounds

# One call a block, as the chat templates of most open models write them.
CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
CALL_MARK = "tool_call>"
MAX_DEPTH = 100  # of an answer; clients' parsers end there or earlier

NO, MAY, MUST = "no", "may", "must"


@dataclass(frozen=True, slots=True)
class Promise:
    """What one answer has to be.

    Args:
        value: it is a JSON value.
        an_object: that value is an object.
        schema: of that value, as JSON text; "" for any.
        calls: whether it calls tools: `no`, `may` (words will do) or `must`.
        tools: which, as in a request, as JSON text; "" for any.
        tool: the only one that it may call, "" for any.
    """

    value: bool = False
    an_object: bool = False
    schema: str = ""
    calls: str = NO
    tools: str = ""
    tool: str = ""


def promised(structured: Structured, form: AnswerForm) -> Promise | None:
    """What the policy asks of a request's answer, the request's own form where the policy names no schema; None: nothing.

    Raises:
        UsageError: the policy names a schema and says that requests do.
    """
    schema = structured.schema
    if structured.kind == "json":
        return Promise(value=True, schema=schema or form.schema)
    if structured.kind == "tools":
        return Promise(calls=MUST, tools=schema) if schema else Promise(calls=MUST, tools=form.tools, tool=form.tool)
    if schema:
        raise UsageError("a schema is given, and requests bring theirs", where="schema", remedy="Leave out one of them.")
    calls = {"none": NO, "auto": MAY, "required": MUST, "named": MUST}[form.tool_choice if form.tools else "none"]
    value = bool(form.response_format)
    an_object = form.response_format == "json_object"
    return Promise(value, an_object, form.schema, calls, form.tools, form.tool) if value or calls != NO else None


class Validity:
    """What a valid answer of one promise is.

    Raises:
        UsageError: the schema is not one; `where` names its part.
    """

    def __init__(self, promise: Promise) -> None:
        self._promise = promise
        self._value = Compiled(json.loads(promise.schema), "schema") if promise.schema else None
        self._arguments = _tools(json.loads(promise.tools)) if promise.tools else None

    def read(self, text: str) -> Any:
        """The answer's JSON value, or the list of its calls; the empty list for words where it may call and does not.

        Raises:
            ValueError: the answer is not what was promised.
            OutOfBounds: it would take too long to say.
        """
        promise = self._promise
        if promise.value:
            try:
                return self._json(text)
            except ValueError:
                if promise.calls == NO:
                    raise
        elif promise.calls == MAY and not _means_calls(text):
            return []
        return [self._call(call, len(text)) for call in _calls(text)]

    def _json(self, text: str) -> Any:
        value = _loads(text)
        if self._promise.an_object and not isinstance(value, dict):
            raise ValueError("not an object")
        if self._value is not None and not self._value.holds(value, len(text)):
            raise ValueError("not as the schema says")
        return value

    def _call(self, call: Any, length: int) -> tuple[str, Any]:
        if not isinstance(call, dict):
            raise ValueError("a call is not an object")
        inner = call.get("function", call)
        if not isinstance(inner, dict):
            raise ValueError("a call's function is not an object")
        name, arguments = inner.get("name"), inner.get("arguments", inner.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = _loads(arguments)
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise ValueError("a call lacks its name, or its arguments are not an object")
        if name != (self._promise.tool or name):
            raise ValueError("another tool had to be called")
        if self._arguments is not None:
            if name not in self._arguments:
                raise ValueError("the call's tool is unknown")
            if not self._arguments[name].holds(arguments, length):
                raise ValueError("not as the tool's schema says")
        return name, arguments


def judge(
    structured: Structured | None, baseline: Generation, candidate: Generation, form: AnswerForm = PLAIN_FORM
) -> tuple[Generation, Generation]:
    """Both arms with `valid`, and the candidate with `agrees`; as they were where nothing is promised or it cannot be judged.

    An arm that failed, or whose answer was cut at its length limit, is neither valid nor invalid.

    Args:
        form: what the request asked for.
    """
    validity = None if structured is None else _validity(structured, form)
    if validity is None or isinstance(validity, str):
        return baseline, candidate
    read = [_read(validity, generation) for generation in (baseline, candidate)]
    (valid_b, value_b), (valid_c, value_c) = read
    agrees = equal(value_b, value_c) if valid_b and valid_c else None
    return replace(baseline, valid=valid_b), replace(candidate, valid=valid_c, agrees=agrees)


def unusable(structured: Structured | None, form: AnswerForm) -> str:
    """Why answers to such a request are not judged although something is promised; "" where they are."""
    validity = None if structured is None else _validity(structured, form)
    return validity if isinstance(validity, str) else ""


def equal(one: Any, other: Any) -> bool:
    """JSON equality: key order does not matter, 1 equals 1.0, and true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def _validity(structured: Structured, form: AnswerForm) -> Validity | str | None:
    promise = promised(structured, form)
    return None if promise is None else _compiled(promise)


@lru_cache(maxsize=64)
def _compiled(promise: Promise) -> Validity | str:
    """Compiled once per promise; of a schema that cannot be used, why."""
    try:
        return Validity(promise)
    except UsageError as error:
        return error.detail


def _read(validity: Validity, generation: Generation) -> tuple[bool | None, Any]:
    if generation.error is not None or generation.finish_reason in ("length", "error"):
        return None, None
    try:
        return True, validity.read(generation.text)
    except ValueError:
        return False, None
    except OutOfBounds:
        return None, None


def _means_calls(text: str) -> bool:
    """Whether an answer that may call tools or be words looks like calls, whole or broken."""
    return CALL_MARK in text or re.match(r"\s*(\[\s*)?\{", text) is not None


def _calls(text: str) -> list[Any]:
    """The calls of an answer: tagged blocks, or bare JSON with one call or a list of them."""
    blocks = CALL.findall(text)
    if blocks:
        return [_loads(block) for block in blocks]
    value = _loads(text)
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    calls = value if isinstance(value, list) else [value]
    if not calls:
        raise ValueError("there is no call")
    return calls


def _loads(text: str) -> Any:
    """Strict JSON: no NaN, no repeated key, no text around it, not nested without end.

    Raises:
        ValueError: it is none.
    """
    try:
        value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for item in level for inner in _inner(item)]
    if level:
        raise ValueError("nested too deeply")
    return value


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _tools(schema: Any) -> dict[str, Compiled]:
    """Tool -> its arguments' schema, from the `tools` of a request."""
    if not isinstance(schema, list) or not schema:
        raise UsageError("must be a list of tools", where="schema", remedy="Write them as in a request's `tools`.")
    found = {}
    for at, tool in enumerate(schema):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise UsageError(f"tool {at} has no name", where="schema", remedy="Write `function: {name, parameters}`.")
        parameters = {} if function.get("parameters") is None else function["parameters"]
        found[function["name"]] = Compiled(parameters, f"schema of tool {function['name']}")
    return found
