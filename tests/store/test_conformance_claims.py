"""What both stores promise about leases: dense ordinals in order of arrival, exactly one end each."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from canary.domain.errors import ConflictError
from canary.flow.ports import Claim, ControlRule, Store, no_controls
from tests.store.samples import ROLLOUT, pair, prompt


def claim(
    store: Store,
    limit: int,
    *,
    now: float = 0.0,
    before: int | None = None,
    max_retries: int = 1,
    control: ControlRule = no_controls,
) -> list[Claim]:
    with store.transaction() as tx:
        rollout = tx.rollouts.get("math", lock=True)
        assert rollout is not None
        found = tx.claims.claim(
            rollout,
            limit=limit,
            before_ordinal=before,
            worker="w",
            now=now,
            lease_seconds=10.0,
            max_retries=max_retries,
            control=control,
        )
        tx.commit()
    return found


def finish(store: Store, one: Claim, *, failed: bool = False, now: float = 50.0, error: str | None = None) -> bool:
    with store.transaction() as tx:
        tx.pairs.add(pair(one, error=error), now)
        done = tx.claims.finish(one, failed=failed)
        tx.commit()
    return done


def open_count(store: Store) -> int:
    with store.transaction() as tx:
        return tx.claims.open_count("math", "epoch", 1)


def folded(store: Store, after: int = 0, limit: int = 100) -> list[int]:
    with store.transaction() as tx:
        return [item.ordinal for item in tx.pairs.contiguous("math", "epoch", 1, after=after, limit=limit)]


def test_ordinals_follow_arrival_and_other_routes_do_not_count(filled: Store) -> None:
    with filled.transaction() as tx:
        tx.prompts.add_many([prompt(50, route="faq"), prompt(51)], now=101.0)
        tx.commit()
    claims = claim(filled, 4) + claim(filled, 20)
    assert [c.ordinal for c in claims] == list(range(11))
    assert [c.prompt.request_id for c in claims] == [f"request-{n}" for n in [*range(10), 51]]
    assert claims[3].prompt == prompt(3)
    assert {c.tries for c in claims} == {0}
    assert len({c.token for c in claims}) == len({c.pair_id for c in claims}) == 11
    assert claim(filled, 1) == []


def test_a_pair_is_a_control_from_its_first_claim_to_its_end(filled: Store) -> None:
    asked: list[tuple[int, str]] = []

    def control(ordinal: int, pair_id: str) -> bool:
        asked.append((ordinal, pair_id))
        return ordinal in (1, 2)

    first = claim(filled, 4, control=control)
    assert [c.control for c in first] == [False, True, True, False]
    assert asked == [(c.ordinal, c.pair_id) for c in first]
    again = claim(filled, 4, now=20.0)
    assert [(c.ordinal, c.tries, c.control) for c in again] == [(0, 1, False), (1, 1, True), (2, 1, True), (3, 1, False)]
    assert all(finish(filled, c) for c in again[:2])
    assert claim(filled, 0, now=40.0) == []  # the other two are tombstones now
    with filled.transaction() as tx:
        items = tx.pairs.contiguous("math", "epoch", 1, after=0, limit=9)
        stored = tx.pairs.get(again[1].pair_id)
    assert [(i.control, i.increments is None) for i in items] == [(False, False), (True, False), (True, True), (False, True)]
    assert stored == pair(again[1])
    assert stored is not None
    assert stored.control


def test_nothing_is_claimed_beyond_the_barrier(filled: Store) -> None:
    assert [c.ordinal for c in claim(filled, 5, before=3)] == [0, 1, 2]
    assert claim(filled, 5, before=3) == []
    assert [c.ordinal for c in claim(filled, 2, before=None)] == [3, 4]


def test_a_new_attempt_starts_again_at_ordinal_zero(filled: Store) -> None:
    first = claim(filled, 2)
    with filled.transaction() as tx:
        tx.rollouts.put(replace(ROLLOUT, attempt=2, version=2))
        tx.commit()
    second = claim(filled, 2)
    assert [c.ordinal for c in second] == [0, 1]
    assert [c.prompt for c in second] == [c.prompt for c in first]
    assert not {c.pair_id for c in first} & {c.pair_id for c in second}


def test_concurrent_claimers_share_dense_ordinals(filled: Store) -> None:
    with filled.transaction() as tx:
        tx.prompts.add_many([prompt(n) for n in range(100, 150)], now=101.0)
        tx.commit()
    barrier = threading.Barrier(2)

    def work() -> list[Claim]:
        mine: list[Claim] = []
        barrier.wait()
        while found := claim(filled, 3):
            mine.extend(found)
        return mine

    with ThreadPoolExecutor() as pool:
        first, second = [done.result() for done in [pool.submit(work), pool.submit(work)]]
    both = sorted(first + second, key=lambda c: c.ordinal)
    assert [c.ordinal for c in both] == list(range(60))
    assert [c.prompt.request_id for c in both] == [f"request-{n}" for n in [*range(10), *range(100, 150)]]


def test_an_expired_lease_comes_back_first_with_its_ordinal(filled: Store) -> None:
    first = claim(filled, 2, now=0.0)
    assert claim(filled, 1, now=9.99)[0].ordinal == 2
    again = claim(filled, 3, now=10.0)
    assert [(c.ordinal, c.tries) for c in again] == [(0, 1), (1, 1), (3, 0)]
    assert [c.pair_id for c in again[:2]] == [c.pair_id for c in first]
    assert not {c.token for c in again} & {c.token for c in first}
    assert again[0].prompt == first[0].prompt


def test_a_lost_lease_cannot_finish(filled: Store) -> None:
    (lost,) = claim(filled, 1, now=0.0)
    (kept,) = claim(filled, 1, now=10.0)
    assert finish(filled, lost) is False
    assert open_count(filled) == 1
    assert folded(filled) == []
    assert finish(filled, kept) is True
    assert finish(filled, kept) is False
    assert (open_count(filled), folded(filled)) == (0, [0])


def test_a_lease_out_of_retries_becomes_a_tombstone_and_a_late_pair_is_never_folded(filled: Store) -> None:
    (one,) = claim(filled, 1, now=0.0)
    (two,) = claim(filled, 1, now=10.0)
    (three,) = claim(filled, 1, now=25.0)
    assert (one.ordinal, two.ordinal, three.ordinal) == (0, 0, 1)
    assert finish(filled, two) is False
    assert finish(filled, three, now=26.5) is True
    with filled.transaction() as tx:
        tombstone, paired = tx.pairs.contiguous("math", "epoch", 1, after=0, limit=10)
        assert (tombstone.increments, tombstone.calibration_hash, tombstone.stored_at) == (None, "", 25.0)
        assert (paired.increments, paired.calibration_hash, paired.stored_at) == (pair(three).increments, "calibration", 26.5)
        assert tx.pairs.first("math", "epoch", 1, 2) == [None, pair(three)]
        assert tx.pairs.get(two.pair_id) == pair(two)
        assert tx.pairs.ids("math", "epoch", 1) == [three.pair_id]


def test_a_heartbeat_keeps_the_lease(filled: Store) -> None:
    (one,) = claim(filled, 1, now=0.0)
    with filled.transaction() as tx:
        assert tx.claims.heartbeat([one.token, "nobody's"], now=8.0, lease_seconds=10.0) == 1
        tx.commit()
    assert claim(filled, 1, now=17.9)[0].ordinal == 1
    assert claim(filled, 1, now=18.0)[0].ordinal == 0


def test_a_heartbeat_counts_the_leases_that_are_still_ours(filled: Store) -> None:
    claims = claim(filled, 4, now=0.0)
    tokens = [c.token for c in claims]

    def beat(now: float) -> int:
        with filled.transaction() as tx:
            left = tx.claims.heartbeat(tokens, now, 10.0)
            tx.commit()
        return left

    assert beat(1.0) == 4
    assert beat(99.0) == 4, "a lease that ran out and that nobody took is ours again"
    finish(filled, claims[0])
    with filled.transaction() as tx:
        tx.claims.release([tokens[1]])
        tx.commit()
    assert beat(100.0) == 2
    assert [c.ordinal for c in claim(filled, 3, now=200.0)] == [1, 2, 3]
    assert beat(200.0) == 0


def test_a_released_lease_comes_back_at_once_and_uncounted(filled: Store) -> None:
    one, two = claim(filled, 2, now=0.0)
    with filled.transaction() as tx:
        tx.claims.release([two.token])
        tx.commit()
    assert finish(filled, two) is False
    assert open_count(filled) == 2
    (again,) = claim(filled, 1, now=1.0, max_retries=0)
    assert (again.ordinal, again.tries, again.pair_id) == (1, 0, two.pair_id)
    assert finish(filled, one) is True


def test_expire_all_ends_every_lease_and_counts_a_retry(filled: Store) -> None:
    done, _ = claim(filled, 2, now=0.0)
    finish(filled, done)
    with filled.transaction() as tx:
        assert tx.claims.expire_all() == 1
        tx.commit()
    (again,) = claim(filled, 1, now=0.0)
    assert (again.ordinal, again.tries) == (1, 1)


def test_only_the_contiguous_prefix_is_given_out(filled: Store) -> None:
    claims = claim(filled, 5)
    for one in (claims[2], claims[0], claims[4]):
        finish(filled, one)
    assert folded(filled) == [0]
    with filled.transaction() as tx:
        assert tx.pairs.first("math", "epoch", 1, 1) == [pair(claims[0])]
        assert tx.pairs.first("math", "epoch", 1, 2) is None
    finish(filled, claims[1], failed=True)
    assert folded(filled) == [0, 1, 2]
    assert folded(filled, after=1) == [1, 2]
    assert folded(filled, after=1, limit=1) == [1]
    assert folded(filled, after=3) == folded(filled, after=9) == []
    with filled.transaction() as tx:
        assert tx.pairs.first("math", "epoch", 1, 3) == [pair(claims[0]), None, pair(claims[2])]
        assert tx.pairs.first("math", "epoch", 1, 0) == []


def test_the_first_pairs_are_none_while_some_are_unclaimed(filled: Store) -> None:
    (one,) = claim(filled, 1)
    finish(filled, one)
    with filled.transaction() as tx:
        assert tx.pairs.first("math", "epoch", 1, 2) is None


def test_a_pair_set_aside_has_no_increments(filled: Store) -> None:
    (one,) = claim(filled, 1)
    finish(filled, one, error="the identities were broken")
    with filled.transaction() as tx:
        (item,) = tx.pairs.contiguous("math", "epoch", 1, after=0, limit=1)
        assert (item.increments, item.stored_at) == (None, 50.0)
        assert tx.pairs.first("math", "epoch", 1, 1) == [pair(one, error="the identities were broken")]


def test_a_stored_pair_is_immutable_and_needs_a_claim(filled: Store) -> None:
    (one,) = claim(filled, 1)
    finish(filled, one)
    with filled.transaction() as tx:
        tx.pairs.add(replace(pair(one), increments=b""), 99.0)
        tx.commit()
    with filled.transaction() as tx:
        assert tx.pairs.get(one.pair_id) == pair(one)
        assert tx.pairs.get("unknown") is None
        with pytest.raises(ConflictError, match="never claimed"):
            tx.pairs.add(replace(pair(one), pair_id="unknown"), 99.0)
