"""The truth table of DESIGN section 6, written out a second time by hand and compared cell by cell."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from canary.domain.decide import Kind, decide
from canary.domain.errors import PolicyError
from canary.domain.evidence import Verdict
from canary.domain.policy import Approval
from canary.domain.rollout import State
from canary.domain.truth_table import ROWS
from tests.domain.situations import NOW, PLACES, POLICY, Situation, evidence, gate, rollout

FAULT = replace(POLICY.subject, fault="resample_from_target")
ALARM = {"verdict": "inconclusive", "reason": "change_alarm"}
BAKED = {"baked_seconds": 100.0}
ASKING = tuple(replace(s, approval=Approval(within_seconds=60) if s.weight else None) for s in POLICY.stages)
INSIDE = {"verdict": "fail", "details": {"component_fired": False}}

# case: row, situation, cells for shadow / canary / full / at rest; `!` calls a person, `~` comes down by a ramp
TABLE: dict[str, tuple[int, Situation, str]] = {
    "manual_kill": (1, Situation(manual_kill="an incident"), "kill kill kill kill"),
    "live_errors of a killed": (1, Situation({"live errors": "fail"}, {"killed": True}), "kill kill kill kill"),
    "killed": (1, Situation(rollout={"killed": True}), "kill kill kill kill"),
    "baseline_failing": (2, Situation({"baseline": "fail"}), "hold! hold! stay! stay"),
    "harness_broken": (3, Situation({"control": "fail"}), "hold hold hold! stay"),
    "inside_margin": (4, Situation({"losslessness": INSIDE}, policy={"inside_margin": "hold"}), "hold! hold! hold! stay"),
    "live_errors": (4, Situation({"live errors": "fail"}), "kill! kill! kill! kill!"),
    "safety_failed": (4, Situation({"losslessness": "fail"}), "kill! kill! kill!~ kill!"),
    "not_worth_it_live": (5, Situation({"live speed": "fail"}), "stay roll_back roll_back stay"),
    "change_alarm": (8, Situation({"change": ALARM}), "- - stay! stay"),
    "not_worth_it": (5, Situation({"speed": "fail"}), "stay hold stay stay"),
    "could_not_measure": (6, Situation({"row_gate": "error"}, {"errors": 4}), "hold hold stay! stay"),
    "drill_not_caught": (
        9,
        Situation({}, {"baked_seconds": 100.0}, {"subject": FAULT}, {"num_pairs": 900}),
        "hold! hold! hold! stay",
    ),
    "no_data_to_baseline": (
        7,
        Situation(rollout={"entered_at": NOW - 3000}, policy={"on_no_data": "baseline"}, evidence={"none": True}),
        "stay roll_back roll_back!~ stay",
    ),
    "no_data_too_long": (7, Situation(rollout={"entered_at": NOW - 3000}, evidence={"none": True}), "stay roll_back stay! stay"),
    "no_pairs": (7, Situation(evidence={"none": True}), "stay stay stay! stay"),
    "stale": (7, Situation(evidence={"newest_pair_at": NOW - 501}), "stay stay stay! stay"),
    "no_data": (7, Situation({"row_gate": "no_data"}), "stay stay stay stay"),
    "expired": (8, Situation({"errors": "inconclusive"}, evidence={"num_pairs": 900}), "hold - - stay"),
    "waited_too_long": (8, Situation({"errors": "inconclusive"}, {"entered_at": NOW - 10_001}), "hold hold stay stay"),
    "not_yet": (8, Situation({"errors": "inconclusive"}), "stay stay stay stay"),
    "baking": (8, Situation(rollout={"baked_seconds": 99.0}), "- stay - stay"),
    "cooling_down": (9, Situation(rollout={"baked_seconds": 100.0, "cool_until": NOW + 5}), "stay - - stay"),
    "approval_expired": (9, Situation(rollout=BAKED | {"asked_at": NOW - 60}, policy={"stages": ASKING}), "hold! hold! - stay"),
    "awaiting_approval": (9, Situation(rollout=BAKED | {"asked_at": NOW - 59}, policy={"stages": ASKING}), "stay stay - stay"),
    "all_pass": (9, Situation(rollout={"baked_seconds": 100.0}), "advance advance stay stay"),
}


def cell(cells: str, place: str) -> str:
    """The table's word for a place; a held rollout takes its stage's kill or rollback and otherwise waits."""
    shadow, canary, full, resting = cells.split()
    state, stage = PLACES[place]
    if state in (State.PENDING, State.ROLLED_BACK, State.ARCHIVED):
        return resting
    word = shadow if stage == 0 else full if stage == 3 else canary
    if state is not State.HELD or word == "-" or word.startswith(("kill", "roll_back")):
        return word
    return "hold" + word.removeprefix(word.rstrip("!~"))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", TABLE)
def test_every_cell(case: str, place: str) -> None:
    row, situation, cells = TABLE[case]
    word = cell(cells, place)
    decision = situation.decide(place)
    if word == "-":
        assert decision.kind in (Kind.STAY, Kind.ADVANCE, Kind.HOLD)
        assert decision.reason != case
        return
    got = decision.kind.value + "!" * decision.page + "~" * decision.ramp
    assert got == word
    if PLACES[place][0] in (State.PENDING, State.ROLLED_BACK, State.ARCHIVED) and word == "stay":
        assert decision.reason in ("pending", "cool_down", "rolled_back", "archived")
    else:
        assert (decision.row, decision.reason) == (row, case.removesuffix(" of a killed"))


def test_the_table_above_has_every_row() -> None:
    ours = [(row, case.removesuffix(" of a killed")) for case, (row, _, _) in TABLE.items()]
    assert ours == [(row.number, row.case) for row in ROWS]


# both at once give a third thing, or the later, where the earlier row's own words say so
OTHERWISE = {
    ("killed", "live_errors"): "live_errors",  # no longer a ramp
    ("harness_broken", "live_errors"): "live_errors",  # live error kills are not suppressed
    ("inside_margin", "live_errors"): "live_errors",
    ("inside_margin", "could_not_measure"): "safety_failed",  # not every certificate holds
    ("inside_margin", "no_data"): "safety_failed",
    ("not_worth_it_live", "drill_not_caught"): "drill_not_caught",  # nobody asks whether a drill is worth it
    ("not_worth_it", "drill_not_caught"): "drill_not_caught",
    ("no_pairs", "waited_too_long"): "no_data_too_long",  # so long is over the limit for no data
    ("no_data", "waited_too_long"): "no_data_too_long",
}
PAIRS = [
    (earlier, later)
    for earlier, later in itertools.combinations([c for c in TABLE if c != "live_errors of a killed"], 2)
    if TABLE[earlier][1].evidence.get("none") or not TABLE[later][1].evidence.get("none")
]


@pytest.mark.parametrize(("earlier", "later"), PAIRS)
def test_the_first_matching_row_decides(earlier: str, later: str) -> None:
    both = TABLE[earlier][1].over(TABLE[later][1])
    places = {"expired": "shadow", "drill_not_caught": "shadow", "change_alarm": "full", "cooling_down": "shadow"}
    place = places.get(earlier, "canary-5")
    assert both.decide(place).reason == OTHERWISE.get((earlier, later), earlier)


@pytest.mark.parametrize("verdict", ["fail", "inconclusive"])
@pytest.mark.parametrize("place", ["shadow", "canary-5", "canary-60", "held at canary-5"])
def test_before_full_nothing_asks_for_the_change_detector(place: str, verdict: str) -> None:
    alarm, without = Situation({"change": {"verdict": verdict, "reason": "change_alarm"}}), Situation()
    assert alarm.decide(place) == without.decide(place)


def test_at_full_an_alarm_calls_a_person_and_only_a_confirmed_change_kills() -> None:
    alarm = Situation({"change": ALARM}).decide("full")
    assert (alarm.kind, alarm.page, alarm.gate, alarm.cause) == (Kind.STAY, True, "change", "change_alarm")
    confirmed = Situation({"change": {"verdict": "fail", "reason": "change_confirmed"}}).decide("full")
    assert (confirmed.kind, confirmed.page, confirmed.ramp, confirmed.gate) == (Kind.KILL, True, True, "change")
    broken = Situation({"change": {"verdict": "fail", "reason": "change_confirmed"}, "control": "fail"}).decide("full")
    assert (broken.kind, broken.reason) == (Kind.HOLD, "harness_broken")
    assert Situation({"change": "pass"}).decide("full").reason == "all_pass"


def test_an_alarm_hides_no_rollback() -> None:
    alarm = Situation({"change": ALARM})
    assert alarm.over(Situation({"live speed": "fail"})).decide("full").kind is Kind.ROLL_BACK
    silent = Situation(
        {"row_gate": "no_data"}, {"entered_at": NOW - 3000}, {"on_no_data": "baseline"}, {"newest_pair_at": NOW - 2500}
    )
    assert alarm.over(silent).decide("full").kind is Kind.ROLL_BACK
    assert alarm.over(Situation({"speed": "fail"})).decide("full").page


def test_a_component_test_that_fired_or_is_unknown_kills_inside_the_margin() -> None:
    hold = replace(POLICY, inside_margin="hold")
    for details in ({"component_fired": True}, {}):
        found = evidence({"losslessness": {"verdict": "fail", "details": details}})
        assert decide(rollout("canary-5"), hold, found, NOW).kind == "kill"
    lacking = evidence({"losslessness": INSIDE, "bank_certificate": "inconclusive"})
    assert decide(rollout("canary-5"), hold, lacking, NOW).kind == "kill"
    assert decide(rollout("canary-5"), hold, evidence({"losslessness": INSIDE}), NOW).kind == "hold"


def test_another_engines_proof_is_none_and_its_economy_only_blocks() -> None:
    other = {"engine": "another engine"}
    proven = decide(rollout("canary-5", baked_seconds=100.0), POLICY, evidence({"losslessness": "fail"}, **other), NOW)
    assert (proven.kind, proven.reason) == ("stay", "not_yet")
    assert {m.reason for m in proven.missing} == {"not_the_subject"}
    assert decide(rollout("shadow"), POLICY, evidence(**other), NOW).kind == "stay"
    assert decide(rollout("full"), POLICY, evidence({"speed": "fail"}, **other), NOW).kind == "stay"
    assert decide(rollout("full"), POLICY, evidence({"live errors": "fail"}, **other), NOW).kind == "kill"


@pytest.mark.parametrize("name", ["losslessness", "acceptance", "speed"])
def test_an_absent_gate_is_missing_data(name: str) -> None:
    """A3.5, A5.4: a gate that is not there does not pass in silence."""
    decision = decide(rollout("shadow"), POLICY, evidence({name: None}), NOW)
    assert (decision.kind, decision.reason) == ("stay", "no_data")
    assert [(m.gate, m.verdict) for m in decision.missing] == [(name, Verdict.NO_DATA)]


def test_no_equivalence_gate_at_all_is_missing_data() -> None:
    """A3.5: without a single blocking gate nothing is promoted."""
    decision = decide(rollout("shadow"), POLICY, evidence({"bank_certificate": None, "row_gate": None}), NOW)
    assert [m.gate for m in decision.missing] == ["equivalence"]
    assert decision.kind == "stay"


def test_a_stages_live_gate_must_be_live() -> None:
    live = replace(POLICY.stages[1], live=("speed",), live_waived=None)
    policy = replace(POLICY, stages=(POLICY.stages[0], live, *POLICY.stages[2:]))
    at = rollout("canary-5", baked_seconds=100.0)
    assert decide(at, policy, evidence(), NOW).missing[0].gate == "live speed"
    assert decide(at, policy, evidence({"live speed": "pass"}), NOW).kind == "advance"


UNTIMED = {"speed": {"verdict": "no_data"}, "acceptance": None}


@pytest.mark.parametrize("gates", [UNTIMED, {"speed": "fail"}, {"live speed": "fail"}, {"acceptance": "error"}])
def test_a_drill_is_asked_nothing_about_its_economy(gates: dict[str, object]) -> None:
    drill = replace(POLICY, subject=FAULT)
    uncaught = decide(rollout("shadow"), drill, evidence(gates), NOW)
    assert (uncaught.kind, uncaught.reason, uncaught.page, uncaught.missing) == ("hold", "drill_not_caught", True, ())
    assert uncaught.sentence == (
        "The injected fault resample_from_target was not caught in 200 requests, so a pass proves nothing; "
        "a drill never takes traffic."
    )
    assert decide(rollout("shadow"), POLICY, evidence(gates), NOW).kind == "stay"
    assert decide(rollout("shadow"), drill, evidence({**gates, "losslessness": "fail"}), NOW).kind == "kill"


@pytest.mark.parametrize("verdict", ["inconclusive", "no_data"])
def test_a_drill_that_no_gate_catches_in_all_its_requests_calls_a_person(verdict: str) -> None:
    drill, gates = replace(POLICY, subject=FAULT), {**UNTIMED, "row_gate": verdict}
    before = decide(rollout("shadow"), drill, evidence(gates, num_pairs=899), NOW)
    assert (before.kind, before.page) == ("stay", False)
    assert [m.gate for m in before.missing] == ["row_gate"]
    for changes in ({}, {"newest_pair_at": NOW - 501}):
        spent = decide(rollout("shadow"), drill, evidence(gates, num_pairs=900, **changes), NOW)
        assert (spent.kind, spent.reason, spent.page, [m.gate for m in spent.missing]) == (
            "hold",
            "drill_not_caught",
            True,
            ["row_gate"],
        )
    assert decide(rollout("shadow"), drill, evidence({**gates, "losslessness": "fail"}, num_pairs=900), NOW).kind == "kill"


@pytest.mark.parametrize("changes", [{"epoch": "old"}, {"attempt": 2}])
def test_evidence_of_another_attempt_is_none(changes: dict[str, object]) -> None:
    """A3.6, A3.16: evidence counts in its own epoch and attempt alone."""
    fails = evidence({"losslessness": "fail"}, **changes)
    assert decide(rollout("canary-5"), POLICY, fails, NOW) == decide(rollout("canary-5"), POLICY, None, NOW)


def test_the_limits_are_inclusive_to_the_second() -> None:
    assert decide(rollout("shadow"), POLICY, evidence(newest_pair_at=NOW - 500), NOW).kind == "advance"
    assert decide(rollout("canary-5", entered_at=NOW - 2000), POLICY, None, NOW).kind == "stay"
    assert decide(rollout("canary-5", entered_at=NOW - 2001), POLICY, None, NOW).kind == "roll_back"
    unsure = evidence({"speed": "inconclusive"})
    assert decide(rollout("shadow", entered_at=NOW - 10_000), POLICY, unsure, NOW).kind == "stay"
    assert decide(rollout("shadow", errors=3), POLICY, evidence({"row_gate": "error"}), NOW).kind == "stay"
    assert decide(rollout("shadow"), POLICY, evidence({"speed": "inconclusive"}, num_pairs=899), NOW).reason == "not_yet"


def test_a_gate_without_data_rolls_a_canary_back_after_the_limit() -> None:
    """A3.3: no data waits up to the limit, and then comes off the traffic; it never passes."""
    silent = evidence({"live speed": "no_data"})
    assert decide(rollout("canary-5", entered_at=NOW - 2001), POLICY, silent, NOW).kind == "roll_back"
    assert decide(rollout("canary-5", entered_at=NOW - 1999), POLICY, silent, NOW).kind == "stay"
    recent = evidence(newest_pair_at=NOW - 600)
    assert decide(rollout("canary-5", entered_at=NOW - 5000), POLICY, recent, NOW).reason == "stale"


def test_sentences_name_value_threshold_interval_and_n() -> None:
    """A3.26: a decision explains itself."""
    slow = evidence(
        {"speed": {"verdict": "fail", "reason": "slower", "value": 1.02, "low": 0.98, "high": 1.06, "threshold": 1.1}}
    )
    decision = decide(rollout("canary-5"), POLICY, slow, NOW)
    assert decision.sentence == "Not worth it: speed (slower) is 1.02 against 1.1 [0.98 to 1.06] over 100 requests (shadow)."
    assert (decision.gate, decision.cause) == ("speed", "slower")
    unsure = {"verdict": "inconclusive", "reason": "too_few"}
    more = evidence(
        {"row_gate": {**unsure, "needed": 44}, "bank_certificate": {**unsure, "needed": 120}, "speed": "inconclusive"}
    )
    said = decide(rollout("shadow"), POLICY, more, NOW)
    words = "120 more requests for bank_certificate (too_few); 44 more requests for row_gate (too_few); speed is inconclusive"
    assert said.sentence == f"Not yet: {words}."
    assert [(m.gate, m.needed) for m in said.missing] == [("bank_certificate", 120), ("row_gate", 44), ("speed", None)]


def test_notes_say_what_belongs_to_the_verdict() -> None:
    policy = replace(POLICY, quick_look=True, economy="carry")
    assert decide(rollout("shadow"), policy, evidence(), NOW).notes == ("quick look: wide margins",)
    notes = decide(rollout("canary-5"), policy, evidence(), NOW).notes
    assert notes == ("quick look: wide margins", "economy carried from shadow", "live gates waived: no users")


def test_a_rolled_back_rollout_says_when_it_may_try_again() -> None:
    assert decide(rollout("rolled_back"), POLICY, None, NOW).sentence.startswith(
        "Rolled back; the next attempt may start in 20 s"
    )
    assert decide(rollout("rolled_back", entered_at=NOW - 50), POLICY, None, NOW).reason == "rolled_back"


def test_a_rollout_of_another_policy_is_refused() -> None:
    for wrong in (
        rollout("canary-5", stage=9),
        rollout("shadow", stage=1),
        rollout("full", stage=1),
        rollout("canary-5", stage=3),
    ):
        with pytest.raises(PolicyError, match="cannot stand at stage"):
            decide(wrong, POLICY, evidence(), NOW)


def test_a_ratio_mismatch_blocks_and_does_no_more() -> None:
    """A3.22: a sample-ratio mismatch blocks the promotion."""
    at = rollout("canary-5", baked_seconds=100.0)
    decision = decide(at, POLICY, evidence({"sample_ratio": "fail"}), NOW)
    assert (decision.kind, decision.reason, decision.missing[0].gate) == ("stay", "not_yet", "sample_ratio")


def test_a_live_losslessness_failure_is_an_evidence_kill() -> None:
    decision = decide(rollout("full"), POLICY, evidence({"live losslessness": "fail"}), NOW)
    assert (decision.reason, decision.ramp) == ("safety_failed", True)


def test_a_live_failure_is_named_before_a_shadow_one() -> None:
    both = evidence({"live speed": {"verdict": "fail", "reason": "live"}, "acceptance": "fail"})
    both = replace(both, gates=(gate("acceptance", "fail"), *both.gates))
    assert decide(rollout("full"), POLICY, both, NOW).cause == "live"
