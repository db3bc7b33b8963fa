"""The gate `drill`: whether the faults that a policy asks for were caught lately, on this very epoch.

It blocks an advance out of the shadow and nothing else: a drill says what a pass is worth, never that the candidate is bad.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from canary.domain.catalogue import ALL_FAULTS, CATALOGUE
from canary.domain.drills import BAD, OPEN, Outcome
from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout
from canary.flow.ports import Transaction

GATE = "drill"
AUDIT_KIND = "drill"
MOST_EVENTS = 100  # drills that are looked through; each may hold all faults
MOST_NAMED = 3


def required(policy: Policy) -> tuple[str, ...]:
    """Names of the faults that the policy asks for; those that no gate can see are left out of `all`."""
    asked = policy.drills.required
    return tuple(n for n, e in CATALOGUE.items() if not e.blind) if ALL_FAULTS in asked else tuple(dict.fromkeys(asked))


def gates(tx: Transaction, rollout: Rollout, policy: Policy, now: float) -> tuple[GateEvidence, ...]:
    """The gate, in the shadow of a route whose policy asks for drills; nothing anywhere else.

    A drill's own route has none.
    """
    names = required(policy)
    if not names or rollout.stage > 0 or policy.subject.fault is not None:
        return ()
    events = tx.audit.list(rollout.route, MOST_EVENTS, kind=AUDIT_KIND)
    return (judge(names, events, rollout.epoch, policy.drills.max_age_seconds, now),)


def judge(
    names: Sequence[str], events: Iterable[Mapping[str, Any]], epoch: str, max_age_seconds: float, now: float
) -> GateEvidence:
    """The gate from the audit log.

    Args:
        names: faults asked for.
        events: audit events of drills, newest first.
        epoch: of the clean subject that is to be promoted.
        now: seconds since the epoch of time.
    """
    fresh: dict[str, str] = {}
    old: set[str] = set()
    for event in events:
        body: Mapping[str, Any] = event["body"]
        if body["epoch"] != epoch:
            continue
        age = now - float(event["at"])
        for found in body["faults"]:
            if age > max_age_seconds:
                old.add(found["fault"])
            else:
                fresh.setdefault(found["fault"], found["outcome"])
    bad = [n for n in names if fresh.get(n) in BAD]
    open_ = [n for n in names if fresh.get(n) == Outcome.UNDECIDED]
    absent = [n for n in names if n not in fresh]
    passed = [n for n in names if n in fresh and fresh[n] not in OPEN]
    verdict, reason, sentence = _verdict(bad, open_, absent, old, len(passed), max_age_seconds)
    return GateEvidence(
        GATE,
        GateRole.EQUIVALENCE,
        verdict,
        reason,
        sentence,
        value=len(passed) / len(names),
        threshold=1.0,
        n=len(passed),
        unit="faults",
        needed=len(names) - len(passed),
        progress=len(passed) / len(names),
        details={
            "outcomes": {name: fresh[name] for name in names if name in fresh},
            "missing": absent,
            "max_age_seconds": max_age_seconds,
        },
    )


def _verdict(
    bad: Sequence[str], undecided: Sequence[str], absent: Sequence[str], old: set[str], passed: int, max_age_seconds: float
) -> tuple[Verdict, str, str]:
    """No drill at all is inconclusive, not missing data: it must never roll a route back."""
    remedy = "run `canary drill ROUTE`"
    if bad:
        return (
            Verdict.FAIL,
            "drill_missed",
            f"A fault was not caught, or a harmless control called one: {_named(bad)}.",
        )
    if undecided:
        why = f"The drill's requests were used up before these were caught: {_named(undecided)}; {remedy} with more requests."
        return Verdict.INCONCLUSIVE, "drill_undecided", why
    if absent:
        days = f"{max_age_seconds / 86_400:g} days"
        stale = [name for name in absent if name in old]
        if stale:
            return Verdict.INCONCLUSIVE, "drill_stale", f"The drill of {_named(stale)} is older than {days}; {remedy}."
        return Verdict.INCONCLUSIVE, "no_drill", f"No drill of this epoch in {days} for {_named(absent)}; {remedy}."
    return Verdict.PASS, "drill_passed", f"All {passed} faults asked for were caught, or cannot show on this route."


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
