"""One process leads: terms with a lease and a fencing token, so that a leader that slept past its lease changes nothing any more.

The lock is a hint that speeds up a hand-over; every write rests on the token, which is read in the write's own transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from canary.domain.errors import CanaryError, ConflictError
from canary.flow.ports import Observer, Store, Transaction

NAME = "scheduler"
LEASE_SECONDS = 10.0
PARTS = 5  # of a lease, after each of which it is renewed or asked for


class Lock(Protocol):
    """Tells at once that a leader's process has ended."""

    def try_take(self) -> bool:
        """Take it if nobody holds it; again by its holder is fine."""

    def held(self) -> bool:
        """Whether we hold it still."""

    def oust(self) -> None:
        """Take it from a holder that does not answer."""

    def free(self) -> None:
        """Let it go."""


class Leadership:
    """This process's claim to lead.

    Args:
        lock: this process's own.
        holder: who it is, for people.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        lock: Lock,
        holder: str,
        observer: Observer,
        clock: Callable[[], float],
        *,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._store, self._lock, self._holder, self._observer, self._clock = store, lock, holder, observer, clock
        self._lease = lease_seconds
        self._token: int | None = None
        self._away = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="canary-leader", daemon=True)

    @property
    def leads(self) -> bool:
        """Whether this process led when it last looked; only `fence` is proof."""
        return self._token is not None

    def fence(self, tx: Transaction) -> None:
        """Refuse the transaction unless this process leads; another cannot begin to lead before it ends.

        Raises:
            ConflictError: somebody else leads.
        """
        token = self._token
        if token is None or not tx.leaders.leads(NAME, token):
            self._token = None
            raise ConflictError("this process leads no longer", where=self._holder, remedy="The present leader does it.")

    def look(self) -> bool:
        """Renew the term, or begin one where nobody leads; whether this process leads.

        Raises:
            UnreachableError: the database does not answer.
        """
        token = self._token
        if token is not None and self._lock.held() and self._renewed(token):
            return True
        self._token = None
        if not self._lock.try_take() and not (self._lapsed() and self._ousted()):
            return False
        with self._store.transaction() as tx:
            token = tx.leaders.take(NAME, self._holder, self._clock() + self._lease)
            tx.commit()
        self._token = token
        self._observer.note("leading", holder=self._holder, token=token)
        return True

    def start(self) -> None:
        """Look now and then, on a thread, until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Let somebody else lead at once."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._token = None
        self._lock.free()

    def _renewed(self, token: int) -> bool:
        with self._store.transaction() as tx:
            renewed = tx.leaders.renew(NAME, token, self._clock() + self._lease)
            tx.commit()
        return renewed

    def _lapsed(self) -> bool:
        with self._store.transaction() as tx:
            return tx.leaders.until(NAME) < self._clock()

    def _ousted(self) -> bool:
        self._observer.note("leader_ousted", by=self._holder)
        self._lock.oust()
        return self._lock.try_take()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.look()
                self._away = False
            except CanaryError as error:
                self._token = None
                if not self._away:
                    self._observer.note("leader_unknown", code=error.code, error=str(error))
                self._away = True
            self._stopping.wait(self._lease / PARTS)


class NoLock:
    """The lock of a store that only this process has."""

    def try_take(self) -> bool:
        return True

    def held(self) -> bool:
        return True

    def oust(self) -> None:
        return None

    def free(self) -> None:
        return None
