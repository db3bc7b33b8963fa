"""What both stores promise about proposed policies, about a rollout's approvals, and about how many prompts came today."""

from __future__ import annotations

from dataclasses import replace

from canary.flow.ports import Proposal, Store
from tests.store.samples import ROLLOUT, prompt

FIRST = Proposal("math", "a" * 64, "route: math\n", "ada", 1_700_000_000.25)


def test_a_route_has_one_proposal_the_newest(store: Store) -> None:
    other = replace(FIRST, content_hash="b" * 64, author="bob", asked_at=1_700_000_001.5)
    with store.transaction() as tx:
        assert tx.proposals.get("math") is None
        tx.proposals.put(FIRST)
        tx.proposals.put(replace(FIRST, route="faq"))
        tx.commit()
    with store.transaction() as tx:
        assert tx.proposals.get("math") == FIRST
        tx.proposals.put(other)
        tx.commit()
    with store.transaction() as tx:
        assert tx.proposals.get("math") == other
        tx.proposals.drop("math")
        tx.proposals.drop("math")
        tx.commit()
    with store.transaction() as tx:
        assert tx.proposals.get("math") is None
        assert tx.proposals.get("faq") == replace(FIRST, route="faq")


def test_cool_down_and_approval_come_back_to_the_bit(store: Store) -> None:
    waiting = replace(
        ROLLOUT, rollbacks=3, cool_until=1e9 + 1 / 3, asked_at=0.1 + 0.2, approved_at=5e-324, approved_by="Ada, \u00e9"
    )
    with store.transaction() as tx:
        tx.rollouts.put(waiting)
        tx.commit()
    with store.transaction() as tx:
        assert tx.rollouts.get("math") == waiting
        assert tx.rollouts.list() == [waiting]


def test_prompts_since_a_moment_are_counted_up_to_a_limit(store: Store) -> None:
    with store.transaction() as tx:
        tx.prompts.add_many([prompt(1), prompt(2)], now=100.0)
        tx.prompts.add_many([prompt(2), prompt(3), prompt(4, route="faq")], now=90_000.0)
        tx.commit()
    with store.transaction() as tx:
        assert [tx.prompts.since("math", at, 10) for at in (0.0, 100.0, 100.5, 90_000.0, 90_000.5)] == [3, 3, 1, 1, 0]
        assert (tx.prompts.since("math", 0.0, 2), tx.prompts.since("none", 0.0, 5)) == (2, 0)
