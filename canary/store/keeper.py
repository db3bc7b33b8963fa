"""Keeps the embedded Postgres running for as long as its owner lives: a killed server is started again.

It never stops a server, and never touches one that answers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from canary.domain.errors import CanaryError
from canary.store.embedded import EmbeddedPostgres

PAUSE_SECONDS = 0.5


@contextmanager
def kept(server: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """Start the server, watch it, and stop it at the end if it was ours."""
    server.start()
    with watched(server):
        yield server


@contextmanager
def watched(server: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """As `kept`, for a server that somebody else starts now or later."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(PAUSE_SECONDS):
            if not server.answers():
                # Whoever needs the database meets the error itself; the next round tries again.
                with suppress(CanaryError):
                    server.start()

    thread = threading.Thread(target=watch, name="canary-postgres-keeper", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        ended.set()
        thread.join()
        server.stop()
