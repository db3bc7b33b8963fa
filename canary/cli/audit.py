"""`canary audit`: who did what to a route on which evidence, and whether the log is still as it was written. Changes nothing."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from canary.cli.terminal import standard_output
from canary.domain.errors import ExitCode
from canary.flow.tools import audits, reports
from canary.wiring import open_store


class RouteFirst(TyperGroup):
    """Reads `canary audit ROUTE` as `canary audit show ROUTE`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = args[0] in self.commands or args[0].startswith("-")
        return super().resolve_command(ctx, args if known else ["show", *args])


HELP = """Who did what to a route on which evidence, and whether the log is still as it was written.

  canary audit ROUTE [--json]     its newest events
  canary audit verify [ROUTE]     every event follows the one before it, and each rollout is what its log leads to

Exit codes: 0 fine, 1 a log does not hold, 5 the database does not answer.
"""

app = typer.Typer(help=HELP, no_args_is_help=True, cls=RouteFirst)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@app.command()
def show(
    route: Annotated[str, typer.Argument(help="The route; `*` for events about no one route, such as keys.")],
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many events.")] = 50,
    kind: Annotated[str | None, typer.Option(help="Events of this kind only.")] = None,
    as_json: AsJson = False,
) -> None:
    """The route's newest events; with --json each with what it rested on, its digest and that of the event before it."""
    with open_store(migrate=False) as store, store.transaction() as tx:
        found = tx.audit.page([route], before=None, limit=limit, kind=kind)
    if as_json:
        print(json.dumps({"route": route, "events": [_plain(event) for event in found]}))
        return
    table = Table(
        "id", "at", "event", "actor", "sentence", "digest", title=f"Audit of {route}" if found else f"No event of {route}"
    )
    for event in found:
        cells = (event["id"], reports.rfc3339(_seconds(event)), event["kind"], event["actor"], reports.sentence_of(event["body"]))
        table.add_row(*(Text(str(cell)) for cell in cells), Text(str(event["digest"] or "-")[:12]))
    standard_output().print(table)


@app.command()
def verify(
    route: Annotated[str | None, typer.Argument(help="One route; default: all of them.")] = None, as_json: AsJson = False
) -> None:
    """Check the hash chain of each log, and that it leads to the rollout that is stored.

    Keep the printed heads elsewhere: only who knows an older head notices that the newest events were cut off.
    """
    with open_store(migrate=False) as store, store.transaction() as tx:
        checked = []
        for name in [route] if route is not None else tx.audit.routes():
            report, rollout = audits.verify_chain(tx, name), tx.rollouts.get(name)
            differs = [] if rollout is None else audits.diverged(tx, rollout)
            checked.append((report, differs))
    whole = all(report.ok and not differs for report, differs in checked)
    if as_json:
        print(json.dumps({"ok": whole, "routes": [_report(report, differs) for report, differs in checked]}))
    else:
        for report, differs in checked:
            print(_said(report, differs))
    raise typer.Exit(int(ExitCode.PASS if whole else ExitCode.FAIL))


def _report(report: audits.ChainReport, differs: list[str]) -> dict[str, Any]:
    broken = None if report.break_ is None else {"event_id": report.break_.event_id, "why": report.break_.why}
    return {"route": report.route, "ok": report.ok and not differs, "events": report.events, "head": report.head} | {
        "break": broken,
        "rollout_differs_in": differs,
    }


def _said(report: audits.ChainReport, differs: list[str]) -> str:
    if report.break_ is not None:
        return f"{report.route}: BROKEN at event {report.break_.event_id}: {report.break_.why}"
    if differs:
        return f"{report.route}: {report.events} events hold, but the rollout differs from them in {', '.join(differs)}"
    return f"{report.route}: {report.events} events hold, head {report.head[:16] or '-'}"


def _plain(event: dict[str, object]) -> dict[str, object]:
    return {**event, "body": reports.finite(event["body"]), "at": reports.rfc3339(_seconds(event))}


def _seconds(event: dict[str, Any]) -> float:
    return float(event["at"])
