"""The gate before every endpoint: who is asking, whether they may, and no more bytes than are fair, before any body is parsed.

It asks the table of actions and the keys in memory, never the store, and what it does not know it does not let in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from starlette.routing import compile_path

from canary.api import problems
from canary.api.actions import Entry
from canary.api.idempotency import Repeats
from canary.api.keyring import KeyRing, Mode
from canary.domain.access import ANYBODY, NOBODY, Caller, Key, refusal
from canary.domain.errors import CanaryError, NotFoundError, TooLargeError, UnreachableError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 1024 * 1024
WRITES = ("POST", "PUT", "PATCH", "DELETE")


class Gate:
    """ASGI middleware.

    Args:
        entries: `METHOD /path` -> what it needs.
        repeats: answers writes with an Idempotency-Key.
        max_body: bytes of a request's body.
    """

    def __init__(
        self,
        app: App,
        *,
        ring: KeyRing,
        entries: Mapping[str, Entry],
        repeats: Repeats,
        clock: Callable[[], float],
        max_body: int = MAX_BODY,
    ) -> None:
        self._app = app
        self._ring = ring
        self._repeats = repeats
        self._clock = clock
        self._max_body = max_body
        self._plain: dict[str, dict[str, Entry]] = {}
        self._patterns: dict[str, tuple[Any, dict[str, Entry]]] = {}
        for name, entry in entries.items():
            method, path = name.split(" ", 1)
            if "{" in path:
                self._patterns.setdefault(path, (compile_path(path)[0], {}))[1][method] = entry
            else:
                self._plain.setdefault(path, {})[method] = entry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._admit(scope, receive, send)
        except CanaryError as error:
            await problems.problem(error)(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        found = self._find(path) if path.isprintable() else None
        if found is None:
            raise NotFoundError("there is no such page", where=scope["path"][:200], remedy="See /api/v1/openapi.json.")
        methods, params = found
        entry = methods.get(scope["method"])
        if entry is None:
            await problems.wrong_method(scope["method"], methods)(scope, receive, send)
            return
        caller = self._caller(scope, entry, params)
        scope.setdefault("state", {})["caller"] = caller
        if scope["method"] not in WRITES:
            await self._app(scope, receive, send)
            return
        body = await self._body(scope, receive)
        await self._repeats.run(self._app, scope, body, send, entry, caller)

    def _find(self, path: str) -> tuple[Mapping[str, Entry], Mapping[str, str]] | None:
        if (methods := self._plain.get(path)) is not None:
            return methods, {}
        for pattern, of_path in self._patterns.values():
            if (match := pattern.match(path)) is not None:
                return of_path, match.groupdict()
        return None

    def _caller(self, scope: Scope, entry: Entry, params: Mapping[str, str]) -> Caller:
        if entry.action in ANYBODY:
            return NOBODY
        secret = _secret(scope["headers"])
        key = None if secret is None else self._ring.find(secret)
        if self._ring.mode is Mode.NONE and secret is None:
            return NOBODY
        if self._ring.mode is Mode.UNKNOWN and key is None:
            raise UnreachableError("it is not known yet which keys there are", remedy="Ask again when the database answers.")
        refused = refusal(key, entry.action, entry.reach, _route(params), self._clock())
        if refused is not None:
            raise refused
        return Caller(_known(key))

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body, never more than is allowed of it."""
        too_large = TooLargeError(f"the body is longer than {self._max_body} bytes", remedy="Send it in smaller parts.")
        declared = _header(scope["headers"], b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > self._max_body:
            raise too_large
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                break
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_body:
                raise too_large
            if not message.get("more_body", False):
                break
        return b"".join(parts)


def _known(key: Key | None) -> Key:
    if key is None:
        raise AssertionError("a request without a key was let in")
    return key


def _route(params: Mapping[str, str]) -> str | None:
    """The route that a path is about, by its name or by its flag's key (`specdec.ROUTE`)."""
    if "route" in params:
        return params["route"]
    return params["key"].partition(".")[2] if "key" in params else None


def _secret(headers: list[tuple[bytes, bytes]]) -> str | None:
    """The key that a request shows, as a bearer token or as X-API-Key."""
    bearer = _header(headers, b"authorization")
    if bearer is not None:
        kind, _, secret = bearer.decode("latin-1").partition(" ")
        return secret.strip() if kind.lower() == "bearer" else ""
    plain = _header(headers, b"x-api-key")
    return None if plain is None else plain.decode("latin-1").strip()


def _header(headers: list[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    return next((value for key, value in headers if key == name), None)
