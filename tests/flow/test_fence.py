"""Two control loops on one route, and orders that arrive while one of them looks: one row per transition, nothing undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from canary.domain import decide as deciding
from canary.domain.errors import ConflictError
from canary.domain.evidence import Evidence
from canary.domain.policy import Approval
from canary.domain.rollout import Rollout, State
from canary.flow.ports import Store, Transaction
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.commands import approve, kill, pause
from canary.flow.tools.policy_files import dump, load_text
from canary.flow.walk import control
from canary.inmemory import InMemoryStore
from tests.api.served import NOW, Notes, policy_of
from tests.domain.situations import evidence

T = NOW + 1000


def store_at(state: State, stage: int, *, asks: bool = False, **changes: object) -> Store:
    made, policy = InMemoryStore(), policy_of("math")
    stages = tuple(replace(s, bake_seconds=10, approval=Approval(60) if asks and s.weight else None) for s in policy.stages)
    text = dump(replace(policy, stages=stages))
    rollout = apply_policy(made, load_text(text), text, NOW)
    with made.transaction() as tx:
        values = {"state": state, "stage": stage, "epoch": "epoch", "baked_seconds": 10.0, "assessed_at": T - 1, "version": 2}
        tx.rollouts.put(replace(rollout, **{**values, **changes}))  # type: ignore[arg-type]
        tx.commit()
    return made


class Meanwhile:
    """A store in whose way something else happens, once, after the route has been assessed."""

    def __init__(self, store: Store, act: Callable[[Store], object]) -> None:
        self._store, self._act, self.done = store, act, False

    def assessed(self, store: object, route: str, now: float) -> Evidence:
        if not self.done:
            self.done = True
            self._act(self._store)
        with self._store.transaction() as tx:
            rollout = tx.rollouts.get(route)
        assert rollout is not None
        return evidence(epoch="epoch", attempt=rollout.attempt, newest_pair_at=T)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self._store.transaction() as tx:
            yield tx


def rows(store: Store) -> list[tuple[object, object]]:
    with store.transaction() as tx:
        return [(e["kind"], e["actor"]) for e in reversed(tx.audit.list("math")) if e["kind"] not in ("decision", "policy")]


def route_of(store: Store) -> Rollout:
    with store.transaction() as tx:
        found = tx.rollouts.get("math")
    assert found is not None
    return found


def overtaken(monkeypatch: pytest.MonkeyPatch, store: Store, act: Callable[[Store], object], late: float = T) -> Notes:
    notes, between = Notes(), Meanwhile(store, act)
    monkeypatch.setattr(control, "assess", between.assessed)
    control.tick(between, "math", late, notes)
    return notes


def other_leader(store: Store) -> object:
    return control.tick(store, "math", T + 5, Notes())


def test_a3_14_a5_7_two_leaders_leave_one_transition_row(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_at(State.SHADOW, 0)
    notes = overtaken(monkeypatch, store, other_leader)
    assert (rows(store), route_of(store).stage) == ([("advance", "policy")], 1)
    assert [event for event, _ in notes.seen] == ["overtaken"]
    assert route_of(store).baked_seconds == 0.0, "a clock that slept bakes nothing"


def test_a3_14_a_restart_mid_bake_neither_shortens_nor_doubles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_at(State.CANARY, 1, baked_seconds=4.0)
    overtaken(monkeypatch, store, lambda s: control.tick(s, "math", T + 2, Notes()), late=T + 2)
    assert (route_of(store).baked_seconds, rows(store)) == (7.0, [])


def test_a5_7_a_stale_look_does_not_hold_again_what_a_person_has_approved(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_at(State.CANARY, 1, asks=True, asked_at=T - 100)
    overtaken(monkeypatch, store, lambda s: approve(s, "math", "seen", "bob", T))
    assert (route_of(store).state, route_of(store).stage) == (State.CANARY, 2)
    assert rows(store) == [("approve", "bob"), ("advance", "policy")]


def test_a3_11_a5_6_a_kill_while_a_promotion_is_decided_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_at(State.CANARY, 2)
    overtaken(monkeypatch, store, lambda s: kill(s, "math", "an incident", "ada", T))
    with store.transaction() as tx:
        flag = tx.flags.get("math")
    assert flag is not None
    assert (flag.killed, flag.weight, route_of(store).stage) == (True, 0, 2)
    assert rows(store) == [("kill", "ada")]


def test_a_pause_while_a_promotion_is_decided_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_at(State.CANARY, 2)
    overtaken(monkeypatch, store, lambda s: pause(s, "math", "lunch", "ada", T))
    assert (route_of(store).state, route_of(store).stage) == (State.HELD, 2)


def test_a_fence_that_refuses_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_at(State.SHADOW, 0)
    before = route_of(store)
    monkeypatch.setattr(control, "assess", Meanwhile(store, lambda _: None).assessed)

    def lost(tx: Transaction) -> None:
        raise ConflictError("this process leads no longer")

    with pytest.raises(ConflictError, match="leads no longer"):
        control.tick(store, "math", T, Notes(), fence=lost)
    assert (route_of(store), rows(store)) == (before, [])


def test_a_route_that_never_stands_still_is_left_for_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_at(State.CANARY, 1)

    def moved(_: object, route: str, now: float) -> None:
        with store.transaction() as tx:
            before = tx.rollouts.get(route)
            assert before is not None
            tx.rollouts.put(replace(before, errors=before.errors + 1, version=before.version + 1))
            tx.commit()

    monkeypatch.setattr(control, "assess", moved)
    with pytest.raises(ConflictError, match=f"moved {control.LOOKS} times"):
        control.tick(store, "math", T, Notes())
    assert route_of(store).errors == control.LOOKS
    assert deciding.Kind.ADVANCE.value not in [kind for kind, _ in rows(store)]
