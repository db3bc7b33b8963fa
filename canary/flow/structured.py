"""Whether an answer of a structured route is one that the route's clients can read: well-formed, and as its schema says.

It looks at texts so that statistics need not, and it keeps nothing of them: three words per pair leave this file. A schema never
reaches out to the network, and tools are never called.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from canary.domain.errors import UsageError
from canary.domain.live_policy import Structured
from canary.domain.pairs import Generation

# One call a block, as the chat templates of most open models write them.
CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_NOWHERE: Registry[Any] = Registry()


class Validity:
    """What a valid answer of one route is.

    Raises:
        UsageError: the schema is not one; `where` names its part.
    """

    def __init__(self, structured: Structured) -> None:
        self._tools = structured.kind == "tools"
        schema = json.loads(structured.schema) if structured.schema else None
        self._value = None if schema is None or self._tools else _validator(schema, "schema")
        self._arguments = _tools(schema) if schema is not None and self._tools else None

    def read(self, text: str) -> Any:
        """The answer's JSON value, or the list of its calls.

        Raises:
            ValueError: the answer is not what the route promises.
        """
        try:
            if self._tools:
                return [self._call(call) for call in _calls(text)]
            value = _loads(text)
            if self._value is not None:
                self._value.validate(value)
        except (ValidationError, RecursionError, Unresolvable) as error:
            raise ValueError(f"invalid: {type(error).__name__}") from None
        return value

    def _call(self, call: Any) -> tuple[str, Any]:
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
        if self._arguments is not None:
            if name not in self._arguments:
                raise ValueError("the call's tool is unknown")
            self._arguments[name].validate(arguments)
        return name, arguments


def judge(structured: Structured | None, baseline: Generation, candidate: Generation) -> tuple[Generation, Generation]:
    """Both arms with `valid`, and the candidate with `agrees`; as they were on a route that is not structured.

    An arm that failed, or whose answer was cut at its length limit, is neither valid nor invalid.
    """
    if structured is None:
        return baseline, candidate
    validity = _validity(structured)
    read = [_read(validity, generation) for generation in (baseline, candidate)]
    (valid_b, value_b), (valid_c, value_c) = read
    agrees = equal(value_b, value_c) if valid_b and valid_c else None
    return replace(baseline, valid=valid_b), replace(candidate, valid=valid_c, agrees=agrees)


def equal(one: Any, other: Any) -> bool:
    """JSON equality: key order does not matter, 1 equals 1.0, and true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


@lru_cache(maxsize=64)
def _validity(structured: Structured) -> Validity:
    return Validity(structured)


def _read(validity: Validity, generation: Generation) -> tuple[bool | None, Any]:
    if generation.error is not None or generation.finish_reason in ("length", "error"):
        return None, None
    try:
        return True, validity.read(generation.text)
    except ValueError:
        return False, None


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
    """Strict JSON: no NaN, no repeated key, no text around it.

    Raises:
        ValueError: it is none.
    """
    return json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _tools(schema: Any) -> dict[str, Draft202012Validator]:
    """Tool -> validator of its arguments, from the `tools` of a request."""
    if not isinstance(schema, list) or not schema:
        raise UsageError("must be a list of tools", where="schema", remedy="Write them as in a request's `tools`.")
    found = {}
    for at, tool in enumerate(schema):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise UsageError(f"tool {at} has no name", where="schema", remedy="Write `function: {name, parameters}`.")
        found[function["name"]] = _validator(function.get("parameters", {}), f"schema of tool {function['name']}")
    return found


def _validator(schema: Any, what: str) -> Draft202012Validator:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        at = "/".join(str(part) for part in error.absolute_path)
        raise UsageError(f"{what} is not a JSON Schema at /{at}: {error.message[:200]}", where="schema") from None
    for reference in _references(schema):
        if not reference.startswith("#"):
            raise UsageError(
                f"{what} refers to {reference[:100]!r}", where="schema", remedy="Put it under `$defs` and refer to `#/$defs/...`."
            )
    return Draft202012Validator(schema, registry=_NOWHERE)


def _references(schema: Any) -> list[str]:
    """Every `$ref` and `$dynamicRef` in a schema."""
    if isinstance(schema, dict):
        own = [v for k, v in schema.items() if k in ("$ref", "$dynamicRef") and isinstance(v, str)]
        return own + [ref for value in schema.values() for ref in _references(value)]
    return [ref for value in schema for ref in _references(value)] if isinstance(schema, list) else []
