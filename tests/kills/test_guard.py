"""A scheduler alone obeys the kill file and the journal of its home: the store says killed before a round decides anything."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from canary.config import Settings
from canary.domain.decide import Decision
from canary.domain.errors import UnreachableError
from canary.domain.evidence import Evidence
from canary.domain.flag import Flag
from canary.domain.kills import ALL
from canary.domain.rollout import Rollout
from canary.flow.kills import settle, unkill
from canary.flow.ports import Observer, Store
from canary.flow.walk.control import tick
from canary.inmemory import InMemoryStore
from canary.jobs.tasks import Assessment, Children, work_of
from canary.kills.board import KillBoard
from canary.kills.guard import KillGuard
from canary.store.unit_of_work import PostgresStore
from tests.api.served import NOW, Away, Notes, add_route, set_weight


@pytest.fixture(params=["inmemory", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    opened: InMemoryStore | PostgresStore = InMemoryStore()
    if request.param == "postgres":
        opened = PostgresStore(request.getfixturevalue("database"))
    for route in ("math", "creative"):
        add_route(opened, route)
        set_weight(opened, route, 10_000)
    yield opened
    if isinstance(opened, PostgresStore):
        opened.close()


class Ticks:
    """`tick`, and what it decided of each route last."""

    def __init__(self) -> None:
        self.decided: dict[str, Decision] = {}

    def __call__(self, store: Store, route: str, now: float, observer: Observer) -> tuple[Rollout, Decision, Evidence | None]:
        found = tick(store, route, NOW, observer)
        self.decided[route] = found[1]
        return found


def assessment_of(store: Store, home: Path, ticks: Ticks) -> Assessment:
    """The job as `canary scheduler` and `canary jobs run` have it."""
    settings = Settings(home=home, database_url=None)
    work = work_of(store, settings, ticks, Notes(), Children({}), clock=lambda: NOW)["assessment"]
    assert isinstance(work, Assessment)
    return work


def flag_of(store: Store, route: str) -> Flag:
    with store.transaction() as tx:
        found = tx.flags.get(route)
    assert found is not None
    return found


def kills_of(store: Store, route: str) -> list[tuple[object, object]]:
    with store.transaction() as tx:
        return [(event["actor"], event["body"]["reason"]) for event in tx.audit.list(route, kind="kill")]  # type: ignore[index]


def killed(store: Store, route: str) -> bool:
    with store.transaction() as tx:
        rollout = tx.rollouts.get(route)
    return rollout is not None and rollout.killed and flag_of(store, route).killed and flag_of(store, route).weight == 0


def test_a_line_in_the_kill_file_kills_within_one_round_with_one_event(store: Store, tmp_path: Path) -> None:
    """A3.19, truth table row 1: with no API at all, rollout row, flag and audit log say killed after the next round."""
    ticks = Ticks()
    work = assessment_of(store, tmp_path, ticks)
    work()
    assert not killed(store, "math")
    (tmp_path / "kill").write_text("math wrong tokens\n")
    for _ in range(3):
        assert work() == "2 routes, 0 failed"
    assert killed(store, "math")
    assert kills_of(store, "math") == [("kill file", "wrong tokens")]
    assert flag_of(store, "math").kill_reason == "manual: wrong tokens"
    assert (ticks.decided["math"].row, ticks.decided["math"].reason) == (1, "manual_kill")
    assert "wrong tokens" in ticks.decided["math"].sentence
    assert not killed(store, "creative")


def test_an_order_that_a_dead_api_wrote_down_is_obeyed(store: Store, tmp_path: Path) -> None:
    """A3.19: acknowledged by an API that ended before the database had it."""
    order = KillBoard(Notes(), tmp_path, clock=lambda: NOW).kill(ALL, "smoke", "ada")
    ticks = Ticks()
    assessment_of(store, tmp_path, ticks)()
    assessment_of(store, tmp_path, Ticks())()
    for route in ("math", "creative"):
        assert killed(store, route)
        assert flag_of(store, route).kill_id == order.order_id
        assert len(kills_of(store, route)) == 1
        assert ticks.decided[route].row == 1


def test_a_kill_that_was_undone_elsewhere_is_not_taken_again_and_a_new_line_is(store: Store, tmp_path: Path) -> None:
    board = KillBoard(Notes(), tmp_path, clock=lambda: NOW)
    guard = KillGuard(store, Notes(), board, clock=lambda: NOW)
    board.kill("math", "slow", "ada")
    assert guard.obey() == frozenset()
    unkill(store, "math", "fine again", "bob", NOW + 1)
    assert guard.obey() == frozenset()
    assert not flag_of(store, "math").killed
    assert board.known.over("math") is None
    (tmp_path / "kill").write_text("math slow\n")
    guard.obey()
    assert killed(store, "math")
    assert len(kills_of(store, "math")) == 2


def test_a_route_whose_kill_the_store_does_not_take_is_left_where_it_is(tmp_path: Path) -> None:
    """A5.16: nothing may advance it meanwhile, and the others are assessed all the same."""
    inner = InMemoryStore()
    for route in ("math", "creative"):
        add_route(inner, route)
    store, ticked = Away(inner), list[str]()
    guard = KillGuard(store, Notes(), KillBoard(Notes(), tmp_path, clock=lambda: NOW), clock=lambda: NOW)

    def obey() -> frozenset[str]:
        store.away = True
        held = guard.obey()
        store.away = False
        return held

    work = Assessment(store, Notes(), lambda s, route, now, o: ticked.append(route), lambda: NOW, lambda: False, obey)
    (tmp_path / "kill").write_text("math wrong tokens\n")
    assert work() == "2 routes, 0 failed, 1 left alone: their kills are not settled"
    assert ticked == ["creative"]
    (tmp_path / "kill").unlink()
    (tmp_path / "kill").mkdir()
    assert work() == "2 routes, 0 failed, 2 left alone: their kills are not settled"
    assert guard.obey() == {ALL}, "a kill file that cannot be read keeps every route where it is"
    assert killed(inner, "math")


def test_an_outage_is_noted_once_and_ends(tmp_path: Path) -> None:
    inner, notes = InMemoryStore(), Notes()
    add_route(inner, "math")
    store = Away(inner)
    guard = KillGuard(store, notes, KillBoard(notes, tmp_path, clock=lambda: NOW), clock=lambda: NOW)
    (tmp_path / "kill").write_text("math smoke\n")
    store.away = True
    assert [guard.obey() for _ in range(3)] == [{"math"}] * 3
    assert sorted(event for event, _ in notes.seen) == ["kill_not_settled", "kills_not_read"]
    with pytest.raises(UnreachableError), store.transaction():
        pass
    store.away = False
    assert guard.obey() == frozenset()
    assert killed(inner, "math")


def test_the_store_never_holds_a_kill_without_its_known_end(tmp_path: Path) -> None:
    """A3.19: whoever looks between two writes of a kill that is over by now must not kill for it."""
    inner = InMemoryStore()
    add_route(inner, "math")
    board = KillBoard(Notes(), tmp_path, clock=lambda: NOW)
    guard = KillGuard(inner, Notes(), board, clock=lambda: NOW)
    (tmp_path / "kill").mkdir()
    board.look()
    (tmp_path / "kill").rmdir()
    board.look()

    class Looked:
        def transaction(self):  # type: ignore[no-untyped-def]
            tick(inner, "math", NOW, Notes())
            return inner.transaction()

    settle(Looked(), board.known, list(board.known.orders.values()), NOW)
    guard.obey()
    tick(inner, "math", NOW, Notes())
    assert len(board.known.orders) == 2
    assert not killed(inner, "math")


def test_it_settles_between_the_rounds_too(tmp_path: Path) -> None:
    """A scheduler that does not lead obeys its own home all the same."""
    store = InMemoryStore()
    add_route(store, "math")
    guard = KillGuard(store, Notes(), KillBoard(Notes(), tmp_path))
    guard.start()
    guard.start()
    try:
        (tmp_path / "kill").write_text("math smoke\n")
        while not killed(store, "math"):  # the run's own limit ends it if a thread is dead
            time.sleep(0.01)
    finally:
        guard.close()
        guard.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("canary-kill")]
