"""The control plane's event stream: a thread that hears of changes and says so; what changed is fetched by whoever listens.

It never carries a flag's value, so that a lost, doubled or forged event can cost one fetch and nothing else.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
import urllib.parse
from collections.abc import Callable, Mapping

from canary.client.fetch import retry_after

EVENTS_PATH = "/ofrep/v1/events"
SILENCE_SECONDS = 40.0  # the server speaks every 15 s
FIRST_BACKOFF_SECONDS = 0.5
LAST_BACKOFF_SECONDS = 30.0
MAX_LINE = 64 * 1024


class Stream:
    """Follows one control plane's events until it is closed; a broken stream is tried again for ever, with growing pauses.

    Args:
        base_url: `http://` or `https://`.
        headers: sent with every connection.
        etag: names what is held when a connection begins, so that the server can say at once whether that is old.
        changed: called on the stream's thread for every change.
        connected: called when a connection begins (True) and when it ends (False).
    """

    def __init__(
        self,
        base_url: str,
        headers: Callable[[], Mapping[str, str]],
        etag: Callable[[], str],
        changed: Callable[[], None],
        connected: Callable[[bool], None],
        *,
        timeout: float,
    ) -> None:
        self._parts = urllib.parse.urlsplit(base_url)
        self._headers = headers
        self._etag = etag
        self._changed = changed
        self._connected = connected
        self._timeout = timeout
        self._closed = threading.Event()
        self._had = False
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="canary-flag-stream", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop following; a read that is under way ends at once."""
        self._closed.set()
        held = self._socket
        if held is not None:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(self._timeout + 1)

    def _run(self) -> None:
        failures = 0
        while not self._closed.is_set():
            self._had, asked = False, 0.0
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                asked = self._follow()
            failures = 0 if self._had else failures + 1
            pause = min(FIRST_BACKOFF_SECONDS * 2 ** min(failures, 10), LAST_BACKOFF_SECONDS)
            self._closed.wait(max(asked, pause * random.uniform(0.5, 1.0)))

    def _follow(self) -> float:
        """Follow one connection to its end; returns for how many seconds the server asks to be left alone."""
        secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(self._parts.netloc, timeout=self._timeout)
        try:
            connection.connect()
            self._socket = connection.sock  # kept: an answer that ends with its connection takes it from there
            query = urllib.parse.urlencode({"flagConfigEtag": self._etag()})
            headers = {"Accept": "text/event-stream", "Cache-Control": "no-cache", **self._headers()}
            connection.request("GET", f"{self._parts.path}{EVENTS_PATH}?{query}", headers=headers)
            answer = connection.getresponse()
            if answer.status != 200:
                return retry_after(answer.headers)
            self._had = True
            self._socket.settimeout(SILENCE_SECONDS)
            self._connected(True)
            try:
                self._listen(answer)
            finally:
                self._connected(False)
            return 0.0
        finally:
            self._socket = None
            connection.close()

    def _listen(self, answer: http.client.HTTPResponse) -> None:
        data: list[str] = []
        while not self._closed.is_set():
            line = answer.readline(MAX_LINE)
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if text.startswith("data:"):
                data.append(text[5:].strip())
            elif not text and data:
                if asks_to_fetch("\n".join(data)):
                    self._changed()
                data = []


def asks_to_fetch(data: str) -> bool:
    """Whether one event's data says that flags changed; events of another kind are none of ours."""
    try:
        body = json.loads(data)
    except ValueError:
        return False
    return isinstance(body, dict) and body.get("type") == "refetchEvaluation"
