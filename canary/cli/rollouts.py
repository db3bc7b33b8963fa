"""`canary rollouts`: where every route stands, why, and what a person may order. Prints what the store says, decides nothing.

Reading and killing leave the database's schema alone: neither may wait for a migration, nor surprise a newer service with one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from canary.cli.terminal import standard_output, user
from canary.domain.rollout import Rollout
from canary.flow.attempt import rollout_of
from canary.flow.ports import Store
from canary.flow.tools import commands, observations, reports
from canary.wiring import open_store

HELP = """Where every route stands, why, and what a person may order.

Readable commands exit 0 whatever the verdict, also for a killed route; `canary gate` is the one whose code is the verdict.
An unknown route exits 2, an unreachable database or an order that does not fit the rollout's state 5, a killed route's resume or
retry 6.
"""

app = typer.Typer(help=HELP, no_args_is_help=True)

Route = Annotated[str, typer.Argument(help="The route, as its policy names it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, in a sentence; kept in the audit log.")]
Actor = Annotated[str | None, typer.Option("--actor", help="Who; default: your user name.")]

WIDE = 140  # columns from which every number has a column of its own
COLOURS = {"pass": "green", "fail": "red", "inconclusive": "yellow", "no_data": "yellow", "error": "magenta", "killed": "red"}


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """Every route: state, stage, weight, and the last reason."""
    with open_store(migrate=False) as store, store.transaction() as tx:
        found = reports.overview(tx)
    if as_json:
        print(json.dumps({"rollouts": found}))
        return
    table = Table("route", "state", "stage", "weight", "attempt", "reason", title="Rollouts" if found else "No rollout yet")
    for row in found:
        state = "killed" if row["killed"] else str(row["state"])
        reason = row["kill_reason"] or row["reason"]
        table.add_row(
            *(Text(str(v)) for v in (row["route"], state, row["stage"], _percent(row["weight"]), row["attempt"], reason))
        )
    standard_output().print(table)


@app.command()
def show(route: Route, as_json: AsJson = False) -> None:
    """One route: its rollout, flag, last decision, and newest events."""
    with open_store(migrate=False) as store, store.transaction() as tx:
        found: dict[str, Any] = reports.detail(tx, route)
    if as_json:
        print(json.dumps(found))
        return
    console = standard_output()
    facts = Table(show_header=False, title=f"Route {route}", title_justify="left")
    for name in ("state", "stage", "weight", "killed", "kill_reason", "reason", "attempt", "epoch", "policy_version", "prompts"):
        if name != "kill_reason" or found[name]:
            facts.add_row(name.replace("_", " "), Text(_percent(found[name]) if name == "weight" else str(found[name])))
    if run := found["shadow_run"]:
        most = "" if run["max_requests"] is None else f" of {run['max_requests']}"
        facts.add_row("shadow run", Text(f"due {run['due_at']}, until {run['until']}, {run['taken']}{most} requests taken"))
    console.print(facts)
    if found["last"]:
        console.print(Text(f"Last decision: {_decision_line(found['last'])}"))
        if control := reports.control_sentence(found["last"]["gates"]):
            console.print(Text(f"A/A: {control}"))
    events = Table("at", "event", "actor", "sentence", title="Newest events", title_justify="left")
    for event in found["audit"]:
        events.add_row(*(Text(str(event[k] or "")) for k in ("at", "kind", "actor", "sentence")))
    console.print(events)


@app.command()
def explain(route: Route, as_json: AsJson = False) -> None:
    """Why the route is where it is: the last decision and every gate behind it."""
    with open_store(migrate=False) as store, store.transaction() as tx:
        rollout = rollout_of(tx, route)
        overview = reports.summary(rollout, tx.flags.get(route))
        verdict = reports.route_verdict(tx, route, time.time())
        last = reports.last_decision(tx, rollout)
    if as_json:
        found = {"verdict": verdict.verdict, "code": verdict.code, "needed": verdict.needed, "terms": verdict.terms}
        print(json.dumps({**overview, **found, "last": last}))
        return
    console = standard_output()
    console.print(Text(f"{route}: {verdict.verdict}", style=COLOURS[verdict.verdict]))
    console.print(Text(f"state {overview['state']}, stage {overview['stage'] or '-'}, weight {_percent(overview['weight'])}"))
    if overview["killed"]:
        console.print(Text(f"killed: {overview['kill_reason'] or overview['reason']}"))
    if last is None:
        console.print(Text("No decision yet: no shadow pair has been assessed. Mirror requests to the route and run a worker."))
        return
    if last.get("earlier_attempt"):
        console.print(Text("From an earlier attempt; this one has no decision yet."))
    console.print(Text(f"decision: {_decision_line(last)}"))
    for sentence in reports.user_terms(last["gates"]):
        console.print(Text(sentence))
    if not last["gates"]:
        console.print(Text("No gate has been assessed in it."))
    else:
        console.print(_gates(last["gates"]) if console.width >= WIDE else _narrow_gates(last["gates"]))


@app.command()
def kill(route: Route, reason: Reason, actor: Actor = None, as_json: AsJson = False) -> None:
    """Turn the route's kill switch on: all traffic gets the baseline. A second kill changes nothing."""
    with open_store(migrate=False) as store:
        flag = commands.kill(store, route, reason, actor or user(), time.time())
    if as_json:
        print(json.dumps({"route": route, "killed": flag.killed, "kill_reason": flag.kill_reason, "weight": flag.weight}))
        return
    print(f"{route} is killed ({flag.kill_reason}). Undo it with: canary rollouts unkill {route} --reason WHY")


@app.command()
def unkill(route: Route, reason: Reason, actor: Actor = None, as_json: AsJson = False) -> None:
    """Undo a kill: the route starts again in shadow, at weight 0, with a new attempt."""
    with open_store() as store:
        rollout = commands.unkill(store, route, reason, actor or user(), time.time())
    _print_order(rollout, as_json)


@app.command()
def resume(route: Route, reason: Reason, actor: Actor = None, as_json: AsJson = False) -> None:
    """Let a held rollout go on in the stage where it stopped; its evidence and weight stay, its clocks start again.

    What held it holds it again if nothing has changed; a shadow that has used up its requests needs `retry`.
    """
    _order(commands.resume, route, reason, actor, as_json)


@app.command()
def retry(
    route: Route,
    reason: Reason,
    now: Annotated[bool, typer.Option("--now", help="End the cool-down, too; an approver's to say, and audited.")] = False,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Open the next attempt of a held or rolled back rollout: shadow, weight 0, no evidence.

    A cool-down is waited for, unless --now ends it; after `limits.max_attempts` rollbacks of an epoch neither helps.
    """
    _order(partial(commands.retry, at_once=now), route, reason, actor, as_json)


@app.command()
def pause(route: Route, reason: Reason, actor: Actor = None, as_json: AsJson = False) -> None:
    """Hold a rollout where it is; it keeps its weight, and what would kill or roll it back still does."""
    _order(commands.pause, route, reason, actor, as_json)


@app.command()
def approve(route: Route, reason: Reason, actor: Actor = None, as_json: AsJson = False) -> None:
    """Agree to the next stage, and to no further one; whoever applied the policy may not, unless it says so.

    Evidence is not overruled: the rollout moves when all gates pass. A held rollout goes on in its stage.
    """
    _order(commands.approve, route, reason, actor, as_json)


@app.command()
def reject(route: Route, reason: Reason, actor: Actor = None, as_json: AsJson = False) -> None:
    """Refuse the next stage: the rollout is held where it is."""
    _order(commands.reject, route, reason, actor, as_json)


@app.command()
def abort(route: Route, reason: Reason, actor: Actor = None, as_json: AsJson = False) -> None:
    """End the attempt: all traffic to the baseline at once, and a cool-down; with nothing in progress nothing changes."""
    _order(commands.abort, route, reason, actor, as_json)


@app.command()
def observe(
    route: Route,
    file: Annotated[Path, typer.Argument(help="NDJSON, one observation a line; `-` reads standard input.")],
    as_json: AsJson = False,
) -> None:
    """Import what a gateway saw of served requests: one JSON object a line, each kept once by its `observation_id`.

    The whole file is read first; a wrong line is named with its field, and then nothing is kept. Lines already known count as
    repeats.
    """
    found = observations.read_file(file, route, time.time())
    with open_store() as store:
        counts = observations.keep(store, found, time.time())
    if as_json:
        print(json.dumps({"route": route, **counts}))
        return
    print(f"{route}: {counts['new']} new observations, {counts['repeat']} repeats")


def _order(
    order: Callable[[Store, str, str, str, float], Rollout], route: str, reason: str, actor: str | None, as_json: bool
) -> None:
    with open_store() as store:
        _print_order(order(store, route, reason, actor or user(), time.time()), as_json)


def _print_order(rollout: Rollout, as_json: bool) -> None:
    state = rollout.state.value
    if as_json:
        print(json.dumps({"route": rollout.route, "killed": rollout.killed, "state": state, "attempt": rollout.attempt}))
        return
    print(f"{rollout.route} is in {state} now, attempt {rollout.attempt}: {rollout.reason.rstrip('.')}.")


def _percent(weight: Any) -> str:
    """Basis points for people."""
    return f"{weight / 100:g} %"


def _decision_line(last: Mapping[str, Any]) -> str:
    decision = last["decision"]
    return f"{decision['kind']} ({decision['reason']}): {decision['sentence']}"


def _gates(gates: list[dict[str, Any]]) -> Table:
    table = Table("gate", "verdict", "value", "interval", "threshold", "n", "needed", "sentence", title_justify="left")
    for gate in gates:
        verdict = str(gate["verdict"])
        table.add_row(
            Text(_label(gate)),
            Text(verdict, style=COLOURS.get(verdict, "")),
            _number(gate.get("value")),
            _interval(gate.get("low"), gate.get("high")),
            _number(gate.get("threshold")),
            f"{gate.get('n', 0)} {gate.get('unit', '')}",
            "-" if gate.get("needed") is None else str(gate["needed"]),
            Text(str(gate.get("sentence", ""))),
        )
    return table


def _narrow_gates(gates: list[dict[str, Any]]) -> Table:
    """The same facts for a narrow terminal: the numbers in front of the sentence."""
    table = Table("gate", "verdict", "finding", box=box.SIMPLE, pad_edge=False)
    for gate in gates:
        verdict = str(gate["verdict"])
        interval = _interval(gate.get("low"), gate.get("high"))
        facts = [
            "" if gate.get("value") is None else f"{_number(gate['value'])}" + (f" [{interval}]" if interval != "-" else ""),
            "" if gate.get("threshold") is None else f"against {_number(gate['threshold'])}",
            f"over {gate.get('n', 0)} {gate.get('unit', '')}",
            f"({gate['needed']} more needed)" if gate.get("needed") else "",
        ]
        numbers = " ".join(f for f in facts if f)
        name = Text(_label(gate).replace("_", " "))
        table.add_row(name, Text(verdict, style=COLOURS.get(verdict, "")), Text(f"{numbers}: {gate.get('sentence', '')}"))
    return table


def _label(gate: Mapping[str, Any]) -> str:
    return f"live {gate['gate']}" if gate.get("source") == "live" else str(gate["gate"])


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"


def _interval(low: Any, high: Any) -> str:
    return "-" if low is None and high is None else f"{_number(low)} to {_number(high)}"
