"""`canary jobs`: what the scheduler does and when it last did it; run one now, pause one, let it run again."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from canary import telemetry
from canary.cli.background import worker_environment
from canary.cli.terminal import standard_output, user
from canary.domain.errors import ExitCode, UsageError
from canary.domain.schedule import JobRun, Outcome, job_named
from canary.flow.tools import jobs as flow_jobs
from canary.flow.tools import reports
from canary.flow.walk.control import tick, unfenced
from canary.jobs.tasks import Children, work_of
from canary.wiring import open_store, settings

app = typer.Typer(help="Scheduled jobs: list, run now, pause and resume.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The job, as `canary jobs list` names it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Actor = Annotated[str | None, typer.Option("--actor", help="Who; default: your user name.")]


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """Every job: when it is due, whether it is paused, and how its last recorded run ended."""
    with open_store(migrate=False) as store:
        found = flow_jobs.reports(store)
    if as_json:
        rows = [
            {"job": r.job.name, "purpose": r.job.purpose, "when": r.job.when, "paused": r.paused, "last": _plain(r.last)}
            for r in found
        ]
        print(json.dumps({"jobs": rows}))
        return
    table = Table("job", "when", "last run", "outcome", "what it did", title="Jobs", title_justify="left")
    for r in found:
        last = r.last
        cells = (r.job.name, "paused" if r.paused else r.job.when, reports.rfc3339(last.started_at) if last else "never")
        ended = (last.outcome.value, last.detail) if last else ("-", r.job.purpose)
        table.add_row(*(Text(str(cell)) for cell in (*cells, *ended)))
    standard_output().print(table)


@app.command()
def run(name: Name, actor: Actor = None, as_json: AsJson = False) -> None:
    """Run a job now, in this process, paused or not. Exit codes: 0 done, 1 it failed, 2 no such job here, 5 no database."""
    job_named(name)
    with open_store() as store:
        given = settings()
        children = Children(worker_environment(str(given.home), given.database_url))
        work = work_of(store, given, tick, telemetry.SilentObserver(), children)
        if name not in work:
            raise UsageError(f"{name} runs where clients are connected", where="jobs", remedy="Use: canary kill drill --url URL.")
        done = flow_jobs.Runner(store, work, time.time, unfenced).run(name, actor=actor or user(), asked=True)
    assert done is not None, "what a person asks for runs, paused or not"
    print(json.dumps(_plain(done)) if as_json else f"{name} {done.outcome.value}: {done.detail}.")
    raise typer.Exit(int(ExitCode.PASS if done.outcome is Outcome.DONE else ExitCode.FAIL))


@app.command()
def pause(name: Name, actor: Actor = None, as_json: AsJson = False) -> None:
    """Let a job rest until it is resumed; every scheduler sees it at the next run. A second time changes nothing."""
    _pause(name, True, actor, as_json)


@app.command()
def resume(name: Name, actor: Actor = None, as_json: AsJson = False) -> None:
    """Let a paused job run again."""
    _pause(name, False, actor, as_json)


def _pause(name: str, paused: bool, actor: str | None, as_json: bool) -> None:
    with open_store() as store:
        flow_jobs.pause(store, name, paused, actor or user(), time.time())
    print(json.dumps({"job": name, "paused": paused}) if as_json else f"{name} {'is paused' if paused else 'runs again'}.")


def _plain(run: JobRun | None) -> dict[str, Any] | None:
    if run is None:
        return None
    times = {"started_at": reports.rfc3339(run.started_at), "ended_at": reports.rfc3339(run.ended_at)}
    return {"job": run.job, **times, "outcome": run.outcome.value, "actor": run.actor, "detail": run.detail}
