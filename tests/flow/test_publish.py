"""From a step to the flag row: the salt stays, a kill stays, and nothing is written that did not change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from canary.domain.flag import Flag
from canary.domain.rollout import Rollout, State
from canary.domain.step import Step
from canary.flow.ports import Store
from canary.flow.walk.publish import flag_of, publish
from canary.inmemory import InMemoryStore
from tests.api.served import NOW, add_route

ROLLOUT = Rollout("math", "hash", State.CANARY, 1, "epoch-1", 1, NOW, reason="baked: went on")


def step(rollout: Rollout = ROLLOUT, weight: int = 500, *, killed: bool = False, why: str = "", moved: bool = True) -> Step:
    return Step(rollout, weight, killed, why, (("advance", {"reason": "baked"}),) if moved else ())


def test_the_first_flag_is_salted_with_its_key_and_keeps_it() -> None:
    first = flag_of(step(weight=0), "shadow", None)
    assert first == Flag("math", 0, "specdec.math", False, "", "shadow")
    older = replace(first, salt="chosen-long-ago")
    assert flag_of(step(), "canary-5", older) == Flag("math", 500, "chosen-long-ago", False, "", "canary-5")


@pytest.mark.parametrize("weight", [0, 500, 10_000])
def test_no_step_turns_a_kill_off(weight: int) -> None:
    dead = Flag("math", 0, "specdec.math", True, "manual: it lies", "full")
    after = flag_of(step(weight=weight), "canary-5", dead)
    assert (after.killed, after.weight, after.kill_reason) == (True, 0, "manual: it lies")


def test_only_reviving_turns_a_kill_off() -> None:
    dead = Flag("math", 0, "s", True, "manual: it lies", "full")
    assert flag_of(step(weight=0), "shadow", dead, revive=True) == Flag("math", 0, "s", False, "", "shadow", kill_epoch=1)


def test_a_killing_step_kills_the_flag() -> None:
    after = flag_of(step(weight=0, killed=True, why="wrong_residual: proven"), "full", Flag("math", 10_000, "s"))
    assert (after.killed, after.kill_reason, after.weight) == (True, "wrong_residual: proven", 0)


@pytest.fixture
def store() -> Store:
    made = InMemoryStore()
    add_route(made, "math")
    return made


def go(store: Store, to: Rollout, weight: int, *, moved: bool = True) -> tuple[int, int, Rollout]:
    """Publish one step; the snapshot's version, the number of audit events, and the stored rollout."""
    with store.transaction() as tx:
        before = tx.rollouts.get("math", lock=True)
        assert before is not None
        after = replace(to, policy_hash=before.policy_hash)
        after = replace(after, version=before.version + 1) if after != before else before
        publish(tx, before, step(after, weight, moved=moved), actor="policy", now=NOW)
        tx.commit()
    with store.transaction() as tx:
        rollout = tx.rollouts.get("math")
        assert rollout is not None
        return tx.flags.snapshot(NOW).version, len(tx.audit.list("math")), rollout


def test_rollout_flag_and_audit_are_written_side_by_side(store: Store) -> None:
    version, events, rollout = go(store, ROLLOUT, 500)
    with store.transaction() as tx:
        flag = tx.flags.get("math")
        newest = tx.audit.list("math")[0]
    assert flag is not None
    assert (flag.weight, flag.salt, flag.killed, flag.stage) == (500, "specdec.math", False, "canary-5")
    assert (flag.on_lost, flag.max_stale, flag.policy_version) == ("keep", 60.0, rollout.policy_hash)
    assert (flag.config["drafter"], flag.config["num_speculative_tokens"]) == ("ngram", 4)
    assert rollout.state is State.CANARY
    assert (newest["kind"], newest["actor"]) == ("advance", "policy")
    body = newest["body"]
    assert isinstance(body, dict)
    assert (body["reason"], body["sentence"]) == ("baked", "baked: went on")
    later = go(store, replace(ROLLOUT, assessed_at=NOW + 1), 500, moved=False)
    assert later[:2] == (version, events), "an unchanged flag keeps the snapshot's version, and nothing is audited"
    assert later[2].assessed_at == NOW + 1


def test_a_step_that_changes_nothing_writes_nothing(store: Store) -> None:
    _, _, rollout = go(store, ROLLOUT, 500)
    _, _, again = go(store, rollout, 500, moved=False)
    assert again == rollout
