"""Kill orders: joining loses nothing, only an unkill that names a kill ends it, and what is served never forgets one.

A3.19: the killed state is never undone by a stale copy, and un-killing needs somebody who saw the kill.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.domain.errors import RequestError
from canary.domain.flag import Flag, Snapshot, joined, resolve
from canary.domain.kills import ALL, DRILL, Act, KillOrder, Kills, overlaid, read_kill_file, unvouched
from canary.domain.propagation import Propagation

NOW = 1_700_000_000.0
ROUTES = ("math", "creative")
SCOPES = (*ROUTES, ALL, DRILL)


def order(number: int, scope: str = "math", *, epoch: int | None = None, undoes: tuple[str, ...] = ()) -> KillOrder:
    act = Act.UNKILL if undoes else Act.KILL
    return KillOrder(epoch or number, f"k{number}", act, scope, f"reason {number}", "ada", NOW + number, undoes)


@st.composite
def histories(draw: st.DrawFn) -> list[KillOrder]:
    """Orders that replicas took, each from what it had heard of by then."""
    orders: list[KillOrder] = []
    for number in range(draw(st.integers(0, 8))):
        seen = Kills.of(o for o in orders if draw(st.booleans()))
        scope = draw(st.sampled_from(SCOPES))
        undoing = seen.unkill(scope, "fine again", "bob", NOW, f"o{number}") if draw(st.booleans()) else None
        orders.append(undoing or seen.kill(scope, "bad", "ada", NOW, f"o{number}"))
    return orders


@settings(max_examples=60, deadline=None)
@given(histories(), st.data())
def test_joining_is_commutative_associative_and_idempotent(orders: list[KillOrder], data: st.DataObject) -> None:
    parts = [Kills.of(o for o in orders if data.draw(st.booleans())) for _ in range(3)]
    one, two, three = parts
    assert one.join(two) == two.join(one)
    assert one.join(two).join(three) == one.join(two.join(three))
    assert one.join(one) == one
    assert one.join(two).digest == two.join(one).digest
    assert one.join(two).epoch == max(one.epoch, two.epoch)


@settings(max_examples=60, deadline=None)
@given(histories(), st.data())
def test_only_an_unkill_that_names_a_kill_ends_it(orders: list[KillOrder], data: st.DataObject) -> None:
    known = Kills.of(o for o in orders if data.draw(st.booleans()))
    more = known.join(Kills.of(orders))
    named = {kill for o in more.orders.values() for kill in o.undoes}
    for scope in SCOPES:
        for kill in known.standing(scope):
            assert (kill in more.standing(scope)) == (kill.order_id not in named)


@settings(max_examples=100, deadline=None)
@given(histories(), st.data())
def test_compacting_changes_nothing_that_is_said_and_joins_with_what_was_not_compacted(
    orders: list[KillOrder], data: st.DataObject
) -> None:
    """A3.19: a standing order is never lost, and an end never forgotten, whoever compacted what and when."""
    aged = [replace(o, at=NOW - data.draw(st.integers(0, 2))) for o in orders]
    known = Kills.of(aged)
    before = NOW - data.draw(st.integers(-1, 2))
    short = known.compacted(before)
    assert len(short.orders) <= len(known.orders)
    for seen in (short, short.join(known), known.join(short), short.join(Kills.of(o for o in aged if data.draw(st.booleans())))):
        assert seen.digest == known.digest
        assert (seen.epoch, seen.join(short).epoch) == (known.epoch, known.epoch)
        for scope in SCOPES:
            assert seen.standing(scope) == known.standing(scope)
            assert seen.over(scope) == known.over(scope)
            assert seen.epoch_of(scope) == known.epoch_of(scope)
    assert short.compacted(before) == short == short.join(known).compacted(before)


def test_compacting_leaves_one_unkill_a_scope_that_names_what_is_over() -> None:
    history = [order(1), order(2, undoes=("k1",)), order(3), order(4, undoes=("k3",)), order(5), order(6, "creative")]
    short = Kills.of(history).compacted(NOW + 100)
    assert sorted(short.orders) == ["k4", "k5", "k6"]
    assert short.orders["k4"].undoes == ("k1", "k3")
    assert Kills.of(history).compacted(NOW + 3.5).orders.keys() == {"k2", "k3", "k4", "k5", "k6"}


def test_a_digest_tells_a_kill_from_its_end_and_one_epoch_from_another() -> None:
    sets = ([], [order(1)], [order(1, epoch=2)], [order(1), order(2, undoes=("k1",))], [order(2, undoes=("k1",))])
    digests = [Kills.of(orders).digest for orders in sets]
    assert len(set(digests[:4])) == 4
    assert digests[3] == digests[4], "who knows the end need not know the kill"


@pytest.mark.parametrize("one", [order(1), order(1, epoch=9)])
def test_of_two_orders_under_one_id_the_greater_counts_everywhere(one: KillOrder) -> None:
    other = replace(one, reason="another text")
    assert Kills.of([one, other]) == Kills.of([other, one])
    unkills = [replace(order(1, epoch=e, undoes=(f"k{e}",)), reason=r) for e in (2, 3) for r in ("a", "b")]
    for many in itertools.permutations([one, *unkills[:2]]):
        assert Kills.of(many) == Kills.of([one]), "in doubt it is a kill"
    for many in itertools.permutations(unkills):
        assert Kills.of(many).orders["k1"] == replace(unkills[-1], undoes=("k2", "k3"))


def test_a_kill_that_nobody_had_seen_outlives_an_unkill() -> None:
    """Two replicas kill at the same epoch; the person who undoes one of the kills has not seen the other."""
    here, there = Kills.of([order(1)]), Kills.of([order(2, epoch=1)])
    undone = here.unkill("math", "fine", "bob", NOW, "u")
    assert undone is not None
    assert undone.undoes == ("k1",)
    assert undone.epoch == 2
    both = here.join(Kills.of([undone])).join(there)
    assert [o.order_id for o in both.standing("math")] == ["k2"]
    assert both.unkill("creative", "nothing to undo", "bob", NOW, "v") is None


def test_epochs_rise_above_what_the_author_saw() -> None:
    known = Kills.of([order(4)])
    assert known.kill("creative", "r", "a", NOW, "x").epoch == 5
    assert known.kill("creative", "r", "a", NOW, "x", above=11).epoch == 12
    assert known.kill("math", "r", "a", NOW, "x", above=2**53 - 1).epoch == 2**53 - 1, (
        "an epoch that somebody made up stops no kill"
    )
    assert known.epoch_of("math") == 4
    assert known.epoch_of("creative") == 0
    assert Kills.of([order(3, ALL)]).epoch_of("creative") == 3
    assert Kills.of([order(3, ALL)]).over(DRILL) is None, "a drill's flag is no route"


BASE = Snapshot(
    7, NOW, {"math": Flag("math", 10_000, "s", stage="full"), "creative": Flag("creative", 500, "t", pins={"u": "candidate"})}
)


def test_what_is_served_has_every_kill_and_nothing_else_changed() -> None:
    known = Kills.of([order(3)])
    served = overlaid(BASE, (), known, {})
    killed = served.flags["math"]
    assert (killed.killed, killed.weight, killed.kill_reason, killed.kill_epoch) == (True, 0, "manual: reason 3", 3)
    assert (killed.kill_id, killed.killed_at) == ("k3", NOW + 3)
    assert served.flags["creative"] == BASE.flags["creative"]
    assert served.version == 7
    assert overlaid(BASE, (), Kills(), {}) == BASE
    everything = overlaid(BASE, (), Kills.of([order(3, ALL)]), {})
    assert {f.killed for f in everything.flags.values()} == {True}
    assert everything.flags["math"].kill_reason == "manual: all routes: reason 3"


def test_a_kill_of_a_route_that_the_store_has_not_shown_is_served() -> None:
    served = overlaid(Snapshot(0, 0.0, {}), (), Kills.of([order(3, "new"), order(4, ALL)]), {"named": "why"})
    assert {route: flag.killed for route, flag in served.flags.items()} == {"new": True, "named": True}


def test_an_undone_kill_never_brings_back_what_was_before_it() -> None:
    """A3.19, A5.12: this replica's flags are from before the kill; it hears of the kill and its undoing from a peer."""
    kill = order(3)
    undone = Kills.of([kill]).unkill("math", "fine", "bob", NOW, "u")
    assert undone is not None
    known = Kills.of([kill, undone])
    served = overlaid(BASE, (), known, {})
    assert (served.flags["math"].killed, served.flags["math"].weight, served.flags["math"].kill_epoch) == (False, 0, undone.epoch)
    seen = Snapshot(9, NOW, {"math": Flag("math", 500, "s", kill_epoch=undone.epoch)})
    assert overlaid(seen, ("k3", "u"), known, {}) == seen


@pytest.mark.parametrize("scope", ["math", ALL])
def test_the_kill_file_kills_while_it_names(scope: str) -> None:
    served = overlaid(BASE, (), Kills(), {scope: "smoke"})
    assert resolve(served, "math", "u").reason == "DISABLED"
    assert served.flags["math"].kill_reason == "kill_file: smoke"
    assert served.flags["creative"].killed == (scope == ALL)


def test_the_drills_flag_is_there_once_a_drill_was_and_is_nobodys_route() -> None:
    assert DRILL not in overlaid(BASE, (), Kills(), {}).flags
    on = Kills.of([order(1, DRILL)])
    assert overlaid(BASE, (), on, {}).flags[DRILL].killed
    assert not overlaid(BASE, (), on, {}).flags["math"].killed
    off = on.unkill(DRILL, "over", "ada", NOW, "u")
    assert off is not None
    flag = overlaid(BASE, (), on.join(Kills.of([off])), {}).flags[DRILL]
    assert (flag.killed, flag.weight, flag.kill_epoch) == (False, 10_000, 2)


@settings(max_examples=60, deadline=None)
@given(histories(), st.data())
def test_a_client_that_hears_of_both_replicas_keeps_every_standing_kill(orders: list[KillOrder], data: st.DataObject) -> None:
    """A5.12: whichever replica answers last, no kill that stands in what they know together is resolved to the candidate."""
    replicas = [Kills.of(o for o in orders if data.draw(st.booleans())) for _ in range(2)]
    held: Snapshot | None = None
    for known in [*replicas, replicas[0]]:
        held = joined(held, overlaid(BASE, (), known, {}))
    assert held is not None
    for route in ROUTES:
        newest = max((r for r in replicas), key=lambda known: known.epoch_of(route))
        if newest.over(route) is not None:
            assert resolve(held, route, "u").variant == "baseline"


def test_what_was_on_disk_serves_kills_and_baselines_only() -> None:
    """A5.18: an API that starts without its store gives no canary away."""
    stale = replace(
        BASE, flags={**BASE.flags, "old": Flag("old", 10_000, "o", on_lost="baseline"), "off": Flag("off", 0, "x", True)}
    )
    served = unvouched(stale)
    assert resolve(served, "creative", "u").variant == "baseline"
    assert resolve(served, "off", "u").reason == "DISABLED"
    assert resolve(served, "old", "u").variant == "baseline"
    assert resolve(served, "math", "u").variant == "candidate", "a full route keeps its traffic when the policy says so"


def test_orders_survive_json_and_nothing_else_is_one() -> None:
    for one in (order(1), order(2, ALL, undoes=("k1", "k0"))):
        assert KillOrder.from_dict(json.loads(json.dumps(one.to_dict()))) == one


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 0},
        {"epoch": True},
        {"epoch": 2**53},
        {"order_id": ""},
        {"act": "revive"},
        {"scope": "a/b"},
        {"scope": "x" * 300},
        {"scope": None},
        {"reason": " "},
        {"reason": "x" * 501},
        {"actor": "a\x00b"},
        {"actor": "\ud800"},
        {"at": float("nan")},
        {"at": float("inf")},
        {"at": "now"},
        {"undoes": ["k1"]},
        {"undoes": "k1"},
        {"extra": 1},
    ],
)
def test_a_malformed_order_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        KillOrder.from_dict({**order(1).to_dict(), **change})
    with pytest.raises(RequestError):
        KillOrder.from_dict([change])


def test_a_kill_file_is_read_line_by_line() -> None:
    text = "# everybody\nmath  too slow # said ada\n\n* \n  creative\nNot A Route\n" + "x" * 300
    assert read_kill_file(text) == {"math": "too slow", ALL: "named in the kill file", "creative": "named in the kill file"}
    assert read_kill_file("") == {}


def test_propagation_counts_who_was_missed() -> None:
    found = Propagation.of({"a", "b", "c"}, {"a": 0.3, "b": 0.1, "late": 0.2})
    assert (found.connected, found.acknowledged, found.missed) == (4, 3, ("c",))
    assert [found.quantile(share) for share in (0.01, 0.5, 0.99, 1.0)] == [0.1, 0.2, 0.3, 0.3]
    assert Propagation.of((), {}).to_dict()["p99_seconds"] is None
