"""`canary drill`: inject known faults into the candidate on the route's own requests and see which are caught, and how soon."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from canary import telemetry, wiring
from canary.cli.gate import read_prompts
from canary.cli.progress import progress_bar
from canary.cli.terminal import standard_output, user
from canary.domain.catalogue import CATALOGUE, FaultEntry
from canary.domain.drills import CLEAN, FaultResult, Outcome, exit_code, power
from canary.domain.errors import NoDataError, UsageError
from canary.domain.policy import Policy
from canary.domain.traffic import Prompt
from canary.flow.attempt import pinned_policy, rollout_of
from canary.flow.ports import Store
from canary.flow.tools.drill import Drill, as_body, remember, run_drill, wanted
from canary.flow.tools.policy_files import load

STOPPED = 130
COLOURS = {
    Outcome.CAUGHT: "green",
    Outcome.PASSED: "green",
    Outcome.MISSED: "red",
    Outcome.FALSE_ALARM: "red",
    Outcome.UNDECIDED: "yellow",
}


@dataclass(frozen=True, slots=True)
class _Asked:
    """What to drill: the clean policy, the requests, and where the result is kept (None: nowhere)."""

    policy: Policy
    prompts: Sequence[Prompt]
    store: Store | None


def drill(
    route: Annotated[str | None, typer.Argument(help="Route whose mirrored requests are used.")] = None,
    fault: Annotated[list[str] | None, typer.Option(help="A fault by name; may be given several times.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every fault of the catalogue, and the harmless controls.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Print the catalogue and end.")] = False,
    policy: Annotated[Path | None, typer.Option(help="Policy file, in place of a route's; needs --prompts.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="JSON lines of requests, in place of mirrored ones.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests that each fault may use.")] = 200,
    threads: Annotated[int | None, typer.Option(help="Torch threads.")] = None,
    actor: Annotated[str | None, typer.Option(help="Who asks, for the audit log.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Inject known bugs of real engines into the candidate and report whether, where and how soon each is caught.

    Everything runs in memory; the route's own evidence and traffic are not touched. With a route the result goes to its audit
    log, where a policy's `drills` looks for it.

    Exit codes: 0 all caught, 1 a fault missed or a harmless control killed, 2 usage, 3 requests used up, 4 nothing to drill with.
    """
    if list_:
        _print_catalogue(as_json)
        return
    if bool(fault) == all_:
        raise UsageError("say which faults", where="canary drill", remedy="Give --fault NAME or --all; --list names them.")
    telemetry.configure("warning")
    entries = wanted(fault or [])
    from_files = policy is not None or prompts is not None
    with nullcontext() if from_files else wiring.open_store() as store:
        asked = _from_files(policy, prompts, route) if store is None else _from_store(store, route, requests)
        code = _drill(asked, entries, requests, threads, actor or user(), as_json)
    raise typer.Exit(code)


def _from_files(policy: Path | None, prompts: Path | None, route: str | None) -> _Asked:
    if policy is None or prompts is None or route is not None:
        raise UsageError(
            "a drill on files takes both and no route", where="canary drill", remedy="Give --policy FILE and --prompts FILE."
        )
    chosen = load(policy)
    return _Asked(chosen, read_prompts(prompts, chosen.route), None)


def _from_store(store: Store, route: str | None, requests: int) -> _Asked:
    if route is None:
        raise UsageError("there is no route to drill", where="canary drill", remedy="Name a route, or --policy and --prompts.")
    with store.transaction() as tx:
        chosen = pinned_policy(tx, rollout_of(tx, route))
        kept = tx.prompts.recent(route, requests)
    if not kept:
        raise NoDataError(
            f"route {route!r} has no mirrored request",
            where=route,
            remedy="Mirror requests to it, or give --policy and --prompts.",
        )
    return _Asked(chosen, kept, store)


def _drill(asked: _Asked, entries: Sequence[FaultEntry], requests: int, threads: int | None, actor: str, as_json: bool) -> int:
    """Run, print and keep the drill; its exit code. Ctrl-C ends it with what is known."""
    route, results, complete = asked.policy.route, list[FaultResult](), True
    with progress_bar(f"{route}: drill", quiet=as_json) as report:
        run = Drill(
            asked.policy,
            asked.prompts[:requests],
            lambda changed: wiring.open_engine(changed, threads=threads),
            wiring.memory_store,
            clock=time.time,
            observer=telemetry.SilentObserver(),
            progress=lambda name, done, total: report(f"{name} ({len(results)} done)", done, total),
        )
        clean = wiring.open_engine(asked.policy, threads=threads).info
        try:
            for result in run_drill(run, entries, clean):
                results.append(result)
        except KeyboardInterrupt:
            complete = False
    body = as_body(results, asked.policy, clean.fingerprint, complete=complete)
    if asked.store is not None and results:
        remember(asked.store, route, body, actor, time.time())
    if as_json:
        print(json.dumps({"route": route, "requests": requests, **body}))
    else:
        _print(results, route, complete=complete)
    return int(exit_code(results)) if complete else STOPPED


def _print(results: Sequence[FaultResult], route: str, *, complete: bool) -> None:
    out = standard_output()
    caught = power(results)
    title = f"{route}: " + (
        "no fault can show here" if caught is None else f"{caught:.0%} of the faults that can show were caught"
    )
    table = Table("fault", "outcome", "by", "requests", "tokens", "seconds", "finding", title=title, title_justify="left")
    for r in results:
        outcome = Text(r.outcome.value.replace("_", " "), style=COLOURS.get(r.outcome, ""))
        by = f"{r.gate} ({r.reason})" if r.gate else "-"
        numbers = [str(r.requests or "-"), str(r.tokens or "-"), f"{r.seconds:.1f}" if r.requests else "-"]
        table.add_row(Text("no fault" if r.fault == CLEAN else r.fault), outcome, Text(by), *numbers, Text(r.sentence))
    out.print(table)
    if not complete:
        out.print(Text("Stopped; what is listed was finished."))


def _print_catalogue(as_json: bool) -> None:
    if as_json:
        print(json.dumps([_entry(e) for e in CATALOGUE.values()]))
        return
    table = Table("fault", "id", "what goes wrong", "who should see it", "drafter", "strata", title_justify="left")
    for e in CATALOGUE.values():
        seen = "nobody: harmless" if e.harmless else e.detector
        kinds, strata = ("any" if len(group) == 2 else ", ".join(group) for group in (sorted(e.kinds), sorted(e.strata)))
        table.add_row(*(Text(cell) for cell in (e.name, e.catalogue_id, e.summary, seen, kinds, strata)))
    standard_output().print(table)


def _entry(entry: FaultEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "id": entry.catalogue_id,
        "group": entry.group,
        "summary": entry.summary,
        "report": entry.report,
        "sign": entry.sign,
        "detector": entry.detector,
        "seen_by": list(entry.seen_by),
        "drafter_kinds": sorted(entry.kinds),
        "strata": sorted(entry.strata),
        "needs": sorted(entry.needs),
        "harmless": entry.harmless,
        "blind": entry.blind,
    }
