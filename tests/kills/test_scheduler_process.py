"""`canary scheduler` as a process of its own, with no API anywhere, on a real Postgres: what its home kills is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from canary.flow.ports import Store
from canary.kills.board import KillBoard
from canary.store.unit_of_work import PostgresStore
from tests.api.served import Notes, add_route, set_weight

WAIT_SECONDS = 60.0


def killed(store: Store) -> dict[str, int]:
    """Routes whose row and flag say killed, and how many events say so."""
    with store.transaction() as tx:
        flags = tx.flags.snapshot(0.0).flags
        routes = [r.route for r in tx.rollouts.list() if r.killed and flags[r.route].killed and flags[r.route].weight == 0]
        return {route: len(tx.audit.list(route, kind="kill")) for route in routes}


def test_a_scheduler_alone_obeys_the_kill_file_and_the_journal(database: str, tmp_path: Path) -> None:
    """A3.19: the API is dead, its last order is on the disk only, and a person writes the file."""
    store = PostgresStore(database)
    for route in ("math", "creative", "rag"):
        add_route(store, route)
        set_weight(store, route, 10_000)
    KillBoard(Notes(), tmp_path).kill("math", "an API took it and died", "ada")
    environment = {**os.environ, "CANARY_HOME": str(tmp_path), "CANARY_DATABASE_URL": database, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "canary.cli", "scheduler", "--log", "error"], env=environment)
    try:
        expected = {"math": 1}
        for scope in (None, "creative"):
            if scope is not None:
                (tmp_path / "kill").write_text(f"{scope} wrong tokens\n")
                expected[scope] = 1
            end = time.monotonic() + WAIT_SECONDS
            while killed(store) != expected:
                assert process.poll() is None, "the scheduler ended"
                assert time.monotonic() < end, f"killed: {killed(store)}"
                time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0
        assert killed(store) == expected, "and nothing else"
    finally:
        process.kill()
        process.wait(WAIT_SECONDS)
        store.close()
