"""What both stores promise about live observations."""

from __future__ import annotations

from dataclasses import replace

from canary.domain.observations import Observation
from canary.domain.pairs import Arm
from canary.flow.ports import Store

FULL = Observation(
    route="math",
    observation_id="full",
    arm=Arm.CANDIDATE,
    observed_at=0.1 + 0.2,
    finish_reason="stop",
    error="an engine's words",
    ttft_seconds=1 / 3,
    seconds_per_token=5e-324,
    num_drafts=2,
    num_draft_tokens=2**40,
    num_accepted_tokens=3,
    accepted_per_position=(2, 1, 0),
    valid=False,
    task_success=True,
    thumbs=-1,
    memory_headroom=0.1,
    stage="canary-5",
    weight=500,
    engine="fingerprint",
    concurrency=17,
)


def seen(number: int, route: str = "math") -> Observation:
    return Observation(route, f"o{number}", Arm.BASELINE, 10.0 + number, "stop")


def test_an_observation_comes_back_to_the_bit(store: Store) -> None:
    bare = Observation("math", "\x1f odd", Arm.BASELINE, 7.0, thumbs=1)
    with store.transaction() as tx:
        assert tx.observations.add_many([FULL, bare], now=1.0) == [True, True]
        tx.commit()
    with store.transaction() as tx:
        assert [o for _, o in tx.observations.after("math", 0, 10)] == [FULL, bare]


def test_a_repeat_is_a_no_op(store: Store) -> None:
    with store.transaction() as tx:
        batch = [seen(1), seen(2), replace(seen(1), finish_reason="length"), seen(1, "faq")]
        assert tx.observations.add_many(batch, now=1.0) == [True, True, False, True]
        assert tx.observations.add_many([seen(2), seen(3)], now=200_000.0) == [False, True]
        assert tx.observations.add_many([], now=2.0) == []
        tx.commit()
    with store.transaction() as tx:
        assert [o for _, o in tx.observations.after("math", 0, 10)] == [seen(1), seen(2), seen(3)]
        assert [o for _, o in tx.observations.after("faq", 0, 10)] == [seen(1, "faq")]
        assert tx.observations.after("none", 0, 10) == []


def test_a_cursor_sees_everything_once_and_in_order(store: Store) -> None:
    with store.transaction() as tx:
        assert tx.observations.newest("math") == 0
        for start in (0, 5, 10):
            tx.observations.add_many([seen(n, "math" if n % 3 else "faq") for n in range(start, start + 5)], now=float(start))
        tx.commit()
    found: list[Observation] = []
    cursor = 0
    with store.transaction() as tx:
        while page := tx.observations.after("math", cursor, 4):
            assert len(page) <= 4
            places = [place for place, _ in page]
            assert places == sorted(set(places))
            assert places[0] > cursor
            cursor = places[-1]
            found += [o for _, o in page]
        assert tx.observations.newest("math") == cursor
    assert found == [seen(n) for n in range(15) if n % 3]


def test_nothing_is_kept_without_a_commit(store: Store) -> None:
    with store.transaction() as tx:
        tx.observations.add_many([seen(1)], now=1.0)
    with store.transaction() as tx:
        assert tx.observations.newest("math") == 0
        assert tx.observations.add_many([seen(1)], now=1.0) == [True]
