"""The kill switch over HTTP: one route, all routes, with the store away, between replicas, and drills."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from canary.api.app import create_app
from canary.api.holders import MAX_CLIENTS, Holders
from canary.cli.serve import bind
from canary.domain.errors import UnreachableError, UsageError
from canary.domain.flag import Snapshot
from canary.domain.kills import DRILL
from canary.flow.ports import Store
from canary.inmemory import InMemoryStore
from canary.kills.replicas import TOKEN_HEADER, read_peers
from tests.api.served import NOW, Answer, Notes, add_route, call, post_json, set_weight

TOKEN = "a shared secret of this test"
WAIT_SECONDS = 60.0


class Away:
    """A store that can go away, or hang until it is let go."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.away = False
        self.free = threading.Event()
        self.free.set()

    def transaction(self):  # type: ignore[no-untyped-def]
        self.free.wait()
        if self.away:
            raise UnreachableError("the database does not answer")
        return self.inner.transaction()


@pytest.fixture
def store() -> Iterator[Away]:
    inner = InMemoryStore()
    for route in ("math", "creative"):
        add_route(inner, route)
        set_weight(inner, route, 10_000)
    made = Away(inner)
    yield made
    made.free.set()


def free_url() -> str:
    with bind("127.0.0.1", 0) as listening:
        return f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def replica(store: Store, home: Path | None = None, *, peers: tuple[str, ...] = (), at: str | None = None) -> Iterator[str]:
    """One API on a thread, for as long as the context lasts."""
    app = create_app(store, Notes(), refresh_seconds=0.05, home=home, peers=peers, peer_token=TOKEN)
    port = 0 if at is None else int(at.rpartition(":")[2])
    with bind("127.0.0.1", port) as listening:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="on", log_level="error", access_log=False))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def eventually(condition: Callable[[], object]) -> None:
    """Wait for something that must happen; the limit is only there so that a failure ends."""
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def kill(url: str, route: str = "math") -> Answer:
    return post_json(f"{url}/api/v1/routes/{route}/kill", {"reason": "users complain", "actor": "ada"})


def killed(url: str, route: str = "math") -> bool:
    answer = call(f"{url}/api/v1/flags/snapshot")
    flag = Snapshot.from_json(answer.body.decode(), NOW).flags.get(route) if answer.status == 200 else None
    return flag is not None and flag.killed


def test_a_kill_is_answered_and_served_while_the_store_hangs(store: Away, tmp_path: Path) -> None:
    """A3.19, A5.18: the database neither answers nor refuses, every other thread waits for it, and the kill is taken."""
    with replica(store, tmp_path) as url:
        eventually(lambda: call(f"{url}/api/v1/flags/snapshot").status == 200)
        store.free.clear()
        stuck = [threading.Thread(target=call, args=(f"{url}/api/v1/rollouts",), daemon=True) for _ in range(60)]
        for thread in stuck:
            thread.start()
        answer = kill(url)
        assert (answer.status, answer.json["settled"]) == (200, False)
        assert killed(url)
        listed = call(f"{url}/api/v1/kills").json
        assert [order["scope"] for order in listed["kills"]] == ["math"]  # type: ignore[index, attr-defined]
        assert listed["pending"] == 1
        store.free.set()
        for thread in stuck:
            thread.join()
        eventually(lambda: call(f"{url}/api/v1/kills").json["pending"] == 0)
        with store.inner.transaction() as tx:
            assert len(tx.audit.list("math", kind="kill")) == 1


def test_all_routes_are_killed_and_revived_over_http(store: Away) -> None:
    with replica(store) as url:
        answer = post_json(f"{url}/api/v1/kill", {"reason": "smoke", "actor": "ada"})
        assert (answer.status, answer.json["scope"], answer.json["settled"]) == (200, "*", True)
        assert killed(url, "math")
        assert killed(url, "creative")
        one = post_json(f"{url}/api/v1/routes/math/unkill", {"reason": "fine", "actor": "bob"})
        assert (one.status, one.json["code"]) == (409, "killed")
        undone = post_json(f"{url}/api/v1/unkill", {"reason": "a cable", "actor": "bob"})
        assert (undone.status, sorted(undone.json["routes"])) == (200, ["creative", "math"])  # type: ignore[call-overload]
        assert not killed(url, "math")
        assert post_json(f"{url}/api/v1/unkill", {"reason": "again", "actor": "bob"}).status == 409


def test_an_unkill_needs_the_store_a_person_and_a_reason(store: Away, tmp_path: Path) -> None:
    """A3.19: nothing but a person with a reason ends a kill, and only where it can be recorded."""
    with replica(store, tmp_path) as url:
        kill(url)
        path = f"{url}/api/v1/routes/math/unkill"
        assert post_json(path, {"reason": "fine"}).status == 400
        assert post_json(path, {"actor": "bob"}).status == 400
        (tmp_path / "kill").write_text("math smoke\n")
        eventually(lambda: call(f"{url}/api/v1/kills").json["kill_file"])
        assert post_json(path, {"reason": "fine", "actor": "bob"}).status == 409
        (tmp_path / "kill").unlink()
        eventually(lambda: not call(f"{url}/api/v1/kills").json["kill_file"])
        store.away = True
        kill(url, "creative")
        assert post_json(path, {"reason": "fine", "actor": "bob"}).status == 503
        assert killed(url)
        store.away = False
        assert post_json(path, {"reason": "fine", "actor": "bob"}).status == 200
        assert not killed(url)
        assert killed(url, "creative")


def test_a_route_that_nobody_knows_is_killed_only_while_the_store_cannot_tell(store: Away, tmp_path: Path) -> None:
    with replica(store, tmp_path) as url:
        eventually(lambda: call(f"{url}/api/v1/flags/snapshot").status == 200)
        assert kill(url, "nowhere").status == 404
        assert post_json(f"{url}/api/v1/routes/%2A/kill", {"reason": "x", "actor": "y"}).status == 400
        store.away = True
        eventually(lambda: kill(url, "nowhere").status == 200)


def test_peers_hear_of_a_kill_and_one_that_was_down_catches_up(store: Away, tmp_path: Path) -> None:
    """A3.19: with the store away, every replica of the list serves the kill, also one that starts later."""
    one, other = free_url(), free_url()
    with replica(store, tmp_path / "a", peers=(one, other), at=one):
        with replica(store, tmp_path / "b", peers=(one, other), at=other):
            eventually(lambda: call(f"{other}/api/v1/flags/snapshot").status == 200)
            store.away = True
            assert kill(one).json["settled"] is False
            eventually(lambda: killed(other))
        assert kill(one, "creative").status == 200
        with replica(store, tmp_path / "b", peers=(one, other), at=other):
            eventually(lambda: killed(other, "creative"))
            assert killed(other), "from its own disk"
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "keys.json").write_text('{"keys": []}')
        with replica(store, tmp_path / "new", peers=(one,)) as third:
            eventually(lambda: killed(third) and killed(third, "creative"))
        store.away = False
        eventually(lambda: call(f"{one}/api/v1/kills").json["pending"] == 0)
    with store.inner.transaction() as tx:
        assert len(tx.audit.list("math", kind="kill")) == len(tx.audit.list("creative", kind="kill")) == 1


@pytest.mark.parametrize("headers", [{}, {TOKEN_HEADER: "another"}, {TOKEN_HEADER: "\u00fc"}])
def test_whoever_is_no_peer_is_refused(store: Away, headers: dict[str, str]) -> None:
    with replica(store) as url:
        body = {"orders": [], "digest": ""}
        assert post_json(f"{url}/api/v1/peers/kills", body, headers).status == 403
        assert post_json(f"{url}/api/v1/peers/clients", {"kill_epoch": 1}, headers).status == 403
        good = {TOKEN_HEADER: TOKEN}
        assert post_json(f"{url}/api/v1/peers/kills", body, good).json["orders"] == []
        wrong = post_json(f"{url}/api/v1/peers/kills", {"orders": [{"scope": "math"}], "digest": ""}, good)
        assert (wrong.status, wrong.json["code"]) == (400, "invalid_request")


def test_peers_need_a_token_and_urls() -> None:
    assert read_peers(" http://a:1/ , https://b ,") == ("http://a:1", "https://b")
    with pytest.raises(UsageError, match="CANARY_PEERS"):
        read_peers("a:1")
    with pytest.raises(UsageError, match="CANARY_PEER_TOKEN"):
        create_app(InMemoryStore(), Notes(), peers=("http://a:1",))


def test_a_drill_measures_the_clients_of_every_replica_and_kills_no_route(store: Away, tmp_path: Path) -> None:
    one, other = free_url(), free_url()
    stop = threading.Event()

    def client(name: str, url: str) -> None:
        held = "0.0"
        while not stop.is_set():
            body = call(f"{url}/api/v1/flags/snapshot", headers={"Canary-Client": name, "Canary-Holds": held}).body
            snapshot = Snapshot.from_json(body.decode(), NOW)
            held = f"{snapshot.version}.{snapshot.kill_epoch}"
            stop.wait(0.02)

    with (
        replica(store, tmp_path / "a", peers=(other,), at=one),
        replica(store, tmp_path / "b", peers=(one,), at=other),
    ):
        threads = [threading.Thread(target=client, args=(f"c{n}", (one, other)[n % 2]), daemon=True) for n in range(4)]
        for thread in threads:
            thread.start()
        body = {"actor": "ada", "wait_seconds": 30.0}
        post_json(f"{one}/api/v1/flags/held", {}, {"Canary-Client": "gone", "Canary-Holds": "1.0"})
        assert call(f"{one}/api/v1/flags/held", b"", {"Canary-Client": "c", "Canary-Holds": "x"}).status == 400
        eventually(lambda: post_json(f"{one}/api/v1/kill/drill", {**body, "wait_seconds": 1.0}).json["acknowledged"] == 4)
        found = post_json(f"{one}/api/v1/kill/drill", {**body, "wait_seconds": 1.0}).json
        stop.set()
        for thread in threads:
            thread.join()
        assert not killed(one)
        assert not killed(one, DRILL)
    assert (found["connected"], found["acknowledged"], found["missed"]) == (5, 4, ["gone"])
    with store.inner.transaction() as tx:
        newest = tx.audit.list(DRILL, kind="kill_drill")[0]
    assert newest["body"]["acknowledged"] == 4  # type: ignore[index]
    assert newest["actor"] == "ada"


def test_holders_are_bounded_and_hear_legal_words_only() -> None:
    holders = Holders(monotonic=lambda: 5.0)
    for client, holds in ((None, "1.1"), ("a", None), ("", "1.1"), ("a b", "1.1"), ("x" * 101, "1.1"), ("a", "1"), ("a", "-1.1")):
        assert not holders.note(client, holds)
    for number in range(MAX_CLIENTS + 1):
        assert holders.note(f"c{number}", "3.2")
    assert len(holders.connected()) == MAX_CLIENTS
    assert "c0" not in holders.connected()
    assert holders.reached(3) == {}
    assert len(holders.reached(2)) == MAX_CLIENTS
