"""What both stores promise about pins, about runs that people ask for, and about the prompt of a pair; and pinning on both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from canary.domain.errors import ConflictError, KilledError, NotFoundError, RequestError
from canary.domain.pins import Pin
from canary.domain.rollout import State
from canary.domain.schedule import JobOrder
from canary.flow.ports import Store
from canary.flow.tools import pins
from canary.flow.tools.commands import abort, kill, unkill
from canary.flow.tools.contents import read_content
from canary.flow.tools.jobs import expire_keys
from canary.flow.walk.control import tick
from tests.api.served import NOW, Notes, add_route, set_weight
from tests.store import samples

PIN = Pin("math", "tenant/ü 1", "baseline", "e", "why", "ada", 1 / 3, None)


def at_canary(store: Store, state: State = State.CANARY, stage: int = 1) -> None:
    """A route whose rollout and flag stand in a stage with traffic."""
    add_route(store, "math")
    with store.transaction() as tx:
        rollout = tx.rollouts.get("math", lock=True)
        assert rollout is not None
        tx.rollouts.put(replace(rollout, state=state, stage=stage, entered_at=NOW, version=rollout.version + 1))
        tx.commit()
    set_weight(store, "math", 500 if state is State.CANARY else 10_000)


def carried(store: Store) -> dict[str, str]:
    with store.transaction() as tx:
        flag = tx.flags.get("math")
        assert flag is not None
        return dict(flag.pins)


def test_a_pin_comes_back_to_the_bit_is_replaced_whole_and_dropped(store: Store) -> None:
    timed = Pin("math", "a", "candidate", "e2", "other", "grace", 2 / 3, 7 / 3)
    with store.transaction() as tx:
        for one in (PIN, timed, replace(PIN, route="rag"), replace(timed, unit="B")):
            tx.pins.put(one)
        tx.commit()
    with store.transaction() as tx:
        assert tx.pins.list("math") == [replace(timed, unit="B"), timed, PIN], "by unit, by code point"
        tx.pins.put(replace(timed, variant="baseline", expires_at=None))
        tx.pins.drop("math", PIN.unit)
        tx.pins.drop("math", "nobody")
        tx.commit()
    with store.transaction() as tx:
        assert tx.pins.list("math") == [replace(timed, unit="B"), replace(timed, variant="baseline", expires_at=None)]
        assert tx.pins.list("rag") == [replace(PIN, route="rag")]


def test_a_run_is_asked_for_once_until_it_is_settled(store: Store) -> None:
    first, again, other = JobOrder("drills", "ada", 1 / 3), JobOrder("drills", "grace", 9.0), JobOrder("retention", "ada", 0.1)
    with store.transaction() as tx:
        assert [tx.jobs.ask(order) for order in (first, again, other)] == [True, False, True]
        tx.commit()
    with store.transaction() as tx:
        assert tx.jobs.orders() == [other, first]
        tx.jobs.settle(again)
        assert tx.jobs.orders() == [other, first], "a run settles the order that it began with, and no other"
        tx.jobs.settle(first)
        assert tx.jobs.orders() == [other]
        assert tx.jobs.ask(again)


def test_the_prompt_of_a_pair_and_who_read_it(filled: Store) -> None:
    with filled.transaction() as tx:
        claims = tx.claims.claim(
            samples.ROLLOUT, limit=3, before_ordinal=None, worker="w", now=NOW, lease_seconds=60, max_retries=1
        )
        tx.pairs.add(samples.pair(claims[1]), NOW)
        assert tx.claims.finish(claims[1], failed=False)
        tx.commit()
    pair_id, route = claims[1].pair_id, samples.ROLLOUT.route
    with filled.transaction() as tx:
        assert tx.prompts.of_pair(pair_id) == claims[1].prompt
        assert tx.prompts.of_pair("none") is None
        before = len(tx.audit.list(route, 100))
    found = read_content(filled, route, pair_id, "ada", NOW)
    assert found["pair_id"] == pair_id
    shown = found["prompt"]
    assert isinstance(shown, dict)
    assert [m["content"] for m in shown["messages"]] == [m.content for m in claims[1].prompt.messages]
    assert (found["baseline"], found["candidate"]) == (
        samples.pair(claims[1]).baseline.text,
        samples.pair(claims[1]).candidate.text,
    )
    with filled.transaction() as tx:
        events = tx.audit.list(route, 100)
    assert len(events) == before + 1
    assert (events[0]["kind"], events[0]["actor"], events[0]["body"]["pair_id"]) == ("content_read", "ada", pair_id)  # type: ignore[index]
    for wrong in ((route, "none"), ("other", pair_id)):
        with pytest.raises(NotFoundError):
            read_content(filled, *wrong, "ada", NOW)
    with filled.transaction() as tx:
        assert len(tx.audit.list(route, 100)) == before + 1


def test_pinning_writes_flag_and_log_and_raises_the_snapshot(store: Store) -> None:
    at_canary(store)
    with store.transaction() as tx:
        version = tx.flags.snapshot(NOW).version
    pins.pin(store, "math", "tenant-1", "candidate", "a friend", "ada", NOW, seconds=60.0)
    assert carried(store) == {"tenant-1": "candidate"}
    pins.pin(store, "math", "tenant-2", "baseline", "never them", "ada", NOW)
    pins.pin(store, "math", "tenant-1", "baseline", "after all not", "ada", NOW + 1)
    assert carried(store) == {"tenant-1": "baseline", "tenant-2": "baseline"}
    assert pins.unpin(store, "math", "tenant-1", "over", "grace", NOW + 2).expires_at is None
    assert carried(store) == {"tenant-2": "baseline"}
    with store.transaction() as tx:
        assert tx.flags.snapshot(NOW).version == version + 4
        found = [(e["kind"], e["actor"], e["body"]["variant"], e["body"]["unit"]) for e in tx.audit.list("math", 4)]  # type: ignore[index]
    assert found == [
        ("unpin", "grace", "baseline", "tenant-1"),
        ("pin", "ada", "baseline", "tenant-1"),
        ("pin", "ada", "baseline", "tenant-2"),
        ("pin", "ada", "candidate", "tenant-1"),
    ]


def test_a_pin_to_the_candidate_leaves_with_its_traffic_and_one_to_the_baseline_stays(store: Store) -> None:
    at_canary(store)
    pins.pin(store, "math", "yes", "candidate", "why", "ada", NOW)
    pins.pin(store, "math", "no", "baseline", "why", "ada", NOW)
    abort(store, "math", "enough", "ada", NOW + 1)
    assert carried(store) == {"no": "baseline"}
    with store.transaction() as tx:
        assert [(p.unit, p.in_force(tx.rollouts.list()[0], NOW)) for p in pins.listed(tx, "math", NOW)] == [
            ("no", True),
            ("yes", False),
        ]


def test_a_kill_stays_over_every_pin_and_unkill_brings_no_candidate_back(store: Store) -> None:
    at_canary(store)
    pins.pin(store, "math", "yes", "candidate", "why", "ada", NOW)
    assert kill(store, "math", "fire", "ada", NOW + 1).killed
    with pytest.raises(KilledError):
        pins.pin(store, "math", "other", "candidate", "why", "ada", NOW + 2)
    pins.pin(store, "math", "no", "baseline", "allowed", "ada", NOW + 2)
    assert carried(store) == {"no": "baseline"}
    unkill(store, "math", "put out", "ada", NOW + 3)
    assert carried(store) == {"no": "baseline"}
    with store.transaction() as tx:
        assert tx.flags.get("math").weight == 0  # type: ignore[union-attr]


def test_an_expired_pin_leaves_the_flag_at_the_next_look_and_the_list_with_one_event(store: Store) -> None:
    at_canary(store)
    pins.pin(store, "math", "soon", "baseline", "why", "ada", NOW, seconds=10.0)
    pins.pin(store, "math", "later", "baseline", "why", "ada", NOW)
    tick(store, "math", NOW + 9, Notes())
    assert set(carried(store)) == {"soon", "later"}
    tick(store, "math", NOW + 11, Notes())
    assert set(carried(store)) == {"later"}
    assert expire_keys(store, NOW + 12) == "0 keys and 1 pins expired, 0 answers forgotten"
    assert expire_keys(store, NOW + 13) == "0 keys and 0 pins expired, 0 answers forgotten"
    with store.transaction() as tx:
        assert [p.unit for p in tx.pins.list("math")] == ["later"]
        assert [e["actor"] for e in tx.audit.list("math", 9, kind="pin_expired")] == ["scheduler"]
    with pytest.raises(NotFoundError, match="not pinned"):
        pins.unpin(store, "math", "soon", "over", "ada", NOW + 14)


def test_what_is_no_pin_is_refused_and_changes_nothing(store: Store) -> None:
    add_route(store, "math")
    for unit, variant, seconds, error in (
        ("", "baseline", None, RequestError),
        ("x" * 201, "baseline", None, RequestError),
        ("a\x00b", "baseline", None, RequestError),
        ("\ud800", "baseline", None, RequestError),
        ("u", "speculative", None, RequestError),
        ("u", "baseline", 0.0, RequestError),
        ("u", "baseline", 1e12, RequestError),
        ("u", "candidate", None, ConflictError),
    ):
        with pytest.raises(error):
            pins.pin(store, "math", unit, variant, "why", "ada", NOW, seconds=seconds)
    with pytest.raises(NotFoundError):
        pins.pin(store, "nowhere", "u", "baseline", "why", "ada", NOW)
    with store.transaction() as tx:
        assert tx.pins.list("math") == []
        assert tx.audit.list("math", 9, kind="pin") == []
