"""The OpenFeature Remote Evaluation Protocol, 0.3.0 (interfaces A4.1): one flag, all flags, and where changes are announced.

Plain ASGI over the snapshot in memory: nothing here waits for the store, and whatever goes wrong is the baseline, never a 500.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.routing import Route

from canary.api.deps import Api
from canary.api.flags import FlagCache
from canary.api.limits import Buckets, Limits
from canary.api.ofrep_document import EVALUATE_PATH
from canary.api.streams import EVENTS_PATH, LONGEST_SECONDS, EventStreams
from canary.domain.evaluation import BOOLEAN, CONFIG, FLAG_NOT_FOUND, Evaluation, baseline, evaluate
from canary.flow.ports import Observer
from canary.wiring import settings

INACTIVITY_SECONDS = 120

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Fields = dict[str, Any]


def router(api: Api) -> APIRouter:
    """Evaluation and event stream, with the limits of this process's settings."""
    chosen = settings()
    limits = Limits(chosen.ofrep_rate, chosen.ofrep_burst, max_streams=chosen.max_streams)
    streams = EventStreams(api.flags, limits.max_streams, longest_seconds=LONGEST_SECONDS)
    api.closing.append(streams.close)
    return routes_of(Ofrep(api.flags, api.observer, limits), streams)


def routes_of(ofrep: Ofrep, streams: EventStreams) -> APIRouter:
    """The protocol's paths."""
    made = APIRouter()
    made.routes += [
        Route(EVALUATE_PATH + "/{key}", _Endpoint(ofrep.one), methods=["POST"], name="ofrep_one"),
        Route(EVALUATE_PATH, _Endpoint(ofrep.all), methods=["POST"], name="ofrep_all"),
        Route(EVALUATE_PATH + "/{key}/", _Endpoint(ofrep.one), methods=["POST"], name="ofrep_one_slash"),
        Route(EVALUATE_PATH + "/", _Endpoint(ofrep.all), methods=["POST"], name="ofrep_all_slash"),
        Route(EVENTS_PATH, _Endpoint(streams.serve), methods=["GET"], name="ofrep_events"),
    ]
    return made


class _Endpoint:
    """An ASGI application, which the router calls as it is; a plain method would be taken for an endpoint of requests."""

    def __init__(self, handle: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handle(scope, receive, send)


class _Refused(Exception):
    """The request cannot be answered as it is.

    Args:
        code: OpenFeature's error code.
    """

    def __init__(self, status: int, code: str, details: str, retry_after: int = 0) -> None:
        super().__init__(details)
        self.status, self.code, self.details, self.retry_after = status, code, details, retry_after


class Ofrep:
    """Evaluates over one process's snapshot.

    Args:
        clock: seconds that never step back, for the limits.
    """

    def __init__(
        self, flags: FlagCache, observer: Observer, limits: Limits, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._flags = flags
        self._observer = observer
        self._max_body = limits.max_body
        self._buckets = Buckets(limits.rate, limits.burst, clock)

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST .../flags/{key}."""
        key = scope["path_params"]["key"]
        try:
            unit, context = _context(await self._body(scope, receive))
            found = self._evaluate(key, unit, context)
        except _Refused as error:
            await _refuse(send, error, {"key": key})
            return
        if found.error:
            await _answer(send, 404 if found.error == FLAG_NOT_FOUND else 400, _fields(found))
        else:
            await _answer(send, 200, _fields(found))

    async def all(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST .../flags: every flag that the caller may see; 304 if the caller holds exactly this answer already."""
        try:
            unit, context = _context(await self._body(scope, receive))
        except _Refused as error:
            await _refuse(send, error, {})
            return
        published = self._flags.published
        flags = () if published is None else published.snapshot.flags.values()
        caller = scope["state"]["caller"]
        keys = [key for f in flags if caller.sees(f.route) for key in (f.key, f.config_key)]
        metadata = {} if published is None else _of_snapshot(published.snapshot.version, published.snapshot.kill_epoch)
        body = {
            "flags": [_fields(self._evaluate(key, unit, context)) for key in keys],
            "metadata": metadata,
            "eventStreams": [
                {"type": "sse", "endpoint": {"requestUri": EVENTS_PATH}, "inactivityDelaySec": INACTIVITY_SECONDS},
            ],
        }
        raw = msgspec.json.encode(body)
        # Over the answer and the context: an equal tag means an equal answer to an equal question.
        digest = hashlib.sha256(raw + b"\x00" + msgspec.json.encode(context, order="deterministic")).hexdigest()[:32]
        etag = f'"{digest}"'.encode()
        headers = [(b"etag", etag), (b"cache-control", b"no-cache")]
        if _holds(scope, etag):
            await _send(send, 304, b"", headers)
        else:
            await _send(send, 200, raw, headers)

    def _evaluate(self, key: str, unit: str | None, context: Fields) -> Evaluation:
        try:
            published, age = self._flags.published, self._flags.age_seconds
            if published is None or age is None:
                known = key.startswith((BOOLEAN, CONFIG))
                return baseline(key, metadata={"stale": True}) if known else evaluate(None, key, unit)
            return evaluate(published.snapshot, key, unit, context, age=age)
        except Exception as error:
            self._observer.note("flag_not_evaluated", key=key[:200], error=type(error).__name__)
            return baseline(key, metadata={"failed": True})

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        client = scope.get("client")
        wait = self._buckets.wait(client[0] if client else "")
        if wait:
            raise _Refused(429, "GENERAL", f"too many evaluations; come back in {wait} s", wait)
        message = await receive()
        body: bytes = message.get("body", b"")
        while message.get("more_body", False) and len(body) <= self._max_body:
            message = await receive()
            body += message.get("body", b"")
        if len(body) > self._max_body:
            raise _Refused(413, "GENERAL", f"the body is longer than {self._max_body} bytes")
        return body


def _context(body: bytes) -> tuple[str | None, Fields]:
    """The unit and the whole context of a request; an empty body has neither.

    Raises:
        _Refused: the body is not what the protocol says.
    """
    if not body.strip():
        return None, {}
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _Refused(400, "PARSE_ERROR", f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise _Refused(400, "PARSE_ERROR", "the body is not a JSON object")
    context = found.get("context", {})
    if not isinstance(context, dict):
        raise _Refused(400, "INVALID_CONTEXT", "`context` is not an object")
    unit = context.get("targetingKey")
    if unit is not None and not isinstance(unit, str):
        raise _Refused(400, "INVALID_CONTEXT", "`targetingKey` is not a string")
    return unit, context


def _fields(found: Evaluation) -> Fields:
    if found.error:
        return {"key": found.key, "errorCode": found.error, "errorDetails": found.details}
    return {
        "key": found.key,
        "value": found.value,
        "reason": found.reason,
        "variant": found.variant,
        "metadata": found.metadata,
    }


def _of_snapshot(version: int, kill_epoch: int) -> Mapping[str, int]:
    return {"version": version, "kill_epoch": kill_epoch}


def _holds(scope: Scope, etag: bytes) -> bool:
    """If-None-Match by weak comparison (RFC 9110, 13.1.2); `*` asks about nothing that was ever answered."""
    for name, value in scope["headers"]:
        if name == b"if-none-match":
            return any(part.strip().removeprefix(b"W/") == etag for part in value.split(b","))
    return False


async def _refuse(send: Send, error: _Refused, fields: Fields) -> None:
    extra = [(b"retry-after", str(error.retry_after).encode())] if error.retry_after else []
    await _answer(send, error.status, {**fields, "errorCode": error.code, "errorDetails": error.details}, extra)


async def _answer(send: Send, status: int, body: Fields, extra: list[tuple[bytes, bytes]] | None = None) -> None:
    await _send(send, status, msgspec.json.encode(body), extra or [])


async def _send(send: Send, status: int, raw: bytes, extra: list[tuple[bytes, bytes]]) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode()), *extra]
    if status == 304:
        headers = extra
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": raw})
