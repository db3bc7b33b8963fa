"""Writes with an Idempotency-Key run once: a repeat gets the first one's answer, another request under that key is refused.

Without the header nothing is kept. A kill is never kept either: it must not wait for the store, and two kills are one kill.
Resolving a flag is no write, so it asks no store.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from canary.api.actions import Entry
from canary.domain.access import Action, Caller
from canary.domain.errors import CanaryError, RequestError
from canary.flow.ports import KeptAnswer, Store
from canary.flow.tools import answers

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Callable[[], Awaitable[MutableMapping[str, Any]]], Send], Awaitable[None]]

SHAPE = re.compile(r"[\x21-\x7e]{1,200}")
UNKEPT = frozenset({Action.KILL, Action.FLAGS})  # a kill waits for no store, and to resolve a flag writes nothing
KEPT_HEADERS = ("content-type", "etag", "location", "retry-after")


class Repeats:
    """Runs writes, each Idempotency-Key of a caller once."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock

    async def run(self, app: App, scope: Scope, body: bytes, send: Send, entry: Entry, caller: Caller) -> None:
        """Answer one write.

        Raises:
            RequestError: the header's value is no key.
            ReusedKeyError: the key was sent with another request.
            ConflictError: the first request is still running.
        """
        key = None if entry.action in UNKEPT else _key(scope)
        if key is None:
            await app(scope, _replay(body), send)
            return
        owner = "" if caller.key is None else caller.key.key_id
        kept = await asyncio.to_thread(answers.begin, self._store, owner, key, _fingerprint(scope, body), self._clock())
        if kept is not None:
            await _repeat(kept, send)
            return
        await self._first(app, scope, body, send, owner, key)

    async def _first(self, app: App, scope: Scope, body: bytes, send: Send, owner: str, key: str) -> None:
        sent: list[MutableMapping[str, Any]] = []

        async def keep(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        try:
            await app(scope, _replay(body), keep)
        except BaseException:
            await asyncio.to_thread(answers.forget, self._store, owner, key)
            raise
        status = next(m["status"] for m in sent if m["type"] == "http.response.start")
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for m in sent
            for name, value in m.get("headers", ())
            if name.decode("latin-1") in KEPT_HEADERS
        }
        answer = b"".join(m.get("body", b"") for m in sent)
        # The answer is true even if it cannot be kept; an equal request runs again once this one counts as stalled.
        with contextlib.suppress(CanaryError):
            await asyncio.to_thread(answers.finish, self._store, owner, key, status, json.dumps(headers), answer)
        for message in sent:
            await send(message)


def _key(scope: Scope) -> str | None:
    found = [value for name, value in scope["headers"] if name == b"idempotency-key"]
    if not found:
        return None
    key: str = found[0].decode("latin-1")
    if len(found) > 1 or not SHAPE.fullmatch(key):
        raise RequestError("is not 1 to 200 printable characters", where="Idempotency-Key", remedy="Send a UUID.")
    return key


def _fingerprint(scope: Scope, body: bytes) -> str:
    """What makes two requests the same: method, path, query, what it expects, and the body."""
    expects = b"\n".join(value for name, value in scope["headers"] if name in (b"if-match", b"if-none-match"))
    head = f"{scope['method']} {scope['path']}?".encode() + scope.get("query_string", b"") + b"\n" + expects
    return hashlib.sha256(hashlib.sha256(head).digest() + body).hexdigest()


def _replay(body: bytes) -> Callable[[], Awaitable[MutableMapping[str, Any]]]:
    """The body once more, in one piece; then nothing until the client goes away."""
    waiting = [body]

    async def receive() -> MutableMapping[str, Any]:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return {"type": "http.disconnect"}

    return receive


async def _repeat(kept: KeptAnswer, send: Send) -> None:
    headers = {**json.loads(kept.headers), "idempotent-replayed": "true", "content-length": str(len(kept.body))}
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": kept.status, "headers": pairs})
    await send({"type": "http.response.body", "body": kept.body})
