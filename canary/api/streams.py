"""Server-sent events that say `something changed`, never what; whoever hears one fetches the flags again.

A stream ends with its client and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from canary.api.flags import FlagCache

EVENTS_PATH = "/ofrep/v1/events"
KEEP_ALIVE_SECONDS = 15.0
RETRY_AFTER_SECONDS = 5
LONGEST_SECONDS = 3_600.0

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class EventStreams:
    """The open streams over one snapshot.

    Args:
        most: streams that may be open at once; further ones are told to poll.
        keep_alive_seconds: time after which a quiet stream says that it is alive.
        longest_seconds: time after which a stream ends at the latest, at half of it at the earliest, each at its own moment: its
            client opens the next one, on whichever replica has room, so that a new replica is used and an old key is let go.
    """

    def __init__(
        self,
        flags: FlagCache,
        most: int,
        *,
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
        longest_seconds: float = LONGEST_SECONDS,
    ) -> None:
        self._flags = flags
        self._most = most
        self._keep_alive_seconds = keep_alive_seconds
        self._longest_seconds = longest_seconds
        self._open: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._closed = False
        flags.listen(self._turn)

    @property
    def count(self) -> int:
        """Streams that are open."""
        return len(self._open)

    def close(self) -> None:
        """Let every stream end, and open no more: a server that stops does not wait for its clients. From any thread."""
        self._closed = True
        self._turn()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET the stream; `flagConfigEtag` names what the client holds, so that it hears at once if that is old."""
        if self._closed or len(self._open) >= self._most:
            body = b'{"errorCode":"GENERAL","errorDetails":"no more event streams here; poll instead"}'
            headers = [(b"content-type", b"application/json"), (b"retry-after", str(RETRY_AFTER_SECONDS).encode())]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        turned = asyncio.Event()
        self._open[turned] = asyncio.get_running_loop()
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await self._speak(_held(scope), turned, gone, send)
        finally:
            gone.cancel()
            del self._open[turned]

    async def _speak(self, held: str, turned: asyncio.Event, gone: asyncio.Future[Any], send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _write(send, b": connected\n\n")
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._longest_seconds * random.uniform(0.5, 1.0)
        while not gone.done() and not self._closed and loop.time() < ends:
            turned.clear()  # before the look at the tag, so that no turn between the two is lost
            etag = self._etag
            if etag and etag != held:
                held = etag
                await _write(send, _event(etag))
            quiet = min(self._keep_alive_seconds, max(0.0, ends - loop.time()))
            waiting: asyncio.Future[Any] = asyncio.ensure_future(turned.wait())
            done, _ = await asyncio.wait({waiting, gone}, timeout=quiet, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if not done:
                await _write(send, b": alive\n\n")
        if not gone.done():
            await send({"type": "http.response.body", "body": b""})

    @property
    def _etag(self) -> str:
        published = self._flags.published
        return published.etag if published else ""

    def _turn(self) -> None:
        """Wake every stream; called on the thread that changed something."""
        for turned, loop in self._open.copy().items():
            with contextlib.suppress(RuntimeError):  # a loop that is closed has no clients left
                loop.call_soon_threadsafe(turned.set)


def _held(scope: Scope) -> str:
    query: bytes = scope.get("query_string", b"")
    asked = parse_qs(query.decode("latin-1"))
    return asked.get("flagConfigEtag", [""])[0]


def _event(etag: str) -> bytes:
    data = json.dumps({"type": "refetchEvaluation", "etag": etag}, separators=(",", ":"))
    return f"event: message\ndata: {data}\n\n".encode()


async def _write(send: Send, text: bytes) -> None:
    await send({"type": "http.response.body", "body": text, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
