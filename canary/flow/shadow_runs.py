"""Scheduled shadow runs in the store: opening those that are due, and what the open one lets a worker take.

A run is a row under its scheduled time, so that it survives every process and two schedulers open one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from canary.domain.policy import Policy
from canary.domain.rollout import Rollout
from canary.domain.shadow_run import ShadowRun, due
from canary.flow.attempt import pinned_policy
from canary.flow.ports import Store, Transaction


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a worker may take of a route now.

    Args:
        key: (route, epoch, attempt) of the claims.
        scheduled: whether the policy has a schedule.
        run: the newest one.
        given: ordinals that the attempt has given so far.
    """

    key: tuple[str, str, int]
    scheduled: bool = False
    run: ShadowRun | None = None
    given: int = 0
    left: int | None = None

    def before(self, ordinal: int | None) -> int | None:
        """First ordinal that must not be given, no later than the one asked for; None without a bound.

        Ordinals that were given already are run on outside of a run too: a lease that ran out must not hold up the fold until the
        next one.
        """
        if not self.scheduled or self.left is None:
            return ordinal
        bound = self.given + self.left
        return bound if ordinal is None else min(bound, ordinal)

    def keep(self, tx: Transaction) -> None:
        """Count what was given since, in the transaction that gave it."""
        new = tx.claims.given(*self.key) - self.given if self.scheduled else 0
        if new and self.run is not None:
            tx.shadow_runs.put(replace(self.run, taken=self.run.taken + new))


def allowance(tx: Transaction, rollout: Rollout, policy: Policy, now: float) -> Allowance:
    """What may be taken now, under the rollout's row lock."""
    key = (rollout.route, rollout.epoch, rollout.attempt)
    if policy.shadow.schedule is None:
        return Allowance(key)
    run = tx.shadow_runs.newest(rollout.route)
    return Allowance(key, True, run, tx.claims.given(*key), 0 if run is None else run.left(now))


def open_due(store: Store, now: float) -> str:
    """Open the runs that are due, each once whoever else tries.

    Returns:
        What was opened, in a sentence.
    """
    opened = []
    with store.transaction() as tx:
        for rollout in tx.rollouts.list():
            schedule = pinned_policy(tx, rollout).shadow.schedule if rollout.wants_shadow else None
            run = None if schedule is None else due(rollout.route, schedule, tx.shadow_runs.newest(rollout.route), now)
            if run is not None and tx.shadow_runs.open(run):
                opened.append(rollout.route)
        tx.commit()
    return f"opened a run for {', '.join(opened)}" if opened else "no run is due"
