"""Both stores, one after the other, behind one fixture: a test that asks for `store` says what every store must do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from canary.flow.ports import Store
from canary.inmemory import InMemoryStore
from canary.store.unit_of_work import PostgresStore
from tests.store import samples


@pytest.fixture
def postgres_store(database: str) -> Iterator[PostgresStore]:
    store = PostgresStore(database)
    yield store
    store.close()


@pytest.fixture(params=["inmemory", "postgres"])
def store(request: pytest.FixtureRequest) -> Store:
    """An empty store."""
    if request.param == "inmemory":
        return InMemoryStore()
    found: PostgresStore = request.getfixturevalue("postgres_store")
    return found


@pytest.fixture
def filled(store: Store) -> Store:
    """A store with one rollout and ten prompts of its route."""
    with store.transaction() as tx:
        tx.rollouts.put(samples.ROLLOUT)
        tx.prompts.add_many([samples.prompt(n) for n in range(10)], now=100.0)
        tx.commit()
    return store
