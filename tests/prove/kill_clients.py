"""Light clients of the flag snapshot on one event loop: half of them by event stream, half by jittered poll."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit

from canary.domain.flag import Snapshot, joined, resolve

POLL_SECONDS = 1.0  # the client library's own
JITTER = 0.2
ANSWER_SECONDS = 10.0
SILENCE_SECONDS = 40.0  # the server speaks every 15 s
END_SECONDS = 30.0


@lru_cache(maxsize=64)
def _read(body: bytes) -> Snapshot:
    """Each body once: reading it is the work of 200 gateways, which are not one process elsewhere."""
    return Snapshot.from_json(body.decode(), 0.0)


@dataclass
class Client:
    """One gateway.

    Args:
        streams: by event stream, else by poll.
        off_at: route -> monotonic moment at which it first resolved to the baseline.
        back: routes that resolved to the candidate after that.
        lost: requests that nobody answered.
    """

    url: str
    streams: bool
    seed: int
    held: Snapshot | None = None
    etag: str = ""
    off_at: dict[str, float] = field(default_factory=dict)
    back: set[str] = field(default_factory=set)
    lost: int = 0

    def take(self, body: bytes) -> None:
        """Keep what is new and note every route that went off or came back."""
        now = time.monotonic()
        self.held = joined(self.held, _read(body))
        for route in self.held.flags:
            candidate = resolve(self.held, route, "unit").variant == "candidate"
            if not candidate:
                self.off_at.setdefault(route, now)
            elif route in self.off_at:
                self.back.add(route)

    async def run(self) -> None:
        """Live until cancelled."""
        dice = random.Random(self.seed)
        await asyncio.sleep(dice.random() * POLL_SECONDS)
        while True:
            with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
                await self._fetch()
                if self.streams:
                    await self._stream()
            await asyncio.sleep(POLL_SECONDS * dice.uniform(1 - JITTER, 1 + JITTER))

    async def _open(self, path: str, *headers: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.url)
        # Not `wait_for`, which may swallow the cancellation that ends a client.
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write("\r\n".join((f"GET {path} HTTP/1.1", f"Host: {parts.netloc}", *headers, "", "")).encode())
            await writer.drain()
        return reader, writer

    async def _fetch(self) -> None:
        try:
            said = (f"If-None-Match: {self.etag}",) if self.etag else ()
            reader, writer = await self._open("/api/v1/flags/snapshot", "Connection: close", *said)
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    answer = await reader.read()
            finally:
                writer.close()
            head, _, body = answer.partition(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            if status == 200:
                names = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
                self.etag = names[b"etag"].decode()
                self.take(body)
        except (OSError, TimeoutError, ValueError, IndexError):
            self.lost += 1

    async def _stream(self) -> None:
        reader, writer = await self._open("/ofrep/v1/events", "Accept: text/event-stream")
        try:
            while line := await self._line(reader):
                if line.startswith(b"data:"):
                    await self._fetch()
        finally:
            writer.close()

    async def _line(self, reader: asyncio.StreamReader) -> bytes:
        async with asyncio.timeout(SILENCE_SECONDS):
            return await reader.readline()


class Crowd:
    """Many clients on a thread of their own loop."""

    def __init__(self, urls: tuple[str, ...], count: int) -> None:
        self.clients = [Client(urls[n % len(urls)], n // len(urls) % 2 == 0, n) for n in range(count)]
        self._loop = asyncio.new_event_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._thread = threading.Thread(target=self._run, name="kill-clients", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._tasks = [self._loop.create_task(client.run()) for client in self.clients]
        self._loop.run_forever()
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.wait(self._tasks, timeout=END_SECONDS))
        self._loop.close()

    def stop(self) -> None:
        """End every client; one that does not end is an error, and nobody waits for it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2 * END_SECONDS)
        left = sum(not task.done() for task in self._tasks)
        assert not self._thread.is_alive(), "the clients' thread did not end"
        assert not left, f"{left} clients did not end"

    def all(self, condition: Callable[[Client], bool]) -> bool:
        return all(condition(client) for client in self.clients)
