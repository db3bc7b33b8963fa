"""Kill orders and how two sets of them become one: the rule by which a kill survives restarts, partitions and stale copies.

Pure. Joining is a union, so it is commutative, associative and idempotent; nothing but an unkill that names a kill ends it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from hashlib import sha256

from canary.domain.errors import RequestError
from canary.domain.flag import BUCKETS, Flag, Snapshot

ALL = "*"
DRILL = "canary-drill"  # the flag that kill drills flip; no route may have this name
SCOPE = re.compile(r"\*|[a-z0-9][a-z0-9._:-]*")
MAX_TEXT = 500  # characters of a reason or an actor
MAX_SCOPE = 200
MAX_EPOCH = 2**53  # JSON readers in other languages keep integers only so far


class Act(StrEnum):
    """What an order does."""

    KILL = "kill"
    UNKILL = "unkill"


@dataclass(frozen=True, slots=True, order=True)
class KillOrder:
    """One kill, or one undoing of kills.

    Args:
        epoch: above every epoch that its author knew of.
        order_id: unique; an order that arrives twice is one order.
        scope: a route, `*` for all of them, or the drill's flag.
        reason, actor: why and who, for people.
        at: seconds since the epoch, by its author's clock; never compared.
        undoes: ids of the kills of its scope that an unkill ends: those that the person saw, and no other.
    """

    epoch: int
    order_id: str
    act: Act
    scope: str
    reason: str
    actor: str
    at: float
    undoes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no author of ours writes: an order comes from a file or over the network."""
        legal = {
            "epoch": type(self.epoch) is int and 0 < self.epoch < MAX_EPOCH,
            "order_id": _short(self.order_id),
            "act": isinstance(self.act, Act),
            "scope": _short(self.scope, MAX_SCOPE) and SCOPE.fullmatch(self.scope) is not None,
            "reason": _short(self.reason),
            "actor": _short(self.actor),
            "at": type(self.at) in (int, float) and abs(self.at) < MAX_EPOCH,
            "undoes": all(_short(u) for u in self.undoes) and bool(self.undoes) == (self.act is Act.UNKILL),
        }
        for name, right in legal.items():
            if not right:
                raise RequestError("not a kill order's value", where=f"/{name}", remedy="See canary/docs/kill.md.")

    @property
    def sentence(self) -> str:
        """What the flag says of a kill: stable code and sentence."""
        return f"manual: all routes: {self.reason}" if self.scope == ALL else f"manual: {self.reason}"

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values."""
        return {**asdict(self), "act": self.act.value, "undoes": list(self.undoes)}

    @classmethod
    def from_dict(cls, given: object) -> KillOrder:
        """The inverse of `to_dict`.

        Raises:
            RequestError: not an order, or a field is missing, unknown or out of range.
        """
        names = set(cls.__dataclass_fields__)
        if not isinstance(given, Mapping) or set(given) != names or not isinstance(given["undoes"], list):
            raise RequestError("not a kill order", remedy=f"An order has the fields {', '.join(sorted(names))}.")
        if given["act"] not in (Act.KILL.value, Act.UNKILL.value):
            raise RequestError("not an act", where="/act", remedy="Write kill or unkill.")
        return cls(**{**given, "act": Act(given["act"]), "undoes": tuple(given["undoes"])})


def ends_first(order: KillOrder) -> tuple[bool, KillOrder]:
    """Sorts orders for whoever writes or sends them one by one: nobody may see a kill without its end where that is known."""
    return order.act is Act.KILL, order


@dataclass(frozen=True)
class Kills:
    """Every order that somebody knows of, by id."""

    orders: Mapping[str, KillOrder] = field(default_factory=dict)

    @classmethod
    def of(cls, orders: Iterable[KillOrder]) -> Kills:
        """Of two different orders under one id the greater counts, whatever came first; what unkills undo adds up."""
        found: dict[str, KillOrder] = {}
        for order in orders:
            found[order.order_id] = _either(order, found.get(order.order_id, order))
        return cls(found)

    def join(self, other: Kills) -> Kills:
        """What both together know."""
        return Kills.of([*self.orders.values(), *other.orders.values()])

    @cached_property
    def epoch(self) -> int:
        """The highest epoch; never falls when something is joined."""
        return max((o.epoch for o in self.orders.values()), default=0)

    @cached_property
    def digest(self) -> str:
        """Names what the set says (what stands, what is undone, how far epochs went), not in how many orders it is said."""
        stands = [(o.order_id, o.epoch) for scope in sorted(self._standing) for o in self._standing[scope]]
        epochs = {scope: max(o.epoch for o in orders) for scope, orders in self._by_scope.items()}
        return sha256(json.dumps([stands, sorted(self._undone), sorted(epochs.items())]).encode()).hexdigest()

    @cached_property
    def _undone(self) -> frozenset[tuple[str, str]]:
        return frozenset((o.scope, kill) for o in self.orders.values() for kill in o.undoes)

    @cached_property
    def _standing(self) -> Mapping[str, tuple[KillOrder, ...]]:
        kills = sorted(o for o in self.orders.values() if o.act is Act.KILL and (o.scope, o.order_id) not in self._undone)
        return {scope: tuple(o for o in kills if o.scope == scope) for scope in {o.scope for o in kills}}

    @cached_property
    def _by_scope(self) -> Mapping[str, tuple[KillOrder, ...]]:
        found: dict[str, tuple[KillOrder, ...]] = {}
        for order in self.orders.values():
            found[order.scope] = (*found.get(order.scope, ()), order)
        return found

    def standing(self, scope: str) -> tuple[KillOrder, ...]:
        """The kills of exactly this scope that nobody has undone, oldest epoch first."""
        return self._standing.get(scope, ())

    def over(self, route: str) -> KillOrder | None:
        """The kill that is on for a route: its own oldest, else that of all routes; the drill's flag has only its own."""
        found = self.standing(route) or (() if route == DRILL else self.standing(ALL))
        return found[0] if found else None

    def about(self, route: str) -> tuple[KillOrder, ...]:
        """Every order about a route, those about all routes included."""
        return self._by_scope.get(route, ()) + (() if route in (DRILL, ALL) else self._by_scope.get(ALL, ()))

    def epoch_of(self, route: str) -> int:
        """The highest epoch of an order about a route, undone ones included: a snapshot below it is older than the order."""
        return max((o.epoch for o in self.about(route)), default=0)

    def compacted(self, before: float) -> Kills:
        """The same switches in fewer orders: what stands, what is undone and every epoch stay as they are.

        Of each scope the kills that were undone go, and one unkill is left that names them all, so that none of them comes back
        from a replica or a backup that has not heard of its end.

        Args:
            before: seconds since the epoch; orders taken later stay as they are.
        """
        kept = dict(self.orders)
        for orders in self._by_scope.values():
            old = [o for o in orders if o.act is Act.UNKILL and o.at < before]
            if not old:
                continue
            last, undone = max(old), {kill for o in old for kill in o.undoes}
            for order in orders:
                ended = order.order_id in undone or order.act is Act.UNKILL
                if ended and order.at < before and order.epoch <= last.epoch:
                    del kept[order.order_id]
            kept[last.order_id] = replace(last, undoes=tuple(sorted(undone)))
        return Kills(kept)

    def kill(self, scope: str, reason: str, actor: str, now: float, order_id: str, *, above: int = 0) -> KillOrder:
        """The next order that kills.

        Args:
            above: kill epoch of the flags that its author sees.

        Raises:
            RequestError: a value is out of range.
        """
        return KillOrder(self._next(above), order_id, Act.KILL, scope, reason, actor, now)

    def unkill(self, scope: str, reason: str, actor: str, now: float, order_id: str, *, above: int = 0) -> KillOrder | None:
        """The next order, which undoes every kill of the scope that stands here; None where none does.

        Raises:
            RequestError: a value is out of range.
        """
        seen = tuple(sorted(o.order_id for o in self.standing(scope)))
        return KillOrder(self._next(above), order_id, Act.UNKILL, scope, reason, actor, now, seen) if seen else None

    def _next(self, above: int) -> int:
        """The next epoch; at the end of the numbers it stays, since no order may fail for an epoch that somebody made up."""
        return min(max(self.epoch, above) + 1, MAX_EPOCH - 1)


def overlaid(base: Snapshot, settled: Collection[str], known: Kills, named: Mapping[str, str]) -> Snapshot:
    """What is served: the store's flags with every kill that is known here, settled in the store or not.

    Args:
        base: the flags as the store last said, or as they were kept on disk.
        settled: ids of the orders that those flags contain.
        known: the orders known here, those of other replicas included.
        named: scope -> reason of the kill file.
    """
    routes = {*base.flags, *named, *(o.scope for o in known.orders.values() if known.standing(o.scope))} - {ALL, DRILL}
    flags = {r: _overlaid(base.flags.get(r) or Flag.initial(r), settled, known, named) for r in sorted(routes)}
    if known.about(DRILL):
        flags[DRILL] = _overlaid(replace(Flag.initial(DRILL), weight=BUCKETS, stage="drill"), known.orders, known, {})
    return replace(base, flags=flags)


def _overlaid(flag: Flag, settled: Collection[str], known: Kills, named: Mapping[str, str]) -> Flag:
    order, epoch = known.over(flag.route), max(flag.kill_epoch, known.epoch_of(flag.route))
    if order is not None:
        if flag.killed:
            return replace(flag, weight=0, kill_epoch=epoch)
        return flag.switched(True, reason=order.sentence, epoch=epoch, kill_id=order.order_id, at=order.at)
    scope = next((s for s in (flag.route, ALL) if s in named), None)
    if scope is not None and not flag.killed:
        return flag.switched(True, reason=f"kill_file: {named[scope]}", epoch=epoch, kill_id=f"file:{scope}")
    if any(o.order_id not in settled for o in known.about(flag.route)):
        # The store's flags are from before an order that was undone since: what led to the order must not come back with them.
        return replace(flag, weight=0, kill_epoch=epoch)
    return replace(flag, kill_epoch=epoch)


def unvouched(snapshot: Snapshot) -> Snapshot:
    """A snapshot from disk that no store has confirmed.

    Kills stay, canaries and pins get the baseline, and a full route follows its policy as at any loss of the control plane.
    """
    flags = {
        route: flag if flag.weight >= BUCKETS and flag.on_lost == "keep" else replace(flag, weight=0)
        for route, flag in snapshot.flags.items()
    }
    return replace(snapshot, flags={route: replace(flag, pins={}) for route, flag in flags.items()})


def read_kill_file(text: str) -> dict[str, str]:
    """What a kill file kills: scope -> reason.

    One route a line, or `*` for all; whatever follows on the line is the reason, `#` starts a comment. A line that names no route
    kills nothing and stops nothing: a slip in one line must not keep another from killing.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        scope, _, reason = line.partition("#")[0].strip().partition(" ")
        if SCOPE.fullmatch(scope) and len(scope) <= MAX_SCOPE:
            found[scope] = reason.strip()[:MAX_TEXT] or "named in the kill file"
    return found


def _either(one: KillOrder, other: KillOrder) -> KillOrder:
    """Of two orders under one id: the greater kill, else the greater unkill with what both undo; in any order of arrival."""
    if one == other:
        return one
    if kills := [o for o in (one, other) if o.act is Act.KILL]:
        return max(kills)
    return replace(
        max(one, other, key=lambda o: (o.epoch, o.scope, o.reason, o.actor, o.at)),
        undoes=tuple(sorted({*one.undoes, *other.undoes})),
    )


def _short(text: object, longest: int = MAX_TEXT) -> bool:
    return isinstance(text, str) and 0 < len(text) <= longest and bool(text.strip()) and "\x00" not in text and _encodes(text)


def _encodes(text: str) -> bool:
    """Whether it can be written down; a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
