"""The gateway's client against a real server: kills arrive, stale snapshots fall to the baseline, nothing ever raises."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from canary import client as client_module
from canary.client import FlagClient
from canary.domain.flag import Flag, Resolution, Snapshot
from canary.flow.ports import Store
from canary.inmemory import InMemoryStore
from tests.api.served import NOW, add_route, call, post_json, serving, set_weight

WAIT_SECONDS = 60.0


@pytest.fixture
def store() -> Store:
    made = InMemoryStore()
    for route in ("math", "creative"):
        add_route(made, route)
    return made


def eventually(condition) -> None:  # type: ignore[no-untyped-def]
    """Wait for something that must happen; the limit is only there so that a failure ends."""
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def test_a_kill_over_http_reaches_the_client(store: Store) -> None:
    set_weight(store, "math", 10_000)
    set_weight(store, "creative", 10_000)
    with serving(store) as url, FlagClient(url, poll_seconds=0.02) as client:
        assert client.wait_ready(WAIT_SECONDS)
        assert client.resolve("math") == Resolution("candidate", "STATIC")
        assert post_json(f"{url}/api/v1/routes/math/kill", {"reason": "users complain", "actor": "ada"}).status == 200
        eventually(lambda: client.resolve("math") == Resolution("baseline", "DISABLED"))
        assert client.resolve("creative") == Resolution("candidate", "STATIC")


def test_resolving_splits_as_the_snapshot_says(store: Store) -> None:
    set_weight(store, "math", 500)
    units = [f"user-{at}" for at in range(2000)]
    with serving(store) as url, FlagClient(url, start=False) as client:
        assert client.resolve("math", "user-1") == Resolution("baseline", "UNKNOWN"), "before the first snapshot"
        assert client.refresh()
        assert client.resolve("math").reason == "TARGETING_KEY_MISSING"
        assert client.resolve("elsewhere", "u") == Resolution("baseline", "FLAG_NOT_FOUND")
        assert client.resolve("math", "\ud800") == Resolution("baseline", "UNKNOWN"), "a unit that cannot be hashed"
        five = {u for u in units if client.resolve("math", u).variant == "candidate"}
        assert 60 <= len(five) <= 140  # 100 +- 4 standard deviations
        set_weight(store, "math", 1000)
        eventually(lambda: client.refresh() and client.snapshot is not None and client.snapshot.flags["math"].weight == 1000)
        ten = {u for u in units if client.resolve("math", u).variant == "candidate"}
        assert five < ten


class Server:
    """A control plane that says what a test wants: (status, body, headers) of the next answers."""

    def __init__(self) -> None:
        self.status, self.body, self.headers = 200, b"", {"ETag": '"a"'}
        self.asked: list[str | None] = []
        self.url = ""

    def say(self, version: int, weight: int, *, killed: bool = False, age: int = 0) -> None:
        flags = {"math": Flag("math", weight, "s", killed)}
        self.status, self.body = 200, Snapshot(version, NOW, flags).to_json().encode()
        self.headers = {"ETag": f'"v{version}"', "Age": str(age)}


@contextmanager
def foreign() -> Iterator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.asked.append(self.headers["If-None-Match"])
            matches = server.status == 200 and self.headers["If-None-Match"] == server.headers["ETag"]
            body = b"" if matches else server.body
            self.send_response(304 if matches else server.status)
            for name, value in server.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return None

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_lower_version_never_replaces_a_newer_one() -> None:
    clock = Clock()
    with foreign() as server, FlagClient(server.url, clock=clock, start=False) as client:
        server.say(7, 0, killed=True)
        assert client.refresh()
        clock.now += 5
        server.say(6, 10_000)
        assert not client.refresh()
        assert client.resolve("math") == Resolution("baseline", "DISABLED")
        assert client.age_seconds == 5.0, "an older replica does not vouch for ours"
        server.say(8, 10_000)
        assert client.refresh()
        assert client.resolve("math").variant == "candidate"


@pytest.mark.parametrize(
    ("weight", "killed", "fresh", "stale"),
    [
        (0, False, ("baseline", "STATIC"), ("baseline", "STATIC")),
        (9_999, False, ("candidate", "SPLIT"), ("baseline", "UNKNOWN")),
        (10_000, False, ("candidate", "STATIC"), ("candidate", "STATIC")),
        (0, True, ("baseline", "DISABLED"), ("baseline", "DISABLED")),
        (9_999, True, ("baseline", "DISABLED"), ("baseline", "DISABLED")),
    ],
)
def test_a_stale_snapshot_gives_up_canaries_only(
    weight: int, killed: bool, fresh: tuple[str, str], stale: tuple[str, str]
) -> None:
    clock = Clock()
    with foreign() as server, FlagClient(server.url, max_stale=60, clock=clock, start=False) as client:
        server.say(1, weight, killed=killed)
        assert client.refresh()
        server.status = 503
        clock.now += 60
        assert not client.refresh()
        assert client.resolve("math", "user-1") == Resolution(*fresh)
        clock.now += 0.001
        assert client.resolve("math", "user-1") == Resolution(*stale)
        server.say(1, weight, killed=killed)
        assert client.refresh(), "an unchanged snapshot is vouched for by a 304"
        assert server.asked[-1] == '"v1"'
        assert client.resolve("math", "user-1") == Resolution(*fresh)


def test_the_servers_own_age_counts() -> None:
    clock = Clock()
    with foreign() as server, FlagClient(server.url, max_stale=60, clock=clock, start=False) as client:
        server.say(1, 9_999, age=61)
        assert client.refresh()
        assert client.resolve("math", "user-1").reason == "UNKNOWN"
        server.say(2, 9_999, age=0)
        assert client.refresh()
        assert client.resolve("math", "user-1").reason == "SPLIT"
        server.say(2, 9_999, age=61)
        assert client.refresh()
        assert client.resolve("math", "user-1").reason == "SPLIT", "an older witness does not undo a younger one"


def malformed(**changes: object) -> bytes:
    flag = {"weight": 10_000, "salt": "s", "killed": False, "kill_reason": "", "stage": "full", **changes}
    return json.dumps({"version": 2, "flags": {"math": flag}}).encode()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b""),
        (200, b"<html>log in</html>"),
        (200, b"null"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b"\xff\xfe"),
        (200, b'{"version": "3", "flags": {}}'),
        (200, malformed(weight="10000")),
        (200, malformed(weight=10_001)),
        (200, malformed(killed="no")),
        (200, malformed(salt=None)),
        (200, malformed(surprise=1)),
        (302, b""),
        (404, b"{}"),
        (500, b"{}"),
    ],
)
def test_nonsense_never_replaces_what_is_known(status: int, body: bytes) -> None:
    with foreign() as server, FlagClient(server.url, start=False) as client:
        server.say(1, 0)
        assert client.refresh()
        server.status, server.body, server.headers = status, body, {"ETag": '"x"'}
        assert not client.refresh()
        assert client.resolve("math", "user-1") == Resolution("baseline", "STATIC")


def test_a_control_plane_that_is_not_there_is_the_baseline() -> None:
    with FlagClient("http://127.0.0.1:9", poll_seconds=0.01) as client:
        assert not client.refresh()
        assert client.resolve("math", "user-1") == Resolution("baseline", "UNKNOWN")
        assert (client.snapshot, client.age_seconds) == (None, None)


def test_polling_goes_on_after_an_outage_and_ends_with_close() -> None:
    with foreign() as server:
        server.status = 500
        client = FlagClient(server.url, poll_seconds=0.01)
        eventually(lambda: len(server.asked) >= 2)
        server.say(1, 10_000)
        assert client.wait_ready(WAIT_SECONDS)
        client.close()
        asked = len(server.asked)
        assert client.resolve("math") == Resolution("candidate", "STATIC")
        assert [t.name for t in threading.enumerate() if t.name == "canary-flags"] == []
        assert len(server.asked) == asked


def test_the_client_needs_the_standard_library_and_the_domain_only() -> None:
    folder = Path(client_module.__file__).parent
    names: set[str] = set()
    for path in folder.glob("*.py"):
        if path.name != "openfeature.py":
            tree = ast.parse(path.read_text())
            names |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
            names |= {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    ours = ("canary.domain", "canary.client")
    assert {n for n in names if n.split(".")[0] not in sys.stdlib_module_names and not n.startswith(ours)} == set()


def test_importing_the_client_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'numpy', 'sqlalchemy', 'fastapi', 'pydantic', 'yaml', 'openfeature', 'canary.flow', 'canary.stats'}"
    code = f"import sys, canary.client; sys.exit(str(sorted({heavy} & set(sys.modules))) if {heavy} & set(sys.modules) else 0)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_snapshot_of_a_real_server_is_what_the_client_holds(store: Store) -> None:
    with serving(store) as url, FlagClient(url, start=False) as client:
        assert client.refresh()
        assert client.snapshot is not None
        assert client.snapshot.to_json().encode() == call(f"{url}/api/v1/flags/snapshot").body
