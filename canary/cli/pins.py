"""`canary flags pin | unpin | pins`: units that get a variant whatever their bucket is. It decides nothing."""

from __future__ import annotations

import json
import re
import time
from typing import Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from canary.cli.terminal import standard_output, user
from canary.domain.errors import UsageError
from canary.flow.attempt import rollout_of
from canary.flow.tools import pins as flow_pins
from canary.flow.tools.pins import described
from canary.wiring import open_store

SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}

Route = Annotated[str, typer.Argument(help="The route, as its policy names it.")]
Unit = Annotated[str, typer.Argument(help="The unit: the targeting key that the gateway sends.")]
Variant = Annotated[Literal["candidate", "baseline"], typer.Argument(help="What the unit gets.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, in a sentence; kept in the audit log.")]
Actor = Annotated[str | None, typer.Option("--actor", help="Who; default: your user name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def pin(
    route: Route,
    unit: Unit,
    variant: Variant,
    reason: Reason,
    expires: Annotated[str | None, typer.Option("--expires", help="How long, as 30m, 12h or 7d. Default: no end.")] = None,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Give a unit a variant whatever its bucket is; a kill, a weight of 0 and the policy's match rules beat it.

    The baseline in every state; the candidate only in a canary stage or at full, and only while that subject has traffic.

    Exit codes: 0 pinned, 2 no such route or a wrong option, 5 the rollout's state or the number of pins forbids it, or the
    database does not answer, 6 the route is killed.
    """
    seconds = None if expires is None else _seconds(expires)
    with open_store() as store:
        made = flow_pins.pin(store, route, unit, variant, reason, actor or user(), time.time(), seconds=seconds)
        with store.transaction() as tx:
            found = described(made, rollout_of(tx, route), time.time())
    if as_json:
        print(json.dumps(found))
        return
    until = "until it is unpinned" if made.expires_at is None else f"until {found['expires_at']}"
    print(f"{unit} gets the {variant} on {route} {until}.")


def unpin(route: Route, unit: Unit, reason: Reason, actor: Actor = None, as_json: AsJson = False) -> None:
    """Let a unit's bucket decide again. Exit codes: 0 unpinned, 2 it is not pinned, 5 the database does not answer."""
    with open_store() as store:
        old = flow_pins.unpin(store, route, unit, reason, actor or user(), time.time())
    found = {"route": route, "unit": unit, "pinned": False}
    print(json.dumps(found) if as_json else f"{unit} is no longer pinned to the {old.variant} on {route}.")


def pins(route: Annotated[str | None, typer.Argument(help="One route; default: all.")] = None, as_json: AsJson = False) -> None:
    """Every pin that has not expired, with who pinned it and why, and whether the flag carries it now."""
    now = time.time()
    with open_store(migrate=False) as store, store.transaction() as tx:
        rollouts = tx.rollouts.list() if route is None else [rollout_of(tx, route)]
        found = [described(p, r, now) for r in rollouts for p in flow_pins.listed(tx, r.route, now)]
    if as_json:
        print(json.dumps({"pins": found}))
        return
    table = Table("route", "unit", "variant", "counts", "until", "who", "why", title="Pins" if found else "No pin")
    for row in found:
        counts = "now" if row["in_force"] else "while its candidate has traffic"
        cells = (row["route"], row["unit"], row["variant"], counts, row["expires_at"] or "unpinned", row["actor"], row["reason"])
        table.add_row(*(Text(str(cell)) for cell in cells))
    standard_output().print(table)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no duration", where="--expires", remedy="Write a number and its unit: 30m, 12h, 7d.")
    return float(found[1]) * SECONDS[found[2]]
