"""`canary policy simulate`: what another policy would have decided on a route's stored pairs. It writes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from canary import wiring
from canary.cli.terminal import standard_output
from canary.flow.tools import policy_files, reports
from canary.flow.tools.simulate import Moment, Simulation
from canary.flow.tools.simulate import simulate as replayed


def simulate(
    path: Annotated[Path, typer.Argument(help="The policy to try.", metavar="FILE")],
    route: Annotated[str | None, typer.Option(help="Whose stored pairs; default: the route that the file names.")] = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="Of the route's present epoch; default: the present one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Say what another policy would have decided on a route's history, and when, beside what was decided.

    Stored pairs are judged anew by the file's margins, folded in their order and decided on at the times when they were stored.
    Nothing is written. Exit code 0 whatever is found, 2 if the file is wrong, is about another subject, or the attempt has no
    evidence.
    """
    policy = policy_files.load(path)
    with wiring.open_store(migrate=False) as store:
        found = replayed(store, policy, route or policy.route, attempt=attempt)
    if as_json:
        lines = {"would": [_plain(m) for m in found.would], "was": [_plain(m) for m in found.was]}
        print(json.dumps({**asdict(found), **lines, "same": found.same, "content_hash": policy.content_hash}))
        return
    _print(found)


def _print(found: Simulation) -> None:
    console = standard_output()
    head = f"{found.route}, attempt {found.attempt}: {found.pairs} pairs"
    lost = f", {found.unreadable} of which can no longer be judged" if found.unreadable else ""
    console.print(Text(head + lost))
    for title, moments in (("Would have been decided", found.would), ("Was decided", found.was)):
        console.print(_table(title, moments) if moments else Text(f"{title}: nothing."))
    console.print(Text("Both end alike." if found.same else "They end differently."))
    for note in found.notes:
        console.print(Text(f"- {note}"))


def _table(title: str, moments: Sequence[Moment]) -> Table:
    table = Table("at", "pairs", "state", "weight", "decision", "why", title=title, title_justify="left")
    for m in moments:
        weight = "-" if m.weight is None else f"{m.weight / 100:g} %"
        place = m.state if m.state == m.stage else f"{m.state}, {m.stage}"
        cells = (reports.rfc3339(m.at), m.folded, place, weight, f"{m.kind} ({m.reason})", m.sentence)
        table.add_row(*(Text(str(cell)) for cell in cells))
    return table


def _plain(moment: Moment) -> dict[str, Any]:
    return {**asdict(moment), "at": reports.rfc3339(moment.at)}
