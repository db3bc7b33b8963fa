"""What a person orders. A kill: one transaction, beats every state, idempotent, undone only with a reason. Resume and retry."""

from __future__ import annotations

from dataclasses import replace

import pytest

from canary.domain.errors import ConflictError, KilledError, NotFoundError, RequestError
from canary.domain.rollout import State
from canary.flow.ports import Store
from canary.flow.tools.commands import kill, resume, retry, unkill
from canary.inmemory import InMemoryStore
from tests.api.served import NOW, add_route, set_weight


@pytest.fixture
def store() -> Store:
    made = InMemoryStore()
    add_route(made, "math")
    return made


def put_state(store: Store, state: State, stage: int, **changes: object) -> None:
    with store.transaction() as tx:
        before = tx.rollouts.get("math", lock=True)
        assert before is not None
        tx.rollouts.put(replace(before, state=state, stage=stage, version=before.version + 1, **changes))  # type: ignore[arg-type]
        tx.commit()


@pytest.mark.parametrize(
    ("state", "stage", "weight"),
    [
        (State.PENDING, 0, 0),
        (State.SHADOW, 0, 0),
        (State.CANARY, 1, 500),
        (State.FULL, 3, 10_000),
        (State.HELD, 2, 1000),
        (State.ROLLED_BACK, 1, 0),
        (State.ARCHIVED, 0, 0),
    ],
)
def test_a_kill_beats_every_state(store: Store, state: State, stage: int, weight: int) -> None:
    put_state(store, state, stage)
    set_weight(store, "math", weight)
    flag = kill(store, "math", "users complain", "ada", NOW)
    assert (flag.killed, flag.weight, flag.kill_reason) == (True, 0, "manual: users complain")
    with store.transaction() as tx:
        rollout = tx.rollouts.get("math")
        assert rollout is not None
        assert (rollout.killed, rollout.state, rollout.wants_shadow) == (True, state, False)
        assert tx.flags.get("math") == flag
        newest = tx.audit.list("math")[0]
    assert (newest["kind"], newest["actor"], newest["body"]["weight"]) == ("kill", "ada", weight)


def test_a_second_kill_changes_nothing(store: Store) -> None:
    first = kill(store, "math", "users complain", "ada", NOW)
    with store.transaction() as tx:
        before = (tx.rollouts.get("math"), tx.flags.snapshot(NOW), len(tx.audit.list("math")))
    assert kill(store, "math", "another reason", "bob", NOW + 1) == first
    with store.transaction() as tx:
        assert (tx.rollouts.get("math"), tx.flags.snapshot(NOW), len(tx.audit.list("math"))) == before


def test_a_kill_ends_a_ramp_at_once(store: Store) -> None:
    put_state(store, State.FULL, 3, killed=True, ramp_weight=10_000, ramp_start=NOW, ramp_end=NOW + 300)
    set_weight(store, "math", 9000)
    assert kill(store, "math", "now", "ada", NOW + 10).killed
    with store.transaction() as tx:
        rollout = tx.rollouts.get("math")
        assert rollout is not None
        assert (rollout.ramp_weight, rollout.ramp_start, rollout.ramp_end) == (0, 0.0, 0.0)


def test_a_kill_needs_no_stored_policy(store: Store) -> None:
    put_state(store, State.FULL, 3, policy_hash="of a policy that is gone")
    assert kill(store, "math", "now", "ada", NOW).killed


def test_a_failing_audit_leaves_nothing_half_killed(store: Store) -> None:
    class Broken:
        def transaction(self):  # type: ignore[no-untyped-def]
            return WithoutAudit(store)

    with pytest.raises(RuntimeError):
        kill(Broken(), "math", "now", "ada", NOW)
    with store.transaction() as tx:
        rollout, flag = tx.rollouts.get("math"), tx.flags.get("math")
    assert rollout is not None
    assert flag is not None
    assert (rollout.killed, flag.killed) == (False, False)


class WithoutAudit:
    """A transaction whose audit log cannot be written."""

    def __init__(self, store: Store) -> None:
        self._context = store.transaction()

    def __enter__(self):  # type: ignore[no-untyped-def]
        tx = self._context.__enter__()
        tx.audit = self
        return tx

    def __exit__(self, *error: object) -> bool | None:
        return self._context.__exit__(*error)  # type: ignore[arg-type]

    def append(self, *_: object) -> None:
        raise RuntimeError("disk full")


def test_unkill_leads_to_shadow_and_a_new_attempt(store: Store) -> None:
    put_state(store, State.FULL, 3)
    set_weight(store, "math", 10_000)
    kill(store, "math", "users complain", "ada", NOW)
    rollout = unkill(store, "math", "it was the gateway", "bob", NOW + 5)
    assert (rollout.state, rollout.stage, rollout.attempt, rollout.killed) == (State.SHADOW, 0, 2, False)
    with store.transaction() as tx:
        assert tx.rollouts.get("math") == rollout
        flag = tx.flags.get("math")
        newest = tx.audit.list("math")[0]
    assert flag is not None
    assert (flag.killed, flag.weight, flag.kill_reason, flag.stage, flag.salt) == (False, 0, "", "shadow", "specdec.math")
    assert (newest["kind"], newest["actor"]) == ("unkill", "bob")
    assert "it was the gateway" in str(newest["body"])


def test_only_a_killed_route_can_be_unkilled(store: Store) -> None:
    with pytest.raises(ConflictError, match="not killed"):
        unkill(store, "math", "why not", "bob", NOW)


def test_resume_goes_on_in_the_stage_where_it_stopped(store: Store) -> None:
    put_state(store, State.HELD, 1, errors=5, baked_seconds=7.0)
    set_weight(store, "math", 500)
    rollout = resume(store, "math", "looked at it", "ada", NOW + 5)
    assert (rollout.state, rollout.stage, rollout.attempt, rollout.errors) == (State.CANARY, 1, 1, 0)
    assert (rollout.entered_at, rollout.baked_seconds, rollout.reason) == (NOW + 5, 0.0, "resumed: looked at it")
    with store.transaction() as tx:
        assert tx.rollouts.get("math") == rollout
        flag, newest = tx.flags.get("math"), tx.audit.list("math")[0]
    assert flag is not None
    assert (flag.weight, flag.killed, flag.stage) == (500, False, "canary-5")
    assert (newest["kind"], newest["actor"]) == ("resume", "ada")
    assert "looked at it" in str(newest["body"])
    with pytest.raises(ConflictError, match="not held"):
        resume(store, "math", "again", "ada", NOW + 6)


def test_retry_opens_the_next_attempt_after_the_cool_down(store: Store) -> None:
    put_state(store, State.ROLLED_BACK, 1, entered_at=NOW)
    with pytest.raises(ConflictError, match="cool-down ends in 600 s"):
        retry(store, "math", "a new drafter", "ada", NOW + 3000)
    rollout = retry(store, "math", "a new drafter", "ada", NOW + 3600)
    assert (rollout.state, rollout.stage, rollout.attempt) == (State.SHADOW, 0, 2)
    with store.transaction() as tx:
        assert tx.rollouts.get("math") == rollout
        flag, newest = tx.flags.get("math"), tx.audit.list("math")[0]
    assert flag is not None
    assert (flag.weight, flag.stage) == (0, "shadow")
    assert (newest["kind"], newest["actor"]) == ("retry", "ada")
    with pytest.raises(ConflictError, match="nothing to retry"):
        retry(store, "math", "again", "ada", NOW + 9000)


def test_retry_now_ends_the_cool_down_and_says_so_in_the_log(store: Store) -> None:
    """A3.18: a clear command, audited with its reason."""
    put_state(store, State.ROLLED_BACK, 1, entered_at=NOW)
    rollout = retry(store, "math", "the load test was ours", "ada", NOW + 1, at_once=True)
    assert (rollout.state, rollout.attempt) == (State.SHADOW, 2)
    with store.transaction() as tx:
        newest = tx.audit.list("math")[0]
    assert (newest["kind"], newest["actor"], newest["body"]["reason"]) == ("retry", "ada", "retry_now")  # type: ignore[index]
    assert "the load test was ours" in str(newest["body"])


def test_retry_takes_a_held_canary_off_its_traffic(store: Store) -> None:
    put_state(store, State.HELD, 2)
    set_weight(store, "math", 1000)
    assert retry(store, "math", "a new drafter", "ada", NOW).attempt == 2
    with store.transaction() as tx:
        flag = tx.flags.get("math")
    assert flag is not None
    assert flag.weight == 0


@pytest.mark.parametrize("order", [resume, retry])
def test_a_kill_is_lifted_first(store: Store, order) -> None:  # type: ignore[no-untyped-def]
    put_state(store, State.HELD, 1)
    kill(store, "math", "users complain", "ada", NOW)
    with store.transaction() as tx:
        before = (tx.flags.get("math"), len(tx.audit.list("math")))
    with pytest.raises(KilledError, match=r"canary rollouts unkill math --reason WHY\.$"):
        order(store, "math", "go on", "ada", NOW + 9000)
    put_state(store, State.HELD, 1, killed=False)
    with pytest.raises(KilledError):
        order(store, "math", "go on", "ada", NOW + 9000)
    with store.transaction() as tx:
        assert (tx.flags.get("math"), len(tx.audit.list("math"))) == before


@pytest.mark.parametrize("order", [kill, unkill, resume, retry])
@pytest.mark.parametrize(
    ("reason", "actor", "where"), [(" ", "ada", "/reason"), ("x" * 501, "ada", "/reason"), ("why", "", "/actor")]
)
def test_reason_and_actor_are_needed(store: Store, order, reason: str, actor: str, where: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RequestError) as caught:
        order(store, "math", reason, actor, NOW)
    assert caught.value.where == where


@pytest.mark.parametrize("order", [kill, unkill, resume, retry])
def test_an_unknown_route_names_the_known_ones(store: Store, order) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(NotFoundError, match=r"known: math"):
        order(store, "maths", "why", "ada", NOW)
