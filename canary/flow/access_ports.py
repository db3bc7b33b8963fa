"""What the control plane keeps of its callers: their keys, what they did, and what they were answered; see `flow.ports`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from canary.domain.access import Key


class AuditStore(Protocol):
    def append(self, route: str, kind: str, actor: str, body: Mapping[str, object], now: float) -> None: ...

    def page(
        self, routes: Sequence[str] | None, *, before: int | None, limit: int, kind: str | None = None
    ) -> list[dict[str, object]]:
        """As `list`, with {previous, digest}, of some routes or of all (None), below an id."""

    def chain(self, route: str, *, after: int, limit: int) -> list[dict[str, object]]:
        """One route's events beyond an id, oldest first, with {previous, digest} (`domain.chain`)."""

    def routes(self) -> list[str]:
        """Every route that has an event, sorted."""

    def list(self, route: str, limit: int = 100, *, kind: str | None = None) -> list[dict[str, object]]:
        """Newest first: {id, route, kind, actor, body, at}; of one kind, or of all."""


class KeyStore(Protocol):
    def get(self, key_id: str, *, lock: bool = False) -> Key | None:
        """One key; `lock` keeps its row until the transaction ends."""

    def list(self) -> list[Key]:
        """Every key, the newest first."""

    def put(self, key: Key) -> None:
        """Insert or replace."""


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """What is known of a write that carried an Idempotency-Key.

    Args:
        fingerprint: of the request that came first.
        status: of its answer; None while it is not answered yet.
        headers: a JSON object.
    """

    fingerprint: str
    status: int | None
    headers: str
    body: bytes


class AnswerStore(Protocol):
    def begin(self, caller: str, key: str, fingerprint: str, now: float, *, stalled_before: float) -> KeptAnswer | None:
        """Take a key for one request; None where it is ours, else what is known of the first request.

        One that was begun before `stalled_before` and never answered is given to an equal request.
        """

    def finish(self, caller: str, key: str, status: int, headers: str, body: bytes) -> None:
        """Keep the answer."""

    def forget(self, caller: str, key: str) -> None:
        """Let the key be used again: its request came to nothing."""

    def expire(self, before: float) -> int:
        """Drop what was begun before that moment; returns how many."""
