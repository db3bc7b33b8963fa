"""Two leaders: the one that slept past its lease is refused, and each transition leaves one row (A3.14, A5.7)."""

from __future__ import annotations

import pytest

from canary.domain.errors import ConflictError, UnreachableError
from canary.flow.leading import NAME, Leadership, NoLock
from canary.flow.walk.control import tick
from canary.inmemory import InMemoryStore
from tests.api.served import Notes, add_route


class Hall:
    """One lock for several processes; a process that sleeps keeps it until it is ousted."""

    def __init__(self) -> None:
        self.holder: object = None

    def lock(self) -> HallLock:
        return HallLock(self)


class HallLock:
    def __init__(self, hall: Hall) -> None:
        self.hall = hall

    def try_take(self) -> bool:
        if self.hall.holder is None:
            self.hall.holder = self
        return self.hall.holder is self

    def held(self) -> bool:
        return self.hall.holder is self

    def oust(self) -> None:
        self.hall.holder = None

    def free(self) -> None:
        if self.hall.holder is self:
            self.hall.holder = None


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def two(store: InMemoryStore) -> tuple[Clock, Leadership, Leadership]:
    clock, hall, notes = Clock(), Hall(), Notes()
    first, second = (Leadership(store, hall.lock(), name, notes, clock, lease_seconds=10.0) for name in "ab")
    return clock, first, second


def test_one_leads_and_the_other_waits_for_the_end_of_its_lease() -> None:
    clock, first, second = two(InMemoryStore())
    assert first.look()
    clock.now += 9
    assert not second.look()
    assert first.look(), "renewed"
    clock.now += 9
    assert not second.look()
    clock.now += 2
    assert second.look(), "the first one slept past its lease"
    assert not first.look()
    assert (first.leads, second.leads) == (False, True)


def test_a_leader_that_ends_is_followed_at_once() -> None:
    _, first, second = two(InMemoryStore())
    assert first.look()
    first.stop()
    assert second.look()


def test_a_leader_that_slept_past_its_lease_writes_nothing_when_it_wakes() -> None:
    """A3.14, A5.7: both decide the same step; one transition row, by the leader."""
    store = InMemoryStore()
    add_route(store, "math")
    clock, first, second = two(store)
    assert first.look()
    clock.now += 11
    assert second.look()
    assert first.leads, "it does not know yet"
    with store.transaction() as tx:
        before = (tx.rollouts.get("math"), len(tx.audit.list("math")))
    with pytest.raises(ConflictError, match="leads no longer"):
        tick(store, "math", clock(), Notes(), fence=first.fence)
    with store.transaction() as tx:
        assert (tx.rollouts.get("math"), len(tx.audit.list("math"))) == before
    assert not first.leads
    tick(store, "math", clock(), Notes(), fence=second.fence)
    with store.transaction() as tx:
        assert tx.rollouts.get("math") != before[0]


def test_whoever_never_led_is_refused() -> None:
    store = InMemoryStore()
    leadership = Leadership(store, NoLock(), "a", Notes(), Clock())
    with store.transaction() as tx, pytest.raises(ConflictError):
        leadership.fence(tx)


def test_an_outage_is_said_once_and_ends_the_claim() -> None:
    class Away(InMemoryStore):
        away = False

        def transaction(self):  # type: ignore[no-untyped-def]
            if self.away:
                raise UnreachableError("the database does not answer")
            return super().transaction()

    store, clock = Away(), Clock()
    leadership = Leadership(store, NoLock(), "a", Notes(), clock)
    assert leadership.look()
    store.away = True
    with pytest.raises(UnreachableError):
        leadership.look()
    store.away = False
    assert leadership.look()
    with store.transaction() as tx:
        assert tx.leaders.leads(NAME, 1) or tx.leaders.leads(NAME, 2)
