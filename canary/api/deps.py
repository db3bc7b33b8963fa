"""What every router is given, and the small things that endpoints share: who acts, what they expect, and pages.

A router is a function from `Api` to an `APIRouter`; it opens transactions only through the store that it is given.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import Request

from canary.api.desk import KillDesk
from canary.api.flags import FlagCache
from canary.api.keyring import KeyRing
from canary.domain.access import Caller, person
from canary.domain.chain import digest
from canary.domain.errors import PreconditionError, PreconditionRequiredError, RequestError
from canary.domain.rollout import Rollout
from canary.flow.ports import Observer, Store, Transaction

MAX_CURSOR = 2_000


@dataclass(frozen=True, slots=True)
class Api:
    """One process's API.

    Args:
        flags: the snapshot in memory.
        ring: the keys in memory.
        kills: where kills are taken.
        clock: seconds since the epoch.
        home: the folder for what must outlive the process; None keeps nothing.
        closing: called before the server stops, from any thread; ends what it would wait for.
    """

    store: Store
    observer: Observer
    flags: FlagCache
    ring: KeyRing
    kills: KillDesk
    clock: Callable[[], float]
    home: Path | None = None
    closing: list[Callable[[], None]] = field(default_factory=list)


def caller_of(request: Request) -> Caller:
    """Who asks, as the gate found out."""
    caller: Caller = request.state.caller
    return caller


def actor_of(request: Request, said: str | None) -> str:
    """The actor of a command: the key's owner; without keys, who the request says it is.

    Raises:
        RequestError: nobody is named, or somebody else than the key's owner.
    """
    owner = caller_of(request).owner
    if owner is None:
        if said is None or not said.strip():
            raise RequestError("is missing", where="/actor", remedy="Say who you are; with an API key that is known already.")
        return said.strip()
    if said is not None and person(said) != person(owner):
        raise RequestError(f"is not {owner}, whose key this is", where="/actor", remedy="Leave it out.")
    return owner


def etag_of(rollout: Rollout) -> str:
    """A strong tag over what a person decides upon; it stays while only clocks move."""
    seen = (rollout.policy_hash, rollout.state.value, rollout.stage, rollout.epoch, rollout.attempt, rollout.killed)
    return tag(list(seen))


def tag(value: Any) -> str:
    """A strong, quoted tag over a JSON value."""
    return f'"{digest(value)[:32]}"'


def require_match(expected: str | None) -> str:
    """The If-Match of a write.

    Raises:
        PreconditionRequiredError: there is none.
    """
    if expected is None:
        raise PreconditionRequiredError(
            "the request does not say which state it is about",
            where="If-Match",
            remedy="Send the ETag of the state that you saw, or `*` for whatever it is.",
        )
    return expected


def matches(expected: str, current: str | None) -> bool:
    """If-Match by strong comparison (RFC 9110, 13.1.1); `*` matches whatever there is."""
    return current is not None and (expected.strip() == "*" or current in (part.strip() for part in expected.split(",")))


Check = Callable[[Transaction, Rollout | None], None]


class Expecting:
    """A store whose transactions refuse to change a route that is not as the request expects.

    The look is under the rollout's row lock, so that nobody can change it between the look and the write.

    Args:
        check: raises if the route's rollout is not as expected.
    """

    def __init__(self, store: Store, route: str, check: Check) -> None:
        self._store = store
        self._route = route
        self._check = check

    def transaction(self) -> AbstractContextManager[Transaction]:
        """One unit of work."""
        return self._checked()

    @contextmanager
    def _checked(self) -> Iterator[Transaction]:
        with self._store.transaction() as tx:
            rollouts = _CheckedRollouts(tx, self._route, self._check)
            keep = tx.commit

            def commit() -> None:
                rollouts.require_checked()
                keep()

            tx.rollouts = rollouts
            tx.commit = commit  # type: ignore[method-assign]
            yield tx


class _CheckedRollouts:
    def __init__(self, tx: Transaction, route: str, check: Check) -> None:
        self._tx = tx
        self._inner = tx.rollouts
        self._route = route
        self._check = check
        self._checked = False

    def get(self, route: str, *, lock: bool = False) -> Rollout | None:
        found = self._inner.get(route, lock=lock)
        if lock and route == self._route and not self._checked:
            self._checked = True
            self._check(self._tx, found)
        return found

    def require_checked(self) -> None:
        if not self._checked:
            self.get(self._route, lock=True)

    def list(self) -> list[Rollout]:
        return self._inner.list()

    def put(self, rollout: Rollout) -> None:
        self._inner.put(rollout)


def expecting_rollout(store: Store, route: str, if_match: str) -> Expecting:
    """A store that changes a rollout only if its tag is the expected one; a missing rollout is left to the command."""

    def check(tx: Transaction, rollout: Rollout | None) -> None:
        if rollout is not None and not matches(if_match, etag_of(rollout)):
            raise PreconditionError(
                "the rollout has moved since you saw it", where="If-Match", remedy="Read it again, and decide again."
            )

    return Expecting(store, route, check)


def cursor_of(place: str | int, listing: str) -> str:
    """Where the next page starts, as an opaque word.

    Args:
        listing: the listing that it belongs to, so that another one refuses it.
    """
    return base64.urlsafe_b64encode(json.dumps([listing, place]).encode()).decode().rstrip("=")


def place_of(cursor: str | None, listing: str, kind: type) -> Any:
    """The place that a cursor names; None without one.

    Raises:
        RequestError: it is no cursor of this listing.
    """
    if cursor is None:
        return None
    try:
        found = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
        of, place = found
    except (ValueError, binascii.Error, TypeError, RecursionError):
        of, place = "", None
    if of != listing or type(place) is not kind:
        raise RequestError("is no cursor of this listing", where="/cursor", remedy="Send `next` of the page before, unchanged.")
    return place


def page(items: Sequence[Any], limit: int, listing: str, place: Callable[[Any], str | int]) -> tuple[list[Any], str | None]:
    """One page of what was read with `limit + 1`, and the cursor of the next; None at the end."""
    shown = list(items[:limit])
    return shown, cursor_of(place(shown[-1]), listing) if len(items) > limit else None
