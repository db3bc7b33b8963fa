"""The mirror listener under pressure, driven without a server: it sheds, gives bytes back, and loses nothing it took."""

from __future__ import annotations

import asyncio
import threading

import pytest

from canary.domain.errors import UnreachableError
from canary.edge.listener import MirrorListener
from canary.edge.writer import Writer
from canary.flow.ports import Store
from canary.inmemory import InMemoryStore
from tests.api.served import Notes, add_route
from tests.edge.bad_bodies import SECRET, chat


def count(store: Store) -> int:
    with store.transaction() as tx:
        return tx.prompts.count("math")


class Stuck:
    """A store whose transactions wait, then work or fail."""

    def __init__(self, inner: Store, error: Exception | None = None) -> None:
        self._inner = inner
        self._error = error
        self.entered = threading.Event()
        self.go = threading.Event()

    def transaction(self):  # type: ignore[no-untyped-def]
        self.entered.set()
        self.go.wait(30)
        if self._error is not None:
            raise self._error
        return self._inner.transaction()


class Ask:
    """Drives the ASGI application without a server, one request a call."""

    def __init__(self, app: MirrorListener) -> None:
        self._app = app

    async def post(self, body: bytes, *, disconnect: bool = False) -> list[dict[str, object]]:
        sent: list[dict[str, object]] = []
        parts = [{"type": "http.request", "body": body, "more_body": disconnect}, {"type": "http.disconnect"}]
        scope = {"type": "http", "method": "POST", "path": "/mirror/v1/math/chat/completions", "headers": []}

        async def receive() -> dict[str, object]:
            return parts.pop(0)

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        await self._app(scope, receive, send)  # type: ignore[arg-type]
        return sent


@pytest.fixture
def store() -> Store:
    made = InMemoryStore()
    add_route(made, "math")
    return made


def test_a_full_queue_sheds_with_retry_after_and_shutdown_loses_nothing(store: Store) -> None:
    """A3.25: production never waits for the mirror, and what is shed is said."""
    stuck = Stuck(store)
    app = MirrorListener(stuck, Notes(), writer=Writer(stuck, capacity=2, batch_size=1))
    ask = Ask(app)

    async def run() -> tuple[list[int], list[dict[str, object]]]:
        app.start()
        first = asyncio.create_task(ask.post(chat()))
        await asyncio.to_thread(stuck.entered.wait, 30)
        waiting = [asyncio.create_task(ask.post(chat())) for _ in range(2)]
        await asyncio.sleep(0)
        shed = await ask.post(chat())
        closing = asyncio.create_task(asyncio.to_thread(app.close))
        await asyncio.sleep(0)
        stuck.go.set()
        answers = await asyncio.gather(first, *waiting)
        await closing
        return [a[0]["status"] for a in answers], shed  # type: ignore[misc]

    accepted, shed = asyncio.run(run())
    assert accepted == [202, 202, 202]
    assert count(store) == 3
    assert shed[0]["status"] == 503
    assert (b"retry-after", b"1") in shed[0]["headers"]  # type: ignore[operator]


def test_held_bytes_are_bounded_and_given_back(store: Store) -> None:
    """A3.25: bounded memory."""
    stuck = Stuck(store)
    body = chat()
    app = MirrorListener(stuck, Notes(), max_body=len(body), max_pending_bytes=len(body) + 1, writer=Writer(stuck))
    ask = Ask(app)

    async def run() -> list[object]:
        app.start()
        first = asyncio.create_task(ask.post(body))
        await asyncio.to_thread(stuck.entered.wait, 30)
        second = await ask.post(body)
        stuck.go.set()
        await first
        third = await ask.post(body)
        await asyncio.to_thread(app.close)
        return [m[0]["status"] for m in (first.result(), second, third)]

    assert asyncio.run(run()) == [202, 503, 202]


def test_an_unreachable_store_sheds_and_says_nothing_of_the_prompt(store: Store) -> None:
    notes = Notes()
    for error, status in ((UnreachableError("the database does not answer"), 503), (RuntimeError(SECRET), 500)):
        stuck = Stuck(store, error)
        stuck.go.set()
        app = MirrorListener(stuck, notes, writer=Writer(stuck))
        app.start()
        start, body = asyncio.run(Ask(app).post(chat()))
        app.close()
        assert start["status"] == status
        assert SECRET.encode() not in body["body"]  # type: ignore[operator]
    assert SECRET not in repr(notes.seen)


def test_a_client_that_goes_away_stores_nothing(store: Store) -> None:
    notes = Notes()
    app = MirrorListener(store, notes)
    app.start()
    assert asyncio.run(Ask(app).post(chat()[:10], disconnect=True)) == []
    app.close()
    assert count(store) == 0
    assert notes.seen == [("mirror_disconnected", {})]


def test_a_stopped_mirror_takes_nothing(store: Store) -> None:
    app = MirrorListener(store, Notes())
    app.start()
    app.close()
    start, _ = asyncio.run(Ask(app).post(chat()))
    assert start["status"] == 503
    assert count(store) == 0
