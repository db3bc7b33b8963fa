"""What a drill reads from either store: the newest prompts of a route, and the audit events of one kind."""

from __future__ import annotations

from canary.flow.ports import Store
from tests.store.samples import prompt


def test_the_newest_prompts_of_a_route_come_in_order_of_arrival(store: Store) -> None:
    with store.transaction() as tx:
        tx.prompts.add_many([prompt(1), prompt(2), prompt(9, route="faq")], now=1.0)
        tx.prompts.add_many([prompt(3), prompt(1)], now=100_000.0)
        tx.commit()
    with store.transaction() as tx:
        assert tx.prompts.recent("math", 10) == [prompt(1), prompt(2), prompt(3)]
        assert tx.prompts.recent("math", 2) == [prompt(2), prompt(3)]
        assert tx.prompts.recent("none", 2) == []


def test_audit_events_of_one_kind_newest_first(store: Store) -> None:
    with store.transaction() as tx:
        for number in range(6):
            tx.audit.append("math", "drill" if number % 2 else "decision", "somebody", {"n": number}, float(number))
        tx.audit.append("faq", "drill", "somebody", {"n": 99}, 9.0)
        tx.commit()
    with store.transaction() as tx:
        assert [e["body"] for e in tx.audit.list("math", kind="drill")] == [{"n": 5}, {"n": 3}, {"n": 1}]
        assert [e["body"] for e in tx.audit.list("math", 2, kind="drill")] == [{"n": 5}, {"n": 3}]
        assert len(tx.audit.list("math")) == 6
