"""The kill drill of a scheduler that serves no flags: an API runs it over its clients, and both record what came of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from canary.config import Settings
from canary.domain.errors import UsageError
from canary.domain.flag import Snapshot
from canary.domain.kills import DRILL
from canary.domain.schedule import JobRun, Outcome
from canary.flow.tools.jobs import Runner
from canary.flow.walk.control import unfenced
from canary.inmemory import InMemoryStore
from canary.jobs.tasks import Children, work_of
from canary.kills.replicas import DRILL_PATH, TOKEN_HEADER, read_peers
from tests.api.served import NOW, Notes, add_route, call, post_json
from tests.api.test_kill_desk import TOKEN, Away, eventually, free_url, killed, replica


@pytest.fixture
def store() -> Away:
    inner = InMemoryStore()
    add_route(inner, "math")
    return Away(inner)


def drill_job(store: Away, **given: object) -> JobRun | None:
    """One run of the job in a process without an API."""
    settings = Settings(database_url=None, **given)  # type: ignore[arg-type]
    work = work_of(store, settings, lambda *_: None, Notes(), Children({}), clock=lambda: NOW)
    return Runner(store, work, lambda: NOW, unfenced).run("kill_drill") if "kill_drill" in work else None


@pytest.fixture
def client(store: Away, tmp_path: Path) -> Iterator[str]:
    """The URL of a real API with one client that says what it holds."""
    stop = threading.Event()

    def poll(url: str) -> None:
        held = "0.0"
        while not stop.is_set():
            body = call(f"{url}/api/v1/flags/snapshot", headers={"Canary-Client": "c", "Canary-Holds": held}).body
            snapshot = Snapshot.from_json(body.decode(), NOW)
            held = f"{snapshot.version}.{snapshot.kill_epoch}"
            stop.wait(0.02)

    with replica(store, tmp_path / "api") as url:
        eventually(lambda: call(f"{url}/api/v1/flags/snapshot").status == 200)
        thread = threading.Thread(target=poll, args=(url,), daemon=True)
        thread.start()
        eventually(lambda: post_json(f"{url}{DRILL_PATH}", {}, {TOKEN_HEADER: TOKEN}).json["connected"] == 1)
        yield url
        stop.set()
        thread.join()


@pytest.mark.parametrize("setting", ["api_url", "peers"])
def test_an_api_runs_it_and_the_propagation_is_recorded(store: Away, client: str, tmp_path: Path, setting: str) -> None:
    """A3.19: what a drill measures is the API's clients, wherever the scheduler runs; a replica that is down costs nothing."""
    named = f"{free_url()},{client}"
    run = drill_job(store, home=tmp_path / "scheduler", peer_token=SecretStr(TOKEN), **{setting: named})
    assert run is not None
    assert (run.outcome, run.detail) == (Outcome.DONE, f"reached 1 of 1 clients, asked {client}")
    with store.inner.transaction() as tx:
        newest = tx.audit.list(DRILL, kind="kill_drill")[0]
    assert newest["actor"] == "scheduler"
    assert newest["body"]["acknowledged"] == 1  # type: ignore[index]
    assert newest["body"]["p99_seconds"] > 0  # type: ignore[index]
    assert not killed(client, DRILL)
    assert not killed(client)


def test_what_keeps_it_from_running_is_said(store: Away, client: str, tmp_path: Path) -> None:
    home, token = tmp_path / "scheduler", SecretStr(TOKEN)
    assert drill_job(store, home=home, peer_token=token) is None, "without an address it is left to a process with clients"
    nobody = drill_job(store, home=home, peer_token=token, api_url=free_url())
    stranger = drill_job(store, home=home, peer_token=SecretStr("another"), api_url=client)
    secretless = drill_job(store, home=home, api_url=client)
    for run, said in ((nobody, "URLError"), (stranger, "status 403"), (secretless, "CANARY_PEER_TOKEN")):
        assert run is not None
        assert run.outcome == Outcome.FAILED
        assert said in run.detail
    assert call(f"{client}{DRILL_PATH}", b"").status == 403
    with pytest.raises(UsageError, match="CANARY_API_URL"):
        drill_job(store, home=home, api_url="api:8700")
    assert read_peers("http://a:1/") == ("http://a:1",)
