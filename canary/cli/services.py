"""`canary api`, `listener`, `scheduler` and `db`: each part of `canary serve` alone, and `canary status`, which asks them all.

None of these processes loads torch; each ends in order on Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from canary import telemetry
from canary.cli.background import scheduler_of, worker_environment
from canary.cli.serve import api_of, bind, server_of
from canary.config import Settings
from canary.domain.errors import CanaryError, ExitCode
from canary.edge.listener import MirrorListener
from canary.flow.leading import NAME
from canary.flow.ports import Observer, Store
from canary.flow.tools import jobs as flow_jobs
from canary.flow.tools import reports
from canary.jobs.tasks import Children
from canary.wiring import await_database, kill_guard, open_database, open_store, settings, store_on

HTTP_SECONDS = 5.0

Host = Annotated[str | None, typer.Option(help="Address to listen on. Default: CANARY_HOST, else 127.0.0.1.")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0 takes a free one. Default: CANARY_PORT, else 8700.")]
Log = Annotated[str, typer.Option(help="debug, info, warning or error.")]


def api(host: Host = None, port: Port = None, log: Log = "info") -> None:
    """Flags, kill switch and REST API alone; another process schedules. It starts while the database is away."""
    with (
        _started(log) as (chosen, observer),
        bind(host or chosen.host, chosen.port if port is None else port) as listening,
        await_database(chosen, lambda said: observer.note("database_away", said=said)) as url,
        store_on(url) as store,
    ):
        made = api_of(store, chosen, observer, listening.getsockname()[0])
        observer.note("serving", port=listening.getsockname()[1], part="api")
        server_of(made, made).run(sockets=[listening])


def listener(host: Host = None, port: Port = None, log: Log = "info") -> None:
    """The mirror listener alone: it takes copies of requests and answers nothing else."""
    with (
        _started(log) as (chosen, observer),
        bind(host or chosen.host, chosen.port if port is None else port) as listening,
        open_store(chosen) as store,
    ):
        observer.note("serving", port=listening.getsockname()[1], part="listener")
        mirror = MirrorListener(store, observer, max_body=chosen.max_body_bytes)  # its own lifespan starts and closes it
        server_of(mirror, None).run(sockets=[listening])


def scheduler(log: Log = "info") -> None:
    """The scheduler alone: of all that run on one database one leads, and another takes over when it ends or hangs.

    Each of them, leading or not, obeys the kill file and the journal of its CANARY_HOME.
    """
    with _started(log) as (chosen, observer), open_store(chosen) as store:
        children = Children(worker_environment(str(chosen.home), chosen.database_url))
        guard = kill_guard(store, chosen, observer)
        running = scheduler_of(store, chosen, observer, children, guard.obey)
        guard.start()
        running.start()
        observer.note("scheduling")
        try:
            _wait()
        finally:
            children.stop()
            running.stop()
            guard.close()


def db(log: Log = "info") -> None:
    """The database alone: the embedded Postgres of CANARY_HOME, migrated; with CANARY_DATABASE_URL only the migration."""
    with _started(log) as (chosen, observer), open_database(chosen) as url:
        print(url, flush=True)
        if chosen.database_url is None:
            observer.note("database_ready")
            _wait()


def status(
    url: Annotated[str | None, typer.Option("--url", help="Base URL of the API. Default: CANARY_HOST and CANARY_PORT.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Which parts answer: API, database, and the scheduler's leader with its jobs. Exit codes: 0 all, 5 some do not."""
    chosen = settings()
    parts = {"api": _api(url or f"http://{chosen.host}:{chosen.port}"), **_stored(chosen)}
    whole = all(part["ok"] for part in parts.values())
    if as_json:
        print(json.dumps({"ok": whole, **parts}))
    else:
        for name, part in parts.items():
            print(f"{name:10} {'ok' if part['ok'] else 'NOT OK':7} {part['said']}")
    raise typer.Exit(int(ExitCode.PASS if whole else ExitCode.UNREACHABLE))


@contextlib.contextmanager
def _started(log: str) -> Iterator[tuple[Settings, Observer]]:
    """Logging, and signals that end everything in order."""
    telemetry.configure(log)
    observer = telemetry.LogObserver()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        yield settings(), observer
    observer.note("stopped")


def _wait() -> None:
    threading.Event().wait()


def _api(base: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"{base.rstrip('/')}/healthz", timeout=HTTP_SECONDS) as answer:
            found = json.load(answer)
    except (OSError, ValueError) as error:
        return {"ok": False, "said": f"{base} does not answer ({type(error).__name__})"}
    return {"ok": True, "said": f"{base}, version {found.get('version')}", "flags_age_seconds": found.get("flags_age_seconds")}


def _stored(chosen: Settings) -> dict[str, dict[str, Any]]:
    if chosen.database_url is None and not (chosen.home / "postgres").exists():
        away = {"ok": False, "said": f"no database in {chosen.home} yet"}
        return {"database": away, "scheduler": {"ok": False, "said": "unknown"}}
    try:
        with open_store(chosen, migrate=False) as store:
            return {"database": {"ok": True, "said": "answers"}, "scheduler": _scheduler(store)}
    except CanaryError as error:
        return {"database": {"ok": False, "said": str(error)}, "scheduler": {"ok": False, "said": "unknown"}}


def _scheduler(store: Store) -> dict[str, Any]:
    now = time.time()
    with store.transaction() as tx:
        until = tx.leaders.until(NAME)
    found = flow_jobs.reports(store)
    failed = [r.job.name for r in found if r.last is not None and r.last.outcome == "failed"]
    paused = [r.job.name for r in found if r.paused]
    said = "leads" if until >= now else "nobody leads" + (f" since {reports.rfc3339(until)}" if until > 0 else "")
    said += (f"; failed: {', '.join(failed)}" if failed else "") + (f"; paused: {', '.join(paused)}" if paused else "")
    return {"ok": until >= now and not failed, "said": said, "failed": failed, "paused": paused}
