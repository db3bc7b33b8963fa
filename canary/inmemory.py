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

from canary.domain import chain
from canary.domain.access import Key
from canary.domain.errors import ConflictError
from canary.domain.flag import Flag, Snapshot
from canary.domain.kills import KillOrder
from canary.domain.mirrored import MirrorCount, added_up, length_bucket
from canary.domain.notices import Notice, NoticeState
from canary.domain.observations import Observation
from canary.domain.pairs import Pair
from canary.domain.rollout import Rollout
from canary.domain.schedule import JobRun
from canary.domain.traffic import Prompt, pair_id
from canary.flow import ports
from canary.flow.ports import Claim, ControlRule, FoldItem, KeptAnswer, no_controls

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
    arrived_at: dict[tuple[str, str], float] = field(default_factory=dict)
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
    kills: dict[str, tuple[int, KillOrder]] = field(default_factory=dict)
    policies: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    proposals: dict[str, ports.Proposal] = field(default_factory=dict)
    audit: dict[int, tuple[str, str]] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)
    answers: dict[tuple[str, str], tuple[KeptAnswer, float]] = field(default_factory=dict)
    notices: dict[str, Notice] = field(default_factory=dict)
    job_runs: dict[int, JobRun] = field(default_factory=dict)
    paused_jobs: dict[str, bool] = field(default_factory=dict)
    leaders: dict[str, tuple[int, str, float]] = field(default_factory=dict)

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
            state.arrived_at.setdefault(key, now)
        for route in {p.route for p in prompts}:
            came = tuple(p for p, is_new in zip(prompts, new, strict=True) if is_new and p.route == route)
            state.arrivals[route] = state.arrivals.get(route, ()) + came
        return new

    def count(self, route: str) -> int:
        return len(self.state.arrivals.get(route, ()))

    def since(self, route: str, at: float, most: int) -> int:
        found = self.state.arrivals.get(route, ())
        return min(most, sum(self.state.arrived_at[(p.source, p.request_id)] >= at for p in found))

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

    def page(self, route: str, epoch: str, attempt: int, *, after: int, limit: int) -> list[Pair]:
        found = (self.get(identity) for identity in self.state.ordinals.get((route, epoch, attempt), ())[max(0, after + 1) :])
        return list(islice((pair for pair in found if pair is not None), limit))

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

    def get(self, route: str, observation_id: str) -> Observation | None:
        found = self.state.observations.get((route, observation_id))
        return found and found[1]


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


class _Kills(_Repository):
    def add(self, order: KillOrder) -> bool:
        if order.order_id in self.state.kills:
            return False
        self.state.flag_version["version"] += 1
        self.state.kills[order.order_id] = (len(self.state.kills) + 1, order)
        return True

    def after(self, cursor: int) -> list[tuple[int, KillOrder]]:
        return [item for item in self.state.kills.values() if item[0] > cursor]

    def about(self, scopes: Sequence[str]) -> list[KillOrder]:
        return [order for _, order in self.state.kills.values() if order.scope in scopes]


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


class _Proposals(_Repository):
    def get(self, route: str) -> ports.Proposal | None:
        return self.state.proposals.get(route)

    def put(self, proposal: ports.Proposal) -> None:
        self.state.proposals[proposal.route] = replace(proposal, asked_at=round(proposal.asked_at, 6))

    def drop(self, route: str) -> None:
        self.state.proposals.pop(route, None)


class _Audit(_Repository):
    def append(self, route: str, kind: str, actor: str, body: Mapping[str, object], now: float) -> None:
        newest = next((event for r, event in reversed(self.state.audit.values()) if r == route), None)
        previous = chain.START if newest is None else json.loads(newest)["digest"]
        event = {"id": len(self.state.audit) + 1, "route": route, "kind": kind, "actor": actor, "body": body, "at": round(now, 6)}
        event |= {"previous": previous, "digest": chain.link(previous, route, kind, actor, body, round(now, 6))}
        self.state.audit[len(self.state.audit)] = (route, json.dumps(event))

    def list(self, route: str, limit: int = 100, *, kind: str | None = None) -> list[dict[str, object]]:
        links = ("previous", "digest")
        found = self.page([route], before=None, limit=limit, kind=kind)
        return [{name: value for name, value in event.items() if name not in links} for event in found]

    def page(
        self, routes: Sequence[str] | None, *, before: int | None, limit: int, kind: str | None = None
    ) -> list[dict[str, object]]:
        found = (json.loads(event) for r, event in reversed(self.state.audit.values()) if routes is None or r in routes)
        chosen = (e for e in found if kind in (None, e["kind"]) and (before is None or e["id"] < before))
        return list(islice(chosen, limit))

    def chain(self, route: str, *, after: int, limit: int) -> list[dict[str, object]]:
        found = (json.loads(event) for r, event in self.state.audit.values() if r == route)
        return list(islice((event for event in found if event["id"] > after), limit))

    def routes(self) -> list[str]:
        return sorted({route for route, _ in self.state.audit.values()})


class _Keys(_Repository):
    def get(self, key_id: str, *, lock: bool = False) -> Key | None:
        return self.state.keys.get(key_id)

    def list(self) -> list[Key]:
        return sorted(self.state.keys.values(), key=lambda key: (-key.created_at, key.key_id))

    def put(self, key: Key) -> None:
        self.state.keys[key.key_id] = key


class _Answers(_Repository):
    def begin(self, caller: str, key: str, fingerprint: str, now: float, *, stalled_before: float) -> KeptAnswer | None:
        found = self.state.answers.get((caller, key))
        if found is not None:
            kept, started_at = found
            if kept.status is not None or started_at >= stalled_before or kept.fingerprint != fingerprint:
                return kept
        self.state.answers[(caller, key)] = (KeptAnswer(fingerprint, None, "", b""), now)
        return None

    def finish(self, caller: str, key: str, status: int, headers: str, body: bytes) -> None:
        if (found := self.state.answers.get((caller, key))) is not None:
            self.state.answers[(caller, key)] = (replace(found[0], status=status, headers=headers, body=body), found[1])

    def forget(self, caller: str, key: str) -> None:
        self.state.answers.pop((caller, key), None)

    def expire(self, before: float) -> int:
        old = [name for name, (_, started_at) in self.state.answers.items() if started_at < before]
        for name in old:
            del self.state.answers[name]
        return len(old)


class _Notices(_Repository):
    def add(self, given: Sequence[Notice]) -> None:
        for notice in given:
            self.state.notices.setdefault(notice.notice_id, notice)

    def claim(self, now: float, limit: int, lease_seconds: float) -> list[Notice]:
        pending = [n for n in self.state.notices.values() if n.state is NoticeState.PENDING and n.due_at <= now]
        taken = sorted(pending, key=lambda notice: notice.due_at)[:limit]
        self.state.notices.update({n.notice_id: replace(n, due_at=now + lease_seconds) for n in taken})
        return taken

    def put(self, notice: Notice) -> None:
        stored = self.state.notices.get(notice.notice_id)
        if stored is not None and stored.state is NoticeState.PENDING:
            self.state.notices[notice.notice_id] = notice

    def list(self, limit: int, state: NoticeState | None = None) -> list[Notice]:
        return [n for n in reversed(self.state.notices.values()) if state in (None, n.state)][:limit]

    def forget(self, before: float) -> int:
        old = [n.notice_id for n in self.state.notices.values() if n.state is not NoticeState.PENDING and n.due_at < before]
        for name in old:
            del self.state.notices[name]
        return len(old)


class _Jobs(_Repository):
    def add(self, run: JobRun) -> None:
        self.state.job_runs[max(self.state.job_runs, default=0) + 1] = run

    def runs(self, job: str, limit: int) -> list[JobRun]:
        return [run for run in reversed(self.state.job_runs.values()) if run.job == job][:limit]

    def forget(self, before: float) -> int:
        old = [number for number, run in self.state.job_runs.items() if run.ended_at < before]
        for number in old:
            del self.state.job_runs[number]
        return len(old)

    def paused(self) -> frozenset[str]:
        return frozenset(job for job, paused in self.state.paused_jobs.items() if paused)

    def pause(self, job: str, paused: bool) -> None:
        self.state.paused_jobs[job] = paused


class _Leaders(_Repository):
    def take(self, name: str, holder: str, until: float) -> int:
        token = self.state.leaders.get(name, (0, "", 0.0))[0] + 1
        self.state.leaders[name] = (token, holder, until)
        return token

    def renew(self, name: str, token: int, until: float) -> bool:
        if not self.leads(name, token):
            return False
        self.state.leaders[name] = (token, self.state.leaders[name][1], until)
        return True

    def until(self, name: str) -> float:
        found = self.state.leaders.get(name)
        return float("-inf") if found is None else found[2]

    def leads(self, name: str, token: int) -> bool:
        return name in self.state.leaders and self.state.leaders[name][0] == token


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
        self.kills: ports.KillStore = _Kills(state)
        self.policies: ports.PolicyStore = _Policies(state)
        self.proposals: ports.ProposalStore = _Proposals(state)
        self.audit: ports.AuditStore = _Audit(state)
        self.keys: ports.KeyStore = _Keys(state)
        self.answers: ports.AnswerStore = _Answers(state)
        self.notices: ports.NoticeStore = _Notices(state)
        self.jobs: ports.JobStore = _Jobs(state)
        self.leaders: ports.LeaderStore = _Leaders(state)

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
