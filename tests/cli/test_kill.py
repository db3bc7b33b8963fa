"""`canary kill` and `canary unkill`: with a database, with nothing but a disk, through a service, and a service without one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from canary import wiring
from canary.api.kept_flags import KeptFlags
from canary.cli import app
from canary.cli import kill as kill_command
from canary.domain.errors import CanaryError
from canary.flow.kills import kill
from canary.store.unit_of_work import PostgresStore
from tests.api.served import NOW, Notes, add_route, call, post_json, serving, set_weight
from tests.cli.test_serve import eventually

NOBODY = "postgresql://canary@127.0.0.1:1/canary"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("CANARY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CANARY_DATABASE_URL", NOBODY)
    monkeypatch.delenv("CANARY_API_KEY", raising=False)
    wiring.settings.cache_clear()
    yield tmp_path / "home"
    wiring.settings.cache_clear()


@pytest.fixture
def store(home: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresStore]:
    monkeypatch.setenv("CANARY_DATABASE_URL", database)
    wiring.settings.cache_clear()
    made = PostgresStore(database)
    for route in ("math", "creative"):
        add_route(made, route)
    yield made
    made.close()


def run(*words: str) -> Result:
    return CliRunner().invoke(app, [*words])


def killed(store: PostgresStore, route: str = "math") -> bool:
    with store.transaction() as tx:
        flag = tx.flags.get(route)
    assert flag is not None
    return flag.killed


def test_a_kill_goes_to_disk_and_database(store: PostgresStore, home: Path) -> None:
    done = run("kill", "math", "--reason", "users complain", "--actor", "ada", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["scope"], found["killed"], found["settled"]) == ("math", True, True)
    assert killed(store)
    assert found["kill_id"] in (home / "kills.jsonl").read_text()
    again = json.loads(run("kill", "math", "--reason", "again", "--json").stdout)
    assert again["kill_id"] == found["kill_id"]
    undone = run("unkill", "math", "--reason", "fine", "--actor", "bob", "--json")
    assert json.loads(undone.stdout) == {"route": "math", "killed": False, "state": "shadow", "attempt": 2}
    assert not killed(store)
    with store.transaction() as tx:
        assert len(tx.audit.list("math", kind="kill")) == 1


def test_all_routes(store: PostgresStore) -> None:
    assert run("kill", "--all", "--reason", "smoke").exit_code == 0
    assert killed(store)
    assert killed(store, "creative")
    done = run("unkill", "--all", "--reason", "a cable", "--json")
    assert json.loads(done.stdout)["routes"] == ["creative", "math"]


def test_without_a_database_the_kill_is_on_disk_and_the_code_says_so(home: Path) -> None:
    """A3.19: exit code 5 and a sentence that says where the kill is; an unkill is refused."""
    done = run("kill", "math", "--reason", "users complain")
    assert "math is killed" in done.stdout
    assert isinstance(done.exception, CanaryError)
    assert done.exception.exit_code == 5
    assert "kills.jsonl only" in str(done.exception)
    assert len((home / "kills.jsonl").read_text().splitlines()) == 1
    undone = run("unkill", "math", "--reason", "fine")
    assert isinstance(undone.exception, CanaryError)
    assert undone.exception.exit_code == 5


def test_a_kill_that_was_taken_without_a_database_is_undone_with_one(
    home: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("kill", "math", "--reason", "users complain")
    monkeypatch.setenv("CANARY_DATABASE_URL", database)
    wiring.settings.cache_clear()
    store = PostgresStore(database)
    add_route(store, "math")
    assert run("unkill", "math", "--reason", "fine").exit_code == 0
    with store.transaction() as tx:
        assert [e["kind"] for e in tx.audit.list("math", limit=2)] == ["unkill", "kill"]
    store.close()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("kill",), 2),
        (("kill", "math", "--all", "--reason", "x"), 2),
        (("kill", "math"), 2),
        (("kill", "math", "--reason", " "), 2),
        (("unkill", "math"), 2),
        (("unkill", "--reason", "x"), 2),
        (("kill", "maths", "--reason", "x"), 2),
        (("unkill", "math", "--reason", "x"), 5),
        (("kill", "math", "--reason", "x", "--url", "http://127.0.0.1:1"), 5),
    ],
)
def test_a_slip_of_the_pen_is_one_sentence(store: PostgresStore, home: Path, words: tuple[str, ...], code: int) -> None:
    done = run(*words)
    assert isinstance(done.exception, CanaryError)
    assert done.exception.exit_code == code
    assert not killed(store)
    assert not (home / "kills.jsonl").exists()


def test_a_home_that_knows_the_route_asks_nobody_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from canary.inmemory import InMemoryStore

    inner = InMemoryStore()
    add_route(inner, "math")
    with inner.transaction() as tx:
        KeptFlags(home, Notes()).keep(tx.flags.snapshot(NOW), frozenset())
    asked: list[object] = []
    monkeypatch.setattr(kill_command, "_must_exist", lambda *given: asked.append(given))
    run("kill", "math", "--reason", "users complain")
    assert not asked
    assert "math" in (home / "kills.jsonl").read_text()


def test_through_a_service(home: Path) -> None:
    from canary.inmemory import InMemoryStore

    inner = InMemoryStore()
    add_route(inner, "math")
    with serving(inner) as url:
        done = run("kill", "math", "--reason", "users complain", "--url", url)
        assert (done.exit_code, "math is killed (manual: users complain)" in done.stdout) == (0, True)
        assert run("unkill", "math", "--reason", "fine", "--url", url).exit_code == 0
        drilled = run("kill", "drill", "--url", url, "--json")
        assert json.loads(drilled.stdout)["connected"] == 0
        refused = run("kill", "nowhere", "--reason", "x", "--url", url)
        assert isinstance(refused.exception, CanaryError)
        assert refused.exception.exit_code == 2
    assert not (home / "kills.jsonl").exists(), "the service has it"


def test_serve_starts_and_kills_without_a_database(database: str, tmp_path: Path) -> None:
    """A3.19, A5.18: started while Postgres cannot be reached, on a home that has served before: kills work, and survive."""
    from canary.api.keyring import write_file

    home = tmp_path / "home"
    store = PostgresStore(database)
    add_route(store, "math")
    set_weight(store, "math", 10_000)
    kill(store, "math", "long ago", "ada", NOW)
    add_route(store, "creative")
    set_weight(store, "creative", 10_000)
    with store.transaction() as tx:
        KeptFlags(home, Notes()).keep(tx.flags.snapshot(NOW), frozenset(o.order_id for _, o in tx.kills.after(0)))
    store.close()
    write_file(home / "keys.json", {})
    environment = {**os.environ, "CANARY_DATABASE_URL": NOBODY, "CANARY_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    notes = tmp_path / "notes"
    with notes.open("wb") as out:
        command = [sys.executable, "-m", "canary.cli", "serve", "--port", "0", "--no-worker"]
        server = subprocess.Popen(command, env=environment, stderr=out)
    try:
        eventually(lambda: "url=" in notes.read_text() or server.poll() is not None)
        assert server.poll() is None, notes.read_text()
        assert "database_away" in notes.read_text()
        url = notes.read_text().split("url=")[1].split()[0].strip("'\"")
        eventually(lambda: call(f"{url}/api/v1/flags/snapshot").status == 200)
        assert post_json(f"{url}/api/v1/routes/creative/kill", {"reason": "smoke", "actor": "ada"}).json["settled"] is False
        flags = call(f"{url}/api/v1/flags/snapshot").json["flags"]
        assert isinstance(flags, dict)
        assert flags["math"]["killed"]
        assert flags["creative"]["killed"]
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0, notes.read_text()
    finally:
        server.kill()
        server.wait()
    assert "Traceback" not in notes.read_text()
    assert "creative" in (home / "kills.jsonl").read_text()
