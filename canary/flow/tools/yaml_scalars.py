"""Readers of single YAML values: numbers, durations, weights, words; each also writes its value back and gives its JSON Schema.

A number that is not one, out of bounds or without its unit is refused, with an example of what to write.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Protocol

import yaml

from canary.flow.tools.yaml_nodes import At, nearest, said, scalar

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Reader(Protocol):
    """Reads one kind of value, writes it back, and describes it as JSON Schema."""

    def read(self, node: yaml.Node, at: At) -> Any: ...

    def write(self, value: Any) -> Any: ...

    def schema(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number within bounds; `above` and `below` are exclusive, `least` and `most` inclusive."""

    example: str
    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None
    integer: bool = False

    def read(self, node: yaml.Node, at: At) -> float | int:
        kind = "a whole number" if self.integer else "a number"
        remedy = f"Write e.g. {self.example}."
        text = scalar(node, at, kind, remedy)
        number = re.fullmatch(r"[+-]?(\d+)" if self.integer else r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text.strip())
        if isinstance(node, yaml.ScalarNode) and (node.style or not number):
            raise at.error(node, f"is {said(node)}, but must be {kind}", remedy)
        value = int(text) if self.integer else float(text)
        if not (math.isfinite(value) and self._within(value)):
            raise at.error(node, f"is {text}, but must be {self.bounds()}", remedy)
        return value

    def _within(self, value: float) -> bool:
        return (
            (self.above is None or value > self.above)
            and (self.least is None or value >= self.least)
            and (self.below is None or value < self.below)
            and (self.most is None or value <= self.most)
        )

    def bounds(self) -> str:
        """The bounds in words."""
        words = {"above": self.above, "at least": self.least, "below": self.below, "at most": self.most}
        return " and ".join(f"{word} {bound:g}" for word, bound in words.items() if bound is not None) or "finite"

    def write(self, value: Any) -> Any:
        return value

    def schema(self) -> dict[str, Any]:
        bounds = {"exclusiveMinimum": self.above, "minimum": self.least, "exclusiveMaximum": self.below, "maximum": self.most}
        kind, example = ("integer", int(self.example)) if self.integer else ("number", float(self.example))
        return {"type": kind, "examples": [example], **{k: v for k, v in bounds.items() if v is not None}}


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time with its unit, `30s`, `10m`, `1.5h`; read as seconds."""

    example: str = "30s"
    least: float = 0.0

    PATTERN = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)"

    def read(self, node: yaml.Node, at: At) -> float:
        remedy = f"Write a number and its unit (ms, s, m, h, d), e.g. {self.example}."
        text = scalar(node, at, "a duration", remedy)
        found = re.fullmatch(self.PATTERN, text.strip())
        if not found:
            raise at.error(node, f"is {said(node)}, but must be a duration", remedy)
        seconds = float(found[1]) * _UNITS[found[2]]
        if not seconds >= self.least:
            raise at.error(node, f"is {text}, but must be at least {self.least:g}s", remedy)
        return seconds

    def write(self, value: float) -> str:
        return f"{value:g}s" if float(f"{value:g}") == value else f"{value!r}s"

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{self.PATTERN}$", "examples": [self.example]}


@dataclass(frozen=True, slots=True)
class Weight:
    """A share of traffic, `5 %` or whole basis points; read as basis points."""

    def read(self, node: yaml.Node, at: At) -> int:
        remedy = "Write a percentage like `5 %`, or whole basis points like 500."
        text = scalar(node, at, "a weight", remedy).strip()
        percent = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text)
        if percent:
            points = float(percent[1]) * 100
        elif re.fullmatch(r"\d+", text):
            points = float(text)
        else:
            raise at.error(node, f"is {said(node)}, but must be a weight", remedy)
        if abs(points - round(points)) > 1e-9 or points > 10_000:
            raise at.error(node, f"is {text}, but must be whole basis points up to 100 %", remedy)
        return round(points)

    def write(self, value: int) -> str:
        return f"{value / 100:g} %"

    def schema(self) -> dict[str, Any]:
        percent = {"type": "string", "pattern": r"^\d+(\.\d+)?\s*%$", "examples": ["5 %"]}
        return {"oneOf": [percent, {"type": "integer", "minimum": 0, "maximum": 10_000}]}


@dataclass(frozen=True, slots=True)
class Text:
    """A non-empty text; `pattern` must match all of it."""

    example: str
    pattern: str = r"\S(.*\S)?"
    words: str = "a text"

    def read(self, node: yaml.Node, at: At) -> str:
        text = scalar(node, at, self.words, f"Write e.g. {self.example}.")
        if not re.fullmatch(self.pattern, text, re.DOTALL):
            raise at.error(node, f"is {said(node)}, but must be {self.words}", f"Write e.g. {self.example}.")
        return text

    def write(self, value: str) -> str:
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{self.pattern}$", "examples": [self.example]}


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]

    def read(self, node: yaml.Node, at: At) -> str:
        remedy = f"Write one of: {', '.join(self.words)}."
        text = scalar(node, at, "one of a few words", remedy)
        if text not in self.words:
            raise at.error(node, f"is {said(node)}, which is unknown", nearest(text, self.words) + remedy)
        return text

    def write(self, value: str) -> str:
        return str(value)

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Flag:
    """`true` or `false`."""

    def read(self, node: yaml.Node, at: At) -> bool:
        text = scalar(node, at, "true or false", "Write true or false.")
        if text not in ("true", "false") or (isinstance(node, yaml.ScalarNode) and node.style):
            raise at.error(node, f"is {said(node)}, but must be true or false", "Write true or false.")
        return text == "true"

    def write(self, value: bool) -> bool:
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}
