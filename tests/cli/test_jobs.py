"""`canary jobs`, `notify` and `status` on a store in memory: what is printed, and the exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer

from canary.cli import jobs, notify, services
from canary.config import Settings
from canary.domain.errors import NotFoundError, UsageError
from canary.domain.notices import Notice, NoticeState
from canary.domain.schedule import JOBS
from canary.inmemory import InMemoryStore


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> InMemoryStore:
    made = InMemoryStore()

    @contextmanager
    def opened(*_: object, **__: object) -> Iterator[InMemoryStore]:
        yield made

    (tmp_path / "postgres").mkdir()
    for module in (jobs, notify, services):
        monkeypatch.setattr(module, "open_store", opened)
        monkeypatch.setattr(module, "settings", lambda: Settings(home=tmp_path, database_url=None))
    return made


def test_jobs_are_listed_run_paused_and_resumed(store: InMemoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        jobs.run("key_expiry", actor="ada", as_json=True)
    assert ended.value.exit_code == 0
    assert json.loads(capsys.readouterr().out)["detail"] == "0 keys and 0 pins expired, 0 answers forgotten"
    jobs.pause("drills", actor="ada", as_json=False)
    assert capsys.readouterr().out == "drills is paused.\n"
    jobs.list_(as_json=True)
    found = {row["job"]: row for row in json.loads(capsys.readouterr().out)["jobs"]}
    assert list(found) == list(JOBS)
    assert (found["drills"]["paused"], found["key_expiry"]["last"]["actor"]) == (True, "ada")
    jobs.resume("drills", actor="ada", as_json=True)
    assert json.loads(capsys.readouterr().out) == {"job": "drills", "paused": False}
    jobs.list_(as_json=False)
    assert "drills" in capsys.readouterr().out


def test_a_job_that_is_unknown_or_runs_elsewhere_is_an_error(store: InMemoryStore) -> None:
    with pytest.raises(NotFoundError, match="weather"):
        jobs.run("weather")
    with pytest.raises(UsageError, match="clients are connected"):
        jobs.run("kill_drill")


def test_dead_notices_are_listed_and_an_unknown_webhook_is_an_error(
    store: InMemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    with store.transaction() as tx:
        dead = Notice("id", "ops", "kill", "math", '{"id":"id"}', 1.0, 2.0, 9, NoticeState.DEAD, "status 500")
        tx.notices.add([dead])
        tx.commit()
    notify.list_(NoticeState.DEAD, 9, True)
    (row,) = json.loads(capsys.readouterr().out)["notices"]
    assert (row["id"], row["error"], row["tries"]) == ("id", "status 500", 9)
    notify.list_(NoticeState.PENDING, 9, True)
    assert json.loads(capsys.readouterr().out) == {"notices": []}
    with pytest.raises(UsageError, match="known: none"):
        notify.send_test("ops", False)


def test_status_says_what_does_not_answer(store: InMemoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        services.status("http://127.0.0.1:9", True)
    assert ended.value.exit_code == 5
    found = json.loads(capsys.readouterr().out)
    assert [found[part]["ok"] for part in ("api", "database", "scheduler")] == [False, True, False]
    assert found["scheduler"]["said"] == "nobody leads"
