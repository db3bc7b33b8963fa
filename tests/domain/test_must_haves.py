"""Behaviours and faults that other rollout tools are known for, each as one story told to `decide` and `step`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from canary.domain.decide import decide
from canary.domain.errors import PolicyError
from canary.domain.evidence import Evidence
from canary.domain.facts import REQUIRED_GATES
from canary.domain.policy import Limits, Policy
from canary.domain.rollout import Rollout, State
from canary.domain.shadow_policy import Shadow, check_shadow
from canary.domain.step import new_epoch, step
from tests.domain.situations import NOW, PLACES, POLICY, ROLES, evidence, rollout

CANARIES = ("canary-5", "canary-60")


def look(at: Rollout, found: Evidence | None, now: float, policy: Policy = POLICY) -> tuple[Rollout, str]:
    """One round of the control loop: the rollout afterwards, and the reason."""
    decision = decide(at, policy, found, now)
    return step(at, policy, decision, now).rollout, decision.reason


def fresh(gates: dict[str, object], now: float) -> Evidence:
    return evidence(gates, newest_pair_at=now, assessed_at=now)


def run(at: Rollout, gates: dict[str, object], times: Iterable[float], policy: Policy = POLICY) -> tuple[Rollout, list[str]]:
    reasons = []
    for now in times:
        at, reason = look(at, fresh(gates, now), now, policy)
        reasons.append(reason)
    return at, reasons


@pytest.mark.parametrize("gate", [name for name in ROLES if name != "control"])
def test_the_last_stage_runs_out_of_time_inconclusive(gate: str) -> None:
    """A3.1, A5.1: it is held for a person, in its stage and attempt; nothing is promoted and no new run begins."""
    at = rollout("canary-60", baked_seconds=10_000.0)
    at, reasons = run(at, {gate: "inconclusive"}, (NOW + 50.0 * n for n in range(1, 260)))
    assert (at.state, at.stage, at.attempt, at.epoch) == (State.HELD, 2, 1, "epoch")
    assert reasons[-1] == "waited_too_long"
    assert "all_pass" not in reasons


@pytest.mark.parametrize("place", CANARIES)
def test_traffic_stops_after_a_third_of_the_bake(place: str) -> None:
    """A3.6, A5.5: old good evidence does not go on baking; it grows stale, and then comes off the traffic."""
    policy = replace(POLICY, limits=replace(POLICY.limits, fresh_seconds=20, no_data_seconds=600))
    at, old = rollout(place, assessed_at=NOW), fresh({}, NOW + 30)
    for now in (NOW + 10, NOW + 20, NOW + 30):
        at, reason = look(at, fresh({}, now), now, policy)
        assert reason == "baking"
    assert at.baked_seconds == 30.0
    for second in range(40, 630, 10):
        at, reason = look(at, old, NOW + second, policy)
        assert reason == ("baking" if second <= 50 else "stale")
    assert (at.baked_seconds, at.stage) == (50.0, PLACES[place][1]), "the clock stopped where the evidence grew stale"
    gone, reason = look(at, old, NOW + 631, policy)
    assert (gone.state, reason) == (State.ROLLED_BACK, "no_data_too_long")


@pytest.mark.parametrize(("place", "state"), [("shadow", State.HELD), *((p, State.HELD) for p in CANARIES), ("full", State.FULL)])
def test_only_errors_hold_and_never_pass_or_kill(place: str, state: State) -> None:
    """A3.8, A3.10, A5.2, A5.3: `max_errors` in a row hold, at exactly that many; failing and erring together pass nothing."""
    policy = replace(POLICY, limits=replace(POLICY.limits, max_errors=3))
    at = rollout(place, baked_seconds=1_000.0)
    for number in (1, 2):
        at, reason = look(at, fresh({"speed": "error"}, NOW + number), NOW + number, policy)
        assert (at.state, at.errors, reason) == (PLACES[place][0], number, "not_yet")
    at, reason = look(at, fresh({"speed": "error"}, NOW + 3), NOW + 3, policy)
    assert (at.state, at.killed, reason) == (state, False, "could_not_measure")
    mixed, _ = run(
        rollout(place, baked_seconds=1_000.0), {"speed": "error", "acceptance": "fail"}, [NOW + n for n in range(5)], policy
    )
    assert mixed.stage <= PLACES[place][1]
    assert not mixed.killed


def test_one_failure_at_a_limit_of_one_is_no_pass_and_limits_that_cannot_be_reached_are_refused() -> None:
    """A3.10, A5.3."""
    policy = replace(POLICY, limits=replace(POLICY.limits, max_errors=1))
    at, _ = look(rollout("canary-5", baked_seconds=1_000.0), fresh({"speed": "error"}, NOW), NOW, policy)
    assert at.state is State.HELD
    with pytest.raises(PolicyError, match="before 20 requests have calibrated"):
        check_shadow(Shadow(calibration_requests=20), speed_concurrency=1, max_requests=20)


@pytest.mark.parametrize("place", ["shadow", *CANARIES])
def test_a_failing_baseline_holds_and_does_not_oscillate(place: str) -> None:
    """A3.17: whatever else fails, the rollout is held where it is and a person is called; it never goes back and forth."""
    broken = {"baseline": "fail", "live errors": "fail", "speed": "fail"}
    at, reasons = run(rollout(place, baked_seconds=1_000.0), broken, (NOW + 10.0 * n for n in range(1, 50)))
    assert (at.state, at.stage, at.killed) == (State.HELD, PLACES[place][1], False)
    assert set(reasons) == {"baseline_failing"}
    assert decide(rollout(place), POLICY, fresh(broken, NOW), NOW).page


def test_a_failing_baseline_takes_nothing_off_a_full_route() -> None:
    """A3.17: there is no healthy target to roll back to."""
    at, reasons = run(rollout("full"), {"baseline": "fail"}, (NOW + 10.0 * n for n in range(1, 50)))
    assert (at.state, set(reasons)) == (State.FULL, {"baseline_failing"})


@pytest.mark.parametrize("place", ["shadow", *CANARIES])
@pytest.mark.parametrize("found", [None, evidence({}, num_pairs=0, newest_pair_at=None)], ids=["none", "empty"])
def test_a_run_without_a_measurement_is_no_success(place: str, found: Evidence | None) -> None:
    """A3.3, A3.9: however long it lasts and however well its gates once were."""
    at = rollout(place, baked_seconds=10_000.0)
    for now in range(int(NOW), int(NOW) + 12_000, 400):
        at, reason = look(at, found, float(now))
        assert at.stage <= PLACES[place][1]
        assert reason != "all_pass"
    assert at.state in (State.SHADOW, State.ROLLED_BACK, State.HELD)


@pytest.mark.parametrize("gate", sorted(REQUIRED_GATES))
def test_a_rule_that_is_not_there_does_not_pass(gate: str) -> None:
    """A3.5, A5.4: a misspelt or missing rule is missing data."""
    at, reasons = run(rollout("shadow", baked_seconds=10_000.0), {gate: None}, [NOW + 10.0 * n for n in range(1, 20)])
    assert at.stage == 0
    assert "all_pass" not in reasons


def test_a_changed_subject_in_the_shadow_starts_with_nothing() -> None:
    """A3.16: what the old model, draft or engine proved says nothing about the new one."""
    ready = rollout("shadow", baked_seconds=10_000.0)
    other = new_epoch(ready, "next", POLICY, NOW).rollout
    at, reason = look(other, fresh({}, NOW + 1), NOW + 1)
    assert (at.stage, at.baked_seconds) == (0, 0.0)
    assert reason != "all_pass"


def test_a_mirror_that_brings_nothing_is_noticed() -> None:
    """A5.15: zero pairs after the limit is said with a reason of its own, and at full it calls a person."""
    limits = Limits(no_data_seconds=100, fresh_seconds=50)
    policy = replace(POLICY, limits=limits)
    assert decide(rollout("shadow"), policy, None, NOW + 200).reason == "no_data_too_long"
    at_full = decide(rollout("full"), policy, None, NOW + 200)
    assert (at_full.reason, at_full.page, at_full.kind.value) == ("no_data_too_long", True, "stay")
