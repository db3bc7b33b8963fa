"""Kill orders in the store: settled once, beating every state and command, undone by a person only; on both stores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from canary.domain.errors import CanaryError, ConflictError, KilledError, PolicyError, RequestError
from canary.domain.flag import Flag
from canary.domain.kills import ALL, DRILL, Act, KillOrder, Kills
from canary.domain.rollout import State
from canary.flow.kills import kill, kill_all, settle, unkill, unkill_all
from canary.flow.ports import Store, Transaction
from canary.flow.tools import audits, commands
from canary.flow.tools.apply import apply_policy
from canary.flow.tools.policy_files import dump, load_text
from canary.flow.walk.control import tick
from canary.inmemory import InMemoryStore
from canary.store.unit_of_work import PostgresStore
from tests.api.served import NOW, Notes, add_route, policy_of, set_weight

_ids = (f"id-{n}" for n in itertools.count())


@pytest.fixture(params=["inmemory", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "inmemory":
        made: Store = InMemoryStore()
        _fill(made)
        yield made
        return
    database: str = request.getfixturevalue("database")
    opened = PostgresStore(database)
    _fill(opened)
    yield opened
    opened.close()


def _fill(store: Store) -> None:
    for route in ("math", "creative"):
        add_route(store, route)


def put_state(store: Store, state: State, stage: int, weight: int, route: str = "math") -> None:
    with store.transaction() as tx:
        before = tx.rollouts.get(route, lock=True)
        assert before is not None
        tx.rollouts.put(replace(before, state=state, stage=stage, version=before.version + 1))
        tx.commit()
    set_weight(store, route, weight)


def taken(scope: str = "math", epoch: int = 1) -> KillOrder:
    return KillOrder(epoch, next(_ids), Act.KILL, scope, "users complain", "ada", NOW)


def flag_of(store: Store, route: str = "math") -> Flag:
    with store.transaction() as tx:
        found = tx.flags.get(route)
    assert found is not None
    return found


def events(store: Store, route: str, kind: str = "kill") -> list[dict[str, object]]:
    with store.transaction() as tx:
        return tx.audit.list(route, kind=kind)


def test_an_order_is_settled_once_with_one_event(store: Store) -> None:
    """A3.19: however often an order arrives, from however many replicas, it is one kill and one audit event."""
    put_state(store, State.FULL, 3, 10_000)
    order = taken()
    known = Kills.of([order])
    assert settle(store, known, [order], NOW) == [order]
    with store.transaction() as tx:
        version = tx.flags.snapshot(NOW).version
    assert settle(store, known, [order, order], NOW + 1) == []
    flag = flag_of(store)
    assert (flag.killed, flag.weight, flag.kill_id, flag.killed_at) == (True, 0, order.order_id, NOW)
    assert flag.kill_reason == "manual: users complain"
    [event] = events(store, "math")
    assert (event["actor"], event["at"]) == ("ada", NOW)
    with store.transaction() as tx:
        rollout = tx.rollouts.get("math")
        assert rollout is not None
        assert rollout.killed
        assert audits.verify_chain(tx, "math").ok
        replayed = audits.replay(audits.events_of(tx, "math"))
        assert replayed is not None
        assert (replayed["killed"], replayed["state"], replayed["version"]) == (True, "full", rollout.version)
        assert tx.flags.snapshot(NOW).version == version
        assert [o for _, o in tx.kills.after(0)] == [order]
        assert tx.kills.about(["creative"]) == []


def test_two_orders_for_one_route_are_two_events_and_one_reason(store: Store) -> None:
    first, second = taken(epoch=3), replace(taken(epoch=3), reason="another")
    settle(store, Kills.of([first, second]), [second, first], NOW)
    assert len(events(store, "math")) == 2
    assert flag_of(store).kill_id == min(first, second).order_id
    assert flag_of(store).kill_epoch > 3


def test_an_order_about_a_route_that_is_not_there_yet_kills_it_when_it_comes(store: Store) -> None:
    order = taken("later")
    settle(store, Kills.of([order]), [order], NOW)
    assert len(events(store, "later")) == 1
    add_route(store, "later")
    tick(store, "later", NOW + 1, Notes())
    assert flag_of(store, "later").killed


def test_all_routes_are_killed_and_those_to_come(store: Store) -> None:
    put_state(store, State.CANARY, 1, 500)
    order = kill_all(store, "smoke", "ada", NOW)
    assert kill_all(store, "again", "bob", NOW) == order
    for route in ("math", "creative"):
        assert flag_of(store, route).kill_reason == "manual: all routes: smoke"
        assert len(events(store, route)) == 1
    assert len(events(store, ALL)) == 1
    add_route(store, "later")
    tick(store, "later", NOW + 1, Notes())
    assert flag_of(store, "later").killed
    with pytest.raises(KilledError, match="unkill --all"):
        unkill(store, "math", "fine", "bob", NOW + 2)


def test_undoing_the_kill_of_all_routes_leaves_a_routes_own_kill(store: Store) -> None:
    kill(store, "creative", "for itself", "ada", NOW)
    kill_all(store, "smoke", "ada", NOW)
    revived = unkill_all(store, "it was a cable", "bob", NOW + 1)
    assert [(r.route, r.state, r.attempt) for r in revived] == [("math", State.SHADOW, 2)]
    assert not flag_of(store).killed
    assert flag_of(store, "creative").killed
    assert len(events(store, ALL, "unkill")) == 1
    with pytest.raises(ConflictError):
        unkill_all(store, "again", "bob", NOW + 2)
    assert unkill(store, "creative", "fine too", "bob", NOW + 3).state is State.SHADOW


def test_an_unkill_undoes_what_the_store_knows_and_no_kill_that_comes_later(store: Store) -> None:
    """A3.19: a kill that another replica took before it heard of the unkill stands."""
    first, late = taken(epoch=1), taken(epoch=1)
    settle(store, Kills.of([first]), [first], NOW)
    unkill(store, "math", "fine", "bob", NOW + 1)
    revived = flag_of(store)
    assert (revived.killed, revived.weight) == (False, 0)
    assert revived.kill_epoch > first.epoch
    with store.transaction() as tx:
        known = Kills.of([*(o for _, o in tx.kills.after(0)), late])
    assert settle(store, known, [late], NOW + 2) == [late]
    assert flag_of(store).killed
    assert flag_of(store).kill_epoch > revived.kill_epoch, "a client that held the revived flag learns of it"


def test_an_order_that_was_undone_before_it_came_is_recorded_and_kills_nothing(store: Store) -> None:
    kill_order = taken()
    undone = Kills.of([kill_order]).unkill("math", "fine", "bob", NOW, "u-1")
    assert undone is not None
    known = Kills.of([kill_order, undone])
    settle(store, known, [undone, kill_order], NOW)
    assert not flag_of(store).killed
    assert [len(events(store, "math", kind)) for kind in ("kill", "kill_recorded", "unkill")] == [0, 1, 1]
    assert kill(store, "math", "really", "ada", NOW).killed


def test_an_unkill_by_hand_ends_the_order_too(store: Store) -> None:
    kill(store, "math", "users complain", "ada", NOW)
    unkill(store, "math", "fine", "bob", NOW + 1)
    with store.transaction() as tx:
        known = Kills.of(o for _, o in tx.kills.after(0))
    assert known.over("math") is None
    tick(store, "math", NOW + 2, Notes())
    assert not flag_of(store).killed


def test_the_drills_flag_touches_no_route(store: Store) -> None:
    order = taken(DRILL)
    settle(store, Kills.of([order]), [order], NOW)
    assert not flag_of(store).killed
    assert len(events(store, DRILL)) == 1


def test_no_policy_takes_the_drills_name() -> None:
    with pytest.raises(PolicyError, match="kill drills"):
        replace(policy_of("math"), route=DRILL).check()


@pytest.mark.parametrize("reason", ["a\x00b", "\ud800"])
def test_a_reason_that_cannot_be_kept_is_refused_before_anything_is_killed(store: Store, reason: str) -> None:
    with pytest.raises(RequestError):
        kill(store, "math", reason, "ada", NOW)
    assert not flag_of(store).killed


class Interrupting:
    """A store whose next transaction is preceded by a kill, as if it had come in between a command's look and its write."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.armed = True

    def transaction(self):  # type: ignore[no-untyped-def]
        if self.armed:
            self.armed = False
            order = taken()
            settle(self._inner, Kills.of([order]), [order], NOW)
        return self._inner.transaction()


def _promoted(tx: Transaction) -> None:
    """What a promotion to full that was decided before the kill would write."""
    rollout = tx.rollouts.get("math", lock=True)
    assert rollout is not None
    tx.rollouts.put(replace(rollout, state=State.FULL, stage=3, version=rollout.version + 1))


ORDERS = [name for name in ("resume", "retry", "pause", "approve", "reject", "abort") if hasattr(commands, name)]


@pytest.mark.parametrize("name", ORDERS)
def test_a_kill_beats_every_command_in_flight(store: Store, name: str) -> None:
    """A3.11, A5.6: the kill comes between a command's start and its write; killed at weight 0 in the end, and in the log."""
    put_state(store, State.HELD, 2, 1000)
    command = getattr(commands, name)
    refused: CanaryError | None = None
    try:
        command(Interrupting(store), "math", "go on", "bob", NOW + 1)
    except CanaryError as error:
        refused = error
    assert (refused is None) == (name == "abort"), "an abort agrees with a kill, everything else must not happen"
    flag = flag_of(store)
    assert (flag.killed, flag.weight) == (True, 0)
    assert len(events(store, "math")) == 1


def test_a_kill_beats_a_promotion_that_was_decided_before_it(store: Store) -> None:
    """A5.6: a control loop that assessed before the kill writes after it; no clamp brings any weight back."""
    put_state(store, State.CANARY, 2, 1000)
    tick(Interrupting(store), "math", NOW + 1, Notes())
    with store.transaction() as tx:
        _promoted(tx)
        tx.commit()
    tick(store, "math", NOW + 2, Notes())
    flag = flag_of(store)
    assert (flag.killed, flag.weight) == (True, 0)
    with store.transaction() as tx:
        rollout = tx.rollouts.get("math")
    assert rollout is not None
    assert rollout.killed


def test_a_new_policy_leaves_a_killed_route_killed(store: Store) -> None:
    """A3.11: applying a policy is a command too."""
    kill(store, "math", "users complain", "ada", NOW)
    text = dump(policy_of("math", 0.5))
    apply_policy(store, load_text(text, name="math"), text, NOW + 1)
    assert (flag_of(store).killed, flag_of(store).weight) == (True, 0)
