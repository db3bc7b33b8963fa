"""The table of must-haves: complete, and every test in it is there and names its number."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "canary" / "docs" / "must_haves.md"
FAULTS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 15, 16, 18, 20)
NUMBERS = [*(f"A3.{n}" for n in range(1, 29)), *(f"A5.{n}" for n in FAULTS)]


def rows() -> dict[str, tuple[str, list[str]]]:
    """Number -> behaviour and test ids."""
    found = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if re.match(r"\| A\d", line):
            number, behaviour, tests = (cell.strip() for cell in line.strip("| ").split(" | "))
            found[number] = (behaviour, re.findall(r"`([^`]+)`", tests))
    return found


@cache
def tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def named(test: str) -> str:
    """All that a test says of itself: its name, its text, and its module's docstring."""
    path, _, name = test.partition("::")
    module = tree(path)
    body = next(node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name)
    return f"{name} {ast.unparse(body)} {ast.get_docstring(module) or ''}"


def test_the_table_is_complete() -> None:
    assert list(rows()) == NUMBERS
    assert all(behaviour and tests for behaviour, tests in rows().values())


@pytest.mark.parametrize("number", NUMBERS)
def test_every_test_is_there_and_names_its_number(number: str) -> None:
    spelt = number.lower().replace(".", "_")
    for test in rows()[number][1]:
        assert re.search(rf"{re.escape(number)}(?!\d)|(?<![a-z0-9]){spelt}(?!\d)|_{spelt}(?!\d)", named(test)), test
