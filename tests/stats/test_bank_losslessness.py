"""The kill e-value: its weights, its three verdicts, and the name that it gives to what it saw."""

from __future__ import annotations

import math

import numpy as np
import pytest

from canary.domain.evidence import GateRole, Verdict
from canary.domain.pairs import DrafterKind
from canary.domain.traffic import Stratum
from canary.stats.bank import SINGLES, WITHIN
from canary.stats.losslessness import COMPONENT_KEYS, COMPONENTS, judge, log_kill_e, suspect, weights
from canary.stats.suspects import SUSPECTS, Diagnosis, diagnose
from tests.stats.world import context_of

CONTEXT = context_of(DrafterKind.ONE_HOT)
QUIET = {"bank": 0.0, "pit_id": 0.0, "pit_ratio": 0.0, "greedy_gap": 0.0, "row_outliers": 0.0}
SAMPLED = {Stratum.SAMPLED: 10.0, Stratum.GREEDY: 0.0}
GREEDY = {Stratum.SAMPLED: 0.0, Stratum.GREEDY: 10.0}
BOTH = {Stratum.SAMPLED: 10.0, Stratum.GREEDY: 10.0}


def test_weights_of_the_strata() -> None:
    assert weights(QUIET, SAMPLED) == pytest.approx({"bank": 1 / 6, "pit_id": 1 / 6, "pit_ratio": 1 / 6, "row_outliers": 0.1})
    assert weights(QUIET, GREEDY) == pytest.approx({"greedy_gap": 0.3, "row_outliers": 0.1})
    both = weights(QUIET, BOTH)
    assert both["greedy_gap"] == pytest.approx(0.1)
    assert both["bank"] == pytest.approx(0.1)
    assert sum(both.values()) == pytest.approx(0.5)


def test_components_share_a_tenth_a_group() -> None:
    loud = QUIET | dict.fromkeys(COMPONENT_KEYS, 0.0)
    found = weights(loud, SAMPLED)
    assert set(found) == set(loud) - {"greedy_gap"}
    for _, keys in COMPONENTS:
        assert sum(found[key] for key in keys) == pytest.approx(0.1)
    one_hot = {key: value for key, value in loud.items() if key not in ("draft_pit", "acc_block")}
    # a part that is not there gives its share away
    assert weights(one_hot, SAMPLED)["acc"] == pytest.approx(0.1 / 4)


@pytest.mark.parametrize("first", list(Stratum))
def test_whichever_stratum_comes_first_the_mean_stays_below_one(first: Stratum) -> None:
    """The largest weight that each e-process can ever hold: their sum bounds the mean of the e-value."""
    loud = QUIET | dict.fromkeys(COMPONENT_KEYS, 0.0)
    alone, both = weights(loud, {**dict.fromkeys(Stratum, 0.0), first: 3.0}), weights(loud, BOTH)
    assert sum(max(alone.get(key, 0.0), both[key]) for key in both) <= 1 + 1e-12


def test_a_component_has_fired_if_it_ever_reached_the_limit() -> None:
    found = diagnosis(residual=9.0)
    quiet = dict.fromkeys(COMPONENT_KEYS, 0.0) | QUIET
    assert judge(CONTEXT, quiet, SAMPLED, math.log(200), found).details["component_fired"] is False
    for key in COMPONENT_KEYS:
        peaks = {**quiet, key: math.log(1 / CONTEXT.alpha)}
        assert judge(CONTEXT, quiet, SAMPLED, math.log(200), found, peaks).details["component_fired"] is True
        assert judge(CONTEXT, peaks, SAMPLED, math.log(200), found).details["component_fired"] is True
    assert judge(CONTEXT, quiet, SAMPLED, 9.0, found, {**quiet, "bank": 9.0}).details["component_fired"] is False


def test_components_name_what_they_see_unless_the_bank_sees_another_cause() -> None:
    quiet = dict.fromkeys(COMPONENT_KEYS, 0.0) | QUIET
    assert suspect({**quiet, "resv": 30.0}, SAMPLED, diagnosis(residual=9.0)) == "resv"
    assert suspect({**quiet, "resv": 30.0}, SAMPLED, diagnosis(shift=2.0)) == "resv"
    assert suspect({**quiet, "resv": 30.0, "bank": 9.0}, SAMPLED, diagnosis(shift=12.0)) == "shift"
    assert suspect({**quiet, "pit_ratio": 9.0, "resv": 8.0}, SAMPLED, diagnosis(residual=2.0)) == "resv"
    assert suspect({**quiet, "pit_ratio": 9.0, "resv": 1.0}, SAMPLED, diagnosis(residual=2.0)) == "pit_ratio"
    assert suspect({**quiet, "pit_ratio": 9.0, "resv": 8.0}, SAMPLED, diagnosis(shift=4.0)) == "shift"
    assert suspect({**quiet, "acc_over": 30.0}, SAMPLED, diagnosis(draft=12.0)) == "acc_over"
    assert suspect({**quiet, "acc_under": 30.0}, SAMPLED, diagnosis(argmax=12.0)) == "argmax"
    assert suspect({**quiet, "draft_pit": 30.0}, SAMPLED, diagnosis(argmax=12.0)) == "draft_pit"
    assert suspect({**quiet, "res_pit": 30.0}, SAMPLED, diagnosis(shift=12.0)) == "res_pit"
    assert suspect({**quiet, "xreq": 30.0}, SAMPLED, Diagnosis()) == "xreq"


def test_the_e_value_is_the_weighted_sum_and_missing_parts_count_nothing() -> None:
    assert math.exp(log_kill_e(QUIET, SAMPLED)) == pytest.approx(0.6)
    loud = {**QUIET, "bank": math.log(600)}
    assert math.exp(log_kill_e(loud, SAMPLED)) == pytest.approx(100 + 2 / 6 + 0.1)
    assert math.exp(log_kill_e({"bank": 0.0}, SAMPLED)) == pytest.approx(1 / 6)
    assert log_kill_e({}, SAMPLED) == -math.inf


def diagnosis(**wealth: float) -> Diagnosis:
    entries = {k: np.full(6, wealth.get(k, -1.0)) for k in (*SINGLES, *(f"{w}_burst" for w in WITHIN))}
    return diagnose(entries, 50, 0)


def test_verdicts() -> None:
    found = diagnosis(residual=9.0, draft=8.0)
    quiet = judge(CONTEXT, QUIET, SAMPLED, math.log(3), found)
    assert (quiet.role, quiet.verdict, quiet.reason) == (GateRole.SAFETY, Verdict.PASS, "no_difference_proven")
    assert quiet.value == pytest.approx(0.6)
    page = judge(CONTEXT, {**QUIET, "bank": math.log(150)}, SAMPLED, math.log(26), found)
    assert (page.verdict, page.reason) == (Verdict.INCONCLUSIVE, "suspicious")
    kill = judge(CONTEXT, {**QUIET, "bank": math.log(1e9)}, SAMPLED, math.log(2e8), found)
    assert (kill.verdict, kill.reason) == (Verdict.FAIL, "wrong_residual")
    assert "re-sampled from the target instead of the residual" in kill.sentence
    assert judge(CONTEXT, QUIET, dict.fromkeys(Stratum, 0.0), 0.0, Diagnosis()).verdict is Verdict.NO_DATA


def test_a_kill_is_not_forgotten_when_wealth_falls_again() -> None:
    assert judge(CONTEXT, QUIET, SAMPLED, math.log(101), diagnosis(draft=1.0)).verdict is Verdict.FAIL


def test_a_smaller_budget_asks_for_more() -> None:
    strict = context_of(DrafterKind.ONE_HOT)
    strict = type(strict)(**{**{n: getattr(strict, n) for n in strict.__slots__}, "alpha": 0.001})
    assert judge(strict, QUIET, SAMPLED, math.log(500), diagnosis()).verdict is Verdict.PASS


def test_the_heaviest_term_is_named() -> None:
    found = diagnosis(hot=2.5)
    assert suspect({**QUIET, "bank": 8.0}, SAMPLED, found) == "hot"
    assert suspect({**QUIET, "pit_id": 9.0}, SAMPLED, found) == "pit_id"
    assert suspect({**QUIET, "greedy_gap": 9.0}, GREEDY, found) == "greedy_gap"
    assert suspect({**QUIET, "row_outliers": 9.0, "bank": 3.5}, SAMPLED, found) == "row_outliers"


def test_the_bank_names_what_an_unnamed_shift_sees_too() -> None:
    assert suspect({**QUIET, "pit_ratio": 9.0, "bank": 0.5}, SAMPLED, diagnosis(residual=3.5)) == "residual"


def test_impossible_recovered_tokens_point_at_the_residual() -> None:
    entries = {"draft": np.full(6, 12.0), "residual": np.full(6, 6.5), "hot": np.full(6, -1.0)}
    assert diagnose(entries, 50, 0).name == "draft"
    assert diagnose(entries, 50, 3).name == "residual"
    weak = {**entries, "residual": np.full(6, 1.0)}
    assert diagnose(weak, 50, 30).name == "draft"


def test_every_alternative_and_term_has_a_name() -> None:
    terms = {"pit_id", "pit_ratio", "greedy_gap", "row_outliers", *COMPONENT_KEYS}
    assert set(SUSPECTS) == {*SINGLES, *(f"{k}_burst" for k in WITHIN), *terms}
    assert all(s.code and s.words for s in SUSPECTS.values())
