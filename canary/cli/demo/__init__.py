"""`canary demo`: the whole walk on a real model, on this machine, ending by itself with a table."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from canary import telemetry, wiring
from canary.cli.demo.gateway import Gateway
from canary.cli.demo.report import RouteView, as_json, final_table, live_table, sentences
from canary.cli.demo.routes import FULL_TOUR, SHORT_TOUR, DemoRoute
from canary.cli.demo.tour import drive, send, worker_process
from canary.cli.progress import console, progress_bar
from canary.cli.serve import background_server
from canary.domain.errors import UsageError
from canary.domain.policy import Policy
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import load_text
from canary.shipped import shipped


def demo(
    full: Annotated[
        bool, typer.Option("--full", help="All routes: math, rag, faq, creative and the drill (about 25 minutes).")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Another seed draws other random numbers, in a database of its own.")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget this seed's earlier run first (its folder only).")] = False,
    as_json_: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Walk real prompts from mirror to flag on a real small model; about 8 minutes on two cores, then it ends with a table.

    The short tour runs `math` (usually wins), `creative` (usually not worth it) and a drill whose candidate has an injected
    fault that evidence must kill. Ctrl-C loses nothing: the same command goes on where it stopped.
    """
    telemetry.configure("warning")
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
    home = wiring.settings().home / "demo" / str(seed)
    with ExitStack() as stack:
        stack.enter_context(_alone(home, fresh))
        try:
            views = _run(stack, home, FULL_TOUR if full else SHORT_TOUR, seed, quiet=as_json_)
        except KeyboardInterrupt:
            console.print("\nStopped; nothing is lost. The same command goes on from here.")
            raise typer.Exit(130) from None
    if as_json_:
        print(json.dumps({"seed": seed, "home": str(home), "routes": {r: as_json(v) for r, v in views.items()}}))
    else:
        out = Console()
        out.print(final_table(views))
        out.print(sentences(views, str(home)))


def _run(stack: ExitStack, home: Path, tour: Sequence[DemoRoute], seed: int, *, quiet: bool) -> dict[str, RouteView]:
    _say(quiet, f"Canary demo, seed {seed}, state in {home}")
    if os.environ.get("CANARY_DATABASE_URL"):
        _say(quiet, "CANARY_DATABASE_URL is set and ignored: the demo always uses a database of its own.")
    os.environ["HF_HUB_OFFLINE"] = "1"
    policies = {route.name: _policy(route.name) for route in tour}
    with progress_bar("model", quiet=quiet) as report:
        for target in {p.subject.target for p, _ in policies.values()}:
            wiring.prepare_model(target, report)
    started = wiring.settings().model_copy(update={"home": home, "database_url": None, "port": 0})
    url = stack.enter_context(wiring.open_database(started))
    store = stack.enter_context(wiring.store_on(url))
    with store.transaction() as tx:
        tx.claims.expire_all()
        tx.commit()
    for policy, text in policies.values():
        apply_policy(store, policy, text, time.time(), actor="demo")
    base_url = stack.enter_context(background_server(store, started))
    views = _send_all(base_url, tour, policies, seed, quiet)
    gateway = stack.enter_context(Gateway(base_url, list(views)))
    worker = stack.enter_context(worker_process(url, home, list(views)))
    observer = telemetry.SilentObserver()
    with Live(console=console, transient=True, auto_refresh=False) as live:  # a refreshing thread would slow the worker
        if quiet:
            live.stop()
        drive(store, views, gateway, worker, lambda eta: live.update(live_table(views, eta), refresh=not quiet), observer)
    return views


def _policy(route: str) -> tuple[Policy, str]:
    path = shipped("policies") / "demo" / f"{route}.yaml"
    text = path.read_text()
    return load_text(text, name=str(path)), text


def _send_all(
    base_url: str, tour: Sequence[DemoRoute], policies: dict[str, tuple[Policy, str]], seed: int, quiet: bool
) -> dict[str, RouteView]:
    views = {}
    for route in tour:
        with progress_bar(f"mirroring {route.name}", quiet=quiet) as report:
            total, done = len(route.bodies()), [0]

            def count(n: int, done: list[int] = done, total: int = total) -> None:
                done[0] += n
                report("requests", done[0], total)

            views[route.name] = RouteView(policies[route.name][0], send(base_url, route, seed, count))
    return views


@contextmanager
def _alone(home: Path, fresh: bool) -> Iterator[None]:
    """Hold the seed's folder, so that two demos never share a database."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f"{home.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"another demo uses {home}", remedy="Wait for it, or choose another --seed.") from None
        if fresh:
            shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True, exist_ok=True)
        yield


def _say(quiet: bool, text: str) -> None:
    if not quiet:
        console.print(text)
