"""Runs a notebook without Jupyter: `python -m tests.bench.notebook notebooks/02_is_it_lossless.ipynb [--results FILE ...]`.

Code cells are executed in order in one namespace; what they print, their last value and its figure are stored as their outputs.
`--results` first copies results of `tests.bench.power` into the notebook's own JSON file.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
DPI = 110


def run(body: dict[str, Any]) -> dict[str, Any]:
    """Execute every code cell, in the repository's root.

    Args:
        body: of the notebook (nbformat 4).

    Returns:
        The namespace afterwards; the outputs are in the cells.
    """
    names: dict[str, Any] = {"__name__": "notebook"}
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        for number, cell in enumerate((c for c in body["cells"] if c["cell_type"] == "code"), start=1):
            cell["execution_count"] = number
            cell["outputs"] = _execute("".join(cell["source"]), names, number)
    finally:
        os.chdir(before)
    return names


def _execute(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """One cell; the value of a last expression is its result, as in Jupyter."""
    tree, printed, value = ast.parse(source), io.StringIO(), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = _shown(value)
        outputs.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    return outputs


def _shown(value: Any) -> dict[str, Any]:
    """A value by media type: figures as PNG, tables as Markdown, anything else as its text."""
    if isinstance(value, Figure):
        png = io.BytesIO()
        value.savefig(png, format="png", dpi=DPI, metadata={"Software": None})
        return {"image/png": base64.b64encode(png.getvalue()).decode(), "text/plain": ["<figure>"]}
    if hasattr(value, "_repr_markdown_"):
        return {"text/markdown": value._repr_markdown_().splitlines(keepends=True), "text/plain": ["<table>"]}
    return {"text/plain": [repr(value)]}


def store(results: Sequence[Path], notebook: Path) -> None:
    """Copy results, one file per world, into the JSON file beside the notebook."""
    kept = notebook.with_suffix(".json")
    body: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    for path in results:
        found = json.loads(path.read_text())
        body[found["setting"]["world"]] = found
    kept.write_text(json.dumps(body, indent=1) + "\n")


def main() -> None:
    """Refresh the results, run the notebook and write it back."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--results", type=Path, action="append", default=[], help="a JSON file of tests.bench.power")
    asked = parser.parse_args()
    store(asked.results, asked.notebook)
    body = json.loads(asked.notebook.read_text())
    run(body)
    asked.notebook.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")
    print(f"{asked.notebook}: {sum(c['cell_type'] == 'code' for c in body['cells'])} code cells run")


if __name__ == "__main__":
    main()
