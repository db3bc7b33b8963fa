"""Step 5: fold finished pairs in ordinal order, each exactly once, and read the gates.

Folding only adds what workers stored, so any split of the work gives bit-equal evidence.
"""

from __future__ import annotations

from typing import Any

from canary.domain.evidence import Evidence
from canary.domain.rollout import Rollout
from canary.flow.attempt import battery, calibrated, context, engine_of, locked_rollout, pinned_policy
from canary.flow.ports import EngineInfo, Store, Transaction
from canary.stats import calibration as calibrations
from canary.stats.battery import Battery
from canary.stats.part import Calibration, Context
from canary.stats.state import State

FOLD_BATCH = 500


def assess(store: Store, route: str, now: float) -> Evidence | None:
    """Fold what is new and say what every gate finds.

    Returns:
        None before an engine has announced itself or while the route is archived.
    """
    more = True
    while more:
        with store.transaction() as tx:
            rollout = locked_rollout(tx, route)
            record = tx.evidence.get(route, rollout.epoch, rollout.attempt)
            if record is None:
                return None
            evidence, more = _fold(tx, rollout, dict(record), now)
            tx.commit()
    return evidence


def _fold(tx: Transaction, rollout: Rollout, record: dict[str, Any], now: float) -> tuple[Evidence, bool]:
    """Fold one batch, so that a kill waits behind one at most; True when there may be more."""
    key = (rollout.route, rollout.epoch, rollout.attempt)
    policy = pinned_policy(tx, rollout)
    engine = engine_of(record["engine"])
    ctx = context(policy, rollout.attempt, engine, None)
    frozen = _calibration(tx, rollout, ctx, policy.shadow.calibration_requests)
    built = battery(calibrated(ctx, frozen) if frozen else ctx)
    state = State.from_json(record["battery"]) if record["battery"] else built.start()
    items = tx.pairs.contiguous(*key, after=state.folded, limit=FOLD_BATCH)
    state = built.fold(state, items)
    if items or not record["battery"]:
        tx.evidence.put(*key, {**record, "battery": state.to_json()})
    return _evidence(rollout, engine, built, state, now), len(items) == FOLD_BATCH


def _calibration(tx: Transaction, rollout: Rollout, ctx: Context, requests: int) -> Calibration | None:
    """The attempt's frozen calibration, made as soon as its first ordinals are all finished."""
    key = (rollout.route, rollout.epoch, rollout.attempt)
    stored = tx.evidence.get_calibration(*key)
    if stored is not None:
        return calibrations.from_json(stored)
    pairs = tx.pairs.first(*key, requests)
    if pairs is None:
        return None
    made = calibrations.calibrate(pairs, ctx)
    tx.evidence.put_calibration(*key, calibrations.to_json(made))
    return made


def _evidence(rollout: Rollout, engine: EngineInfo, built: Battery, state: State, now: float) -> Evidence:
    return Evidence(
        route=rollout.route,
        epoch=rollout.epoch,
        attempt=rollout.attempt,
        folded=state.folded,
        num_pairs=state.num_pairs,
        num_failed=state.num_failed,
        gates=built.assess(state),
        subject=rollout.epoch,
        engine=engine.fingerprint,
        assessed_at=now,
        newest_pair_at=state.newest_pair_at,
    )
