"""The journal is shortened at a start: what stands and what is undone outlives a cut at each step, and writers beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from canary.domain.kills import ALL, KillOrder, Kills
from canary.kills import journal as module
from canary.kills.board import KillBoard
from canary.kills.journal import Journal
from tests.api.served import NOW, Notes

DAY = 86_400.0
CUTS = ("write", "fsync", "link", "replace", "unlink")
WORDS = b'{"a later version": "says this"}'


class Cut(Exception):
    """The process ends here."""


class CutShort:
    """`os`, until it ends at one step; half of what was to be written is written then."""

    def __init__(self, step: int) -> None:
        self.left = step

    def __getattr__(self, name: str) -> object:
        found = getattr(os, name)
        if name not in CUTS:
            return found

        def call(*given: object) -> object:
            self.left -= 1
            if self.left == 0:
                if name == "write":
                    descriptor, content = given
                    os.write(descriptor, bytes(content)[: len(bytes(content)) // 2])  # type: ignore[arg-type, call-overload]
                raise Cut
            if self.left < 0:
                raise Cut
            return found(*given)

        return call


def filled(home: Path) -> Kills:
    """Old kills that are over, old kills that stand, and young ones that are over."""
    clock = [NOW - 100 * DAY]
    board = KillBoard(Notes(), home, clock=lambda: clock[0])
    for _ in range(3):
        board.kill("math", "old", "ada")
        board.unkill("math", "over", "ada")
    board.kill("math", "it stands", "ada")
    board.kill("creative", "it stands", "ada")
    clock[0] = NOW - 1
    board.kill(ALL, "young", "ada")
    board.unkill(ALL, "over", "ada")
    with (home / module.FILE).open("ab") as file:
        file.write(WORDS + b"\n")
    return board.known


def read(home: Path) -> Kills:
    return Kills.of(Journal(home, Notes()).news())


def says_the_same(one: Kills, other: Kills) -> bool:
    return one.digest == other.digest and all(one.standing(s) == other.standing(s) for s in ("math", "creative", ALL))


def test_what_is_over_for_long_is_one_line_a_route_and_the_rest_stays(tmp_path: Path) -> None:
    known = filled(tmp_path)
    journal = Journal(tmp_path, Notes())
    assert journal.compact(NOW - 30 * DAY) == 5, "three kills and two of three unkills"
    after = read(tmp_path)
    assert says_the_same(after, known)
    assert len(after.orders) == len(known.orders) - 5
    assert WORDS in (tmp_path / module.FILE).read_bytes().splitlines()
    assert (tmp_path / module.FILE).stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == [module.FILE]
    stamp = (tmp_path / module.FILE).stat()
    assert journal.compact(NOW - 30 * DAY) == 0
    assert (tmp_path / module.FILE).stat().st_ino == stamp.st_ino, "nothing to do is nothing done"
    assert Journal(tmp_path / "none", Notes()).compact(NOW) == 0


def steps_of(home: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    filled(home)
    counting = CutShort(1_000)
    monkeypatch.setattr(module, "os", counting)
    Journal(home, Notes()).compact(NOW - 30 * DAY)
    monkeypatch.setattr(module, "os", os)
    return 1_000 - counting.left


def test_a_cut_at_each_step_loses_no_order_and_the_next_start_finishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A3.19: the killed state outlives a process or a machine that ends while its journal is written anew."""
    steps = steps_of(tmp_path / "whole", monkeypatch)
    assert steps >= 7
    for step in range(1, steps + 1):
        home = tmp_path / str(step)
        known = filled(home)
        monkeypatch.setattr(module, "os", CutShort(step))
        with pytest.raises(Cut):
            Journal(home, Notes()).compact(NOW - 30 * DAY)
        monkeypatch.setattr(module, "os", os)
        assert says_the_same(read(home), known), f"step {step}"
        more = KillBoard(Notes(), home, clock=lambda: NOW).kill("rag", "after the cut", "ada")
        Journal(home, Notes()).compact(NOW - 30 * DAY)
        Journal(home, Notes()).compact(NOW - 30 * DAY)
        assert says_the_same(read(home), known.join(Kills.of([more]))), f"step {step}"
        assert not (home / f"{module.FILE}.old").exists()
        assert len((home / module.FILE).read_bytes().splitlines()) <= len(known.orders) - 5 + 3


@pytest.mark.parametrize("name", ["link", "replace", "unlink"])
@pytest.mark.parametrize("before", [True, False])
def test_a_kill_that_does_not_wait_for_the_shortening_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, before: bool
) -> None:
    """A stopped process that holds the file keeps nobody from killing, and what was written meanwhile is carried over."""
    known, taken = filled(tmp_path), list[KillOrder]()
    monkeypatch.setattr(module, "TURN_SECONDS", 0.0)

    class Meanwhile:
        def __getattr__(self, asked: str) -> object:
            found: Callable[..., object] = getattr(os, asked)
            if asked != name:
                return found

            def call(*given: object) -> object:
                if not before:
                    found(*given)
                monkeypatch.setattr(module, "os", os)
                other = KillBoard(Notes(), tmp_path, clock=lambda: NOW)
                taken.append(other.kill(f"r{len(taken)}", "meanwhile", "bob"))
                return found(*given) if before else None

            return call

    monkeypatch.setattr(module, "os", Meanwhile())
    Journal(tmp_path, Notes()).compact(NOW - 30 * DAY)
    assert len(taken) == 1
    assert says_the_same(read(tmp_path), known.join(Kills.of(taken)))
    assert not (tmp_path / f"{module.FILE}.old").exists()


def test_a_writer_whose_file_was_replaced_under_it_writes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = filled(tmp_path)
    order = known.kill("rag", "late", "bob", NOW, "late")

    class Late:
        """The file is replaced between the moment at which the writer looked and its write."""

        def __getattr__(self, asked: str) -> object:
            if asked == "write":
                monkeypatch.setattr(module, "os", os)
                assert Journal(tmp_path, Notes()).compact(NOW - 30 * DAY) > 0
            return getattr(os, asked)

    # The writer could not wait for its turn.
    monkeypatch.setattr(module, "_turn", lambda _: nullcontext(True))
    monkeypatch.setattr(module, "os", Late())
    Journal(tmp_path, Notes()).append([order])
    assert says_the_same(read(tmp_path), known.join(Kills.of([order])))


def test_others_follow_a_journal_that_was_shortened_under_them(tmp_path: Path) -> None:
    known = filled(tmp_path)
    other = KillBoard(Notes(), tmp_path, clock=lambda: NOW)
    board = KillBoard(Notes(), tmp_path, lifetime=30 * DAY, clock=lambda: NOW)
    board.start()
    try:
        order = board.kill("rag", "after", "ada")
        other.look()
        assert other.known.over("rag") == order
        assert says_the_same(other.known, known.join(Kills.of([order])))
        assert other.kill("late", "to the new file", "bob").order_id in read(tmp_path).orders
    finally:
        board.close()
    assert len(board.known.orders) < len(known.orders), "in memory it is as short"


def test_what_is_over_does_not_come_back_from_a_replica_that_never_heard_of_its_end(tmp_path: Path) -> None:
    old = KillBoard(Notes(), clock=lambda: NOW - 90 * DAY)
    kill = old.kill("math", "old", "ada")
    over = old.unkill("math", "fine", "ada")
    assert over is not None
    here = KillBoard(Notes(), tmp_path, lifetime=30 * DAY, clock=lambda: NOW)
    assert here.join([kill, over]) == [over], "the end alone is kept"
    assert here.known.digest == old.known.digest, "so that replicas do not send each other the same for ever"
    assert here.join([kill]) == []
    assert here.known.over("math") is None
    assert set(read(tmp_path).orders) == {over.order_id}
