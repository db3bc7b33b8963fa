"""What both stores promise about counts of mirrored requests and about the kinds of finished ordinals."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from canary.domain.mirrored import MirrorCount
from canary.domain.traffic import Stratum
from canary.flow.ports import Store
from canary.store.unit_of_work import PostgresStore
from tests.store.samples import pair
from tests.store.test_conformance_claims import claim

RATE = 0.1 + 0.2  # not a number that ends in binary


def kind(
    seen: int, kept: int, *, route: str = "math", rate: float = RATE, stream: bool = False, length: int = 256
) -> MirrorCount:
    return MirrorCount(route, rate, "chat/completions", stream, length, seen, kept)


def add(store: Store, *counts: MirrorCount, commit: bool = True) -> None:
    with store.transaction() as tx:
        tx.mirrored.add(counts)
        if commit:
            tx.commit()


def get(store: Store, route: str = "math", rate: float = RATE) -> list[MirrorCount]:
    with store.transaction() as tx:
        return tx.mirrored.get(route, rate)


def test_counts_add_up_by_kind_and_window(store: Store) -> None:
    assert get(store) == []
    add(store)
    add(store, kind(5, 1), kind(3, 0, stream=True), kind(2, 2, route="faq"), kind(7, 7, rate=1.0))
    add(store, kind(1, 1, stream=True), kind(4, 2), kind(1, 0, length=65_536))
    add(store, kind(100, 100), commit=False)
    assert get(store) == [kind(9, 3), kind(1, 0, length=65_536), kind(4, 1, stream=True)]
    assert get(store, route="faq") == [kind(2, 2, route="faq")]
    assert get(store, rate=1.0) == [kind(7, 7, rate=1.0)]
    assert get(store, rate=0.3) == [], "another rate is another window, to the bit"


def test_finished_ordinals_know_their_kind(filled: Store) -> None:
    found = claim(filled, 3)
    with filled.transaction() as tx:
        tx.pairs.add(pair(found[0]), 50.0)
        tx.claims.finish(found[0], failed=False)
        tx.claims.finish(found[1], failed=True)
        tx.commit()
    with filled.transaction() as tx:
        items = tx.pairs.contiguous("math", "epoch", 1, after=0, limit=9)
    assert [(i.stratum, i.length, i.increments is None) for i in items] == [
        (Stratum.SAMPLED, 0, False),
        (Stratum.SAMPLED, 0, True),
    ]


def test_writers_that_meet_lose_nothing_and_never_deadlock(postgres_store: PostgresStore) -> None:
    counts = sorted(kind(1, 1, length=length, stream=stream) for length in (0, 256, 1024) for stream in (False, True))
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(add, postgres_store, *counts) for _ in range(40)]:
            done.result()
    assert {(c.seen, c.kept) for c in get(postgres_store)} == {(40, 40)}


def test_the_database_refuses_more_kept_than_seen(postgres_store: PostgresStore, database: str) -> None:
    add(postgres_store, kind(2, 1))
    engine = create_engine(database)
    with engine.connect() as connection, pytest.raises(DBAPIError, match="ck_mirror_counts_kept"):
        connection.execute(text("update mirror_counts set kept = 3"))
    engine.dispose()


def test_claims_from_before_have_no_kind(postgres_store: PostgresStore, database: str) -> None:
    engine = create_engine(database)
    columns = "pair_id, route, epoch, attempt, ordinal, control, seq, state, tries, worker, lease_until, touched_at"
    with engine.begin() as connection:
        connection.execute(text(f"insert into claims ({columns}) values ('p', 'r', 'e', 1, 0, false, 1, 'failed', 0, 'w', 0, 0)"))
    engine.dispose()
    with postgres_store.transaction() as tx:
        (item,) = tx.pairs.contiguous("r", "e", 1, after=0, limit=9)
    assert (item.stratum, item.length) == (None, None)
