"""Which mirrored requests a route keeps: those that its flag may take, inside the mirrored share, within the day's budget.

It counts and stores nothing; the share is decided by a hash of its own, so being kept says nothing about the flag's variant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from canary.domain.flag import murmur3_32
from canary.domain.policy import Policy
from canary.domain.traffic import Prompt
from canary.flow.attempt import pinned_policy
from canary.flow.ports import Transaction

MIRROR_SALT = "mirror"
DAY_SECONDS = 86_400.0


class Accepted(StrEnum):
    """What became of one mirrored request."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    SAMPLED_OUT = "sampled_out"
    NOT_MATCHED = "not_matched"
    OVER_BUDGET = "over_budget"
    UNKNOWN_ROUTE = "unknown_route"


def kept(prompt: Prompt, rate: float) -> bool:
    """Whether a request is in the mirrored share: a fixed function of its id, so that a repeat meets the same answer.

    Args:
        rate: share to keep, 0 to 1; raising it keeps everything that was kept before.
    """
    key = "\x1f".join((MIRROR_SALT, prompt.route, prompt.source, prompt.request_id))
    return murmur3_32(key.encode()) < rate * 2**32


def states_of(prompts: Sequence[Prompt], policies: Mapping[str, Policy | None], budget: Mapping[str, int]) -> list[Accepted]:
    """What becomes of each before it is stored, in order.

    Args:
        policies: of every route, None where it has no rollout.
        budget: how many may still be kept today, of routes that have a limit.

    With the day's budget used up nothing of the route is looked at any more, or the kept share of what was would look too small.
    """
    left, states = dict(budget), []
    for prompt in prompts:
        policy = policies[prompt.route]
        if policy is None:
            states.append(Accepted.UNKNOWN_ROUTE)
        elif not policy.mirrors(prompt.endpoint, prompt.params.temperature, prompt.stream):
            states.append(Accepted.NOT_MATCHED)
        elif left.get(prompt.route, 1) <= 0:
            states.append(Accepted.OVER_BUDGET)
        elif not kept(prompt, policy.shadow.mirror_rate):
            states.append(Accepted.SAMPLED_OUT)
        else:
            states.append(Accepted.ACCEPTED)
            if prompt.route in left:
                left[prompt.route] -= 1
    return states


def room(tx: Transaction, policies: Mapping[str, Policy | None], now: float) -> dict[str, int]:
    """How many requests may still be kept today (UTC), by route; routes without a budget are absent."""
    today, found = now - now % DAY_SECONDS, {}
    for route, policy in policies.items():
        most = None if policy is None else policy.shadow.requests_per_day
        if most is not None:
            found[route] = most - tx.prompts.since(route, today, most)
    return found


def policy_of(tx: Transaction, route: str) -> Policy | None:
    """The pinned policy, None without a rollout."""
    rollout = tx.rollouts.get(route)
    return None if rollout is None else pinned_policy(tx, rollout)
