"""Schemas that strangers wrote: checked as the library checks them, within a budget, and never over the network."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from canary.domain.errors import UsageError
from canary.flow.schemas import MAX_NODES, Compiled, OutOfBounds, screen
from tests.edge.bad_bodies import deep

DIALECT = "https://json-schema.org/draft/2020-12/schema"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **named: Any) -> None:
        raise AssertionError("a schema opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


# Each keyword whose check is Canary's own, and some that are the library's.
SCHEMAS: list[Any] = [
    {"pattern": "^a+$"},
    {"type": "object", "patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 2}}},
    {"properties": {"a": {}}, "patternProperties": {"^b": {}}, "additionalProperties": False},
    {"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
    {"uniqueItems": True},
    {"items": {"enum": [1, "a", None]}, "minItems": 1},
    {"anyOf": [{"type": "string", "maxLength": 2}, {"required": ["b"]}]},
    {
        "$ref": "#/$defs/tree",
        "$defs": {"tree": {"type": ["object", "integer"], "additionalProperties": {"$ref": "#/$defs/tree"}}},
    },
    {"type": "object", "properties": {"a": {"type": "integer"}}, "unevaluatedProperties": False},
]
VALUES: list[Any] = [
    "aa", "ab", 1, None, [], [1, 1], [1, True], [{"a": 1}, {"a": 1.0}], ["a", None],
    {}, {"a": 1}, {"ab": 1}, {"ab": 2}, {"b": "x"}, {"a": "x", "c": 1}, {"a": {"b": {"c": 1}}}, {"a": {"b": {"c": "x"}}},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_it_says_what_the_library_says(schema: Any) -> None:
    library = Draft202012Validator(schema)
    for written in (schema, {"$schema": DIALECT, **schema}):
        compiled = Compiled(written, "schema")
        assert [compiled.holds(value, 10) for value in VALUES] == [library.is_valid(value) for value in VALUES]
    assert len({library.is_valid(value) for value in VALUES}) == 2


DOUBLING = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)} | {"d60": {}}
HOSTILE = [
    ("doubling references", {"$ref": "#/$defs/d0", "$defs": DOUBLING}, 1, "too many steps"),
    (
        "the same behind a dialect",
        {"$schema": DIALECT, "allOf": [{"$ref": "#/$defs/d0"}], "$defs": DOUBLING},
        1,
        "too many steps",
    ),
    ("a reference to itself", {"$ref": "#"}, 1, "RecursionError"),
    ("a reference to nothing", {"$ref": "#/$defs/no"}, 1, "does not hold"),
    ("a base elsewhere", {"$id": "http://127.0.0.1:9/x", "$ref": "#y"}, 1, "does not hold"),
    ("a pattern that backtracks", {"pattern": "(x+x+)+y"}, "x" * 5_000, "backtracks"),
    ("one among keys", {"patternProperties": {"(x+x+)+y": {}}}, {"x" * 5_000: 1}, "backtracks"),
    (
        "one beside other keys",
        {"patternProperties": {"(x+x+)+y": {}}, "additionalProperties": False},
        {"x" * 5_000: 1},
        "backtracks",
    ),
    ("items that cannot be sorted", {"uniqueItems": True}, [{"a": n} for n in range(5_000)], "too many steps"),
]


@pytest.mark.parametrize(("schema", "value", "why"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_a_hostile_schema_ends_and_says_nothing_of_the_answer(schema: Any, value: Any, why: str) -> None:
    compiled = Compiled(schema, "schema")
    for _ in range(2):
        with pytest.raises(OutOfBounds, match=why):
            compiled.holds(value, 10)
    assert Compiled({"type": "integer"}, "schema").holds(1, 10), "a spent budget is not the next one's"


def test_a_budget_shrinks_with_the_answer() -> None:
    compiled = Compiled({"items": {"type": "integer", "minimum": 0}}, "schema")
    assert compiled.holds([1] * 2_000, 4_000)
    with pytest.raises(OutOfBounds):
        compiled.holds([1] * 2_000, 400_000)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "http://127.0.0.1:9/x"}, "leaves the schema"),
        ({"items": [{"$dynamicRef": "other.json#x"}]}, "at /items/0"),
        (deep(40), "nested deeper"),
        ({"enum": list(range(MAX_NODES))}, "more than"),
        ({"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#"}}}, "inside the schema"),
        ({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, "stand together"),
        ({"patternProperties": {"a" * 501: {}}}, "longer than 500"),
        ({"pattern": "("}, "is not a JSON Schema at /pattern"),
        ({"type": "objekt"}, "is not a JSON Schema at /type"),
        ("text", "is not a JSON Schema at /"),
    ],
)
def test_what_is_refused(schema: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Compiled(schema, "schema")


def test_a_schema_at_the_bounds_compiles() -> None:
    assert Compiled(deep(23), "schema").holds({}, 2)
    found = screen({"enum": list(range(MAX_NODES - 2))})
    assert (found.nodes, found.why) == (MAX_NODES, "")
