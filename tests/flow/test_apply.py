"""Applying a policy: a stricter one where the rollout stands, a looser one only with a second person's agreement."""

from __future__ import annotations

from dataclasses import replace

import pytest

from canary.domain.errors import ApprovalNeededError, ConflictError, NotFoundError, SelfApprovalError
from canary.domain.policy import Approval, Policy
from canary.domain.rollout import Rollout, State
from canary.flow.ports import Store
from canary.flow.tools.apply import apply_policy, approve_policy
from canary.flow.tools.audits import diverged
from canary.flow.tools.commands import abort, approve, kill, pause
from canary.flow.tools.policy_files import dump, load_text
from canary.inmemory import InMemoryStore
from tests.api.served import NOW, policy_of

PLACES = {"shadow": (State.SHADOW, 0, 0), "canary": (State.CANARY, 1, 500), "full": (State.FULL, 3, 10_000)}


def put(store: Store, policy: Policy, actor: str = "ada", now: float = NOW) -> Rollout:
    text = dump(policy)
    return apply_policy(store, load_text(text), text, now, actor)


@pytest.fixture
def store() -> Store:
    made = InMemoryStore()
    put(made, policy_of("math"))
    return made


def stand(store: Store, place: str) -> None:
    state, stage, weight = PLACES[place]
    with store.transaction() as tx:
        before, flag = tx.rollouts.get("math"), tx.flags.get("math")
        assert before is not None
        assert flag is not None
        values = {"state": state, "stage": stage, "epoch": "epoch-1", "baked_seconds": 50.0, "version": before.version + 1}
        tx.rollouts.put(replace(before, **values))
        tx.flags.put(replace(flag, weight=weight))
        tx.commit()


def now_at(store: Store) -> tuple[Rollout, int]:
    with store.transaction() as tx:
        rollout, flag = tx.rollouts.get("math"), tx.flags.get("math")
    assert rollout is not None
    assert flag is not None
    return rollout, flag.weight


def changed(**gates: float) -> Policy:
    policy = policy_of("math")
    return replace(policy, gates=replace(policy.gates, **gates))


def test_a3_15_a_steering_change_keeps_stage_and_evidence_and_restarts_the_bake(store: Store) -> None:
    stand(store, "canary")
    new = put(store, replace(policy_of("math"), labels={"team": "x"}), now=NOW + 9)
    assert (new.state, new.stage, new.attempt, new.baked_seconds, new.entered_at) == (State.CANARY, 1, 1, 0.0, NOW + 9)
    assert now_at(store) == (new, 500)
    with store.transaction() as tx:
        body = tx.audit.list("math")[0]["body"]
        assert isinstance(body, dict)
        assert (body["effect"], body["weight"], body["reason"]) == (
            "keep", 500, "policy_changed: the stage stays, the bake starts again"
        )  # fmt: skip


def test_a3_15_a_stricter_margin_keeps_the_stage_and_gathers_evidence_anew(store: Store) -> None:
    stand(store, "full")
    new = put(store, changed(margin=0.001))
    assert (new.state, new.stage, new.attempt, now_at(store)[1]) == (State.FULL, 3, 2, 10_000)


def test_a_looser_policy_waits_for_somebody_else(store: Store) -> None:
    stand(store, "canary")
    before = now_at(store)
    loose = load_text(dump(changed(margin=0.05)))
    with pytest.raises(ApprovalNeededError, match=r"looser .* in gates\.margin"):
        put(store, changed(margin=0.05), "bob")
    assert now_at(store) == before
    with pytest.raises(SelfApprovalError):
        approve_policy(store, "math", loose.content_hash, "bob", NOW + 1)
    with pytest.raises(ConflictError, match="the proposed policy is"):
        approve_policy(store, "math", "0" * 12, "ada", NOW + 1)
    with pytest.raises(ConflictError):
        approve_policy(store, "math", loose.content_hash[:7], "ada", NOW + 1)
    assert now_at(store) == before
    new = approve_policy(store, "math", loose.content_hash[:12], "ada", NOW + 2)
    assert (new.policy_hash, new.state, new.attempt, now_at(store)[1]) == (loose.content_hash, State.SHADOW, 2, 0)
    with store.transaction() as tx:
        newest = tx.audit.list("math", kind="policy")[0]
        assert (newest["actor"], newest["body"]["approved_by"]) == ("bob", "ada")  # type: ignore[index]
    with pytest.raises(NotFoundError, match="no policy waits"):
        approve_policy(store, "math", loose.content_hash, "ada", NOW + 3)


def test_a_proposal_is_void_once_another_policy_decides(store: Store) -> None:
    with pytest.raises(ApprovalNeededError):
        put(store, changed(margin=0.05), "bob")
    put(store, changed(margin=0.001), "ada")
    with pytest.raises(NotFoundError):
        approve_policy(store, "math", "0" * 64, "ada", NOW)


def test_a_hold_and_a_kill_outlive_a_policy(store: Store) -> None:
    stand(store, "canary")
    pause(store, "math", "lunch", "ada", NOW)
    held = put(store, replace(policy_of("math"), labels={"n": "1"}))
    assert (held.state, held.stage, held.reason) == (State.HELD, 1, "paused: lunch")
    kill(store, "math", "users complain", "ada", NOW)
    killed = put(store, replace(policy_of("math"), labels={"n": "2"}))
    assert (killed.killed, killed.state, now_at(store)[1]) == (True, State.SHADOW, 0)


def test_a3_18_a_new_policy_does_not_shorten_a_cool_down(store: Store) -> None:
    stand(store, "canary")
    gone = abort(store, "math", "stop", "ada", NOW)
    assert gone.cool_until == NOW + 3600
    new = put(store, replace(policy_of("math"), labels={"n": "1"}), now=NOW + 1)
    assert (new.state, new.attempt, new.cool_until) == (State.SHADOW, 2, NOW + 3600)


def test_a3_27_whoever_applied_the_policy_does_not_approve_its_stages() -> None:
    for by_author in (False, True):
        store = InMemoryStore()
        policy = policy_of("math")
        asked = tuple(replace(s, approval=Approval(60, by_author) if s.weight else None) for s in policy.stages)
        put(store, replace(policy, stages=asked), "ada")
        if not by_author:
            with pytest.raises(SelfApprovalError, match="ada applied this policy"):
                approve(store, "math", "looks good", "ada", NOW)
        actor = "ada" if by_author else "bob"
        assert approve(store, "math", "looks good", actor, NOW).approved_by == actor
        with store.transaction() as tx:
            event = tx.audit.list("math")[0]
            rollout = tx.rollouts.get("math")
            assert rollout is not None
            assert (event["kind"], event["actor"], diverged(tx, rollout)) == ("approve", actor, [])
