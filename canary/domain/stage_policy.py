"""The stages of a policy, the approvals between them, and when waiting ends; plain values, each legal on its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from canary.domain.errors import PolicyError

EVENTS = ("stage", "verdict", "kill", "drill", "budget", "coverage", "approval")


@dataclass(frozen=True, slots=True)
class Approval:
    """A person must agree before the stage is entered; nobody's answer is a refusal.

    Args:
        within_seconds: how long the question stands before it is denied, and how long an answer given early stays good.
        by_author: whether whoever applied the policy may approve; refused otherwise.
    """

    within_seconds: float = 86_400.0
    by_author: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the rollout.

    Args:
        name: `shadow`, a canary's own name, or `full`.
        weight: basis points of traffic on the candidate while in it.
        bake_seconds: healthy assessed time in the stage before the next.
        live: names of live gates; empty needs `live_waived`.
        live_waived: why a canary stage goes without a live gate.
        approval: a person must agree before the stage is entered; None asks nobody.
    """

    name: str
    weight: int
    bake_seconds: float = 0.0
    live: tuple[str, ...] = ()
    live_waived: str | None = None
    approval: Approval | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """When waiting ends.

    Args:
        max_hold_seconds: longest stay in a stage without evidence to advance, then hold.
        no_data_seconds: longest time without a fresh pair, then roll back (canary) or page.
        fresh_seconds: evidence older than this is stale.
        max_errors: consecutive assessments that could not measure, then hold.
        max_requests: pairs after which an inconclusive shadow is `expired`.
        kill_ramp_seconds: how long an evidence kill above half of the traffic may take.
        cooldown_seconds: after an epoch's first rollback, before the next attempt may take traffic.
        cooldown_factor: by which the cool-down grows with every further rollback of the epoch.
        max_cooldown_seconds: longest cool-down.
        max_attempts: rollbacks of one epoch after which nothing but a new epoch or policy is tried.
        bake_gap_seconds: longest interval between two assessments that counts towards a bake; of a longer one only this much.
    """

    max_hold_seconds: float = 86_400.0
    no_data_seconds: float = 3_600.0
    fresh_seconds: float = 3_600.0
    max_errors: int = 5
    max_requests: int = 20_000
    kill_ramp_seconds: float = 300.0
    cooldown_seconds: float = 3_600.0
    bake_gap_seconds: float = 60.0
    cooldown_factor: float = 2.0
    max_cooldown_seconds: float = 604_800.0
    max_attempts: int = 5

    def cooldown_of(self, rollbacks: int) -> float:
        """Seconds of cool-down after an epoch's so-many-th rollback: it grows by the factor, up to the longest.

        Args:
            rollbacks: from 1; fewer count as 1.
        """
        grown = math.log(max(self.cooldown_seconds, 1e-9)) + (max(rollbacks, 1) - 1) * math.log(self.cooldown_factor)
        longest = max(self.max_cooldown_seconds, self.cooldown_seconds)
        if grown >= math.log(max(longest, 1e-9)):
            return longest
        return min(longest, self.cooldown_seconds * self.cooldown_factor ** (max(rollbacks, 1) - 1))


@dataclass(frozen=True, slots=True)
class NotifyTarget:
    """Who is told of a route's events.

    Args:
        webhook: the name of a webhook in the settings; a policy never holds an address or a secret.
        events: what it is told; empty stands for all.
    """

    webhook: str
    events: tuple[str, ...] = ()


def told(targets: Sequence[NotifyTarget], event: str) -> tuple[str, ...]:
    """Names of the webhooks that an event goes to, each once.

    Raises:
        ValueError: there is no such event.
    """
    if event not in EVENTS:
        raise ValueError(f"unknown event {event!r}; known are {', '.join(EVENTS)}")
    return tuple(dict.fromkeys(t.webhook for t in targets if not t.events or event in t.events))


def check_stages(stages: Sequence[Stage]) -> None:
    """Refuse stages that do not lead from the shadow to full.

    Raises:
        PolicyError: names the field.
    """
    names = [s.name for s in stages]
    if len(names) < 3 or names[0] != "shadow" or names[-1] != "full" or len(set(names)) != len(names):
        raise PolicyError(
            "stages must start with shadow, end with full, have a canary between and unique names",
            where="stages",
            remedy="List shadow (weight 0), one or more canary stages, and full (weight 10000).",
        )
    weights = [s.weight for s in stages]
    if weights[0] != 0 or weights[-1] != 10_000 or any(b <= a for a, b in pairwise(weights)):
        raise PolicyError(
            "weights must rise from 0 (shadow) to 10000 (full)",
            where="stages",
            remedy="Give each stage more traffic than the one before it.",
        )
    for stage in stages[1:-1]:
        if not stage.live and not stage.live_waived:
            raise PolicyError(
                f"canary stage {stage.name!r} has no live gate",
                where=f"stages.{stage.name}.live",
                remedy="Name a live gate, or write `live: waived` with a `why`.",
            )
    if stages[0].approval is not None:
        raise PolicyError(
            "the shadow takes no traffic and needs no approval",
            where="stages.shadow.approval",
            remedy="Ask for it at the stage that it is to open.",
        )


def check_notify(targets: Sequence[NotifyTarget]) -> None:
    """Refuse a webhook that is named twice.

    Raises:
        PolicyError: names the field.
    """
    names = [t.webhook for t in targets]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise PolicyError(f"webhook {twice!r} is named twice", where="notify", remedy="Put its events into one entry.")
