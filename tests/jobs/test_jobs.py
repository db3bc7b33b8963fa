"""Jobs: recorded, paused, retried; retention, keys and drills; and webhooks over real HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from pydantic import SecretStr

from canary.config import Webhook
from canary.domain.access import Role
from canary.domain.drills import Drills
from canary.domain.errors import NotFoundError, UnreachableError, UsageError
from canary.domain.notices import SIGNATURE, verify
from canary.domain.schedule import JOBS, Outcome
from canary.flow.leading import Leadership, NoLock
from canary.flow.retention import Lifetimes, retain
from canary.flow.tools import jobs
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.keys import make_key
from canary.flow.tools.policy_files import dump, load_text
from canary.flow.walk.control import unfenced
from canary.inmemory import InMemoryStore
from canary.jobs.scheduler import Scheduler, trigger_of
from canary.jobs.webhooks import Webhooks
from canary.store.unit_of_work import PostgresStore
from tests.api.served import NOW, SECRET, Notes, policy_of
from tests.store import samples


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


def runner(store: InMemoryStore, clock: Clock, **work: jobs.Work) -> jobs.Runner:
    return jobs.Runner(store, work, clock, unfenced)


def broken() -> str:
    raise RuntimeError(f"a row with {SECRET}")


def test_each_run_is_recorded_with_its_outcome_and_never_a_foreign_errors_text() -> None:
    store, clock = InMemoryStore(), Clock()
    made = runner(store, clock, retention=lambda: "dropped 3", drills=broken)
    made.run("retention")
    made.run("drills")
    last = {r.job.name: r.last for r in jobs.reports(store) if r.last}
    assert list(jobs.JOBS) == [r.job.name for r in jobs.reports(store)]
    assert {name: (run.outcome, run.detail) for name, run in last.items()} == {
        "retention": (Outcome.DONE, "dropped 3"),
        "drills": (Outcome.FAILED, "RuntimeError"),
    }


def test_a_paused_job_rests_until_it_is_resumed_or_asked_for() -> None:
    store, clock, ran = InMemoryStore(), Clock(), list[int]()
    made = runner(store, clock, retention=lambda: str(ran.append(1)))
    jobs.pause(store, "retention", True, "ada", NOW)
    jobs.pause(store, "retention", True, "ada", NOW)
    assert made.run("retention") is None
    assert made.run("retention", actor="ada", asked=True) is not None
    jobs.pause(store, "retention", False, "ada", NOW)
    assert made.run("retention") is not None
    assert len(ran) == 2
    with store.transaction() as tx:
        assert [e["kind"] for e in tx.audit.list("*")] == ["job_resumed", "job_paused"]
    with pytest.raises(NotFoundError, match="assessment"):
        jobs.pause(store, "weather", True, "ada", NOW)


def test_a_quiet_job_leaves_a_row_a_minute() -> None:
    store, clock = InMemoryStore(), Clock()
    made = runner(store, clock, assessment=lambda: "1 routes, 0 failed")
    for _ in range(61):
        made.run("assessment")
        clock.now += 1
    with store.transaction() as tx:
        assert len(tx.jobs.runs("assessment", 99)) == 2


def test_keys_whose_time_is_over_end_once() -> None:
    store = InMemoryStore()
    with store.transaction() as tx:
        tx.keys.put(make_key("gateway", Role.VIEWER, NOW, days=1.0).key)
        tx.keys.put(make_key("ada", Role.ADMIN, NOW).key)
        tx.commit()
    assert jobs.expire_keys(store, NOW + 86_399) == "0 keys and 0 pins expired, 0 answers forgotten"
    assert jobs.expire_keys(store, NOW + 86_401) == "1 keys and 0 pins expired, 0 answers forgotten"
    assert jobs.expire_keys(store, NOW + 86_402) == "0 keys and 0 pins expired, 0 answers forgotten"
    with store.transaction() as tx:
        assert [e["kind"] for e in tx.audit.list("*")] == ["key_expired"]


def test_drills_are_due_where_a_policy_asks_and_none_is_fresh() -> None:
    store = InMemoryStore()
    text = dump(replace(policy_of("math"), drills=Drills(required=("resample_from_target",), max_age_seconds=1_000.0)))
    policy = load_text(text, name="math")
    rollout = apply_policy(store, policy, text, NOW)
    assert jobs.drills_due(store, NOW) == [], "no engine has announced itself"
    with store.transaction() as tx:
        tx.rollouts.put(replace(rollout, epoch="e", version=rollout.version + 1))
        tx.commit()
    assert jobs.drills_due(store, NOW) == [("math", policy.drills.required)]
    body = {"epoch": "e", "faults": [{"fault": name, "outcome": "caught"} for name in policy.drills.required]}
    with store.transaction() as tx:
        tx.audit.append("math", "drill", "ada", body, NOW)
        tx.commit()
    assert jobs.drills_due(store, NOW + 799) == []
    assert jobs.drills_due(store, NOW + 801) == [("math", policy.drills.required)], "before it grows stale"


def test_content_and_numbers_have_lifetimes_of_their_own(database: str) -> None:
    day = 86_400.0
    store = PostgresStore(database)
    try:
        store.ensure_partitions(date(1970, 1, 1), days=2)
        said = retain(store, store, Lifetimes(content=2, numbers=30), 4 * day)
        assert said.startswith("dropped 2 partitions"), "prompts of the first two days"
        said = retain(store, store, Lifetimes(content=2, numbers=30), 32.5 * day)
        assert said.startswith("dropped 5 partitions"), "the third day's prompts; pairs and observations of two days"
        assert retain(store, store, Lifetimes(content=2, numbers=30), 32.5 * day).startswith("dropped 0 partitions")
    finally:
        store.close()
    with pytest.raises(UsageError):
        Lifetimes(content=3, numbers=2)


def test_answers_of_old_pairs_are_emptied_and_their_numbers_stay(database: str) -> None:
    day = 86_400.0
    store = PostgresStore(database)
    try:
        store.ensure_partitions(date(1970, 1, 1), days=2)
        with store.transaction() as tx:
            tx.rollouts.put(samples.ROLLOUT)
            tx.prompts.add_many([samples.prompt(1)], now=0.0)
            (claim,) = tx.claims.claim(
                samples.ROLLOUT, limit=1, before_ordinal=None, worker="w", now=0.0, lease_seconds=1.0, max_retries=0
            )
            stored = samples.pair(claim)
            tx.claims.finish(claim, failed=False)
            tx.pairs.add(stored, 0.0)
            tx.commit()
        assert "emptied 0 pairs" in retain(store, store, Lifetimes(content=2, numbers=30), 2 * day)
        assert "emptied 1 pairs" in retain(store, store, Lifetimes(content=2, numbers=30), 4 * day)
        assert "emptied 0 pairs" in retain(store, store, Lifetimes(content=2, numbers=30), 4 * day)
        with store.transaction() as tx:
            kept = tx.pairs.get(stored.pair_id)
        assert kept is not None
        assert (kept.candidate.token_ids, kept.candidate.text, kept.baseline.text) == ((), "", "")
        assert (kept.candidate.stats, kept.increments) == (stored.candidate.stats, stored.increments)
    finally:
        store.close()


def test_every_job_has_a_trigger_in_utc() -> None:
    for job in JOBS.values():
        assert str(trigger_of(job).timezone) == "UTC"


def test_only_the_leader_runs_jobs_and_an_outage_is_said_once() -> None:
    store, notes, ran = InMemoryStore(), Notes(), list[int]()
    leadership = Leadership(store, NoLock(), "a", notes, time.time)

    def away() -> str:
        raise UnreachableError("the database does not answer")

    scheduler = Scheduler(store, leadership, {"retention": lambda: str(ran.append(1)), "drills": away}, notes)
    scheduler.fire("retention")
    assert not ran
    assert leadership.look()
    scheduler.fire("retention")
    assert len(ran) == 1
    scheduler.fire("drills")
    scheduler.fire("drills")
    assert [event for event, _ in notes.seen] == ["leading", "job_failed"]


def test_a_scheduler_runs_what_is_due_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(JOBS, "delivery", replace(JOBS["delivery"], every=0.02))
    store, came = InMemoryStore(), threading.Event()
    leadership = Leadership(store, NoLock(), "a", Notes(), time.time)
    scheduler = Scheduler(store, leadership, {"delivery": lambda: str(came.set())}, Notes())
    scheduler.start()
    try:
        assert came.wait(60)
    finally:
        scheduler.stop()
    assert not leadership.leads
    with store.transaction() as tx:
        assert tx.jobs.runs("delivery", 1)[0].outcome is Outcome.DONE


@contextmanager
def receiver(status: int, seen: list[tuple[bytes, str]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append((self.rfile.read(int(self.headers["content-length"])), self.headers[SIGNATURE]))
            self.send_response(status)
            self.send_header("location", f"http://127.0.0.1:{server.server_port}/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return None

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(("status", "error"), [(204, ""), (500, "status 500"), (302, "status 302")])
def test_a_message_is_signed_and_a_redirect_is_not_followed(status: int, error: str) -> None:
    seen: list[tuple[bytes, str]] = []
    with receiver(status, seen) as url:
        send = Webhooks({"ops": Webhook(url=url, secret=SecretStr("s3cret"))}, lambda: NOW)
        assert send("ops", b'{"event":"kill"}') == error
    ((body, header),) = seen
    verify("s3cret", body, header, NOW)
    assert send("ops", b"{}") == "URLError", "nobody listens any more"
    assert "pager" in send("pager", b"{}")
