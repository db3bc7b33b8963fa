"""JSON Schemas that strangers wrote: refused where they could run long or reach out, compiled once, checked within a budget.

Nothing here opens a connection or a file, and no schema, answer or pattern can hold a worker for long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from time import thread_time
from typing import Any

import regex
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable

from canary.domain.errors import UsageError

MAX_BYTES = 256 * 1024  # of a schema, or of all tools of a request
MAX_NODES = 10_000  # values in a schema
MAX_DEPTH = 48
MAX_PATTERN = 500  # characters of one regular expression
MAX_STEPS = 20_000  # keywords looked at for one answer of up to `LONG` characters; fewer for a longer one
LONG = 4_096
PATTERN_SECONDS = 0.2  # for all patterns of one answer: honest ones take microseconds, one that backtracks for ever is stopped
SCHEMA = "$schema"

_NOWHERE: Registry[Any] = Registry()
Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


class OutOfBounds(Exception):
    """The check would take longer than an answer is worth; it says nothing about the answer."""


@dataclass(frozen=True, slots=True)
class Screened:
    """What a first look at a schema found.

    Args:
        nodes: values that it holds, as far as it was read.
        at: JSON pointer to what passes the bounds.
        why: "" where nothing does.
    """

    nodes: int
    at: str = ""
    why: str = ""


def screen(schema: Any, room: int = MAX_NODES) -> Screened:
    """Whether a schema keeps within the bounds, in time linear in its size; whether it is one at all is `Compiled`'s to say.

    Args:
        room: values that it may hold.
    """
    todo: list[tuple[str, Any, int]] = [("", schema, 0)]
    nodes = 0
    while todo:
        at, node, depth = todo.pop()
        nodes += 1
        if nodes > room:
            return Screened(nodes, at, f"more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            return Screened(nodes, at, f"nested deeper than {MAX_DEPTH}")
        if isinstance(node, dict):
            why = _odd(node, root=not at)
            if why:
                return Screened(nodes, at, why)
            todo.extend((f"{at}/{key[:100].replace('~', '~0').replace('/', '~1')}", node[key], depth + 1) for key in node)
        elif isinstance(node, list):
            todo.extend((f"{at}/{n}", item, depth + 1) for n, item in enumerate(node))
    return Screened(nodes)


def _odd(node: dict[str, Any], *, root: bool) -> str:
    for key in ("$ref", "$dynamicRef"):
        if isinstance(node.get(key), str) and not node[key].startswith("#"):
            return f"`{key}` leaves the schema; put what it names under `$defs` and refer to `#/$defs/...`"
    if isinstance(node.get(SCHEMA), str) and not root:
        return "`$schema` stands inside the schema"
    several = node.get("patternProperties")
    patterns = [node.get("pattern"), *(several if isinstance(several, dict) else ())]
    if any(isinstance(p, str) and len(p) > MAX_PATTERN for p in patterns):
        return f"a pattern is longer than {MAX_PATTERN} characters"
    # The library searches these two together by itself, without the clock that every other search here has.
    if several and "unevaluatedProperties" in node:
        return "`patternProperties` and `unevaluatedProperties` stand together"
    return ""


class Compiled:
    """A schema, ready to check values.

    Args:
        schema: as parsed.
        what: what it is, for errors.

    Raises:
        UsageError: it is no JSON Schema 2020-12, or it passes the bounds.
    """

    def __init__(self, schema: Any, what: str) -> None:
        found = screen(schema)
        if found.why:
            raise UsageError(f"{what} is refused at {found.at or '/'}: {found.why}", where="schema")
        # With `$schema` in it the library would leave the validator with a budget for one of its own at every `$ref: "#"`.
        plain = {key: value for key, value in schema.items() if key != SCHEMA} if isinstance(schema, dict) else schema
        try:
            Draft202012Validator.check_schema(plain)
        except SchemaError as error:
            at = "/".join(str(part) for part in error.absolute_path)
            raise UsageError(f"{what} is not a JSON Schema at /{at}: {error.message[:200]}", where="schema") from None
        except RecursionError:
            raise UsageError(f"{what} is nested too deeply", where="schema") from None
        self._validator = _Bounded(plain, registry=_NOWHERE)

    def holds(self, value: Any, length: int) -> bool:
        """Whether a value is as the schema says.

        Args:
            length: of the answer that it comes from, in characters.

        Raises:
            OutOfBounds: it would take too long to say, or the schema refers to what it does not hold.
        """
        token = _BUDGET.set(_Budget(MAX_STEPS // (1 + length // LONG), PATTERN_SECONDS))
        try:
            return next(self._validator.iter_errors(value), None) is None
        except Unresolvable:
            raise OutOfBounds("it refers to what it does not hold") from None
        except (RecursionError, regex.error) as error:
            raise OutOfBounds(type(error).__name__) from None
        finally:
            _BUDGET.reset(token)


@dataclass(slots=True)
class _Budget:
    """What one check may still spend."""

    steps: int
    seconds: float

    def spend(self, *sizes: Any) -> None:
        self.steps -= 1 + sum(len(size) // 8 for size in sizes if isinstance(size, dict | list))
        if self.steps < 0:
            raise OutOfBounds("too many steps")

    def search(self, pattern: str, text: str) -> bool:
        if self.seconds <= 0:
            raise OutOfBounds("the patterns take too long")
        start = thread_time()
        try:
            return regex.search(pattern, text, timeout=self.seconds) is not None
        except TimeoutError:
            raise OutOfBounds("a pattern backtracks") from None
        finally:
            self.seconds -= thread_time() - start


_BUDGET: ContextVar[_Budget] = ContextVar("budget")


def _counted(keyword: Keyword) -> Keyword:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
        _BUDGET.get().spend(value, schema, instance)
        return keyword(validator, value, instance, schema)

    return counted


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, str) and not _BUDGET.get().search(pattern, instance):
        yield from validator.descend(instance, False)


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
    for pattern, inner in patterns.items() if isinstance(instance, dict) else ():
        for key, value in instance.items():
            _BUDGET.get().spend()
            if _BUDGET.get().search(pattern, key):
                yield from validator.descend(value, inner, path=key, schema_path=pattern)


def _additional_properties(validator: Any, inner: Any, instance: Any, schema: Any) -> Iterator[Any]:
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, value in instance.items() if isinstance(instance, dict) else ():
        _BUDGET.get().spend()
        if key not in known and not any(_BUDGET.get().search(pattern, key) for pattern in patterns):
            yield from validator.descend(value, inner, path=key)


def _unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
    """As the library's, which compares every two items where they cannot be sorted."""
    if isinstance(instance, list):
        for _ in instance:
            _BUDGET.get().spend(instance)
    found: Iterator[Any] | None = Draft202012Validator.VALIDATORS["uniqueItems"](validator, unique, instance, schema)
    return found


_OWN: dict[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
_EVERY: dict[str, Any] = {**Draft202012Validator.VALIDATORS, **_OWN}
_extend: Any = validators.extend
_Bounded: Any = _extend(Draft202012Validator, {name: _counted(keyword) for name, keyword in _EVERY.items()})
