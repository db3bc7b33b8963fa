"""YAML as nodes that know their place: every complaint about a hand-written file names file, line, column and field.

A file is never half understood: repeated keys, foreign tags and a second document are refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

import yaml

from canary.domain.errors import PolicyError

MAX_CHARACTERS = 1_000_000
_PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp", "merge")}


@dataclass(frozen=True, slots=True)
class At:
    """Where a value stands: the file's name and the field's path inside it."""

    file: str
    path: str = ""

    def child(self, key: str) -> At:
        return At(self.file, f"{self.path}.{key}" if self.path else key)

    def item(self, index: int) -> At:
        return At(self.file, f"{self.path}[{index}]")

    def error(self, node: yaml.Node, detail: str, remedy: str = "") -> PolicyError:
        """A complaint about a node, with the field's path in front."""
        mark = node.start_mark
        said = f"{self.path} {detail}" if self.path else detail
        return PolicyError(f"{said}.", where=f"{self.file}:{mark.line + 1}:{mark.column + 1}", remedy=remedy)


def parse(text: str, file: str) -> yaml.Node:
    """The single document of a YAML text.

    Raises:
        PolicyError: not YAML, empty, too long, or more than one document.
    """
    if len(text) > MAX_CHARACTERS:
        raise PolicyError(f"the file is longer than {MAX_CHARACTERS} characters.", where=file, remedy="A policy is a short file.")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        raise PolicyError(f"not YAML: {error.problem or error.context}.", where=where, remedy="Mend the syntax there.") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise PolicyError(
            f"not YAML: {' '.join(str(error).split())}.", where=file, remedy="Save it as plain UTF-8 text."
        ) from error
    if root is None:
        raise PolicyError("the file is empty.", where=f"{file}:1:1", remedy="Start from one of the shipped policies.")
    return root


def said(node: yaml.Node) -> str:
    """A node as a complaint quotes it."""
    if isinstance(node, yaml.ScalarNode):
        short = node.value if len(node.value) <= 40 else node.value[:37] + "..."
        return f"{short!r}" if node.style or node.tag.endswith(":str") else short or "empty"
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"


def scalar(node: yaml.Node, at: At, expected: str, remedy: str) -> str:
    """A scalar's text; refuses lists, mappings, nulls and foreign tags."""
    if isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN:
        raise at.error(node, f"has the YAML tag {node.tag!r}", "Remove the tag.")
    if not isinstance(node, yaml.ScalarNode) or node.tag.endswith(":null"):
        raise at.error(node, f"is {said(node)}, but must be {expected}", remedy)
    return str(node.value)


def entries(node: yaml.Node, at: At) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """A mapping's keys with their nodes; refuses repeated and odd keys."""
    if not isinstance(node, yaml.MappingNode):
        raise at.error(node, f"is {said(node)}, but must be a mapping", "Write `key: value` lines.")
    found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key_node, child in node.value:
        key = scalar(key_node, at, "a key", "Write a plain word as the key.")
        if key in found:
            raise at.error(key_node, f"has the key {key!r} twice" if at.path else f"the key {key!r} stands twice", "Keep one.")
        found[key] = (key_node, child)
    return found


def nearest(word: str, known: Iterable[str]) -> str:
    """`Did you mean ...? ` for a word that is nearly known, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}? " if close else ""
