"""Step 2: keep a share of the mirrored requests, each once, under the source's own id.

The share is decided by a hash of its own, so being mirrored says nothing about the flag's variant; bytes are never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from canary.domain.flag import murmur3_32
from canary.domain.traffic import Prompt
from canary.flow.attempt import pinned_policy
from canary.flow.mirrored import Recent, counted
from canary.flow.ports import Store, Transaction
from canary.flow.tools.bodies import CHAT, COMPLETIONS, DEFAULT_MAX_TOKENS, MAX_BODY, read_request, too_large

__all__ = ["CHAT", "COMPLETIONS", "DEFAULT_MAX_TOKENS", "MAX_BODY", "Accepted", "accept", "kept", "read_request", "too_large"]

MIRROR_SALT = "mirror"


class Accepted(StrEnum):
    """What became of one mirrored request."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    SAMPLED_OUT = "sampled_out"
    UNKNOWN_ROUTE = "unknown_route"


def kept(prompt: Prompt, rate: float) -> bool:
    """Whether a request is in the mirrored share: a fixed function of its id, so that a repeat meets the same answer.

    Args:
        rate: share to keep, 0 to 1; raising it keeps everything that was kept before.
    """
    key = "\x1f".join((MIRROR_SALT, prompt.route, prompt.source, prompt.request_id))
    return murmur3_32(key.encode()) < rate * 2**32


def accept(store: Store, prompts: Sequence[Prompt], now: float, recent: Recent | None = None) -> list[Accepted]:
    """Store what is new and inside the mirrored share, and count it, in one transaction for the whole batch.

    Args:
        now: seconds since the epoch.
        recent: ids that were sampled out lately, which this batch joins; without it a repeat is known within the batch alone.

    Returns:
        One state per prompt, in order; a route without a rollout is `unknown_route` and nothing of it is stored.
    """
    if not prompts:
        return []
    recent = Recent() if recent is None else recent
    with store.transaction() as tx:
        rates = {route: _mirror_rate(tx, route) for route in {p.route for p in prompts}}
        states = [_before_insert(p, rates[p.route]) for p in prompts]
        wanted = [at for at, state in enumerate(states) if state is Accepted.ACCEPTED]
        if wanted:
            new = tx.prompts.add_many([prompts[at] for at in wanted], now)
            for at, was_new in zip(wanted, new, strict=True):
                states[at] = Accepted.ACCEPTED if was_new else Accepted.DUPLICATE
        keys = _count(tx, prompts, states, rates, recent)
        tx.commit()
    recent.add(keys)
    return states


def _count(
    tx: Transaction, prompts: Sequence[Prompt], states: Sequence[Accepted], rates: Mapping[str, float | None], recent: Recent
) -> list[bytes]:
    """Add the batch to its routes' counts; returns the ids to remember once that is committed."""
    kept, sampled_out = (
        [(p, rate) for p, s in zip(prompts, states, strict=True) if s is state and (rate := rates[p.route]) is not None]
        for state in (Accepted.ACCEPTED, Accepted.SAMPLED_OUT)
    )
    counts, keys = counted(kept, sampled_out, recent)
    tx.mirrored.add(counts)
    return keys


def _before_insert(prompt: Prompt, rate: float | None) -> Accepted:
    if rate is None:
        return Accepted.UNKNOWN_ROUTE
    return Accepted.ACCEPTED if kept(prompt, rate) else Accepted.SAMPLED_OUT


def _mirror_rate(tx: Transaction, route: str) -> float | None:
    """The pinned policy's share, None without a rollout."""
    rollout = tx.rollouts.get(route)
    return None if rollout is None else pinned_policy(tx, rollout).shadow.mirror_rate
