"""What both stores promise about a flag: everything that it carries comes back, and its version rises with every write."""

from __future__ import annotations

from canary.domain.flag import Flag, Snapshot
from canary.domain.match import EVERYTHING, Match
from canary.flow.ports import Store

FULL = Flag(
    "math",
    9_999,
    "chosen-long-ago",
    killed=True,
    kill_reason="manual: NUL-free, ünïcode \U0001f642",
    stage="canary-10",
    kill_epoch=2**40,
    kill_id="k1",
    killed_at=1_700_000_000.123456,
    on_lost="baseline",
    max_stale=1 / 3,
    policy_version="abc",
    config={"drafter": "ngram", "num_speculative_tokens": 4, "exact": True, "share": 0.1},
    pins={"user \ud800-free": "candidate", "": "baseline"},
    match=Match(endpoints=("completions",), strata=("greedy",), stream="never", max_temperature=0.7),
)


def test_everything_that_a_flag_carries_comes_back(store: Store) -> None:
    with store.transaction() as tx:
        tx.flags.put(FULL)
        tx.flags.put(Flag.initial("rag"))
        tx.commit()
    with store.transaction() as tx:
        assert tx.flags.get("math") == FULL
        assert tx.flags.get("rag") == Flag.initial("rag")
        snapshot = tx.flags.snapshot(5.0)
    assert (snapshot.version, snapshot.kill_epoch, list(snapshot.flags)) == (2, 2**40, ["math", "rag"])
    assert snapshot.flags["rag"].match is EVERYTHING
    assert Snapshot.from_json(snapshot.to_json(), 5.0) == snapshot


def test_a_flag_is_replaced_whole(store: Store) -> None:
    for flag in (FULL, Flag.initial("math")):
        with store.transaction() as tx:
            tx.flags.put(flag)
            tx.commit()
    with store.transaction() as tx:
        assert tx.flags.get("math") == Flag.initial("math")
