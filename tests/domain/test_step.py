"""What a decision, a person or a new epoch does to the rollout and to the flag's weight."""

from __future__ import annotations

from dataclasses import replace

import pytest

from canary.domain.decide import decide
from canary.domain.errors import ConflictError, KilledError, UsageError
from canary.domain.evidence import Evidence
from canary.domain.orders import resume, retry, unkill
from canary.domain.rollout import Rollout, State
from canary.domain.step import Step, new_epoch, step, weight_of
from tests.domain.situations import NOW, PLACES, POLICY, evidence, rollout


def act(at: Rollout, found: Evidence | None, now: float = NOW, manual_kill: str | None = None) -> Step:
    if found is not None and found.newest_pair_at is not None:
        found = replace(found, newest_pair_at=now)
    return step(at, POLICY, decide(at, POLICY, found, now, manual_kill=manual_kill), now)


def test_the_walk_from_shadow_to_full() -> None:
    at, now, seen = rollout("shadow", assessed_at=None), NOW, []
    for _ in range(12):
        stepped = act(at, evidence(), now)
        seen.append((stepped.rollout.state.value, stepped.rollout.stage, stepped.flag_weight, stepped.rollout.baked_seconds))
        at, now = stepped.rollout, now + 50
    canaries = [("canary", s, w, b) for s, w in ((1, 500), (2, 6000)) for b in (0.0, 50.0, 100.0)]
    assert seen[:6] == canaries
    assert [s[:3] for s in seen[6:]] == [("full", 3, 10_000)] * 6
    assert at.reason.startswith("all_pass: All 9 gates pass")


@pytest.mark.parametrize(
    ("found", "wait", "baked"),
    [
        (evidence(), 10, 10.0),
        (evidence({"speed": "inconclusive"}), 10, 10.0),
        (evidence(), 3600, 60.0),  # of a gap only so much counts
        (evidence(), 0, 0.0),
        (evidence(), -5, 0.0),  # a clock that went back
        (evidence({"row_gate": "no_data"}), 10, 0.0),
        (None, 10, 0.0),
        (evidence({"row_gate": "error"}), 10, 0.0),
        (evidence({"speed": "fail"}), 10, 0.0),
    ],
)
def test_the_bake_counts_healthy_assessed_time_only(found: Evidence | None, wait: float, baked: float) -> None:
    at = rollout("canary-5", assessed_at=NOW)
    assert act(at, found, NOW + wait).rollout.baked_seconds == baked


def test_the_first_assessment_bakes_nothing_and_restarts_do_not_double() -> None:
    first = act(rollout("canary-5", assessed_at=None), evidence()).rollout
    assert (first.baked_seconds, first.assessed_at) == (0.0, NOW)
    assert act(first, evidence(), NOW).rollout.baked_seconds == 0.0


def test_two_control_loops_with_different_clocks_bake_no_second_twice() -> None:
    at = rollout("canary-5", assessed_at=NOW)
    for second in range(1, 21):
        at = act(at, evidence(), NOW + second).rollout
        assert at.assessed_at == NOW + second
        at = act(at, evidence(), NOW + second - 15).rollout
        assert at.assessed_at == NOW + second, "a clock behind moves nothing back"
    assert at.baked_seconds == 20.0


def test_a_held_rollout_does_not_bake() -> None:
    assert act(rollout("held at canary-5", baked_seconds=7.0), evidence()).rollout.baked_seconds == 7.0


def test_errors_are_counted_in_a_row() -> None:
    """A3.8: what could not be measured is counted apart from failures."""
    broken = evidence({"row_gate": "error"})
    at = rollout("canary-5")
    for count in (1, 2, 3):
        at = act(at, broken).rollout
        assert (at.errors, at.state) == (count, State.CANARY)
    assert act(at, None).rollout.errors == 3, "no data is neither an error nor a measurement"
    assert act(at, evidence()).rollout.errors == 0
    fifth = act(act(at, broken).rollout, broken)
    assert (fifth.rollout.state, fifth.flag_weight) == (State.HELD, 500)
    assert fifth.rollout.reason.startswith("error: Could not measure 5 times in a row (limit 5)")


def test_held_keeps_its_weight_and_its_first_reason() -> None:
    held = act(rollout("canary-5"), evidence({"speed": "fail"}))
    assert (held.rollout.state, held.rollout.stage, held.flag_weight) == (State.HELD, 1, 500)
    later = act(held.rollout, evidence())
    assert later.rollout.reason == held.rollout.reason
    assert later.flag_weight == 500
    assert not later.audit


def test_a_rollback_takes_all_traffic_off() -> None:
    back = act(rollout("canary-60"), evidence({"live speed": "fail"}))
    assert (back.rollout.state, back.flag_weight, back.killed, back.rollout.entered_at) == (State.ROLLED_BACK, 0, False, NOW)
    assert not back.rollout.wants_shadow
    ((kind, body),) = back.audit
    assert (kind, body["reason"], body["weight"]) == ("roll_back", "not_worth_it_live", 0)


def test_an_evidence_kill_above_half_comes_down_in_a_straight_line() -> None:
    at = rollout("full")
    seen = []
    for late in (0, 75, 150, 299, 300, 400):
        stepped = act(at, evidence({"losslessness": {"verdict": "fail", "reason": "wrong_residual"}}), NOW + late)
        seen.append((stepped.flag_weight, stepped.killed))
        at = stepped.rollout
        assert stepped.kill_reason.startswith("wrong_residual: The candidate is not safe: losslessness")
    assert seen == [(10_000, False), (7500, False), (5000, False), (33, False), (0, True), (0, True)]


@pytest.mark.parametrize(("place", "weights"), [("canary-5", [0, 0]), ("canary-60", [0, 0]), ("held at full", [10_000, 5000])])
def test_only_full_ramps(place: str, weights: list[int]) -> None:
    first = act(rollout(place), evidence({"losslessness": "fail"}))
    second = act(first.rollout, evidence(), NOW + 150)
    assert [first.flag_weight, second.flag_weight] == weights


def test_manual_and_live_error_kills_are_immediate_even_during_a_ramp() -> None:
    assert act(rollout("full"), evidence(), manual_kill="an incident").flag_weight == 0
    assert act(rollout("full"), evidence({"live errors": "fail"})).flag_weight == 0
    ramping = act(rollout("full"), evidence({"losslessness": "fail"})).rollout
    by_hand = act(ramping, evidence(), NOW + 10, manual_kill="an incident")
    assert (by_hand.flag_weight, by_hand.killed) == (0, True)
    assert by_hand.kill_reason == "manual_kill: Killed by hand: an incident."
    live = act(ramping, evidence({"live errors": "fail"}), NOW + 10)
    assert (live.flag_weight, live.killed) == (0, True)


def test_a_second_manual_kill_keeps_the_first_reason() -> None:
    first = act(rollout("full"), evidence(), manual_kill="an incident").rollout
    assert act(first, evidence(), NOW + 1, manual_kill="another").rollout.reason == first.reason


def test_without_a_ramp_time_the_kill_is_immediate() -> None:
    policy = replace(POLICY, limits=replace(POLICY.limits, kill_ramp_seconds=0))
    at = rollout("full")
    decision = decide(at, policy, evidence({"losslessness": "fail"}), NOW)
    assert step(at, policy, decision, NOW).flag_weight == 0


def test_a_killed_rollout_takes_no_other_decision() -> None:
    healthy = decide(rollout("shadow"), POLICY, evidence(), NOW)
    with pytest.raises(KilledError):
        step(rollout("shadow", killed=True), POLICY, healthy, NOW)


@pytest.mark.parametrize(
    ("place", "on_drift", "state", "weights"),
    [
        ("pending", "baseline", State.SHADOW, (0, 0)),
        ("shadow", "baseline", State.SHADOW, (0, 0)),
        ("canary-5", "baseline", State.ROLLED_BACK, (0, 0)),
        ("canary-5", "keep", State.ROLLED_BACK, (0, 0)),
        ("full", "baseline", State.ROLLED_BACK, (10_000, 5000)),
        ("full", "keep", State.FULL, (10_000, 10_000)),
        ("held at shadow", "baseline", State.HELD, (0, 0)),
        ("held at canary-5", "keep", State.ROLLED_BACK, (0, 0)),
        ("held at full", "keep", State.HELD, (10_000, 10_000)),
        ("rolled_back", "baseline", State.ROLLED_BACK, (0, 0)),
    ],
)
def test_a_new_epoch(place: str, on_drift: str, state: State, weights: tuple[int, int]) -> None:
    """A3.16: another model, draft or engine voids what was gathered."""
    policy = replace(POLICY, on_drift=on_drift)
    at = rollout(place, attempt=1 if place == "pending" else 3, baked_seconds=50.0, errors=2)
    stepped = new_epoch(at, "next", policy, NOW)
    new = stepped.rollout
    assert (new.state, new.epoch, new.attempt, new.baked_seconds, new.errors) == (state, "next", 1, 0.0, 0)
    assert (stepped.flag_weight, weight_of(new, policy, NOW + 150)) == weights
    assert stepped.audit[0][0] == "new_epoch"


def test_the_same_epoch_again_writes_nothing() -> None:
    for place in set(PLACES) - {"pending"}:
        stepped = new_epoch(rollout(place), "epoch", POLICY, NOW)
        assert (stepped.rollout, stepped.audit) == (rollout(place), ())


def test_the_first_epoch_of_an_applied_policy_is_no_change() -> None:
    stepped = new_epoch(rollout("shadow", epoch="", attempt=2), "first", POLICY, NOW)
    assert (stepped.rollout.epoch, stepped.rollout.attempt, stepped.rollout.state) == ("first", 2, State.SHADOW)


def test_an_epoch_that_is_entered_again_opens_the_attempt_that_it_is_told() -> None:
    for place in ("shadow", "canary-5", "full", "held at full", "rolled_back"):
        new = new_epoch(rollout(place, attempt=7), "earlier", POLICY, NOW, attempt=3).rollout
        assert (new.epoch, new.attempt) == ("earlier", 3)
    first = rollout("shadow", epoch="", attempt=2)
    assert [new_epoch(first, "first", POLICY, NOW, attempt=n).rollout.attempt for n in (1, 4)] == [2, 4]
    assert new_epoch(rollout("shadow"), "epoch", POLICY, NOW, attempt=5).rollout == rollout("shadow")


def test_a_new_epoch_leaves_a_kill_and_an_archive_alone() -> None:
    killed = new_epoch(rollout("full", killed=True), "next", POLICY, NOW)
    assert (killed.killed, killed.flag_weight, killed.rollout.state) == (True, 0, State.FULL)
    assert new_epoch(rollout("archived"), "next", POLICY, NOW).rollout == rollout("archived")
    with pytest.raises(UsageError, match="must not be empty"):
        new_epoch(rollout("shadow"), "", POLICY, NOW)


@pytest.mark.parametrize("place", ["shadow", "canary-60", "full", "held at canary-5", "rolled_back"])
def test_unkill_leads_to_shadow_and_a_new_attempt(place: str) -> None:
    stepped = unkill(rollout(place, killed=True, baked_seconds=9.0, errors=3), POLICY, NOW, reason="the fix is in")
    new = stepped.rollout
    assert (new.state, new.stage, new.attempt, new.killed) == (State.SHADOW, 0, 2, False)
    assert (new.baked_seconds, new.errors, new.assessed_at) == (0.0, 0, None)
    assert (stepped.flag_weight, stepped.killed, stepped.kill_reason) == (0, False, "")
    assert new.reason == "unkill: the fix is in"


def test_unkill_ends_a_ramp_under_way() -> None:
    ramping = act(rollout("full"), evidence({"losslessness": "fail"})).rollout
    stepped = unkill(ramping, POLICY, NOW + 1)
    assert (stepped.flag_weight, weight_of(stepped.rollout, POLICY, NOW + 2)) == (0, 0)


def test_unkill_is_refused_without_a_kill_or_a_reason() -> None:
    with pytest.raises(ConflictError, match="not killed"):
        unkill(rollout("shadow"), POLICY, NOW, reason="why not")
    with pytest.raises(UsageError, match="a reason is needed"):
        unkill(rollout("shadow", killed=True), POLICY, NOW, reason=" ")
    with pytest.raises(ConflictError, match="archived"):
        unkill(rollout("archived", killed=True), POLICY, NOW, reason="why not")


def test_retry_waits_for_the_cool_down() -> None:
    with pytest.raises(ConflictError, match="cool-down ends in 20 s"):
        retry(rollout("rolled_back"), POLICY, NOW, reason="again")
    new = retry(rollout("rolled_back"), POLICY, NOW + 20, reason="again").rollout
    assert (new.state, new.stage, new.attempt) == (State.SHADOW, 0, 2)
    assert retry(rollout("held at canary-5"), POLICY, NOW, reason="again").flag_weight == 0


def test_retry_is_refused_where_there_is_nothing_to_retry() -> None:
    with pytest.raises(KilledError):
        retry(rollout("rolled_back", killed=True), POLICY, NOW, reason="again")
    with pytest.raises(ConflictError, match="nothing to retry"):
        retry(rollout("canary-5"), POLICY, NOW, reason="again")


def test_resume_goes_on_in_the_same_stage_with_new_clocks() -> None:
    stepped = resume(rollout("held at canary-5", entered_at=0.0, errors=5), POLICY, NOW, reason="looked at it")
    new = stepped.rollout
    assert (new.state, new.stage, new.attempt, new.errors) == (State.CANARY, 1, 1, 0)
    assert (new.entered_at, stepped.flag_weight) == (NOW, 500)
    with pytest.raises(ConflictError, match="not held"):
        resume(rollout("canary-5"), POLICY, NOW, reason="looked at it")
    with pytest.raises(UsageError):
        resume(rollout("held at canary-5"), POLICY, NOW, reason="")
