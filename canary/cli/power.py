"""`canary power`: how many requests a route's gates will need, and which faults they could miss. Prints what `flow` says."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from canary.cli.terminal import standard_output
from canary.flow.tools import power as outlook
from canary.wiring import open_store

Route = Annotated[str, typer.Argument(help="The route, as its policy names it.")]
Requests = Annotated[int, typer.Option("--requests", min=1, help="Within how many requests a fault should be killed.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def power(route: Route, requests: Requests = outlook.HORIZON, as_json: AsJson = False) -> None:
    """How many requests each gate of a route will need at its traffic, and how weak a fault may be and still be killed.

    Works from the calibrating requests on. Exit 4 while they are not finished, 2 for an unknown route, 5 without a database.
    """
    with open_store(migrate=False) as store, store.transaction() as tx:
        found = outlook.power(tx, route, requests)
    if as_json:
        print(json.dumps(asdict(found)))
        return
    console = standard_output(file_width=160)
    per_day = "unknown traffic" if found.requests_per_day is None else f"{found.requests_per_day:.4g} requests a day"
    console.print(
        Text(
            f"{route}, attempt {found.attempt}: {found.num_pairs} pairs folded, {per_day}, {found.tokens_per_request:.4g} "
            f"sampled tokens a request, {100 * found.informative_share:.3g} % of them informative."
        )
    )
    console.print(_gates(found))
    if found.sensitivities:
        console.print(_faults(found))
    for stratum in found.untested:
        console.print(Text(f"No {stratum} request so far: nothing is said about that stratum."))


def _gates(found: outlook.Power) -> Table:
    table = Table("gate", "verdict", "more requests", "days", "short of", "basis", "sets the bill", title_justify="left")
    table.title = "What the gates need"
    for need in found.gates:
        cells = (
            need.gate,
            need.verdict,
            "unknown" if need.requests is None else str(need.requests),
            "-" if need.days is None else f"{need.days:.3g}",
            f"{need.stratum} requests" if need.stratum else "-",
            need.basis,
            need.slowest,
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _faults(found: outlook.Power) -> Table:
    table = Table("fault", "TV at full strength", "smallest share killed", "moves per token", "", title_justify="left")
    table.title = f"What would be killed within {found.horizon} requests, nine times in ten"
    for each in found.sensitivities:
        table.add_row(
            Text(each.alternative),
            f"{each.tv:.4f}",
            "may be missed even at full strength" if each.share is None else f"{100 * each.share:.3g} %",
            "-" if each.moves is None else f"{100 * each.moves:.2g} %",
            "inside the margin: no certificate excludes it" if each.inside_margin else "",
        )
    return table
