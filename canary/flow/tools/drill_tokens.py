"""How many requests and candidate tokens a run in memory took until a gate failed, to the very ordinal whose fold decided.

A/A pairs have no candidate, so their tokens count for nothing. It folds the stored increments again, so it can neither change nor
hurry what was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from canary.domain.evidence import Verdict
from canary.domain.pairs import Pair
from canary.flow.attempt import calibrated, context, controlled, engine_of, pinned_policy, rollout_of
from canary.flow.ports import FoldItem, Store
from canary.stats import calibration as calibrations
from canary.stats.controlled import ControlledBattery

MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run used.

    Args:
        ended: whether any answer of either arm ended by itself.
    """

    requests: int
    tokens: int
    ended: bool


def spent(store: Store, route: str, gate: str | None) -> Spent:
    """Requests and tokens of a finished run.

    Args:
        gate: a failing gate of the battery: count up to the ordinal at which it failed. None: count all.
    """
    with store.transaction() as tx:
        rollout = rollout_of(tx, route)
        key = (route, rollout.epoch, rollout.attempt)
        record, frozen = tx.evidence.get(*key), tx.evidence.get_calibration(*key)
        items = tx.pairs.contiguous(*key, after=0, limit=MOST)
        pairs = [pair for pair in map(tx.pairs.get, tx.pairs.ids(*key)) if pair is not None]
        policy = pinned_policy(tx, rollout)
    if record is None:
        return Spent(0, 0, ended=False)
    ctx = context(policy, rollout.attempt, engine_of(record["engine"]), None)  # type: ignore[arg-type]
    built = controlled(policy, calibrated(ctx, calibrations.from_json(frozen)) if frozen else ctx)
    last = len(items) if gate is None else _failed_at(built, items, gate, policy.shadow.batch_size)
    tokens = sum(len(p.candidate.token_ids) for p in pairs if p.ordinal < last and not p.control)
    return Spent(last, tokens, ended=any(_ended(p) for p in pairs))


def _failed_at(built: ControlledBattery, items: Sequence[FoldItem], gate: str, batch: int) -> int:
    """Ordinals folded when the gate first failed; whole batches are known not to have failed, but for the last one."""
    known = max(0, len(items) - batch)
    state = built.fold(built.start(), items[:known])
    for item in items[known:]:
        state = built.fold(state, [item])
        if any(g.gate == gate and g.verdict is Verdict.FAIL for g in built.assess(state)):
            return state.folded
    return len(items)


def _ended(pair: Pair) -> bool:
    return "stop" in (pair.baseline.finish_reason, pair.candidate.finish_reason)
