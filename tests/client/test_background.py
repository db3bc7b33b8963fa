"""The client's threads against real servers: pushes arrive, polling takes over, restarts are survived, shedding is obeyed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from canary.client import Event, EventKind, FlagClient
from canary.client.flags import JITTER, MAX_BACKOFF_SECONDS
from canary.client.stream import asks_to_fetch
from canary.domain.flag import Flag, Resolution, Snapshot
from canary.flow.ports import Store
from canary.inmemory import InMemoryStore
from tests.api.served import NOW, add_route, post_json, serving, set_weight
from tests.client.test_client import eventually

FOREVER = 3_600.0


@pytest.fixture
def store() -> Store:
    made = InMemoryStore()
    add_route(made, "math")
    set_weight(made, "math", 10_000)
    return made


def test_a_kill_is_pushed_to_a_client_that_never_polls(store: Store) -> None:
    heard: list[Event] = []
    with serving(store) as url, FlagClient(url, poll_seconds=FOREVER, max_stale=4 * FOREVER) as client:
        client.listen(heard.append)
        eventually(lambda: client.streaming and client.resolve("math").variant == "candidate")
        assert post_json(f"{url}/api/v1/routes/math/kill", {"reason": "no", "actor": "ada"}).status == 200
        eventually(lambda: client.resolve("math") == Resolution("baseline", "DISABLED"))
        eventually(lambda: Event(EventKind.CHANGED, ("math",)) in heard)
    assert [t.name for t in threading.enumerate() if t.name.startswith("canary-flag")] == []


class Plane:
    """A control plane without an event stream: what it answers next, and when it was asked for what."""

    def __init__(self) -> None:
        self.status, self.extra = 200, {"ETag": '"1"'}
        self.flag = Flag("math", 10_000, "s", stage="full")
        self.version = 1
        self.asked: list[str] = []
        self.said: list[str | None] = []
        self.url = ""


@contextmanager
def plane() -> Iterator[Plane]:
    made = Plane()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append(self.path)
            made.said.append(self.headers["Canary-Holds"])
            streaming = self.path.startswith("/ofrep/")
            same = self.headers["If-None-Match"] == made.extra.get("ETag")
            status = 404 if streaming else 304 if made.status == 200 and same else made.status
            body = Snapshot(made.version, NOW, {"math": made.flag}).to_json().encode() if status == 200 else b""
            self.send_response(status)
            for name, value in {**made.extra, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return None

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def test_without_a_stream_polling_finds_the_kill_and_acknowledges_it() -> None:
    with plane() as server, FlagClient(server.url, poll_seconds=0.02) as client:
        eventually(lambda: client.resolve("math").variant == "candidate")
        assert not client.streaming
        server.flag, server.version = server.flag.switched(True, reason="manual: no"), 2
        server.extra = {"ETag": '"2"'}
        eventually(lambda: client.resolve("math").reason == "DISABLED")
        eventually(lambda: "2.1" in server.said)
        assert any(path.startswith("/ofrep/v1/events") for path in server.asked)


def test_a_restarted_control_plane_is_found_again(store: Store) -> None:
    with plane() as server:
        client = FlagClient(server.url, poll_seconds=0.02, stream=False)
        eventually(lambda: client.snapshot is not None)
        server.status = 503
        asked = len(server.asked)
        eventually(lambda: len(server.asked) > asked + 1)
        assert client.resolve("math").variant == "candidate", "a 503 is no news about a flag (A3.20)"
        server.status, server.version, server.extra = 200, 2, {"ETag": '"2"'}
        server.flag = Flag("math", 0, "s")
        eventually(lambda: client.resolve("math").reason == "STATIC" and client.resolve("math").variant == "baseline")
        client.close()


def test_clients_back_off_with_jitter_and_obey_retry_after_a3_28_a5_18() -> None:
    with plane() as server, FlagClient(server.url, poll_seconds=1.0, start=False) as client:
        assert client.refresh()
        steady = [client._pause(0) for _ in range(200)]
        assert 0.8 <= min(steady) < max(steady) <= 1.2
        assert len({round(p, 9) for p in steady}) > 100, "no two clients in step"
        for failures, least in ((1, 2.0), (3, 8.0), (12, MAX_BACKOFF_SECONDS), (10_000, MAX_BACKOFF_SECONDS)):
            pauses = [client._pause(failures) for _ in range(50)]
            assert least * (1 - JITTER) <= min(pauses) <= max(pauses) <= least * (1 + JITTER)
        server.status, server.extra = 429, {"Retry-After": "17"}
        assert not client.refresh()
        assert all(17.0 <= client._pause(1) <= 17.0 * (1 + JITTER) for _ in range(50))
        server.extra = {"Retry-After": "Mon, 30 Nov 2026 18:00:00 GMT"}
        assert not client.refresh()
        assert client._pause(1) < 3.0
        server.extra = {"Retry-After": "999999999"}
        assert not client.refresh()
        assert client._pause(1) <= 300 * (1 + JITTER), "a client is never lost for good"


def test_a_cold_start_without_network_is_the_baseline_a5_18() -> None:
    with FlagClient("http://127.0.0.1:9", poll_seconds=FOREVER) as client:
        assert not client.wait_ready(0.0)
        assert client.resolve("math", "u") == Resolution("baseline", "UNKNOWN")
        found = client.evaluate("specdec.math", "u")
        assert (found.value, found.variant, found.reason, found.error, found.metadata) == (
            False,
            "baseline",
            "UNKNOWN",
            "",
            {"stale": True},
        )
        assert client.stale


@pytest.mark.parametrize("broken", ["flag", "clock", "unit", "request", "route"])
def test_no_fault_reaches_the_request_a5_16(broken: str) -> None:
    """A5.16: whatever is wrong inside, the answer is the baseline."""

    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError("no")

        def __bool__(self) -> bool:
            raise RuntimeError("no")

    with plane() as server:
        clock = time.monotonic
        client = FlagClient(server.url, start=False, clock=lambda: clock())
        server.flag = Flag("math", 5_000, "s")
        assert client.refresh()
        route: object = "math"
        unit: object = "u"
        request: object = None
        if broken == "flag":
            assert client.snapshot is not None
            object.__setattr__(client.snapshot.flags["math"], "weight", None)
        elif broken == "clock":
            clock = lambda: 1 / 0  # type: ignore[assignment, return-value]  # noqa: E731
        elif broken == "unit":
            unit = Hostile()
        elif broken == "request":
            assert client.snapshot is not None
            object.__setattr__(client.snapshot.flags["math"], "match", None)
        else:
            route = ["math"]
        assert client.resolve(route, unit, request).variant == "baseline"  # type: ignore[arg-type]
        assert client.resolve(route, unit, request).reason == "UNKNOWN"  # type: ignore[arg-type]
        if broken != "route":
            found = client.evaluate("specdec.math", unit)  # type: ignore[arg-type]
            assert (found.value, found.variant, found.reason) == (False, "baseline", "UNKNOWN")
        clock = time.monotonic
        client.close()


@pytest.mark.parametrize(
    ("data", "asks"),
    [
        ('{"type":"refetchEvaluation","etag":"x"}', True),
        ('{"type":"refetchEvaluation"}', True),
        ('{"type":"other"}', False),
        ("[]", False),
        ("null", False),
        ("nonsense", False),
        ("", False),
    ],
)
def test_only_a_refetch_event_asks_for_a_fetch(data: str, asks: bool) -> None:
    assert asks_to_fetch(data) is asks
