"""What import-linter cannot see: file sizes, lazy torch, and that every layer is where the layout says."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "canary"
LIMIT, WARN, FUNCTION_LIMIT = 300, 250, 50

# file -> why it may be longer
LONGER: dict[str, str] = {}


def _sources() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if "_shipped" not in p.parts)


def test_files_are_one_sitting_long() -> None:
    over = {}
    for path in _sources():
        lines = len(path.read_text().splitlines())
        name = str(path.relative_to(ROOT))
        if lines > LIMIT and name not in LONGER:
            over[name] = lines
        elif lines > WARN:
            warnings.warn(f"{name} has {lines} lines", stacklevel=1)
    assert not over


def test_functions_are_short() -> None:
    over = []
    for path in _sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[1] if len(node.body) > 1 and ast.get_docstring(node) else node.body[0]
                length = (node.end_lineno or 0) - first.lineno + 1
                if length > FUNCTION_LIMIT:
                    over.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} {length}")
    assert not over


def test_modules_say_what_they_are_for() -> None:
    silent = [str(p.relative_to(ROOT)) for p in _sources() if not ast.get_docstring(ast.parse(p.read_text()))]
    assert not silent


@pytest.mark.parametrize("module", ["canary.api.app", "canary.edge.listener", "canary.cli", "canary.client", "canary.wiring"])
def test_torch_is_not_loaded(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_walk_is_short() -> None:
    lines = sum(len(p.read_text().splitlines()) for p in (PACKAGE / "flow" / "walk").glob("*.py"))
    assert lines < 800
