"""`canary serve`: the port, the control loop, the worker process, and the whole of it on a real Postgres."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from canary import cli
from canary.cli.background import WorkerProcess
from canary.cli.serve import bind
from canary.domain.errors import UsageError
from canary.flow.ports import Observer, Store
from canary.inmemory import InMemoryStore
from canary.jobs.tasks import Assessment
from tests.api.served import Notes, add_route, call, post_json

WAIT_SECONDS = 60.0


def eventually(condition) -> None:  # type: ignore[no-untyped-def]
    """Wait for something that must happen; the limit is only there so that a failure ends."""
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def test_a_port_in_use_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr("sys.argv", ["canary", "serve", "--port", str(port), "--home", str(tmp_path / "home")])
        before = signal.getsignal(signal.SIGTERM)
        try:
            with pytest.raises(SystemExit) as ended:
                cli.main()
        finally:
            signal.signal(signal.SIGTERM, before)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"port {port} on 127.0.0.1 is in use" in said
    assert "--port" in said
    assert "Traceback" not in said
    assert not (tmp_path / "home").exists(), "nothing was started"


def test_an_address_that_is_not_ours_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1"):
        bind("192.0.2.1", 0)


def store_with(*routes: str) -> Store:
    store = InMemoryStore()
    for route in routes:
        add_route(store, route)
    return store


def test_one_routes_failure_does_not_reach_the_others() -> None:
    ticked: list[str] = []
    broken = {"creative"}

    def tick(store: Store, route: str, now: float, observer: Observer) -> None:
        ticked.append(route)
        if route in broken:
            raise RuntimeError("a row with a secret prompt")

    notes = Notes()
    assess = Assessment(store_with("creative", "math"), notes, tick, time.time, lambda: False)
    assert assess() == "2 routes, 1 failed"
    assess()
    assert ticked == ["creative", "math"] * 2
    assert notes.seen == [("control_failed", {"route": "creative", "error": "RuntimeError"})], "said once per outage"
    broken.clear()
    assert assess() == "2 routes, 0 failed"
    broken.add("creative")
    assess()
    assert len(notes.seen) == 2
    assert Assessment(store_with("math"), notes, tick, time.time, lambda: True)() == "1 routes, 0 failed"
    assert ticked.count("math") == 4, "a process that stops begins no route"


def test_a_worker_that_ends_is_started_again_and_stops_with_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canary.cli.background.FIRST_RESTART_SECONDS", 0.01)
    log = tmp_path / "starts"
    code = f"""
import time, pathlib
log = pathlib.Path({str(log)!r})
with log.open("a") as out: out.write("x")
if len(log.read_text()) > 2: time.sleep(600)
"""
    notes = Notes()
    worker = WorkerProcess([sys.executable, "-c", code], os.environ, notes)
    worker.start()
    eventually(lambda: log.exists() and log.read_text() == "xxx")
    pid = worker.pid
    assert pid is not None
    worker.stop()
    assert worker.pid is None
    assert not Path(f"/proc/{pid}").exists()
    assert [(event, facts["code"]) for event, facts in notes.seen] == [("worker_ended", 0)] * 2
    assert log.read_text() == "xxx"


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_a_killed_server_takes_its_worker_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    code = f"""
import os, sys, time
from canary.cli.background import WorkerProcess
from canary.telemetry import SilentObserver
worker = WorkerProcess([sys.executable, "-c", "import time; time.sleep(600)"], os.environ, SilentObserver())
worker.start()
while worker.pid is None: time.sleep(0.01)
with open({str(pids)!r} + ".new", "w") as out: out.write(str(worker.pid))
os.rename({str(pids)!r} + ".new", {str(pids)!r})
time.sleep(600)
"""
    server = subprocess.Popen([sys.executable, "-c", code])
    try:
        eventually(pids.exists)
        worker = int(pids.read_text())
        # Its signal is armed between fork and exec, so wait until it runs its own program.
        eventually(lambda: b"sleep" in Path(f"/proc/{worker}/cmdline").read_bytes())
    finally:
        server.kill()
        server.wait()
    eventually(lambda: _ended(worker))


def _ended(pid: int) -> bool:
    """Gone, or a zombie that nobody collects."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_serve_on_postgres_takes_copies_serves_flags_and_stops_cleanly(database: str, tmp_path: Path) -> None:
    from canary.wiring import store_on

    environment = {**os.environ, "CANARY_DATABASE_URL": database, "CANARY_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    with store_on(database) as store:
        add_route(store, "math")
        notes = tmp_path / "notes"
        with notes.open("wb") as out:
            server = subprocess.Popen(
                [sys.executable, "-m", "canary.cli", "serve", "--port", "0", "--no-worker"], env=environment, stderr=out
            )
        try:
            eventually(lambda: "url=" in notes.read_text() or server.poll() is not None)
            assert server.poll() is None, notes.read_text()
            url = notes.read_text().split("url=")[1].split()[0].strip("'\"")
            body = {"messages": [{"role": "user", "content": "a\u0000b \U0001f600"}], "max_tokens": 5}
            states = [
                post_json(f"{url}/mirror/v1/math/chat/completions", body, {"x-request-id": "r"}).json["state"] for _ in range(2)
            ]
            assert states == ["accepted", "duplicate"]
            eventually(lambda: call(f"{url}/api/v1/flags/snapshot").status == 200)
            killed = subprocess.run(
                [sys.executable, "-m", "canary.cli", "rollouts", "kill", "math", "--reason", "a drill"],
                env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS, check=True,
            )  # fmt: skip
            assert "math is killed" in killed.stdout
            eventually(lambda: b'"killed":true' in call(f"{url}/api/v1/flags/snapshot").body)
            server.send_signal(signal.SIGTERM)
            assert server.wait(WAIT_SECONDS) == 0, notes.read_text()
        finally:
            server.kill()
            server.wait()
        with store.transaction() as tx:
            assert tx.prompts.count("math") == 1
    assert "stopped" in notes.read_text()
    assert "Traceback" not in notes.read_text()
    assert not (tmp_path / "home" / "postgres").exists(), "no Postgres of its own"
