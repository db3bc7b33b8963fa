"""Step 5: fold finished pairs in ordinal order, each exactly once, and read the gates.

Folding only adds what workers stored, so any split of the work gives bit-equal evidence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from canary.domain.evidence import Evidence
from canary.domain.rollout import Rollout
from canary.flow import drills
from canary.flow.attempt import calibrated, context, controlled, engine_of, locked_rollout, pinned_policy
from canary.flow.economy import opened
from canary.flow.live import watch
from canary.flow.ports import EngineInfo, Store, Transaction
from canary.flow.traffic import count, traffic
from canary.stats import calibration as calibrations
from canary.stats.controlled import ControlledBattery, ControlledState
from canary.stats.part import Calibration, Context

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
    built = controlled(policy, calibrated(ctx, frozen) if frozen else ctx)
    state = built.load(record)
    items = tx.pairs.contiguous(*key, after=state.folded, limit=FOLD_BATCH)
    economy = opened(built, policy, rollout, record, state.folded).fold(items)
    state = built.fold(state, items)
    outcomes = count(record.get("outcomes", {}), filter(built.counts, items))
    live = watch(tx, rollout, policy, record, now)
    if items or live.record is not None or not record["battery"] or economy.entered:
        kept = {**state.to_json(), **economy.to_json(), "live": live.record or record.get("live"), "outcomes": outcomes}
        tx.evidence.put(*key, {**record, **kept})
    rate = policy.shadow.mirror_rate
    counted = traffic(tx.mirrored.get(rollout.route, rate), rate, outcomes)
    judged = controlled(policy, replace(built.main.context, traffic=counted.tables, untested=counted.untested))
    evidence = _evidence(rollout, engine, judged, state, now)
    asked = drills.gates(tx, rollout, policy, now)
    return replace(evidence, gates=economy.judge(evidence.gates) + live.gates + asked), len(items) == FOLD_BATCH or live.more


def _calibration(tx: Transaction, rollout: Rollout, ctx: Context, requests: int) -> Calibration | None:
    """The attempt's frozen calibration, made as soon as its first ordinals are all finished; A/A pairs take no part."""
    key = (rollout.route, rollout.epoch, rollout.attempt)
    stored = tx.evidence.get_calibration(*key)
    if stored is not None:
        return calibrations.from_json(stored)
    pairs = tx.pairs.first(*key, requests)
    if pairs is None:
        return None
    made = calibrations.calibrate([p for p in pairs if p is None or not p.control], ctx)
    tx.evidence.put_calibration(*key, calibrations.to_json(made))
    return made


def _evidence(rollout: Rollout, engine: EngineInfo, built: ControlledBattery, state: ControlledState, now: float) -> Evidence:
    return Evidence(
        route=rollout.route,
        epoch=rollout.epoch,
        attempt=rollout.attempt,
        folded=state.folded,
        num_pairs=state.main.num_pairs,
        num_failed=state.main.num_failed,
        gates=built.assess(state),
        subject=rollout.epoch,
        engine=engine.fingerprint,
        assessed_at=now,
        newest_pair_at=state.main.newest_pair_at,
        num_control=state.control.num_pairs,
    )
