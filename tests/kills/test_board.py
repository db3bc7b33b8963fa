"""The kill board: in memory and on disk at once, read again at every start, whatever happened to the file; and the kill file."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from canary.domain.errors import RequestError
from canary.domain.kills import ALL, DRILL
from canary.kills.board import KillBoard
from canary.kills.journal import Journal
from tests.api.served import NOW, Notes


def board_at(home: Path | None, notes: Notes | None = None) -> KillBoard:
    return KillBoard(notes or Notes(), home, clock=lambda: NOW)


def test_a_kill_is_on_disk_when_it_is_acknowledged_and_back_after_a_restart(tmp_path: Path) -> None:
    """A3.19: the killed state outlives restarts, with no store at all."""
    board = board_at(tmp_path / "home")
    order = board.kill("math", "users complain", "ada", above=6)
    assert order.epoch == 7
    assert board.kill("math", "again", "bob") == order, "a second kill changes nothing"
    assert board.on_disk
    lines = (tmp_path / "home" / "kills.jsonl").read_text().splitlines()
    assert [json.loads(line)["order_id"] for line in lines] == [order.order_id]
    assert board_at(tmp_path / "home").known == board.known
    assert (tmp_path / "home" / "kills.jsonl").stat().st_mode & 0o777 == 0o600


def test_it_is_told_before_it_is_written(tmp_path: Path) -> None:
    board, seen = board_at(tmp_path), []
    end = board.listen(lambda: seen.append((board.known.over("math") is not None, (tmp_path / "kills.jsonl").exists())))
    board.kill("math", "r", "ada")
    assert seen == [(True, False)]
    end()
    board.kill("creative", "r", "ada")
    assert len(seen) == 1


@pytest.mark.parametrize("torn", [b'{"epoch": 1, "order', b"\xff\xfe\n", b"[1]\n", b'{"epoch": 0}\n', b"\n\n"])
def test_a_torn_or_foreign_line_loses_itself_and_nothing_else(tmp_path: Path, torn: bytes) -> None:
    first = board_at(tmp_path).kill("math", "r", "ada")
    with (tmp_path / "kills.jsonl").open("ab") as file:
        file.write(torn)
    again = board_at(tmp_path)
    assert again.known.over("math") == first
    second = again.kill("creative", "r", "ada")
    assert set(board_at(tmp_path).known.orders) == {first.order_id, second.order_id}


def test_processes_on_one_home_see_each_others_orders(tmp_path: Path) -> None:
    one, other = board_at(tmp_path), board_at(tmp_path)
    order = one.kill("math", "r", "ada")
    assert other.known.over("math") is None
    other.look()
    assert other.known.over("math") == order
    assert other.kill("math", "r", "bob") == order
    (tmp_path / "kills.jsonl").unlink()
    other.look()
    assert other.known.over("math") == order, "a lost file undoes nothing"


def test_a_stopped_process_that_holds_the_file_does_not_keep_others_from_killing(tmp_path: Path) -> None:
    board = board_at(tmp_path)
    board.kill("math", "r", "ada")
    with (tmp_path / "kills.jsonl").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        order = board.kill("creative", "r", "ada")
    assert order.order_id in board_at(tmp_path).known.orders


def test_without_a_disk_the_kill_stands_all_the_same(tmp_path: Path) -> None:
    """A5.16: a disk that is full or gone costs a note, never the kill."""
    notes = Notes()
    (tmp_path / "home").write_text("a file where the folder should be")
    board = board_at(tmp_path / "home", notes)
    order = board.kill("math", "r", "ada")
    board.kill("creative", "r", "ada")
    assert board.known.over("math") == order
    assert not board.on_disk
    assert {event for event, _ in notes.seen} == {"kill_board_failed"}
    assert board_at(None).kill(ALL, "r", "ada").scope == ALL


def test_joining_writes_what_is_new_once(tmp_path: Path) -> None:
    here, there = board_at(tmp_path / "here"), board_at(tmp_path / "there")
    order = there.kill("math", "r", "ada")
    assert here.join([order]) == [order]
    assert here.join([order]) == []
    assert len((tmp_path / "here" / "kills.jsonl").read_text().splitlines()) == 1


def test_a_line_in_the_kill_file_is_a_kill_that_removing_it_does_not_undo(tmp_path: Path) -> None:
    """A3.19: a local kill file kills with nothing else running; un-killing needs a person and a reason."""
    board = board_at(tmp_path)
    (tmp_path / "kill").write_text("math too slow\nNot a route!\n")
    board.look()
    order = board.known.over("math")
    assert order is not None
    assert (order.reason, order.actor) == ("too slow", "kill file")
    assert board.named == {"math": "too slow"}
    board.look()
    assert len(board.known.orders) == 1
    (tmp_path / "kill").unlink()
    board.look()
    assert (board.named, board.known.over("math")) == ({}, order)


def test_two_processes_take_one_order_for_one_line(tmp_path: Path) -> None:
    one, other = board_at(tmp_path), board_at(tmp_path)
    (tmp_path / "kill").write_text("*\n")
    one._read_file()
    other._read_file()
    assert [o.order_id for o in one.known.standing(ALL)] == [o.order_id for o in other.known.standing(ALL)]


def test_a_kill_file_that_cannot_be_read_kills_everything_until_it_can(tmp_path: Path) -> None:
    notes = Notes()
    board = board_at(tmp_path, notes)
    board.rise(6)
    (tmp_path / "kill").mkdir()
    board.look()
    board.look()
    assert list(board.named) == [ALL]
    assert len(notes.seen) == 1
    assert not board.known.orders, "nobody has ordered anything"
    os.rmdir(tmp_path / "kill")
    board.look()
    assert board.named == {}
    assert board.known.over("math") is None
    assert board.known.epoch_of("math") == 8, "the end is younger than what was served, or clients would keep the kill"
    board.look()
    assert len(board.known.orders) == 2


def test_a_line_whose_kill_was_undone_elsewhere_kills_again_as_long_as_it_is_there(tmp_path: Path) -> None:
    """A3.19: the file is an order that stands; an unkill elsewhere could not see the line."""
    board = board_at(tmp_path)
    (tmp_path / "kill").write_text("math too slow\n")
    board.look()
    first = board.known.over("math")
    elsewhere = board_at(None)
    elsewhere.join(board.known.orders.values())
    over = elsewhere.unkill("math", "fine here", "bob")
    assert over is not None
    board.join([over])
    board.look()
    again = board.known.over("math")
    assert first is not None
    assert again is not None
    assert (again.order_id != first.order_id, again.epoch > over.epoch) == (True, True)
    (tmp_path / "kill").unlink()
    board.join([over])
    board.look()
    assert board.known.over("math") == again, "taking the line out undoes nothing"


def test_a_wrong_order_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    board = board_at(tmp_path)
    with pytest.raises(RequestError):
        board.kill("Math!", "r", "ada")
    assert not board.known.orders
    assert Journal(tmp_path, Notes()).news() == []
    assert board.unkill(DRILL, "nothing stands", "ada") is None


def test_it_watches_by_itself(tmp_path: Path) -> None:
    board = board_at(tmp_path)
    board.start()
    board.start()
    try:
        (tmp_path / "kill").write_text("math\n")
        while board.known.over("math") is None:  # the run's own limit ends it if the watcher is dead
            time.sleep(0.01)
    finally:
        board.close()
        board.close()
