"""What a person orders: approvals that move one stage, rejections, pauses, aborts, and the cool-down after a rollback."""

from __future__ import annotations

from dataclasses import replace

import pytest

from canary.domain.decide import decide
from canary.domain.errors import ConflictError, KilledError, UsageError
from canary.domain.orders import abort, approve, pause, reject, resume, retry
from canary.domain.policy import Approval, Limits
from canary.domain.rollout import Rollout, State
from canary.domain.step import Step, new_epoch, step
from tests.domain.situations import NOW, POLICY, evidence, rollout

ASKING = replace(POLICY, stages=tuple(replace(s, approval=Approval(60.0) if s.weight else None) for s in POLICY.stages))
BAKED = {"baked_seconds": 100.0}


def look(at: Rollout, now: float = NOW, gates: dict[str, object] | None = None, policy=ASKING) -> Step:  # type: ignore[no-untyped-def]
    return step(at, policy, decide(at, policy, evidence(gates, newest_pair_at=now), now), now)


def test_a3_2_an_approval_moves_exactly_one_stage() -> None:
    at = look(rollout("shadow")).rollout
    assert (at.state, at.asked_at) == (State.SHADOW, NOW)
    at = approve(at, ASKING, NOW + 1, reason="seen", actor="ada").rollout
    at = look(at, NOW + 2).rollout
    assert (at.state, at.stage, at.approved_by, at.asked_at) == (State.CANARY, 1, "", 0.0)
    for second in range(1, 30):
        at = look(at, NOW + 10 * second).rollout
        if at.state is State.HELD:
            break
        assert at.stage == 1, "the next stage needs an approval of its own"
    assert (at.state, at.reason.split(":")[0]) == (State.HELD, "approval_expired")


def test_a3_2_approving_an_inconclusive_stage_neither_moves_nor_wedges_it() -> None:
    held = rollout("held at canary-5", reason="waited_too_long: so long")
    at = approve(held, ASKING, NOW, reason="go on", actor="ada").rollout
    assert (at.state, at.stage, at.baked_seconds) == (State.CANARY, 1, 0.0)
    at = look(at, NOW + 1, {"speed": "inconclusive"}).rollout
    assert (at.state, at.stage, at.approved_by) == (State.CANARY, 1, "ada")
    at = look(replace(at, baked_seconds=100.0), NOW + 2).rollout
    assert (at.stage, at.approved_by) == (2, "")


def test_a3_13_nobody_answers_and_the_stage_is_denied() -> None:
    at = look(rollout("canary-5", **BAKED)).rollout
    assert look(at, NOW + 59).rollout.state is State.CANARY
    denied = look(at, NOW + 60)
    assert (denied.rollout.state, denied.rollout.stage, denied.flag_weight) == (State.HELD, 1, 500)
    assert decide(at, ASKING, evidence(newest_pair_at=NOW + 60), NOW + 60).page
    again = resume(denied.rollout, ASKING, NOW + 61, reason="ask again").rollout
    assert (again.asked_at, again.state) == (0.0, State.CANARY)


def test_a3_13_an_approval_given_early_is_not_good_for_ever() -> None:
    at = approve(rollout("canary-5"), ASKING, NOW, reason="seen", actor="ada").rollout
    late = look(replace(at, baked_seconds=100.0), NOW + 60).rollout
    assert (late.stage, late.asked_at) == (1, NOW + 60)


@pytest.mark.parametrize(
    ("gates", "state", "weight"),
    [({"live errors": "fail"}, State.CANARY, 0), ({"live speed": "fail"}, State.ROLLED_BACK, 0)],
)
def test_a3_13_a5_8_thresholds_stay_armed_while_a_person_is_waited_for(
    gates: dict[str, object], state: State, weight: int
) -> None:
    waiting = look(rollout("canary-5", **BAKED)).rollout
    assert waiting.asked_at == NOW
    moved = look(waiting, NOW + 5, gates)
    assert (moved.rollout.state, moved.flag_weight) == (state, weight)
    assert moved.rollout.killed == (state is State.CANARY)
    assert (moved.rollout.asked_at, moved.rollout.approved_by) == (0.0, "")


def test_a3_11_a5_6_a_kill_beats_an_approved_promotion() -> None:
    ready = approve(rollout("canary-60", **BAKED), ASKING, NOW, reason="seen", actor="ada").rollout
    assert look(ready, NOW + 1).flag_weight == 10_000
    decision = decide(ready, ASKING, evidence(), NOW + 1, manual_kill="an incident")
    killed = step(ready, ASKING, decision, NOW + 1)
    assert (killed.flag_weight, killed.killed, killed.rollout.approved_by) == (0, True, "")
    with pytest.raises(KilledError):
        approve(killed.rollout, ASKING, NOW + 2, reason="no", actor="bob")


def test_a3_11_a5_6_an_abort_beats_an_approved_promotion_and_has_no_ramp() -> None:
    ready = approve(rollout("canary-60", **BAKED), ASKING, NOW, reason="seen", actor="ada").rollout
    gone = abort(ready, ASKING, NOW + 1, reason="stop")
    assert (gone.flag_weight, gone.rollout.state, gone.rollout.approved_by) == (0, State.ROLLED_BACK, "")
    assert look(gone.rollout, NOW + 2).flag_weight == 0
    full = abort(rollout("full"), POLICY, NOW, reason="stop")
    assert (full.flag_weight, full.rollout.ramp_end) == (0, 0.0)


@pytest.mark.parametrize("place", ["pending", "rolled_back", "archived"])
def test_a3_12_an_abort_with_nothing_in_progress_changes_nothing(place: str) -> None:
    at = rollout(place)
    stepped = abort(at, POLICY, NOW, reason="stop")
    assert (stepped.rollout, stepped.audit, stepped.flag_weight) == (at, (), 0)
    killed = rollout("canary-5", killed=True)
    assert abort(killed, POLICY, NOW, reason="stop").rollout == killed


def test_an_abort_ends_a_ramp() -> None:
    ramping = new_epoch(rollout("full"), "next", POLICY, NOW)
    assert ramping.flag_weight == 10_000
    assert abort(ramping.rollout, POLICY, NOW + 1, reason="stop").flag_weight == 0


def test_a3_9_a_run_that_is_aborted_without_a_measurement_is_no_success() -> None:
    gone = abort(rollout("shadow"), POLICY, NOW, reason="stop").rollout
    assert (gone.state, gone.reason) == (State.ROLLED_BACK, "aborted: stop")


def test_a3_18_the_cool_down_grows_with_every_rollback_and_attempts_are_used_up() -> None:
    limits = Limits(cooldown_seconds=100, cooldown_factor=3, max_cooldown_seconds=500, max_attempts=4, fresh_seconds=500)
    policy = replace(POLICY, limits=limits)
    at, now, waits = rollout("canary-5"), NOW, []
    for _ in range(4):
        at = look(at, now, {"live speed": "fail"}, policy).rollout
        waits.append(at.cool_until - now)
        if at.rollbacks == 4:
            break
        with pytest.raises(ConflictError, match="cool-down ends"):
            retry(at, policy, at.cool_until - 1, reason="again")
        now = at.cool_until
        at = replace(retry(at, policy, now, reason="again").rollout, state=State.CANARY, stage=1, attempt=1)
    assert waits == [100, 300, 500, 500]
    with pytest.raises(ConflictError, match="4 of 4 attempts"):
        retry(at, policy, now + 10_000, reason="again")
    assert decide(at, policy, None, now + 10_000).reason == "attempts_used_up"
    other = new_epoch(at, "next", policy, now + 10_000).rollout
    assert retry(other, policy, now + 20_000, reason="another engine").rollout.state is State.SHADOW


def test_a3_18_a_person_may_end_the_cool_down_but_not_the_count_of_attempts() -> None:
    limits = Limits(cooldown_seconds=100, max_attempts=2, fresh_seconds=500)
    policy = replace(POLICY, limits=limits)
    at = look(rollout("canary-5"), NOW, {"live speed": "fail"}, policy).rollout
    with pytest.raises(ConflictError, match="cool-down ends in 99 s") as caught:
        retry(at, policy, NOW + 1, reason="again")
    assert "--now" in str(caught.value)
    again = retry(at, policy, NOW + 1, reason="the load test was ours", at_once=True)
    assert (again.rollout.state, again.rollout.attempt, again.rollout.rollbacks, again.flag_weight) == (State.SHADOW, 2, 1, 0)
    ((kind, body),) = again.audit
    assert (kind, body["reason"]) == ("retry", "retry_now")
    baked = replace(again.rollout, baked_seconds=100.0, attempt=1)
    assert decide(baked, policy, evidence(newest_pair_at=NOW + 2), NOW + 2).kind.value == "advance", "nothing cools down any more"
    second = look(replace(baked, state=State.CANARY, stage=1), NOW + 3, {"live speed": "fail"}, policy).rollout
    for now in (NOW + 4, NOW + 10_000):
        with pytest.raises(ConflictError, match="2 of 2 attempts"):
            retry(second, policy, now, reason="again", at_once=True)
    with pytest.raises(UsageError, match="a reason is needed"):
        retry(at, policy, NOW + 1, reason=" ", at_once=True)
    with pytest.raises(ConflictError, match="2 of 2"):
        retry(replace(second, state=State.HELD), policy, NOW + 9, reason="again", at_once=True)


def test_a3_18_a_shadow_may_gather_but_not_promote_before_the_cool_down_is_over() -> None:
    cooling = rollout("shadow", cool_until=NOW + 50)
    assert decide(cooling, POLICY, evidence(), NOW).reason == "cooling_down"
    later = evidence(newest_pair_at=NOW + 50)
    assert decide(cooling, POLICY, later, NOW + 50).kind.value == "advance"


@pytest.mark.parametrize("limit", [0.0, 3600.0])
@pytest.mark.parametrize("rollbacks", [0, 1, 7, 10**6])
def test_a_cool_down_is_finite_and_never_longer_than_its_limit(limit: float, rollbacks: int) -> None:
    for base in (0.0, 60.0):
        found = Limits(cooldown_seconds=base, max_cooldown_seconds=limit).cooldown_of(rollbacks)
        assert base <= found <= max(base, limit)


def test_a_pause_keeps_the_weight_and_the_thresholds() -> None:
    held = pause(rollout("canary-5"), POLICY, NOW, reason="lunch")
    assert (held.rollout.state, held.flag_weight, held.rollout.reason) == (State.HELD, 500, "paused: lunch")
    assert look(held.rollout, NOW + 1, {"live errors": "fail"}, POLICY).killed
    with pytest.raises(ConflictError, match="cannot be paused"):
        pause(held.rollout, POLICY, NOW, reason="again")


def test_a_rejection_holds_until_a_person_resumes() -> None:
    no = reject(look(rollout("canary-5", **BAKED)).rollout, ASKING, NOW + 1, reason="not on Friday").rollout
    assert (no.state, no.asked_at, no.reason) == (State.HELD, 0.0, "rejected: not on Friday")
    assert look(no, NOW + 100).rollout.state is State.HELD


@pytest.mark.parametrize("place", ["pending", "rolled_back", "archived", "full"])
def test_where_no_approval_is_waited_for_there_is_nothing_to_answer(place: str) -> None:
    for order in (lambda r: approve(r, ASKING, NOW, reason="x", actor="a"), lambda r: reject(r, ASKING, NOW, reason="x")):
        with pytest.raises(ConflictError, match="no approval"):
            order(rollout(place))
    with pytest.raises(ConflictError, match="asks for no approval"):
        approve(rollout("canary-5"), POLICY, NOW, reason="x", actor="a")


def test_every_order_needs_a_reason_and_none_moves_a_killed_route() -> None:
    for order in (pause, reject, abort):
        with pytest.raises(UsageError, match="a reason is needed"):
            order(rollout("canary-5"), ASKING, NOW, reason=" ")
    for order in (pause, reject):
        with pytest.raises(KilledError):
            order(rollout("canary-5", killed=True), ASKING, NOW, reason="x")


def test_a3_16_a_new_epoch_voids_what_was_agreed() -> None:
    ready = approve(rollout("shadow"), ASKING, NOW, reason="seen", actor="ada").rollout
    new = new_epoch(ready, "next", ASKING, NOW + 1).rollout
    assert (new.approved_by, new.rollbacks, new.cool_until) == ("", 0, 0.0)
