"""Step 3 and 4: claim mirrored prompts, run both arms, store each pair once.

The ordinal is given before any token is drawn, draws are keyed by the pair, and nothing that failed is dropped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from canary.domain.errors import CanaryError
from canary.domain.pairs import Arm, Generation, Pair, Timing
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout
from canary.domain.step import new_epoch
from canary.flow.attempt import battery, context, engine_of, engine_record, locked_rollout, pinned_policy
from canary.flow.outlook import Outlook
from canary.flow.ports import ArmRequest, Claim, EngineInfo, Observer, ShadowEngine, Store, Transaction
from canary.flow.walk.publish import publish
from canary.stats.battery import Battery, pack
from canary.stats.calibration import from_json as calibration_from_json
from canary.stats.state import State

Clock = Callable[[], float]
OUTLOOK_LIMIT = 1_000  # stored pairs that a claim looks at before they are folded


@dataclass(frozen=True, slots=True)
class Work:
    """One batch of claims with the battery that its increments belong to.

    Args:
        outlook: says which ordinals are still to be timed.
        calibrating: the batch's ordinals calibrate the attempt.
    """

    policy: Policy
    claims: Sequence[Claim]
    battery: Battery
    outlook: Outlook
    calibrating: bool


def announce(store: Store, route: str, info: EngineInfo, now: float) -> Rollout:
    """Tell the rollout which engine runs its shadow; a changed subject opens a new epoch (DESIGN section 6).

    Returns:
        The rollout as it stands afterwards.
    """
    with store.transaction() as tx:
        rollout = locked_rollout(tx, route)
        policy = pinned_policy(tx, rollout)
        if rollout.epoch != info.fingerprint:
            step = new_epoch(rollout, info.fingerprint, policy, now)
            publish(tx, rollout, step, actor="worker", now=now)
            rollout = step.rollout
        if tx.evidence.get(route, rollout.epoch, rollout.attempt) is None:
            record = {"engine": engine_record(info), "battery": None, "last": None}
            tx.evidence.put(route, rollout.epoch, rollout.attempt, record)
        tx.commit()
    return rollout


def claim(store: Store, route: str, *, worker: str, now: float, limit: int | None = None) -> Work | None:
    """Lease the route's next batch.

    Ordinals from `calibration_requests` on wait for the frozen calibration record (statistics 0b.2), so the two kinds never
    share a batch.

    Returns:
        None when there is nothing to run now.
    """
    with store.transaction() as tx:
        rollout = locked_rollout(tx, route)
        record: Any = tx.evidence.get(route, rollout.epoch, rollout.attempt) if rollout.wants_shadow else None
        if record is None:
            return None
        key = (route, rollout.epoch, rollout.attempt)
        policy = pinned_policy(tx, rollout)
        frozen = tx.evidence.get_calibration(*key)
        calibration = calibration_from_json(frozen) if frozen else None
        built = battery(context(policy, rollout.attempt, engine_of(record["engine"]), calibration))
        state = State.from_json(record["battery"]) if record["battery"] else built.start()
        stored = tx.pairs.contiguous(*key, after=state.folded, limit=OUTLOOK_LIMIT)
        claims = tx.claims.claim(
            rollout,
            limit=limit or policy.shadow.batch_size,
            before_ordinal=None if calibration else policy.shadow.calibration_requests,
            worker=worker,
            now=now,
            lease_seconds=policy.shadow.lease_seconds,
            max_retries=policy.shadow.max_retries,
        )
        tx.commit()
    if not claims:
        return None
    outlook = Outlook(built, state, stored, drill=policy.subject.fault is not None)
    return Work(policy, claims, built, outlook, calibrating=calibration is None)


def give_back(store: Store, claims: Sequence[Claim]) -> None:
    """Release leases that will not be used, so that nobody waits for them to run out."""
    with store.transaction() as tx:
        tx.claims.release([c.token for c in claims])
        tx.commit()


def arm_key(pair: str, arm: Arm, choice: int = 0) -> bytes:
    """16 bytes that key every draw of one arm of one choice (DESIGN section 4, random numbers)."""
    return hashlib.blake2b(f"{pair}\x1f{arm.value}\x1f{choice}".encode(), digest_size=16).digest()


def first_arm(pair: str) -> Arm:
    """Which arm runs first: a fair coin that a retry tosses the same way."""
    coin = hashlib.blake2b(f"{pair}\x1forder".encode(), digest_size=1).digest()[0]
    return Arm.BASELINE if coin & 1 else Arm.CANDIDATE


def _requests(work: Work, arm: Arm) -> list[ArmRequest]:
    limit = work.policy.shadow.max_tokens
    return [ArmRequest(c.prompt, c.prompt.params.clamped(limit), arm_key(c.pair_id, arm)) for c in work.claims]


def run(work: Work, engine: ShadowEngine, alive: Callable[[], None]) -> list[Pair]:
    """Run both arms of a batch, in random order, then time what the open speed gate still needs.

    Args:
        alive: called between passes, to renew the leases; may raise to stop the batch.

    Returns:
        One pair per claim, with its increments.
    """
    first = first_arm(work.claims[0].pair_id)
    second = Arm.CANDIDATE if first is Arm.BASELINE else Arm.BASELINE
    done: dict[Arm, Sequence[Generation]] = {}
    engine.calibrating = work.calibrating
    for arm in (first, second):
        done[arm] = engine.generate(_requests(work, arm), arm)
        alive()
    pairs = []
    for at, claimed in enumerate(work.claims):
        baseline, candidate = done[Arm.BASELINE][at], done[Arm.CANDIDATE][at]
        timings: dict[Arm, Timing] = {}
        if work.outlook.wants_timing and not baseline.error and not candidate.error:
            timings = _time(work, engine, at)
            alive()
        pairs.append(_pair(work, claimed, first, baseline, candidate, timings))
        work.outlook.add(pairs[-1])
    return pairs


def _time(work: Work, engine: ShadowEngine, at: int) -> dict[Arm, Timing]:
    first = first_arm(work.claims[at].pair_id)
    second = Arm.CANDIDATE if first is Arm.BASELINE else Arm.BASELINE
    return {arm: engine.time(_requests(work, arm)[at], arm) for arm in (first, second)}


def _pair(
    work: Work, claimed: Claim, first: Arm, baseline: Generation, candidate: Generation, timings: dict[Arm, Timing]
) -> Pair:
    calibration = work.battery.context.calibration
    pair = Pair(
        pair_id=claimed.pair_id,
        route=claimed.route,
        epoch=claimed.epoch,
        attempt=claimed.attempt,
        ordinal=claimed.ordinal,
        stratum=claimed.prompt.params.stratum,
        first=first,
        baseline=baseline,
        candidate=candidate,
        increments=b"",
        calibration_hash=calibration.hash if calibration else "",
        baseline_timing=timings.get(Arm.BASELINE),
        candidate_timing=timings.get(Arm.CANDIDATE),
    )
    increments = work.battery.increments(pair)
    if increments is None:
        return replace(pair, error=work.battery.problem(pair))
    return replace(pair, increments=pack(increments))


def store_pairs(store: Store, work: Work, pairs: Sequence[Pair], now: float) -> int:
    """Store the pairs whose leases are still ours, both halves or neither.

    Returns:
        How many were stored; a lost lease's pair is left to whoever holds it now.
    """
    stored = 0
    with store.transaction() as tx:
        for claimed, pair in zip(work.claims, pairs, strict=True):
            if tx.claims.finish(claimed, failed=False):
                tx.pairs.add(pair, now)
                stored += 1
        tx.commit()
    return stored


def shadow_once(store: Store, route: str, engine: ShadowEngine, *, worker: str, clock: Clock, observer: Observer) -> int:
    """Claim, run and store one batch of one route.

    Returns:
        Pairs stored; 0 when there was nothing to do.
    """
    work = claim(store, route, worker=worker, now=clock())
    if work is None:
        return 0
    tokens = [c.token for c in work.claims]

    def alive() -> None:
        with store.transaction() as tx:
            tx.claims.heartbeat(tokens, clock(), work.policy.shadow.lease_seconds)
            tx.commit()

    try:
        pairs = run(work, engine, alive)
    except (KeyboardInterrupt, SystemExit):
        give_back(store, work.claims)
        raise
    except CanaryError as error:
        observer.note("batch_failed", route=route, code=error.code, detail=str(error), ordinals=[c.ordinal for c in work.claims])
        raise
    return store_pairs(store, work, pairs, clock())


def runnable_routes(tx: Transaction) -> list[str]:
    """Routes whose rollouts want shadow pairs."""
    return [r.route for r in tx.rollouts.list() if r.wants_shadow]
