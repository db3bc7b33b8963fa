"""No older snapshot undoes a kill (A3.19, A5.12): joining does not depend on order, and the younger turn of the switch holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.domain.flag import Flag, Resolution, Snapshot, joined, resolve
from canary.domain.match import EVERYTHING, Match

BASE = Flag("math", 10_000, "s", stage="full")


def at(version: int, flag: Flag) -> Snapshot:
    return Snapshot(version, 0.0, {"math": flag})


def killed(epoch: int) -> Flag:
    return BASE.switched(True, reason="manual: no", epoch=epoch, kill_id=f"k{epoch}", at=5.0)


def test_a_stale_snapshot_never_undoes_a_kill_a3_19_a5_12() -> None:
    held = joined(at(7, BASE), at(7, killed(1)))
    assert held.flags["math"].killed, "the same version with a younger kill"
    for older in (at(6, BASE), at(7, BASE), at(8, BASE)):
        after = joined(held, older)
        assert after.flags["math"].killed
        assert after.flags["math"].kill_reason == "manual: no"
        assert after.flags["math"].weight == 0
        assert after.version == max(7, older.version)


def test_an_unkill_is_a_younger_turn_a3_19() -> None:
    held = at(7, killed(1))
    revived = killed(1).switched(False)
    assert (revived.kill_epoch, revived.killed, revived.kill_reason, revived.killed_at) == (2, False, "", 0.0)
    assert joined(held, at(8, revived)).flags["math"] == revived
    assert joined(at(8, revived), held).flags["math"] == revived, "a kill that was undone does not come back"


def test_a_kill_of_an_older_replica_is_heard_of() -> None:
    newer = at(9, replace(BASE, weight=500, stage="canary-5"))
    found = joined(newer, at(7, killed(3))).flags["math"]
    assert (found.killed, found.weight, found.stage, found.kill_epoch) == (True, 0, "canary-5", 3)


def test_between_equal_epochs_the_version_decides_and_then_the_kill() -> None:
    assert not joined(at(7, replace(BASE, killed=True)), at(8, BASE)).flags["math"].killed
    for one, other in ((at(7, BASE), at(7, replace(BASE, killed=True))), (at(7, replace(BASE, killed=True)), at(7, BASE))):
        assert joined(one, other).flags["math"].killed


SNAPSHOTS = st.builds(
    lambda version, epoch, dead: at(version, replace(BASE, weight=0 if dead else version, killed=dead, kill_epoch=epoch)),
    st.integers(1, 4),
    st.integers(0, 3),
    st.booleans(),
)


def switch(snapshot: Snapshot) -> tuple[int, bool, int]:
    flag = snapshot.flags["math"]
    return flag.kill_epoch, flag.killed, snapshot.version


@settings(max_examples=200, deadline=None, derandomize=True)
@given(SNAPSHOTS, SNAPSHOTS)
def test_joining_two_snapshots_does_not_depend_on_their_order(a: Snapshot, b: Snapshot) -> None:
    assert switch(joined(a, b)) == switch(joined(b, a))
    assert switch(joined(a, a)) == switch(a)
    assert joined(a, b).flags["math"].kill_epoch == max(a.flags["math"].kill_epoch, b.flags["math"].kill_epoch)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(SNAPSHOTS, min_size=1, max_size=6), st.integers(1, 3))
def test_once_a_kill_is_known_only_a_younger_turn_ends_it(seen: list[Snapshot], epoch: int) -> None:
    held = at(2, killed(epoch))
    for each in seen:
        each = (
            each if each.flags["math"].kill_epoch < epoch else at(each.version, replace(each.flags["math"], kill_epoch=epoch - 1))
        )
        held = joined(held, each)
        assert held.flags["math"].killed


def test_a_pin_holds_while_the_route_has_weight_only() -> None:
    pins = {"vip": "candidate", "shy": "baseline"}

    def of(weight: int, unit: str, dead: bool = False) -> Resolution:
        return resolve(at(1, replace(BASE, weight=weight, pins=pins, killed=dead)), "math", unit)

    assert of(1, "vip") == Resolution("candidate", "TARGETING_MATCH")
    assert of(10_000, "shy") == Resolution("baseline", "TARGETING_MATCH")
    assert of(10_000, "other") == Resolution("candidate", "STATIC")
    assert of(0, "vip") == Resolution("baseline", "STATIC"), "a route at rest sends nobody to the candidate"
    assert of(10_000, "vip", dead=True) == Resolution("baseline", "DISABLED"), "a kill beats every pin"


@pytest.mark.parametrize(
    ("weight", "lost", "stale"),
    [
        (10_000, "keep", ("candidate", "STATIC")),
        (10_000, "baseline", ("baseline", "UNKNOWN")),
        (9_999, "keep", ("baseline", "UNKNOWN")),
    ],
)
def test_a_lost_control_plane_does_what_the_flag_says(weight: int, lost: str, stale: tuple[str, str]) -> None:
    snapshot = at(1, replace(BASE, weight=weight, on_lost=lost, max_stale=30.0))
    assert resolve(snapshot, "math", "u", age=30.0).reason != "UNKNOWN"
    assert resolve(snapshot, "math", "u", age=30.001) == Resolution(*stale)
    assert resolve(snapshot, "math", "u", age=20.0, max_stale=10.0) == Resolution(*stale), "the shorter time holds"
    assert resolve(at(1, replace(BASE, weight=500)), "math", "u", age=60.1).reason == "UNKNOWN", "60 s where nothing is said"


def test_requests_that_the_policy_leaves_out_get_the_baseline() -> None:
    snapshot = at(1, replace(BASE, match=Match(strata=("greedy",))))
    out = Resolution("baseline", "TARGETING_MATCH")
    assert resolve(snapshot, "math", "u", {"temperature": 0}) == Resolution("candidate", "STATIC")
    for request in (None, {}, {"temperature": 0.7}, {"temperature": "0"}, {"temperature": False}, {"temperature": None}):
        assert resolve(snapshot, "math", "u", request) == out


def test_a_flag_with_everything_survives_its_json() -> None:
    flag = replace(
        killed(4),
        pins={"u": "candidate"},
        config={"drafter": "ngram", "num_speculative_tokens": 4},
        match=Match(endpoints=("completions",), stream="never", max_temperature=0.5),
        on_lost="baseline",
        max_stale=12.5,
        policy_version="abc",
    )
    again = Snapshot.from_json(at(3, flag).to_json(), 0.0)
    assert again.flags["math"] == flag
    assert again.kill_epoch == 4
    assert Snapshot.from_json(at(3, BASE).to_json(), 0.0).flags["math"].match is EVERYTHING


@pytest.mark.parametrize(
    "change",
    [
        {"weight": "1"},
        {"weight": True},
        {"weight": -1},
        {"weight": 10_001},
        {"salt": None},
        {"killed": "no"},
        {"kill_epoch": -1},
        {"kill_epoch": 1.5},
        {"killed_at": float("nan")},
        {"on_lost": "hope"},
        {"max_stale": -1},
        {"max_stale": float("inf")},
        {"config": {"a": None}},
        {"config": []},
        {"pins": {"u": "speculative"}},
        {"pins": {"u": ["baseline"]}},
        {"match": "all"},
        {"match": {"surprise": 1}},
        {"surprise": 1},
    ],
)
def test_a_malformed_flag_is_refused(change: dict[str, object]) -> None:
    good: dict[str, object] = {"weight": 500, "salt": "s"}
    assert Flag.from_dict("math", good).weight == 500
    with pytest.raises((ValueError, TypeError, AttributeError)):
        Flag.from_dict("math", good | change)
