"""Canary's store in dictionaries: the same ports as `canary.store`, for the gate in CI and for tests.

One transaction at a time, and leaving it without `commit` keeps nothing of it. Nothing survives the process.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from typing import cast

from canary.domain.errors import ConflictError
from canary.domain.flag import Flag, Snapshot
from canary.domain.mirrored import MirrorCount, added_up, length_bucket
from canary.domain.observations import Observation
from canary.domain.pairs import Pair
from canary.domain.rollout import Rollout
from canary.domain.traffic import Prompt, pair_id
from canary.flow import ports
from canary.flow.ports import Claim, ControlRule, FoldItem, no_controls

Attempt = tuple[str, str, int]  # route, epoch, attempt
OPEN = ("leased", "released")


@dataclass(frozen=True, slots=True)
class _Lease:
    """One claim and how it stands; `touched_at` is when it was last leased or buried."""

    claim: Claim
    state: str
    lease_until: float
    touched_at: float


@dataclass(slots=True)
class _State:
    """Everything stored; the values are immutable, so copying the dictionaries copies the state."""

    prompts: dict[tuple[str, str], Prompt] = field(default_factory=dict)
    arrivals: dict[str, tuple[Prompt, ...]] = field(default_factory=dict)
    mirrored: dict[tuple[str, float], tuple[MirrorCount, ...]] = field(default_factory=dict)
    leases: dict[str, _Lease] = field(default_factory=dict)
    ordinals: dict[Attempt, tuple[str, ...]] = field(default_factory=dict)
    pairs: dict[str, tuple[Pair, float]] = field(default_factory=dict)
    observations: dict[tuple[str, str], tuple[int, Observation]] = field(default_factory=dict)
    evidence: dict[Attempt, str] = field(default_factory=dict)
    calibrations: dict[Attempt, str] = field(default_factory=dict)
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    flags: dict[str, Flag] = field(default_factory=dict)
    flag_version: dict[str, int] = field(default_factory=lambda: {"version": 0})
    policies: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    audit: dict[int, tuple[str, str]] = field(default_factory=dict)

    def copy(self) -> _State:
        return _State(**{f.name: dict(getattr(self, f.name)) for f in fields(self)})


@dataclass(frozen=True, slots=True)
class _Repository:
    state: _State


class _Prompts(_Repository):
    def add_many(self, prompts: Sequence[Prompt], now: float) -> list[bool]:
        state, new = self.state, []
        for prompt in prompts:
            key = (prompt.source, prompt.request_id)
            new.append(key not in state.prompts)
            state.prompts.setdefault(key, prompt)
        for route in {p.route for p in prompts}:
            came = tuple(p for p, is_new in zip(prompts, new, strict=True) if is_new and p.route == route)
            state.arrivals[route] = state.arrivals.get(route, ()) + came
        return new

    def count(self, route: str) -> int:
        return len(self.state.arrivals.get(route, ()))

    def recent(self, route: str, limit: int) -> list[Prompt]:
        return list(self.state.arrivals.get(route, ())[-limit:])


class _Mirrored(_Repository):
    def add(self, counts: Sequence[MirrorCount]) -> None:
        for window in {(c.route, c.rate) for c in counts}:
            known, new = self.state.mirrored.get(window, ()), (c for c in counts if (c.route, c.rate) == window)
            self.state.mirrored[window] = tuple(added_up((*known, *new)))

    def get(self, route: str, rate: float) -> list[MirrorCount]:
        return list(self.state.mirrored.get((route, rate), ()))


class _Claims(_Repository):
    def claim(
        self,
        rollout: Rollout,
        *,
        limit: int,
        before_ordinal: int | None,
        worker: str,
        now: float,
        lease_seconds: float,
        max_retries: int,
        control: ControlRule = no_controls,
    ) -> list[Claim]:
        attempt = (rollout.route, rollout.epoch, rollout.attempt)
        known = self.state.ordinals.get(attempt, ())
        taken: list[Claim] = []
        for lease in map(self.state.leases.__getitem__, known):
            expired = lease.state == "leased" and lease.lease_until <= now
            if not expired and lease.state != "released":
                continue
            claim = replace(lease.claim, tries=lease.claim.tries + expired, token=secrets.token_hex(16))
            if claim.tries > max_retries:
                self.state.leases[claim.pair_id] = _Lease(claim, "failed", now, now)
            elif len(taken) < limit:
                taken.append(claim)
        arrived = self.state.arrivals.get(rollout.route, ())
        end = min(len(known) + limit - len(taken), len(arrived), len(arrived) if before_ordinal is None else before_ordinal)
        for ordinal in range(len(known), end):
            prompt = arrived[ordinal]
            identity = pair_id(prompt.source, prompt.request_id, *attempt)
            token = secrets.token_hex(16)
            taken.append(Claim(identity, *attempt, ordinal, 0, token, prompt, control(ordinal, identity)))
            known += (identity,)
        self.state.ordinals[attempt] = known
        for claim in taken:
            self.state.leases[claim.pair_id] = _Lease(claim, "leased", now + lease_seconds, now)
        return taken

    def heartbeat(self, tokens: Sequence[str], now: float, lease_seconds: float) -> int:
        return self._change(lambda e: e.claim.token in tokens, lambda e: replace(e, lease_until=now + lease_seconds))

    def release(self, tokens: Sequence[str]) -> None:
        self._change(lambda e: e.claim.token in tokens, lambda e: replace(e, state="released"))

    def expire_all(self) -> int:
        return self._change(lambda e: True, lambda e: replace(e, lease_until=float("-inf")))

    def finish(self, claim: Claim, *, failed: bool) -> bool:
        state = "failed" if failed else "paired"
        return self._change(lambda e: e.claim.token == claim.token, lambda e: replace(e, state=state)) == 1

    def open_count(self, route: str, epoch: str, attempt: int) -> int:
        known = self.state.ordinals.get((route, epoch, attempt), ())
        return sum(self.state.leases[identity].state in OPEN for identity in known)

    def _change(self, chosen: Callable[[_Lease], bool], change: Callable[[_Lease], _Lease]) -> int:
        """Change the running leases that are chosen; returns how many."""
        found = {k: e for k, e in self.state.leases.items() if e.state == "leased" and chosen(e)}
        self.state.leases.update({k: change(e) for k, e in found.items()})
        return len(found)


class _Pairs(_Repository):
    def add(self, pair: Pair, now: float) -> None:
        if pair.pair_id not in self.state.leases:
            raise ConflictError("the pair was never claimed", where=f"pairs/{pair.pair_id}", remedy="Claim its prompt first.")
        self.state.pairs.setdefault(pair.pair_id, (pair, round(now, 6)))

    def get(self, pair_id: str) -> Pair | None:
        found = self.state.pairs.get(pair_id)
        return found and found[0]

    def first(self, route: str, epoch: str, attempt: int, count: int) -> list[Pair | None] | None:
        known = self.state.ordinals.get((route, epoch, attempt), ())[:count]
        states = [self.state.leases[identity].state for identity in known]
        if len(known) < count or any(state in OPEN for state in states):
            return None
        return [self.get(i) if state == "paired" else None for i, state in zip(known, states, strict=True)]

    def contiguous(self, route: str, epoch: str, attempt: int, *, after: int, limit: int) -> list[FoldItem]:
        known = self.state.ordinals.get((route, epoch, attempt), ())
        items: list[FoldItem] = []
        for ordinal in range(after, min(after + limit, len(known))):
            lease = self.state.leases[known[ordinal]]
            if lease.state in OPEN:
                break
            prompt = lease.claim.prompt
            kind = (lease.claim.control, prompt.params.stratum, length_bucket(prompt.num_characters))
            if lease.state == "paired" and known[ordinal] in self.state.pairs:
                pair, stored_at = self.state.pairs[known[ordinal]]
                increments = pair.increments if pair.error is None else None
                items.append(FoldItem(ordinal, increments, pair.calibration_hash, stored_at, *kind))
            else:
                items.append(FoldItem(ordinal, None, "", lease.touched_at, *kind))
        return items

    def ids(self, route: str, epoch: str, attempt: int) -> list[str]:
        known = self.state.ordinals.get((route, epoch, attempt), ())
        return [identity for identity in known if self.state.leases[identity].state == "paired"]


class _Observations(_Repository):
    def add_many(self, observations: Sequence[Observation], now: float) -> list[bool]:
        known, new = self.state.observations, []
        for observation in observations:
            key = (observation.route, observation.observation_id)
            new.append(key not in known)
            known.setdefault(key, (len(known) + 1, observation))
        return new

    def after(self, route: str, cursor: int, limit: int) -> list[tuple[int, Observation]]:
        found = [item for (of, _), item in self.state.observations.items() if of == route and item[0] > cursor]
        return found[:limit]

    def newest(self, route: str) -> int:
        return max((place for (of, _), (place, _) in self.state.observations.items() if of == route), default=0)


class _Evidence(_Repository):
    def get(self, route: str, epoch: str, attempt: int) -> dict[str, object] | None:
        return _loads(self.state.evidence.get((route, epoch, attempt)))

    def put(self, route: str, epoch: str, attempt: int, state: Mapping[str, object]) -> None:
        self.state.evidence[(route, epoch, attempt)] = json.dumps(state)

    def attempts(self, route: str, epoch: str) -> list[int]:
        return sorted(attempt for r, e, attempt in self.state.evidence if (r, e) == (route, epoch))

    def get_calibration(self, route: str, epoch: str, attempt: int) -> dict[str, object] | None:
        return _loads(self.state.calibrations.get((route, epoch, attempt)))

    def put_calibration(self, route: str, epoch: str, attempt: int, record: Mapping[str, object]) -> None:
        block = json.dumps(record, sort_keys=True)
        if self.state.calibrations.setdefault((route, epoch, attempt), block) != block:
            raise ConflictError(
                f"attempt {attempt} is already calibrated, with other values",
                where=f"calibrations/{route}",
                remedy="Read the frozen record and use that.",
            )


class _Rollouts(_Repository):
    def get(self, route: str, *, lock: bool = False) -> Rollout | None:
        return self.state.rollouts.get(route)

    def list(self) -> list[Rollout]:
        return [self.state.rollouts[route] for route in sorted(self.state.rollouts)]

    def put(self, rollout: Rollout) -> None:
        stored = self.state.rollouts.get(rollout.route)
        if rollout.version != (stored.version if stored else 0) + 1:
            raise ConflictError(
                f"version {rollout.version} does not follow the stored one",
                where=f"rollouts/{rollout.route}",
                remedy="Read the rollout again and retry.",
            )
        self.state.rollouts[rollout.route] = rollout


class _Flags(_Repository):
    def get(self, route: str) -> Flag | None:
        return self.state.flags.get(route)

    def put(self, flag: Flag) -> None:
        self.state.flags[flag.route] = flag
        self.state.flag_version["version"] += 1

    def snapshot(self, now: float) -> Snapshot:
        return Snapshot(self.state.flag_version["version"], now, dict(sorted(self.state.flags.items())))


class _Policies(_Repository):
    def put(self, route: str, content_hash: str, text: str, now: float) -> None:
        if self.current(route) != (content_hash, text):
            self.state.policies[len(self.state.policies)] = (route, content_hash, text)

    def current(self, route: str) -> tuple[str, str] | None:
        return next(((h, text) for r, h, text in reversed(self.state.policies.values()) if r == route), None)

    def get(self, content_hash: str) -> str | None:
        return next((text for _, h, text in reversed(self.state.policies.values()) if h == content_hash), None)

    def routes(self) -> list[str]:
        return sorted({route for route, _, _ in self.state.policies.values()})


class _Audit(_Repository):
    def append(self, route: str, kind: str, actor: str, body: Mapping[str, object], now: float) -> None:
        event = {"id": len(self.state.audit) + 1, "route": route, "kind": kind, "actor": actor, "body": body, "at": round(now, 6)}
        self.state.audit[len(self.state.audit)] = (route, json.dumps(event))

    def list(self, route: str, limit: int = 100, *, kind: str | None = None) -> list[dict[str, object]]:
        found = (json.loads(event) for r, event in reversed(self.state.audit.values()) if r == route)
        return list(islice((event for event in found if kind in (None, event["kind"])), limit))


class InMemoryTransaction:
    """`Transaction` on a copy of the state."""

    def __init__(self, store: InMemoryStore, state: _State) -> None:
        self._store = store
        self._state = state
        self.prompts: ports.PromptStore = _Prompts(state)
        self.mirrored: ports.MirroredStore = _Mirrored(state)
        self.claims: ports.ClaimStore = _Claims(state)
        self.pairs: ports.PairStore = _Pairs(state)
        self.observations: ports.ObservationStore = _Observations(state)
        self.evidence: ports.EvidenceStore = _Evidence(state)
        self.rollouts: ports.RolloutStore = _Rollouts(state)
        self.flags: ports.FlagStore = _Flags(state)
        self.policies: ports.PolicyStore = _Policies(state)
        self.audit: ports.AuditStore = _Audit(state)

    def commit(self) -> None:
        """Keep everything since the transaction began."""
        self._store.state = self._state.copy()


class InMemoryStore:
    """`Store` in this process; transactions wait for each other and must not be nested."""

    def __init__(self) -> None:
        self.state = _State()
        self._lock = threading.Lock()

    @contextmanager
    def transaction(self) -> Iterator[InMemoryTransaction]:
        """One unit of work."""
        with self._lock:
            yield InMemoryTransaction(self, self.state.copy())


def _loads(block: str | None) -> dict[str, object] | None:
    return None if block is None else cast("dict[str, object]", json.loads(block))
