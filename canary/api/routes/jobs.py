"""Scheduled jobs: what each did, pausing, and asking for a run. The scheduler that leads runs it; this process never does."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from canary.api.deps import Api, actor_of, matches, page, place_of, require_match, tag
from canary.api.schemas import PAGE, WRITING, Actor, Cursor, JobName, Limit, problems
from canary.domain.errors import PreconditionError
from canary.domain.schedule import JobOrder, JobRun
from canary.flow.tools import jobs
from canary.flow.tools.jobs import Check, JobReport
from canary.flow.tools.reports import rfc3339

RUNS = 20


def router(api: Api) -> APIRouter:
    """Reading jobs, and ordering."""
    made = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])
    _reading(made, api)
    _running(made, api)
    for word, paused, said in (
        ("pause", True, "Let a job rest until it is resumed; every scheduler sees it at the next run. Twice is once."),
        ("resume", False, "Let a paused job run again. Twice is once."),
    ):
        _pausing(made, api, word, paused, said)
    return made


def _reading(made: APIRouter, api: Api) -> None:
    @made.get("", responses=problems())
    def listed(limit: Limit = PAGE, cursor: Cursor = None) -> dict[str, object]:
        """Every job by name: when it is due, whether it is paused or asked for, and how its last recorded run ended."""
        after = place_of(cursor, "jobs", str)
        found = sorted((r for r in jobs.reports(api.store) if after is None or r.job.name > after), key=lambda r: r.job.name)
        shown, following = page(found, limit, "jobs", lambda r: r.job.name)
        return {"jobs": [described(r) for r in shown], "next": following}

    @made.get("/{name}", responses=problems())
    def one(name: JobName, response: Response) -> dict[str, object]:
        """One job with its newest runs; `ETag` is for If-Match."""
        with api.store.transaction() as tx:
            found, runs = jobs.report(tx, name), tx.jobs.runs(name, RUNS)
        response.headers["ETag"] = tag_of(found)
        return {**described(found), "runs": [_run(run) for run in runs]}


def _running(made: APIRouter, api: Api) -> None:
    @made.post("/{name}/run", status_code=202, responses=problems(*WRITING, 412))
    def run(name: JobName, order: Actor, request: Request, if_match: Annotated[str | None, Header()] = None) -> dict[str, object]:
        """Ask the scheduler that leads to run a job now, paused or not; it begins within seconds, or when one leads again.

        While the run is asked for, asking again changes nothing. How it ended is in the job's `runs`.
        """
        asked = jobs.ask(api.store, name, actor_of(request, order.actor), api.clock(), check=_expecting(if_match))
        return {"job": name, "asked": _asked(asked)}


def _pausing(made: APIRouter, api: Api, word: str, paused: bool, said: str) -> None:
    @made.post(f"/{{name}}/{word}", responses=problems(*WRITING, 412, 428), name=f"{word}_job", description=said)
    def ordered(
        name: JobName, order: Actor, request: Request, response: Response, if_match: Annotated[str | None, Header()] = None
    ) -> dict[str, object]:
        check = _expecting(require_match(if_match))
        jobs.pause(api.store, name, paused, actor_of(request, order.actor), api.clock(), check=check)
        with api.store.transaction() as tx:
            found = jobs.report(tx, name)
        response.headers["ETag"] = tag_of(found)
        return described(found)


def tag_of(found: JobReport) -> str:
    """A strong tag over what a person decides upon; it stays while the job only runs."""
    return tag([found.job.name, found.paused])


def described(found: JobReport) -> dict[str, object]:
    """A job for people."""
    job = found.job
    last, asked = _run(found.last), _asked(found.order)
    return {"job": job.name, "purpose": job.purpose, "when": job.when, "paused": found.paused, "last": last, "asked": asked}


def _expecting(if_match: str | None) -> Check:
    def check(found: JobReport) -> None:
        if if_match is not None and not matches(if_match, tag_of(found)):
            raise PreconditionError("the job is not as you saw it", where="If-Match", remedy="Read it again, and decide again.")

    return check


def _run(run: JobRun | None) -> dict[str, object] | None:
    if run is None:
        return None
    times = {"started_at": rfc3339(run.started_at), "ended_at": rfc3339(run.ended_at)}
    return {"job": run.job, **times, "outcome": run.outcome.value, "actor": run.actor, "detail": run.detail}


def _asked(order: JobOrder | None) -> dict[str, object] | None:
    return None if order is None else {"actor": order.actor, "asked_at": rfc3339(order.asked_at)}
