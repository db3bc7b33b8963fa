"""Jobs over HTTP: read, paused, resumed, and asked for; the API itself runs none."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from canary.domain.access import Role
from canary.domain.schedule import JOBS, JobOrder, JobRun, Outcome
from canary.flow.leading import Leadership, NoLock
from canary.inmemory import InMemoryStore
from canary.jobs.scheduler import Scheduler
from tests.api.keyed import bearer, client, key_for
from tests.api.served import NOW, Notes

BASE = "/api/v1/jobs"
ADA = {"actor": "ada"}


@pytest.fixture
def store() -> InMemoryStore:
    return InMemoryStore()


@pytest.fixture
def caller(store: InMemoryStore) -> Iterator[TestClient]:
    with client(store) as made:
        yield made


def leading(store: InMemoryStore, **work: object) -> Scheduler:
    """A scheduler that leads and whose clockwork does not run."""
    leadership = Leadership(store, NoLock(), "a", Notes(), time.time)
    assert leadership.look()
    return Scheduler(store, leadership, work, Notes(), clock=lambda: NOW + 99)  # type: ignore[arg-type]


def test_jobs_are_listed_by_pages_and_shown_with_their_runs(store: InMemoryStore, caller: TestClient) -> None:
    with store.transaction() as tx:
        for n in range(3):
            tx.jobs.add(JobRun("drills", NOW + n, NOW + n + 1, Outcome.DONE, "scheduler", f"run {n}"))
        tx.commit()
    first = caller.get(f"{BASE}?limit=3").json()
    rest = caller.get(BASE, params={"cursor": first["next"]}).json()
    assert [job["job"] for job in first["jobs"] + rest["jobs"]] == sorted(JOBS)
    assert rest["next"] is None
    shown = caller.get(f"{BASE}/drills").json()
    assert (shown["when"], shown["paused"], shown["asked"], shown["last"]["detail"]) == ("45 2 * * * UTC", False, None, "run 2")
    assert [run["detail"] for run in shown["runs"]] == ["run 2", "run 1", "run 0"]
    missing = caller.get(f"{BASE}/weather")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert caller.get(BASE, params={"cursor": "nonsense"}).status_code == 400


def test_a_job_is_paused_and_resumed_as_it_was_seen(store: InMemoryStore, caller: TestClient) -> None:
    seen = caller.get(f"{BASE}/drills").headers["etag"]
    assert caller.post(f"{BASE}/drills/pause", json=ADA).status_code == 428
    paused = caller.post(f"{BASE}/drills/pause", json=ADA, headers={"If-Match": seen})
    assert (paused.status_code, paused.json()["paused"]) == (200, True)
    assert paused.headers["etag"] == caller.get(f"{BASE}/drills").headers["etag"] != seen
    assert caller.post(f"{BASE}/drills/pause", json=ADA, headers={"If-Match": seen}).status_code == 412
    assert caller.post(f"{BASE}/drills/resume", json=ADA, headers={"If-Match": "*"}).json()["paused"] is False
    assert caller.post(f"{BASE}/weather/pause", json=ADA, headers={"If-Match": "*"}).status_code == 404
    assert caller.post(f"{BASE}/drills/pause", json={}, headers={"If-Match": "*"}).json()["where"] == "/actor"
    with store.transaction() as tx:
        assert [(e["kind"], e["actor"]) for e in tx.audit.list("*")] == [("job_resumed", "ada"), ("job_paused", "ada")]


def test_a_run_is_asked_for_and_the_leader_carries_it_out(store: InMemoryStore, caller: TestClient) -> None:
    ran: list[int] = []
    asked = caller.post(f"{BASE}/retention/run", json=ADA)
    assert (asked.status_code, asked.json()["asked"]["actor"], ran) == (202, "ada", []), "the API runs nothing"
    again = caller.post(f"{BASE}/retention/run", json={"actor": "grace"})
    assert (again.status_code, again.json()) == (202, asked.json()), "one wish, however often it is said"
    assert caller.get(f"{BASE}/retention").json()["asked"] == asked.json()["asked"]
    scheduler = leading(store, retention=lambda: str(ran.append(1)))
    scheduler.fire("retention")
    shown = caller.get(f"{BASE}/retention").json()
    assert (ran, shown["asked"], shown["last"]["actor"], shown["last"]["outcome"]) == ([1], None, "ada", "done")
    scheduler.fire("retention")
    assert caller.get(f"{BASE}/retention").json()["last"]["actor"] == "scheduler"
    with store.transaction() as tx:
        assert [(e["kind"], e["actor"]) for e in tx.audit.list("*")] == [("job_asked", "ada")]


def test_a_running_scheduler_does_not_wait_for_the_job_s_own_time(store: InMemoryStore, caller: TestClient) -> None:
    came = threading.Event()
    scheduler = leading(store, retention=lambda: str(came.set()))
    scheduler.start()
    try:
        assert caller.post(f"{BASE}/retention/run", json=ADA).status_code == 202
        assert came.wait(60), "retention is due at night"
    finally:
        scheduler.stop()
    assert caller.get(f"{BASE}/retention").json()["last"]["actor"] == "ada"


def test_a_paused_job_that_is_asked_for_runs_once(store: InMemoryStore, caller: TestClient) -> None:
    ran: list[int] = []
    scheduler = leading(store, retention=lambda: str(ran.append(1)))
    assert caller.post(f"{BASE}/retention/pause", json=ADA, headers={"If-Match": "*"}).status_code == 200
    assert caller.post(f"{BASE}/retention/run", json=ADA).status_code == 202
    for _ in range(3):
        scheduler.fire("retention")
    assert ran == [1]


def test_a_job_that_the_leader_cannot_run_ends_as_a_failed_run(store: InMemoryStore, caller: TestClient) -> None:
    assert caller.post(f"{BASE}/kill_drill/run", json=ADA).status_code == 202
    leading(store, retention=lambda: "").obey()
    shown = caller.get(f"{BASE}/kill_drill").json()
    assert (shown["asked"], shown["last"]["outcome"], shown["last"]["actor"]) == (None, "failed", "ada")
    assert "nothing does it in the process that leads" in shown["last"]["detail"]


def test_who_does_not_lead_leaves_the_order_alone(store: InMemoryStore, caller: TestClient) -> None:
    assert caller.post(f"{BASE}/retention/run", json=ADA).status_code == 202
    idle = Scheduler(store, Leadership(store, NoLock(), "b", Notes(), time.time), {"retention": lambda: "x"}, Notes())
    idle.obey()
    idle.fire("retention")
    with store.transaction() as tx:
        assert tx.jobs.orders() == [JobOrder("retention", "ada", NOW + 60)]
        assert tx.jobs.runs("retention", 1) == []


def test_a_leader_that_loses_its_term_settles_nothing(store: InMemoryStore, caller: TestClient) -> None:
    """A run that the fence refuses is left to the next leader, with the order."""
    assert caller.post(f"{BASE}/retention/run", json=ADA).status_code == 202

    def overtaken() -> str:
        with store.transaction() as tx:
            tx.leaders.take("scheduler", "another", NOW + 1e9)
            tx.commit()
        return "too late"

    leading(store, retention=overtaken).fire("retention")
    with store.transaction() as tx:
        assert [order.job for order in tx.jobs.orders()] == ["retention"]
        assert tx.jobs.runs("retention", 1) == []


def test_a_repeated_wish_under_one_idempotency_key_is_one(store: InMemoryStore, caller: TestClient) -> None:
    headers = {"Idempotency-Key": "one"}
    first = caller.post(f"{BASE}/retention/run", json=ADA, headers=headers)
    with store.transaction() as tx:
        tx.jobs.settle(tx.jobs.orders()[0])
        tx.commit()
    second = caller.post(f"{BASE}/retention/run", json=ADA, headers=headers)
    assert (second.status_code, second.json(), second.headers["idempotent-replayed"]) == (202, first.json(), "true")
    with store.transaction() as tx:
        assert tx.jobs.orders() == []


def test_who_may(store: InMemoryStore) -> None:
    viewer, operator = key_for(store, Role.VIEWER), key_for(store, Role.OPERATOR, "ada")
    limited = key_for(store, Role.ADMIN, routes=("math",))
    with client(store) as caller:
        assert caller.get(BASE, headers=bearer(viewer)).status_code == 200
        assert caller.post(f"{BASE}/retention/run", json={}, headers=bearer(viewer)).status_code == 403
        assert caller.get(BASE, headers=bearer(limited)).status_code == 403, "jobs concern all routes"
        asked = caller.post(f"{BASE}/retention/run", json={}, headers=bearer(operator))
        assert (asked.status_code, asked.json()["asked"]["actor"]) == (202, "ada")
