"""What a route keeps of its mirror: its match rules, and so many requests a day; neither makes the kept share look wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from canary.domain.match import Match
from canary.domain.traffic import Prompt
from canary.flow.ports import Store
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import dump, load_text
from canary.flow.walk.mirror import Accepted, accept
from canary.inmemory import InMemoryStore
from tests.api.served import policy_of
from tests.store.samples import prompt

DAY = 86_400.0


def store_with(*, match: Match | None = None, budget: int | None = None, rate: float = 1.0) -> Store:
    policy = policy_of("math", rate)
    policy = replace(policy, match=match or Match(), shadow=replace(policy.shadow, requests_per_day=budget))
    made = InMemoryStore()
    apply_policy(made, load_text(dump(policy)), dump(policy), 0.0)
    return made


def sampled(n: int) -> Prompt:
    made = prompt(n)
    return replace(made, params=replace(made.params, temperature=1.0))


def greedy(n: int) -> Prompt:
    made = prompt(n)
    return replace(made, params=replace(made.params, temperature=0.0))


def seen_and_kept(store: Store, rate: float) -> tuple[int, int]:
    with store.transaction() as tx:
        counts = tx.mirrored.get("math", rate)
    return sum(c.seen for c in counts), sum(c.kept for c in counts)


def test_what_does_not_match_is_neither_kept_nor_counted() -> None:
    store = store_with(match=Match(strata=("greedy",)))
    assert accept(store, [greedy(1), sampled(2), greedy(1)], 5.0) == [
        Accepted.ACCEPTED, Accepted.NOT_MATCHED, Accepted.DUPLICATE
    ]  # fmt: skip
    assert seen_and_kept(store, 1.0) == (1, 1)


def test_the_days_budget_holds_over_batches_and_ends_with_the_day() -> None:
    store = store_with(budget=3)
    assert accept(store, [prompt(n) for n in range(2)], DAY + 1.0) == [Accepted.ACCEPTED] * 2
    late = accept(store, [prompt(n) for n in range(2, 5)], 2 * DAY - 1.0)
    assert late == [Accepted.ACCEPTED, Accepted.OVER_BUDGET, Accepted.OVER_BUDGET]
    assert accept(store, [prompt(9)], 2 * DAY - 0.5) == [Accepted.OVER_BUDGET]
    assert accept(store, [prompt(9)], 2 * DAY) == [Accepted.ACCEPTED]
    assert seen_and_kept(store, 1.0) == (4, 4)


@pytest.mark.parametrize("rate", [0.25])
def test_a3_22_past_the_budget_nothing_is_counted_as_seen(rate: float) -> None:
    store = store_with(budget=20, rate=rate)
    states = [accept(store, [prompt(n)], DAY + n)[0] for n in range(400)]
    assert states.count(Accepted.ACCEPTED) == 20
    last = max(i for i, state in enumerate(states) if state is Accepted.ACCEPTED)
    assert set(states[last + 1 :]) == {Accepted.OVER_BUDGET}
    assert seen_and_kept(store, rate) == (last + 1, 20)
