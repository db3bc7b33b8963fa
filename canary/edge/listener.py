"""The mirror listener: raw ASGI, so that a copied request costs little; 202 only after the commit.

It never stores Authorization or Cookie, never repeats a body in an answer, and holds a bounded number of bytes.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from canary.domain.errors import CanaryError, NotFoundError, RequestError, UnreachableError, UnsupportedRequestError
from canary.edge.writer import Writer
from canary.flow.ports import Observer, Store
from canary.flow.walk.mirror import MAX_BODY, Accepted, read_request, too_large

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PREFIX = "/mirror/v1/"
PATH = re.compile(r"/mirror/v1/(?P<route>[a-z0-9][a-z0-9._-]{0,99})/(?P<endpoint>chat/completions|completions)/?")
NAME = re.compile(r"[\x21-\x7e]{1,200}")
DEFAULT_SOURCE = "gateway"
MAX_PENDING_BYTES = 64 * 1024 * 1024
RETRY_AFTER_SECONDS = 1


class Disconnected(Exception):
    """The client went away before its body was complete."""


class MirrorListener:
    """ASGI application for `POST /mirror/v1/{route}/chat/completions` and `/completions`.

    Headers: `x-request-id` (the id that makes a repeat a no-op; generated if absent), `x-canary-source` (the gateway's name),
    `x-canary-opt-out` (any value but `0` or `false`: nothing is read or stored).

    Args:
        max_body: largest body in bytes.
        max_pending_bytes: bodies being read or waiting for their commit, in bytes; more are refused with 503.
    """

    def __init__(
        self,
        store: Store,
        observer: Observer,
        *,
        max_body: int = MAX_BODY,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        writer: Writer | None = None,
    ) -> None:
        self._writer = writer or Writer(store)
        self._observer = observer
        self._max_body = max_body
        self._max_pending = max(max_pending_bytes, max_body)
        self._pending = 0

    def start(self) -> None:
        self._writer.start()

    def close(self) -> None:
        """Commit and answer everything that was taken."""
        self._writer.close()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await asyncio.to_thread(self.close)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            status, body = await self._take(scope, receive)
        except Disconnected:
            self._observer.note("mirror_disconnected")
            return
        except CanaryError as error:
            self._observer.note("mirror_refused", code=error.code, where=error.where)
            await _send_problem(send, error.problem(), error.status)
        except Exception as error:
            # The text of an unknown error may hold a row, and a row holds a prompt.
            self._observer.note("mirror_failed", error=type(error).__name__)
            await _send_problem(
                send, CanaryError("the request could not be stored", remedy="See the service's log.").problem(), 500
            )
        else:
            await _send(send, status, "application/json", body)

    async def _take(self, scope: Message, receive: Receive) -> tuple[int, dict[str, object]]:
        found = PATH.fullmatch(scope["path"])
        if found is None:
            raise NotFoundError(
                "there is no such mirror", where=str(scope["path"])[:200], remedy=f"POST to {PREFIX}ROUTE/chat/completions."
            )
        if scope["method"] != "POST":
            raise MethodError("a mirror takes only POST", remedy="POST the copied request.")
        headers = _headers(scope)
        request_id = _name(headers, "x-request-id", uuid.uuid4().hex)
        if headers.get("x-canary-opt-out", "0").strip().lower() not in ("", "0", "false"):
            return 202, {"id": request_id, "state": "opted_out"}
        source = _name(headers, "x-canary-source", DEFAULT_SOURCE)
        _check_encoding(headers)
        taken = _Taken(self)
        try:
            body = await taken.read(headers, receive)
            prompt = read_request(
                body,
                route=found["route"],
                endpoint=found["endpoint"],
                source=source,
                request_id=request_id,
                max_body=self._max_body,
            )
            state = await asyncio.wrap_future(self._writer.submit(prompt))
        finally:
            taken.release()
        if state is Accepted.UNKNOWN_ROUTE:
            raise NotFoundError(
                "there is no rollout for this route", where=found["route"], remedy="Apply a policy: canary policy apply FILE."
            )
        return 202, {"id": request_id, "state": state.value}

    def reserve(self, count: int) -> None:
        """Count bytes that are held for one request.

        Raises:
            UnreachableError: too many bytes are held.
        """
        if self._pending + count > self._max_pending:
            raise UnreachableError(
                "the mirror holds too many bytes", remedy="Mirror a smaller share, or send the request again later."
            )
        self._pending += count

    def release(self, count: int) -> None:
        self._pending -= count

    @property
    def max_body(self) -> int:
        return self._max_body


class MethodError(RequestError):
    """The method is not allowed here."""

    code, status = "method_not_allowed", 405


class _Taken:
    """One request's body while it is held."""

    def __init__(self, listener: MirrorListener) -> None:
        self._listener = listener
        self._held = 0

    async def read(self, headers: dict[str, str], receive: Receive) -> bytes:
        """The whole body; refused as soon as its announced or its received length is over the limit."""
        announced = headers.get("content-length", "")
        if announced.isdigit() and int(announced) > self._listener.max_body:
            raise too_large(self._listener.max_body)
        chunks: list[bytes] = []
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            chunk = message.get("body", b"")
            self._listener.reserve(len(chunk))
            self._held += len(chunk)
            if self._held > self._listener.max_body:
                raise too_large(self._listener.max_body)
            chunks.append(chunk)
            more = message.get("more_body", False)
        return b"".join(chunks)

    def release(self) -> None:
        self._listener.release(self._held)
        self._held = 0


def _headers(scope: Message) -> dict[str, str]:
    """Header names in lower case; the first of several wins."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return found


def _name(headers: dict[str, str], header: str, default: str) -> str:
    value = headers.get(header, "").strip() or default
    if not NAME.fullmatch(value):
        raise RequestError(
            f"`{header}` is not 1 to 200 printable ASCII characters",
            where=f"header {header}",
            remedy="Send a plain id, or leave it out.",
        )
    return value


def _check_encoding(headers: dict[str, str]) -> None:
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedRequestError("the body is compressed", where="header content-encoding", remedy="Send the body as it is.")
    charset = re.search(r"charset\s*=\s*\"?([^\s;\"]+)", headers.get("content-type", ""), re.IGNORECASE)
    if charset and charset[1].lower() not in ("utf-8", "utf8"):
        raise UnsupportedRequestError("the charset is not UTF-8", where="header content-type", remedy="Send JSON as UTF-8.")


async def _send_problem(send: Send, problem: dict[str, object], status: int) -> None:
    extra: list[tuple[bytes, bytes]] = []
    if status == 503:
        extra.append((b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
    if status == 405:
        extra.append((b"allow", b"POST"))
    await _send(send, status, "application/problem+json", problem, extra)


async def _send(
    send: Send, status: int, content_type: str, body: dict[str, object], extra: list[tuple[bytes, bytes]] | None = None
) -> None:
    payload = json.dumps(body).encode()
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(payload)).encode()), *(extra or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": payload})
