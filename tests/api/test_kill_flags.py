"""What is served: kills at once with the store away, the last snapshot after a restart, and never a step back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from canary.api.flags import FlagCache
from canary.api.kept_flags import KeptFlags
from canary.domain.flag import Flag, Snapshot, joined, resolve
from canary.flow.kills import kill, unkill
from canary.flow.ports import Store
from canary.inmemory import InMemoryStore
from canary.kills.board import KillBoard
from canary.kills.settler import Settler
from tests.api.served import NOW, Away, Clock, Notes, add_route, set_weight


def filled() -> InMemoryStore:
    store = InMemoryStore()
    for route, weight in (("math", 10_000), ("creative", 500), ("dead", 0)):
        add_route(store, route)
        set_weight(store, route, weight)
    kill(store, "dead", "long ago", "ada", NOW)
    return store


def cache_on(store: Store, home: Path | None = None, clock: Clock | None = None, notes: Notes | None = None) -> FlagCache:
    said = notes or Notes()
    board = KillBoard(said, home, clock=lambda: NOW)
    return FlagCache(store, said, clock=lambda: NOW + (clock or Clock()).now, monotonic=clock or Clock(), board=board, home=home)


def served(cache: FlagCache, route: str, unit: str = "u") -> str:
    published = cache.published
    return resolve(published.snapshot if published else None, route, unit).reason


def test_a_kill_is_served_at_once_with_the_store_away_and_settled_when_it_is_back(tmp_path: Path) -> None:
    """A3.19, A5.18: memory and disk first; the database gets the kill, once, when it returns."""
    inner, notes = filled(), Notes()
    store = Away(inner)
    cache = cache_on(store, tmp_path, notes=notes)
    settler = Settler(store, notes, cache.board, cache, clock=lambda: NOW)
    cache.refresh()
    told: list[bool] = []
    cache.listen(lambda: told.append(served(cache, "math") == "DISABLED"))
    before = cache.published
    store.away = True
    order = cache.board.kill("math", "users complain", "ada", above=1)
    assert told == [True]
    assert served(cache, "math") == "DISABLED"
    assert before is not None
    after = cache.published
    assert after is not None
    assert after.etag != before.etag, "a kill changes the tag though the version cannot rise"
    assert after.snapshot.version == before.snapshot.version
    assert after.snapshot.kill_epoch > before.snapshot.kill_epoch
    assert not settler.round()
    assert not settler.round()
    assert (settler.pending, settler.wait(order.order_id, 0)) == (1, False)
    store.away = False
    assert settler.round()
    assert settler.round()
    assert (settler.pending, settler.wait(order.order_id, 0)) == (0, True)
    with inner.transaction() as tx:
        assert len(tx.audit.list("math", kind="kill")) == 1
        flag = tx.flags.get("math")
    assert flag is not None
    assert (flag.killed, flag.kill_id) == (True, order.order_id)
    assert served(cache, "math") == "DISABLED"
    assert [event for event, _ in notes.seen].count("kill_not_settled") == 1


def test_an_outage_of_one_order_does_not_keep_the_next_from_being_settled() -> None:
    """A5.16: an order that the store refuses stays pending, and the one after it is settled."""
    inner = filled()

    class Picky:
        def transaction(self):  # type: ignore[no-untyped-def]
            context = inner.transaction()
            tx = context.__enter__()
            original = tx.kills.add
            tx.kills = _Refusing(tx.kills, original)  # type: ignore[assignment]
            return _Entered(context, tx)

    cache = cache_on(Picky())
    settler = Settler(Picky(), Notes(), cache.board, cache, clock=lambda: NOW)
    cache.board.kill("creative", "refuse me", "ada")
    cache.board.kill("math", "fine", "ada")
    assert not settler.round()
    assert settler.pending == 1
    with inner.transaction() as tx:
        flag = tx.flags.get("math")
    assert flag is not None
    assert flag.killed


class _Refusing:
    def __init__(self, inner, add) -> None:  # type: ignore[no-untyped-def]
        self.after, self.about, self._add = inner.after, inner.about, add

    def add(self, order):  # type: ignore[no-untyped-def]
        if order.reason == "refuse me":
            raise RuntimeError("a row that cannot be written")
        return self._add(order)


class _Entered:
    def __init__(self, context, tx) -> None:  # type: ignore[no-untyped-def]
        self._context, self._tx = context, tx

    def __enter__(self):  # type: ignore[no-untyped-def]
        return self._tx

    def __exit__(self, *error):  # type: ignore[no-untyped-def]
        return self._context.__exit__(*error)


def test_after_a_restart_without_the_store_the_last_flags_are_served_as_killed_or_baseline(tmp_path: Path) -> None:
    """A3.19, A5.18: kills of the store and of the disk stand, a canary gets the baseline, a full route keeps its traffic."""
    store = Away(filled())
    first = cache_on(store, tmp_path)
    first.refresh()
    store.away = True
    first.board.kill("creative", "smoke", "ada")
    clock = Clock()
    clock.now += 30
    again = cache_on(store, tmp_path, clock)
    again.refresh()
    assert served(again, "dead") == served(again, "creative") == "DISABLED"
    assert served(again, "math") == "STATIC"
    assert again.age_seconds is not None
    assert again.age_seconds >= 30, "the age on disk counts, so that clients can tell how old it is"
    (tmp_path / "kills.jsonl").unlink()
    bare = cache_on(store, tmp_path)
    assert resolve(bare.published.snapshot, "creative", None).reason == "STATIC"  # type: ignore[union-attr]
    assert resolve(bare.published.snapshot, "creative", "u").variant == "baseline"  # type: ignore[union-attr]
    store.away = False
    bare.refresh()
    assert bare.published is not None
    assert bare.published.snapshot.flags["creative"].weight == 500


def test_a_cold_start_with_nothing_serves_only_the_kills_it_knows(tmp_path: Path) -> None:
    """A5.18: no store, no disk: there is nothing to say, which is the baseline, until there is a kill to tell."""
    store = Away(filled())
    store.away = True
    cache = cache_on(store, tmp_path)
    assert cache.published is None
    cache.board.kill("math", "smoke", "ada")
    assert cache.published is not None
    assert cache.published.snapshot.version == 0
    assert served(cache, "math") == "DISABLED"
    assert served(cache, "creative") == "FLAG_NOT_FOUND"


def test_a_damaged_file_is_no_snapshot(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"issued_at": 1, "settled": [], "snapshot": "{}"}', "\x00"):
        (tmp_path / "flags.json").write_text(text)
        notes = Notes()
        assert cache_on(InMemoryStore(), tmp_path, notes=notes).published is None
        assert [event for event, _ in notes.seen] == ["kept_flags_unreadable"]


def test_an_older_answer_of_the_store_never_replaces_a_newer_one() -> None:
    """A5.12: a database that was put back is told of and not served."""
    store, notes = filled(), Notes()
    old = store.state.copy()
    kill(store, "math", "smoke", "ada", NOW)
    cache = cache_on(store, notes=notes)
    cache.refresh()
    newest = cache.published
    store.state = old
    cache.refresh()
    cache.refresh()
    assert cache.published == newest
    assert [event for event, _ in notes.seen] == ["flags_went_back"]


def test_an_unkill_in_the_store_is_served_and_an_older_replica_does_not_bring_the_weight_back() -> None:
    """A3.19, A5.12: the kill, its undoing, and a replica that sees them late and in pieces."""
    store = filled()
    fresh, late = cache_on(store), cache_on(store)
    fresh.refresh()
    late.refresh()
    order = kill_order = fresh.board.kill("math", "smoke", "ada")
    Settler(store, Notes(), fresh.board, fresh, clock=lambda: NOW).round()
    unkill(store, "math", "a cable", "bob", NOW + 1)
    fresh.refresh()
    assert served(fresh, "math") == "STATIC"
    assert resolve(fresh.published.snapshot, "math", "u").variant == "baseline"  # type: ignore[union-attr]
    late.board.join(fresh.board.known.orders.values())
    assert order == kill_order
    assert resolve(late.published.snapshot, "math", "u").variant == "baseline"  # type: ignore[union-attr]
    set_weight(store, "math", 10_000)
    for cache in (fresh, late):
        cache.refresh()
        assert resolve(cache.published.snapshot, "math", "u").variant == "candidate"  # type: ignore[union-attr]


def test_a_flag_that_a_policy_killed_keeps_its_own_reason() -> None:
    store = filled()
    with store.transaction() as tx:
        before = tx.flags.get("math")
        assert before is not None
        tx.flags.put(replace(before, weight=0, killed=True, kill_reason="safety_failed: x", kill_epoch=4))
        tx.commit()
    cache = cache_on(store)
    cache.refresh()
    cache.board.kill("math", "smoke", "ada", above=4)
    published = cache.published
    assert published is not None
    flag: Flag = published.snapshot.flags["math"]
    assert (flag.kill_reason, flag.kill_epoch) == ("safety_failed: x", 5)


def test_clients_take_back_a_kill_that_was_only_a_file_nobody_could_read(tmp_path: Path) -> None:
    """A3.19, A5.12: the store's version does not rise with it, so the kill epoch must; the kill's record moves no rollout."""
    inner = filled()
    cache = cache_on(inner, tmp_path)
    settler = Settler(inner, Notes(), cache.board, cache, clock=lambda: NOW)
    cache.refresh()
    seen = [cache.published]
    (tmp_path / "kill").mkdir()
    cache.board.look()
    seen.append(cache.published)
    (tmp_path / "kill").rmdir()
    cache.board.look()
    assert settler.round()
    seen.append(cache.published)
    held: Snapshot | None = None
    reasons = []
    for published in seen:
        assert published is not None
        held = joined(held, published.snapshot)
        reasons.append((resolve(held, "math", "u").reason, resolve(held, "dead", "u").reason))
    assert reasons == [("STATIC", "DISABLED"), ("DISABLED", "DISABLED"), ("STATIC", "DISABLED")]
    with inner.transaction() as tx:
        assert [e["kind"] for e in tx.audit.list("*")] == ["kill_recorded", "unkill"], "its end first"
        rollout = tx.rollouts.get("math")
    assert rollout is not None
    assert not rollout.killed


def test_what_is_settled_is_kept_for_orders_that_are_known_only(tmp_path: Path) -> None:
    """Orders that were compacted away do not stay behind in the file of the last flags."""
    store = filled()
    board = KillBoard(Notes(), tmp_path, lifetime=1.0, clock=lambda: NOW + 100)
    cache = FlagCache(store, Notes(), clock=lambda: NOW + 100, monotonic=Clock(), board=board, home=tmp_path)
    for _ in range(3):
        unkill(store, "dead", "fine", "ada", NOW)
        kill(store, "dead", "again", "ada", NOW)
    cache.refresh()
    assert cache.settled == board.known.orders.keys()
    assert len(board.known.orders) == 2, "one kill that stands, and one unkill that names the three that are over"
    kept = KeptFlags(tmp_path, Notes()).read()
    assert kept is not None
    assert kept.settled == cache.settled
    assert Settler(store, Notes(), board, cache, clock=lambda: NOW).pending == 0
    assert served(cache, "dead") == "DISABLED"
