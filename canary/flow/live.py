"""Folds a route's live observations into its attempt's evidence record, and reads the live gates that its stage asks for.

It is `assess`'s other hand: it folds in the order of arrival, each observation once, and leaves the transaction to its caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from canary.domain.evidence import GateEvidence
from canary.domain.policy import Policy, Stage
from canary.domain.rollout import Rollout
from canary.flow.ports import Transaction
from canary.stats.live import LiveContext, LiveState, fold
from canary.stats.live_gates import judge
from canary.stats.reference import reference_of

LIVE_BATCH = 1_000  # observations folded in one transaction


@dataclass(frozen=True, slots=True)
class Live:
    """What the route's live traffic says.

    Args:
        record: what the evidence record keeps under `live`, None where it stays as it was.
        gates: of the stage.
        more: there may be further observations.
    """

    record: dict[str, Any] | None
    gates: tuple[GateEvidence, ...]
    more: bool


def watch(tx: Transaction, rollout: Rollout, policy: Policy, record: Mapping[str, Any], now: float) -> Live:
    """Fold one batch of observations and judge.

    Observations are counted for the stage that the rollout stands in now. An attempt starts behind the newest one, so that its
    cost never grows with history; a stage starts empty, but for the safety gates' bets, unless the policy carries the economy.

    Args:
        record: the attempt's evidence record.
    """
    stage, kept = policy.stages[rollout.stage], record.get("live")
    if kept is None:
        kept = {"cursor": tx.observations.newest(rollout.route), "state": None}
        state, found, changed = _state(kept, rollout, policy, stage), [], True
    else:
        state = _state(kept, rollout, policy, stage)
        found = tx.observations.after(rollout.route, kept["cursor"], LIVE_BATCH)
        changed = bool(found) or kept["state"] is None or kept["state"]["stage"] != state.stage
    context = LiveContext(
        gates=policy.gates,
        live=policy.live_gates,
        alpha=policy.gates.alpha_of(rollout.attempt),
        safety_alpha=policy.gates.alpha_of(rollout.attempt) / policy.error_shares,
        engine=rollout.epoch,
        reference=reference_of(record.get("battery")),
        full=policy.stages[-1].name,
    )
    state = fold(context, state, (observation for _, observation in found))
    gates = judge(context, state, stage.live, now, policy.limits.fresh_seconds)
    cursor = found[-1][0] if found else kept["cursor"]
    written = {"cursor": cursor, "state": state.to_json()} if changed else None
    return Live(written, tuple(gates), len(found) == LIVE_BATCH)


def _state(kept: Mapping[str, Any], rollout: Rollout, policy: Policy, stage: Stage) -> LiveState:
    """The stage's own state; the shadow's is never carried, since nobody is on the candidate in it."""
    if kept["state"] is None:
        return LiveState(stage.name, rollout.entered_at)
    state = LiveState.from_json(kept["state"])
    if state.stage == stage.name:
        return state
    return state.enter(stage.name, rollout.entered_at, carry=policy.economy == "carry" and state.stage != policy.stages[0].name)
