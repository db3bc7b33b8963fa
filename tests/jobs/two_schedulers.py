"""Two real schedulers on one Postgres: the leader is stopped past its lease while a transition is due, and then woken."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from canary.domain.rollout import State
from canary.flow.leading import NAME
from canary.store.unit_of_work import PostgresStore
from tests.api.served import add_route

LEASE = 1.0
LONG_AGO = 1_000.0
WAIT_SECONDS = 100.0

CHILD = """
import sys, threading, time
from dataclasses import replace
from functools import partial
from canary.domain.schedule import JOBS
from canary.flow.leading import Leadership
from canary.flow.walk.control import tick
from canary.jobs.scheduler import Scheduler
from canary.jobs.tasks import Assessment
from canary.telemetry import LogObserver
from canary.wiring import leader_lock, store_on

JOBS["assessment"] = replace(JOBS["assessment"], every=0.05)
with store_on(sys.argv[1]) as store:
    observer = LogObserver()
    leads = Leadership(store, leader_lock(store), sys.argv[2], observer, time.time, lease_seconds=float(sys.argv[3]))
    assess = Assessment(store, observer, partial(tick, fence=leads.fence), time.time, lambda: False)
    Scheduler(store, leads, {"assessment": assess}, observer).start()
    threading.Event().wait()
"""


def eventually(condition) -> None:  # type: ignore[no-untyped-def]
    """Wait for what must happen; the limit is only there so that a failure ends."""
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def leader(store: PostgresStore) -> tuple[int, str]:
    """Token and holder of the present term."""
    from sqlalchemy import text

    with store._engine.connect() as connection:
        found = connection.execute(text("select token, holder from leaders where name = :n"), {"n": NAME}).first()
    return (0, "") if found is None else (found.token, found.holder)


def due_for_rollback(store: PostgresStore, route: str) -> None:
    """A canary that has had no data since long ago: the next decision rolls it back."""
    add_route(store, route)
    with store.transaction() as tx:
        rollout = tx.rollouts.get(route)
        assert rollout is not None
        moved = replace(rollout, state=State.CANARY, stage=1, entered_at=LONG_AGO, version=rollout.version + 1)
        tx.rollouts.put(moved)
        tx.commit()


def transitions(store: PostgresStore, route: str) -> int:
    with store.transaction() as tx:
        return len(tx.audit.list(route, kind="roll_back"))


def play(database: str, logs: Path, rounds: int) -> list[int]:
    """How many transition rows each round left."""
    store, draw = PostgresStore(database), random.Random(5)
    children: dict[str, subprocess.Popen[bytes]] = {}
    with contextlib.ExitStack() as ending:
        ending.callback(store.close)
        for name in ("a", "b"):
            log = ending.enter_context((logs / name).open("wb"))
            command = [sys.executable, "-c", CHILD, database, name, str(LEASE)]
            children[name] = subprocess.Popen(command, stderr=log, stdout=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
            ending.callback(_end, children[name])
        for number in range(rounds):
            _round(store, children, f"route-{number}", draw.random() * 0.1)
        eventually(lambda: all(transitions(store, f"route-{n}") for n in range(rounds)))
        for child in children.values():
            _end(child)
        return [transitions(store, f"route-{n}") for n in range(rounds)]


def _round(store: PostgresStore, children: dict[str, subprocess.Popen[bytes]], route: str, pause: float) -> None:
    eventually(lambda: leader(store)[0] > 0)
    token, holder = leader(store)
    due_for_rollback(store, route)
    time.sleep(pause)
    children[holder].send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: leader(store)[0] > token and leader(store)[1] != holder)
        eventually(lambda: transitions(store, route) > 0)
    finally:
        children[holder].send_signal(signal.SIGCONT)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGCONT)
    child.kill()
    child.wait()
