"""`canary notify`: what was told to webhooks, what could not be, and a test message. It prints no secret and no address."""

from __future__ import annotations

import json
import secrets
import time
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from canary.cli.terminal import standard_output
from canary.domain.errors import UnreachableError, UsageError
from canary.domain.notices import NoticeState
from canary.flow.tools import reports
from canary.jobs.webhooks import Webhooks
from canary.wiring import open_store, settings

app = typer.Typer(help="Webhooks: what was told, what could not be, and a test message.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@app.command("list")
def list_(
    state: Annotated[NoticeState, typer.Option(help="dead: given up; pending: on their way; sent.")] = NoticeState.DEAD,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, the newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Notices of one state, the newest first; without --state those that were given up."""
    with open_store(migrate=False) as store, store.transaction() as tx:
        found = tx.notices.list(limit, state)
    if as_json:
        rows = [
            {"id": n.notice_id, "webhook": n.target, "event": n.event, "route": n.route, "state": n.state.value}
            | {"tries": n.tries, "error": n.error, "at": reports.rfc3339(n.created_at), "body": json.loads(n.body)}
            for n in found
        ]
        print(json.dumps({"notices": rows}))
        return
    if not found:
        print(f"No notice is {state.value}.")
        return
    table = Table("at", "webhook", "event", "route", "tries", "error", title=f"Notices, {state.value}", title_justify="left")
    for n in found:
        table.add_row(
            *(Text(str(c)) for c in (reports.rfc3339(n.created_at), n.target, n.event, n.route, str(n.tries), n.error or "-"))
        )
    standard_output().print(table)


@app.command("test")
def send_test(
    target: Annotated[str, typer.Argument(help="A webhook's name in CANARY_WEBHOOKS, or its URL there.")], as_json: AsJson = False
) -> None:
    """Send one signed test message now. Exit codes: 0 taken, 2 no such webhook, 5 not taken."""
    known = settings().webhooks
    name = next((n for n, webhook in known.items() if target in (n, webhook.url)), None)
    if name is None:
        names = ", ".join(known) or "none"
        raise UsageError(
            f"there is no webhook {target!r} (known: {names})", where="CANARY_WEBHOOKS", remedy="Add it there first."
        )
    body = json.dumps({"id": secrets.token_hex(16), "event": "test", "at": reports.rfc3339(time.time())}).encode()
    error = Webhooks(known)(name, body)
    if error:
        raise UnreachableError(f"the webhook did not take the message: {error}", where=name, remedy="Look at the receiver's log.")
    print(json.dumps({"webhook": name, "taken": True}) if as_json else f"{name} took the message.")
