"""Readers of YAML lists and mappings; a section is a mapping with known keys that becomes a dataclass.

An unknown key is refused with the keys that are allowed; defaults and descriptions come from the dataclass alone.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from canary.flow.tools.yaml_nodes import At, entries, nearest, said
from canary.flow.tools.yaml_scalars import Reader


@dataclass(frozen=True, slots=True)
class Items:
    """A list of one kind of value."""

    of: Reader

    def read(self, node: yaml.Node, at: At) -> tuple[Any, ...]:
        if not isinstance(node, yaml.SequenceNode):
            raise at.error(node, f"is {said(node)}, but must be a list", "Write one `- ` line for each item.")
        return tuple(self.of.read(child, at.item(i)) for i, child in enumerate(node.value))

    def write(self, value: tuple[Any, ...]) -> list[Any]:
        return [self.of.write(v) for v in value]

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.of.schema()}


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping with keys of the writer's own choice."""

    of: Reader

    def read(self, node: yaml.Node, at: At) -> dict[str, Any]:
        return {key: self.of.read(child, at.child(key)) for key, (_, child) in entries(node, at).items()}

    def write(self, value: Mapping[str, Any]) -> dict[str, Any]:
        return {k: self.of.write(v) for k, v in value.items()}

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.of.schema()}


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a section; `attr` is the dataclass's field where it has another name than the key."""

    reader: Reader
    attr: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping with known keys that becomes a dataclass; keys without a default there are required.

    Args:
        of: the dataclass.
        fields: its keys, in the order in which they are written.
    """

    of: type
    fields: Mapping[str, Field]

    def read(self, node: yaml.Node, at: At) -> Any:
        return self.of(**self.values(node, at))

    def values(self, node: yaml.Node, at: At) -> dict[str, Any]:
        """The dataclass's arguments, each checked on its own."""
        found = entries(node, at)
        for key, (key_node, _) in found.items():
            if key not in self.fields:
                remedy = f"{nearest(key, self.fields)}Allowed here: {', '.join(self.fields)}."
                raise at.error(key_node, f"has an unknown key {key!r}" if at.path else f"unknown key {key!r}", remedy)
        for key, attr in self._attrs().items():
            if key not in found and self._default(attr) is dataclasses.MISSING:
                raise at.error(node, f"lacks the key {key!r}" if at.path else f"the key {key!r} is missing", f"Add `{key}:`.")
        return {self._attrs()[key]: self.fields[key].reader.read(child, at.child(key)) for key, (_, child) in found.items()}

    def write(self, value: Any) -> dict[str, Any]:
        """The canonical form: only what differs from the defaults."""
        plain = {}
        for key, attr in self._attrs().items():
            given = getattr(value, attr)
            if given != self._default(attr):
                plain[key] = self.fields[key].reader.write(given)
        return plain

    def schema(self) -> dict[str, Any]:
        docs = _docs(self.of)
        properties, required = {}, []
        for key, attr in self._attrs().items():
            default = self._default(attr)
            properties[key] = {**self.fields[key].reader.schema(), **({"description": docs[attr]} if attr in docs else {})}
            if default is dataclasses.MISSING:
                required.append(key)
            elif default is not None and not dataclasses.is_dataclass(default) and default not in ((), {}, ""):
                properties[key]["default"] = self.fields[key].reader.write(default)
        return {"type": "object", "additionalProperties": False, "properties": properties, "required": required}

    def _attrs(self) -> dict[str, str]:
        return {key: field.attr or key for key, field in self.fields.items()}

    def _default(self, attr: str) -> Any:
        field = next(f for f in dataclasses.fields(self.of) if f.name == attr)
        return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _docs(of: type) -> dict[str, str]:
    """A dataclass's `Args:` lines by field."""
    found: dict[str, str] = {}
    current: list[str] = []
    for line in (of.__doc__ or "").splitlines():
        start = re.match(r" {8}(\w+(?:, \w+)*): (.*)", line)
        if start:
            current = start[1].split(", ")
            found.update(dict.fromkeys(current, start[2]))
        elif line.startswith(" " * 12) and current:
            found.update({name: f"{found[name]} {line.strip()}" for name in current})
        else:
            current = []
    return found
