"""Step 2: keep a share of the mirrored requests, each once, under the source's own id.

The share is decided by a hash of its own, so being mirrored says nothing about the flag's variant; bytes are never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from canary.domain.traffic import Prompt
from canary.flow.alerts import mirror_budgets
from canary.flow.intake import Accepted, kept, policy_of, room, states_of
from canary.flow.mirrored import Recent, counted
from canary.flow.ports import Store, Transaction
from canary.flow.tools.bodies import CHAT, COMPLETIONS, MAX_BODY, read_request, too_large
from canary.flow.tools.body_params import DEFAULT_MAX_TOKENS

__all__ = ["CHAT", "COMPLETIONS", "DEFAULT_MAX_TOKENS", "MAX_BODY", "Accepted", "accept", "kept", "read_request", "too_large"]


def accept(store: Store, prompts: Sequence[Prompt], now: float, recent: Recent | None = None) -> list[Accepted]:
    """Store what is new, matches, and is inside the mirrored share and the day's budget, and count it; one transaction a batch.

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
        policies = {route: policy_of(tx, route) for route in {p.route for p in prompts}}
        rates = {route: None if of is None else of.shadow.mirror_rate for route, of in policies.items()}
        left = room(tx, policies, now)
        states = states_of(prompts, policies, left)
        wanted = [at for at, state in enumerate(states) if state is Accepted.ACCEPTED]
        if wanted:
            new = tx.prompts.add_many([prompts[at] for at in wanted], now)
            for at, was_new in zip(wanted, new, strict=True):
                states[at] = Accepted.ACCEPTED if was_new else Accepted.DUPLICATE
        kept_of = (p.route for p, state in zip(prompts, states, strict=True) if state is Accepted.ACCEPTED)
        mirror_budgets(tx, policies, left, kept_of, now)
        keys = _count(tx, prompts, states, rates, recent)
        tx.commit()
    recent.add(keys)
    return states


def _count(
    tx: Transaction, prompts: Sequence[Prompt], states: Sequence[Accepted], rates: Mapping[str, float | None], recent: Recent
) -> list[bytes]:
    """Add the batch to its routes' counts; returns the ids to remember once that is committed."""
    stored, sampled_out = (
        [(p, rate) for p, s in zip(prompts, states, strict=True) if s is state and (rate := rates[p.route]) is not None]
        for state in (Accepted.ACCEPTED, Accepted.SAMPLED_OUT)
    )
    counts, keys = counted(stored, sampled_out, recent)
    tx.mirrored.add(counts)
    return keys
