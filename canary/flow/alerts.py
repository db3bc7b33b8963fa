"""Tells webhooks when a budget runs out and when a stratum stops being tested, each once, in the transaction that learns it.

It decides nothing and holds nothing back: the limits themselves act elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from canary.domain.budget import level_of, spent
from canary.domain.evidence import Evidence
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout
from canary.flow.notify import tell_event
from canary.flow.ports import Transaction
from canary.stats.strata import GATE as STRATA

USED_UP = 100


def mirror_budgets(
    tx: Transaction, policies: Mapping[str, Policy | None], room: Mapping[str, int], kept: Iterable[str], now: float
) -> None:
    """Tell of every route whose daily mirror budget has reached a level of `budget.LEVELS`, once per UTC day and level.

    It is asked at every batch and not only at the one that crosses a level: two listeners may cross it together, neither of them
    seeing the other's requests. The notice's key makes a repeat nothing.

    Args:
        policies: of the batch's routes.
        room: how many could still be kept before the batch, of routes that have a budget.
        kept: the route of every request that the batch kept.
    """
    new = list(kept)
    for route, left in room.items():
        policy = policies[route]
        most = None if policy is None else policy.shadow.requests_per_day
        if policy is None or most is None:
            continue
        requests = most - left + new.count(route)
        level, day = level_of(requests, most), datetime.fromtimestamp(now, UTC).date().isoformat()
        if level:
            reason = "mirror_budget_used_up" if level == USED_UP else "mirror_budget_low"
            said = {"reason": reason, "level": level, "day": day, "requests_per_day": most}
            tell_event(tx, policy, "budget", said, now, key=f"mirror/{day}/{level}/{most}")


def assessed(
    tx: Transaction, rollout: Rollout, policy: Policy, record: Mapping[str, Any], evidence: Evidence | None, now: float
) -> dict[str, list[str]]:
    """Tell of an error budget that the evidence has spent, and of strata that are not tested any more or are tested again.

    Args:
        record: the attempt's evidence record, which knows what was told.
        evidence: None says nothing about either.

    Returns:
        What the record is to keep from now on, `spent` and `untested`; only what changed.
    """
    if evidence is None:
        return {}
    about = {"epoch": rollout.epoch, "attempt": rollout.attempt}
    told, found = list(record.get("spent", ())), spent(evidence.gates)
    new = [name for name in found if name not in told]
    for name in new:
        said = {"reason": "error_budget_spent", "e_value": name, "alpha": policy.gates.alpha_of(rollout.attempt), **about}
        tell_event(tx, policy, "budget", said, now, key=f"alpha/{rollout.epoch}/{rollout.attempt}/{name}")
    changed = {"spent": [*told, *new]} if new else {}
    before, untested = list(record.get("untested", ())), _untested(evidence)
    if untested != before:
        reason = "stratum_untested" if set(untested) - set(before) else "stratum_tested"
        said = {"reason": reason, "untested": ",".join(untested), "pairs": evidence.num_pairs, **about}
        tell_event(tx, policy, "coverage", said, now)
        changed["untested"] = untested
    return changed


def _untested(evidence: Evidence) -> list[str]:
    gate = evidence.gate(STRATA)
    found: Any = {} if gate is None else gate.details.get("untested", {})
    return sorted(str(stratum) for stratum in found)
