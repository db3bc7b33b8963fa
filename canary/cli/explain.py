"""`canary explain CODE`: the runbook's page about one reason code.

It reads files of the package only, so it works with everything down.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from canary.cli.terminal import standard_output
from canary.domain.errors import NotFoundError, UsageError
from canary.shipped import PACKAGE

RUNBOOK = PACKAGE / "docs" / "runbook"
NEAREST = 3
SECTIONS = {"## What it means": "means", "## What to look at": "look_at", "## What to do": "do"}


def explain(
    code: Annotated[str | None, typer.Argument(help="A reason code, as decisions, gates and the audit log name it.")] = None,
    every: Annotated[bool, typer.Option("--list", help="Every code that has a page.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """What a reason code means, what to look at, and what to do. Exit code 2 for a code that has no page."""
    if every == (code is not None):
        raise UsageError("name one code, or --list", where="canary explain", remedy="canary explain --list shows the codes.")
    if code is None:
        found = sorted(codes())
        print(json.dumps({"codes": found}) if as_json else "\n".join(found))
        return
    text = page(code)
    if as_json:
        print(json.dumps({"code": code, **sections(text), "markdown": text}))
    else:
        standard_output(100).print(Markdown(text))


def codes() -> dict[str, Path]:
    """Every reason code that has a page, with its file."""
    return {path.stem: path for path in RUNBOOK.glob("*.md")}


def page(code: str) -> str:
    """The page about a code, as Markdown.

    Raises:
        NotFoundError: there is none; names the nearest codes.
    """
    known = codes()
    if code not in known:
        near = difflib.get_close_matches(code, known, NEAREST, 0.5)
        remedy = f"Did you mean {' or '.join(near)}?" if near else "canary explain --list shows every code."
        raise NotFoundError(f"there is no reason code {code!r}", where="canary explain", remedy=remedy)
    return known[code].read_text()


def sections(text: str) -> dict[str, str]:
    """A page's parts by name: `effect`, `means`, `look_at` and `do`."""
    parts, name = {"effect": ""}, "effect"
    for line in text.splitlines()[1:]:
        name = SECTIONS.get(line, name)
        parts[name] = parts.get(name, "") + ("" if line in SECTIONS else line + "\n")
    return {name: part.strip() for name, part in parts.items()}
