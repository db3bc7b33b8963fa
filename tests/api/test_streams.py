"""Event streams on a real server: every change is announced, never its content; at most so many; nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from canary.api.flags import FlagCache
from canary.api.streams import EVENTS_PATH, EventStreams
from canary.flow.ports import Store
from canary.inmemory import InMemoryStore
from tests.api.served import NOW, Notes, add_route, call, post_json, serving, set_weight

LIMIT_SECONDS = 60.0


@pytest.fixture
def store() -> Store:
    made = InMemoryStore()
    add_route(made, "math")
    set_weight(made, "math", 10_000)
    return made


@contextlib.contextmanager
def listening(url: str, etag: str = "") -> Iterator[http.client.HTTPResponse]:
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=LIMIT_SECONDS)
    try:
        connection.request("GET", f"{EVENTS_PATH}?{urllib.parse.urlencode({'flagConfigEtag': etag})}")
        yield connection.getresponse()
    finally:
        connection.close()


def next_event(answer: http.client.HTTPResponse) -> dict[str, Any]:
    while True:
        line = answer.readline().decode().strip()
        if line.startswith("data:"):
            found = json.loads(line[5:])
            assert isinstance(found, dict)
            return found


def test_a_kill_is_announced_with_the_new_tag_and_without_its_content(store: Store) -> None:
    with serving(store) as url:
        held = call(f"{url}/api/v1/flags/snapshot").headers["etag"]
        with listening(url, held) as answer:
            assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
            assert answer.readline() == b": connected\n"
            assert post_json(f"{url}/api/v1/routes/math/kill", {"reason": "secret words", "actor": "ada"}).status == 200
            event = next_event(answer)
            assert set(event) == {"type", "etag"}
            assert event["type"] == "refetchEvaluation"
            assert event["etag"] != held


def test_a_client_that_holds_an_old_snapshot_hears_of_it_at_once(store: Store) -> None:
    with serving(store) as url:
        current = call(f"{url}/api/v1/flags/snapshot").headers["etag"]
        for held in ("", '"something older"'):
            with listening(url, held) as answer:
                assert next_event(answer)["etag"] == current


class Client:
    """One stream straight into the application."""

    def __init__(self, streams: EventStreams, query: str = "") -> None:
        self.sent: list[dict[str, Any]] = []
        self._gone = asyncio.Event()
        self.task = asyncio.ensure_future(streams.serve({"query_string": query.encode()}, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def texts(self) -> list[bytes]:
        return [m["body"] for m in self.sent if m["type"] == "http.response.body"]

    async def says(self, what: bytes, times: int = 1) -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            while sum(what in text for text in self.texts) < times:
                await asyncio.sleep(0.001)

    async def leave(self) -> None:
        self._gone.set()
        async with asyncio.timeout(LIMIT_SECONDS):
            await self.task


@pytest.fixture
def cache(store: Store) -> FlagCache:
    made = FlagCache(store, Notes(), clock=lambda: NOW)
    made.refresh()
    return made


def test_streams_are_counted_refused_and_cleaned_up(cache: FlagCache) -> None:
    async def scenario() -> None:
        streams = EventStreams(cache, most=2)
        one, two = Client(streams), Client(streams)
        for client in (one, two):
            await client.says(b"refetchEvaluation")
        assert streams.count == 2
        third = Client(streams)
        await third.task
        assert third.sent[0]["status"] == 503
        assert int(dict(third.sent[0]["headers"])[b"retry-after"]) > 0
        await one.leave()
        assert streams.count == 1
        fourth = Client(streams)
        await fourth.says(b"connected")
        for client in (two, fourth):
            await client.leave()
        assert streams.count == 0
        assert len(asyncio.all_tasks()) == 1, "only this one"

    asyncio.run(scenario())


def test_every_change_is_said_once_and_silence_is_kept_alive(store: Store, cache: FlagCache) -> None:
    async def scenario() -> None:
        streams = EventStreams(cache, most=2, keep_alive_seconds=0.01)
        client = Client(streams)
        await client.says(b"refetchEvaluation")
        for times, weight in ((2, 500), (3, 1000)):
            set_weight(store, "math", weight)
            await asyncio.to_thread(cache.refresh)
            await client.says(b"refetchEvaluation", times)
        await asyncio.to_thread(cache.refresh)
        await client.says(b": alive", 3)
        assert sum(b"refetchEvaluation" in text for text in client.texts) == 3, "an unchanged snapshot says nothing"
        await client.leave()

    asyncio.run(scenario())


def test_a_server_that_stops_ends_its_streams(cache: FlagCache) -> None:
    async def scenario() -> None:
        streams = EventStreams(cache, most=2)
        client = Client(streams)
        await client.says(b"connected")
        await asyncio.to_thread(streams.close)
        async with asyncio.timeout(LIMIT_SECONDS):
            await client.task
        assert client.sent[-1] == {"type": "http.response.body", "body": b""}
        late = Client(streams)
        await late.task
        assert late.sent[0]["status"] == 503

    asyncio.run(scenario())


def test_a_stream_ends_after_a_while_so_that_its_client_opens_the_next_one(store: Store) -> None:
    """An old key's stream does not go on for ever, and a new replica is found."""
    cache = FlagCache(store, Notes(), clock=lambda: NOW)
    streams = EventStreams(cache, 5, longest_seconds=0.02)
    sent: list[dict[str, Any]] = []

    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("nobody comes")

    async def keep(message: Any) -> None:
        sent.append(message)

    asyncio.run(asyncio.wait_for(streams.serve({"query_string": b""}, never, keep), LIMIT_SECONDS))
    assert sent[0]["status"] == 200
    assert sent[-1] == {"type": "http.response.body", "body": b""}
    assert streams.count == 0
