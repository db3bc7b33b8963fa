"""Step 3 and 4: claim mirrored prompts, run both arms, store each pair once.

The ordinal is given before any token is drawn, draws are keyed by the pair, and nothing that failed is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import sleep
from typing import Any

from canary.domain.errors import CanaryError, UnreachableError
from canary.domain.pairs import Arm, Generation, Pair, Timing
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout
from canary.domain.step import new_epoch
from canary.flow import arms, structured, timing
from canary.flow.attempt import context, controlled, engine_of, engine_record, locked_rollout, pinned_policy
from canary.flow.economy import opened
from canary.flow.epochs import next_attempt, require_not_left, require_pinned
from canary.flow.leases import LeasesLost, give_back, renew
from canary.flow.outlook import Outlook
from canary.flow.ports import ArmRequest, Claim, EngineInfo, Observer, ShadowEngine, Store
from canary.flow.shadow_runs import allowance
from canary.flow.walk.publish import publish
from canary.stats.battery import pack
from canary.stats.calibration import from_json as calibration_from_json
from canary.stats.controlled import ControlledBattery

Clock = Callable[[], float]
OUTLOOK_LIMIT = 500  # stored pairs not folded yet that a claim looks at, under the route's row lock
STORE_PAUSES = (0.2, 1.0, 3.0)  # seconds before each further try to store a batch; far below any lease


@dataclass(frozen=True, slots=True)
class Work:
    """One batch of claims with the battery that its increments belong to.

    Args:
        outlook: says which ordinals are still to be timed.
        calibrating: the batch's ordinals calibrate the attempt.
    """

    policy: Policy
    claims: Sequence[Claim]
    battery: ControlledBattery
    outlook: Outlook
    calibrating: bool


def announce(store: Store, route: str, info: EngineInfo, now: float, *, policy_hash: str | None = None) -> Rollout:
    """Tell the rollout which engine runs its shadow; a changed subject opens a new epoch (DESIGN section 6).

    An epoch that is entered again opens its next attempt, since its evidence was gathered under another policy.

    Args:
        policy_hash: the pinned policy that the engine was opened for; None where nobody else can change the store.

    Returns:
        The rollout as it stands afterwards.

    Raises:
        ConflictError: another policy is pinned meanwhile, or this one has already left the engine's epoch.
    """
    with store.transaction() as tx:
        rollout = locked_rollout(tx, route)
        require_pinned(rollout, policy_hash)
        if rollout.epoch != info.fingerprint:
            require_not_left(tx, rollout, info)
            attempt = next_attempt(tx, route, info.fingerprint)
            step = new_epoch(rollout, info.fingerprint, pinned_policy(tx, rollout), now, attempt=attempt)
            publish(tx, rollout, step, actor="worker", now=now)
            rollout = step.rollout
        key = (route, rollout.epoch, rollout.attempt)
        if rollout.epoch == info.fingerprint and tx.evidence.get(*key) is None:
            record = {
                "engine": engine_record(info),
                "policy": rollout.policy_hash,
                "battery": None,
                "control": None,
                "last": None,
            }
            tx.evidence.put(*key, record)
        tx.commit()
    return rollout


def claim(
    store: Store,
    route: str,
    *,
    worker: str,
    now: float,
    epoch: str,
    policy_hash: str | None = None,
    limit: int | None = None,
) -> Work | None:
    """Lease the route's next batch.

    Ordinals from `calibration_requests` on wait for the frozen calibration record (statistics 0b.2), so the two kinds never
    share a batch. An error leaves no lease behind.

    Args:
        epoch: fingerprint of the engine that will run the batch.
        policy_hash: the pinned policy that it was opened for; None where nobody else can change the store.

    Returns:
        None when there is nothing to run now, or nothing for this engine.
    """
    with store.transaction() as tx:
        rollout = locked_rollout(tx, route)
        key = (route, rollout.epoch, rollout.attempt)
        mine = rollout.epoch == epoch and policy_hash in (None, rollout.policy_hash)
        record: Any = tx.evidence.get(*key) if mine and rollout.wants_shadow else None
        if record is None:
            return None
        policy = pinned_policy(tx, rollout)
        frozen = tx.evidence.get_calibration(*key)
        calibration = calibration_from_json(frozen) if frozen else None
        built = controlled(policy, context(policy, rollout.attempt, engine_of(record["engine"]), calibration))
        state = built.load(record)
        scheduled = allowance(tx, rollout, policy, now)
        claims = tx.claims.claim(
            rollout,
            limit=limit or policy.shadow.batch_size,
            before_ordinal=scheduled.before(None if calibration else policy.shadow.calibration_requests),
            worker=worker,
            now=now,
            lease_seconds=policy.shadow.lease_seconds,
            max_retries=policy.shadow.max_retries,
            control=arms.control_rule(policy.shadow),
        )
        scheduled.keep(tx)
        stored = tx.pairs.contiguous(*key, after=state.folded, limit=OUTLOOK_LIMIT) if claims else []
        economy = opened(built, policy, rollout, record, state.folded)
        outlook = Outlook(built, state, stored, drill=policy.subject.fault is not None, economy=economy)
        tx.commit()
    return Work(policy, claims, built, outlook, calibrating=calibration is None) if claims else None


def _request(work: Work, claimed: Claim, arm: Arm) -> ArmRequest:
    params = claimed.prompt.params.clamped(work.policy.shadow.max_tokens)
    return ArmRequest(claimed.prompt, params, arms.arm_key(claimed.pair_id, arm), claimed.control and arm is Arm.CANDIDATE)


def _timed_as(work: Work, claimed: Claim) -> bool | None:
    """Whether a claim's block is one of A/A pairs; None where it is not timed."""
    left_out = work.battery.leaves_out(claimed.prompt.params.stratum, control=claimed.control)
    return None if left_out else claimed.control


def run(work: Work, engine: ShadowEngine, alive: Callable[[], None], observer: Observer) -> list[Pair]:
    """Run both arms of a batch, in random order, then time what the open gates still need, block by block.

    Args:
        alive: called between passes, to renew the leases; may raise to stop the batch.

    Returns:
        One pair per claim, with its increments.
    """
    ran = arms.order(work.claims[0].pair_id)
    engine.calibrating = work.calibrating
    done: dict[Arm, Sequence[Generation]] = {}
    for arm in ran:
        requests = [_request(work, claimed, arm) for claimed in work.claims]
        done[arm] = arms.generate(engine, requests, arm, alive=alive, observer=observer)
        alive()
    pairs = []
    blocks = timing.blocks([_timed_as(work, claimed) for claimed in work.claims], work.policy.shadow)
    for at, claimed in enumerate(work.claims):
        form = claimed.prompt.form
        baseline, candidate = structured.judge(work.policy.structured, done[Arm.BASELINE][at], done[Arm.CANDIDATE][at], form)
        if why := structured.unusable(work.policy.structured, form):
            observer.note("answer_not_judged", route=claimed.route, ordinal=claimed.ordinal, detail=why)
        timings: dict[Arm, Timing | None] = {}
        block = blocks.get(at, ())
        if block and timing.answered(done, block) and work.outlook.wants(control=claimed.control):
            requests_of = {arm: [_request(work, work.claims[i], arm) for i in block] for arm in Arm}
            timings = timing.both(engine, requests_of, arms.order(claimed.pair_id), observer=observer)
            alive()
        pairs.append(_pair(work, claimed, ran[0], baseline, candidate, timings))
        work.outlook.add(pairs[-1])
    return pairs


def _pair(
    work: Work, claimed: Claim, first: Arm, baseline: Generation, candidate: Generation, timings: dict[Arm, Timing | None]
) -> Pair:
    built = work.battery.of(control=claimed.control)
    calibration = built.context.calibration
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
        control=claimed.control,
    )
    ((why, increments),) = built.examine([pair])
    return replace(pair, error=why) if increments is None else replace(pair, increments=pack(increments))


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


def shadow_once(
    store: Store,
    route: str,
    engine: ShadowEngine,
    *,
    worker: str,
    clock: Clock,
    observer: Observer,
    policy_hash: str | None = None,
    pause: Callable[[float], None] = sleep,
) -> int:
    """Claim, run and store one batch of one route; whatever goes wrong, its leases are given back.

    Args:
        policy_hash: see `claim`.
        pause: waits so many seconds before the batch is stored again.

    Returns:
        Pairs stored; 0 when there was nothing to do or every lease was lost.

    Raises:
        UnreachableError: the database stayed away; the leases run out by themselves.
    """
    work = claim(store, route, worker=worker, now=clock(), epoch=engine.info.fingerprint, policy_hash=policy_hash)
    if work is None:
        return 0
    batch = {"route": route, "ordinals": [c.ordinal for c in work.claims]}
    try:
        pairs = run(work, engine, lambda: renew(store, work.policy, work.claims, clock(), observer), observer)
        return _store_patiently(store, work, pairs, clock, pause, observer)
    except LeasesLost:
        observer.note("leases_lost", **batch)
        return 0
    except BaseException as error:
        if isinstance(error, CanaryError):
            observer.note("batch_failed", code=error.code, detail=str(error), **batch)
        with suppress(CanaryError):
            give_back(store, work.claims)
        raise


def _store_patiently(
    store: Store, work: Work, pairs: Sequence[Pair], clock: Clock, pause: Callable[[float], None], observer: Observer
) -> int:
    """Store the pairs, with a few more tries while the database does not answer."""
    for seconds in STORE_PAUSES:
        try:
            return store_pairs(store, work, pairs, clock())
        except UnreachableError as error:
            observer.note("store_failed", route=work.policy.route, code=error.code, detail=str(error), again_in_seconds=seconds)
        pause(seconds)
    return store_pairs(store, work, pairs, clock())
