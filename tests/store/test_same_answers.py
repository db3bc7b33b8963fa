"""A seeded walk over leases gives the same answers from both stores, step by step."""

from __future__ import annotations

import random

import pytest

from canary.domain.pairs import Pair
from canary.flow.ports import Claim, FoldItem, Store
from canary.inmemory import InMemoryStore
from canary.store.unit_of_work import PostgresStore
from tests.store.samples import ROLLOUT, pair, prompt

STEPS = 120
WEIGHTS = {"mirror": 2, "claim": 3, "finish": 6, "release": 1, "heartbeat": 1, "expire": 0.3}
View = tuple[list[FoldItem], list[Pair | None] | None, list[str], int, int]


class Walker:
    """One store and the claims it gave, by (ordinal, tries), whatever their tokens are."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.claims: dict[tuple[int, int], Claim] = {}

    def step(self, name: str, dice: random.Random, now: float) -> object:
        """Take one step with this store's own copy of the dice."""
        with self.store.transaction() as tx:
            known = sorted(self.claims)
            chosen = self.claims[dice.choice(known[-8:])] if known else None
            answer: object = None
            if name == "mirror":
                first = dice.randrange(60)
                answer = tx.prompts.add_many([prompt(n) for n in range(first, first + 4)], now)
            elif name == "claim":
                found = tx.claims.claim(
                    ROLLOUT,
                    limit=dice.randint(1, 4),
                    before_ordinal=dice.choice([None, 10]),
                    worker="w",
                    now=now,
                    lease_seconds=5.0,
                    max_retries=1,
                    control=lambda ordinal, pair_id: ordinal % 3 == 1 or pair_id < "2",
                )
                self.claims |= {(c.ordinal, c.tries): c for c in found}
                answer = [(c.ordinal, c.tries, c.pair_id, c.prompt, c.control) for c in found]
            elif name == "expire":
                answer = tx.claims.expire_all()
            elif chosen and name == "finish":
                failed = dice.random() < 0.2
                answer = tx.claims.finish(chosen, failed=failed)
                if answer and not failed:
                    tx.pairs.add(pair(chosen), now)
            elif chosen and name == "release":
                tx.claims.release([chosen.token])
            elif chosen and name == "heartbeat":
                answer = tx.claims.heartbeat([chosen.token], now, 5.0)
            if dice.random() < 0.9 or name == "claim":
                tx.commit()
        return answer

    def view(self) -> View:
        """Everything that can be read."""
        attempt = ("math", "epoch", 1)
        with self.store.transaction() as tx:
            return (
                tx.pairs.contiguous(*attempt, after=0, limit=1000),
                tx.pairs.first(*attempt, 3),
                tx.pairs.ids(*attempt),
                tx.claims.open_count(*attempt),
                tx.prompts.count("math"),
            )


@pytest.mark.parametrize("seed", range(3))
def test_both_stores_give_the_same_answers(postgres_store: PostgresStore, seed: int) -> None:
    dice = random.Random(seed)
    walkers = [Walker(InMemoryStore()), Walker(postgres_store)]
    now = 0.0
    for _ in range(STEPS):
        now += dice.choice([0.0, 0.5, 1.0])
        (name,) = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))
        throw = dice.random()
        answers = [walker.step(name, random.Random(throw), now) for walker in walkers]
        assert answers[0] == answers[1]
        views = [walker.view() for walker in walkers]
        assert views[0] == views[1]
    items = views[0][0]
    assert sum(item.increments is not None for item in items) > 5
    assert sum(item.increments is None for item in items) > 0
    assert 0 < sum(item.control for item in items) < len(items)
