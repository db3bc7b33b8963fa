"""What decides about a route and what was decided: policies, rollouts, flags and kill orders; see `flow.ports`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from canary.domain.flag import Flag, Snapshot
from canary.domain.kills import KillOrder
from canary.domain.pins import Pin
from canary.domain.rollout import Rollout


class RolloutStore(Protocol):
    def get(self, route: str, *, lock: bool = False) -> Rollout | None:
        """One route's rollout; `lock` takes its row lock until the transaction ends."""

    def list(self) -> list[Rollout]: ...

    def put(self, rollout: Rollout) -> None:
        """Insert or update; the stored version must be `rollout.version - 1` (ConflictError)."""


class FlagStore(Protocol):
    def get(self, route: str) -> Flag | None: ...

    def put(self, flag: Flag) -> None:
        """Write the flag and raise the snapshot version."""

    def snapshot(self, now: float) -> Snapshot: ...


class PinStore(Protocol):
    def list(self, route: str) -> list[Pin]:
        """A route's pins, by unit."""

    def put(self, pin: Pin) -> None:
        """Pin the unit, whatever it was pinned to."""

    def drop(self, route: str, unit: str) -> None:
        """Forget a unit's pin; none is fine."""


class KillStore(Protocol):
    def add(self, order: KillOrder) -> bool:
        """Keep one order and raise the snapshot version; False where its id is known, and then nothing changes."""

    def after(self, cursor: int) -> list[tuple[int, KillOrder]]:
        """Orders beyond a place, in the order of commits, each with its own place; a cursor misses nothing."""

    def about(self, scopes: Sequence[str]) -> list[KillOrder]:
        """Every order of these scopes, in the order of commits."""


class PolicyStore(Protocol):
    def put(self, route: str, content_hash: str, text: str, now: float) -> None: ...

    def current(self, route: str) -> tuple[str, str] | None:
        """(content hash, YAML text) of the newest."""

    def get(self, content_hash: str) -> str | None: ...

    def routes(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Proposal:
    """A looser policy that waits for somebody other than its author.

    Args:
        text: its YAML; of a structured route, the canonical form.
        asked_at: when it was proposed, seconds since the epoch.
    """

    route: str
    content_hash: str
    text: str
    author: str
    asked_at: float


class ProposalStore(Protocol):
    def get(self, route: str) -> Proposal | None:
        """The route's open proposal."""

    def put(self, proposal: Proposal) -> None:
        """Make it the route's only proposal."""

    def drop(self, route: str) -> None:
        """Forget the route's proposal; none is fine."""
