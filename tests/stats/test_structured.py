"""Validity of structured answers: fair bets by enumeration, false alarms, power in either stratum, and the shared budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from canary.domain.evidence import GateRole, Verdict
from canary.domain.pairs import Arm, Pair
from canary.domain.traffic import Stratum
from canary.stats.bounded import log_budget
from canary.stats.part import Context
from canary.stats.structured import StructuredValidity
from tests.stats import make

PART = StructuredValidity()
WHERE = replace(make.context(), structured=True)
MARGIN = WHERE.gates.error_margin


def answered(
    baseline: bool | None, candidate: bool | None, *, stratum: Stratum = Stratum.SAMPLED, agrees: bool | None = None
) -> Pair:
    """A pair whose arms ended by themselves."""
    arms = (make.generation(arm, finish_reason="stop", k=k) for arm, k in ((Arm.BASELINE, 0), (Arm.CANDIDATE, 4)))
    one, other = arms
    return make.pair(
        stratum=stratum, baseline=replace(one, valid=baseline), candidate=replace(other, valid=candidate, agrees=agrees)
    )


def drawn(seed: int, count: int, baseline: float, candidate: float, strata: Iterable[Stratum] = (Stratum.SAMPLED,)) -> list[Pair]:
    """Pairs whose arms are invalid that often; the candidate's excess is in the first stratum alone."""
    dice, kinds = np.random.default_rng(seed), tuple(strata)
    found = []
    for _ in range(count):
        stratum = kinds[int(dice.integers(len(kinds)))]
        rate = candidate if stratum is kinds[0] else baseline
        found.append(answered(bool(dice.random() >= baseline), bool(dice.random() >= rate), stratum=stratum))
    return found


@pytest.mark.parametrize("only_baseline", [0.0, 0.1, 0.4])
def test_bets_at_the_margin_are_fair(only_baseline: float) -> None:
    outcomes = [
        (only_baseline + MARGIN, answered(True, False)),
        (only_baseline, answered(False, True)),
        (1 - 2 * only_baseline - MARGIN, answered(True, True)),
    ]
    mixed = [(p / 2, replace(pair, stratum=stratum)) for p, pair in outcomes for stratum in Stratum]
    for length in (1, 2, 3):
        assert make.expectation(PART, WHERE, "structured_validity", outcomes, length) <= 1 + 1e-12
        assert make.expectation(PART, WHERE, "structured_validity", mixed, length) <= 1 + 1e-12
    planted = [(0.2, answered(True, False)), (0.8, answered(True, True))]
    assert make.expectation(PART, WHERE, "structured_validity", planted, 3) > 1.01


def test_equal_arms_are_killed_seldom() -> None:
    killed = 0
    for seed in range(60):
        sums = np.add.accumulate([PART.increments(WHERE, pair) for pair in drawn(seed, 200, 0.15, 0.15, Stratum)], axis=0)
        killed += np.max(PART.log_e(WHERE, sums)["structured_validity"]) >= log_budget(WHERE.error_alpha)
    assert killed == 0


@pytest.mark.parametrize("strata", [(Stratum.SAMPLED,), (Stratum.GREEDY,), (Stratum.GREEDY, Stratum.SAMPLED)])
def test_half_of_the_calls_corrupted_is_a_kill(strata: tuple[Stratum, ...]) -> None:
    found = make.gate(PART, WHERE, drawn(1, 60, 0.05, 0.5, strata))
    assert (found.verdict, found.role, found.reason) == (Verdict.FAIL, GateRole.SAFETY, "invalid_answers")
    assert found.low is not None
    assert (found.low > MARGIN) == (len(strata) == 1), "the interval is about both strata together"


def test_valid_answers_pass() -> None:
    found = make.gate(PART, WHERE, [answered(True, True, agrees=n % 2 == 0) for n in range(20)])
    assert (found.verdict, found.needed, found.details["agree"]) == (Verdict.PASS, 0, 10)
    few = make.gate(PART, WHERE, [answered(True, True)] * 19)
    assert (few.verdict, few.needed) == (Verdict.NO_DATA, 1)


def test_how_the_arms_came_by_their_answers_is_said_with_every_verdict() -> None:
    told = replace(WHERE, structured_note="No grammar constrains either arm.")
    for count in (1, 20):
        found = make.gate(PART, told, [answered(True, True)] * count)
        assert found.sentence.endswith(". No grammar constrains either arm.")
        assert found.details["note"] == told.structured_note
        assert found.sentence.startswith(make.gate(PART, WHERE, [answered(True, True)] * count).sentence)


def test_an_excess_that_is_not_proven_does_not_pass() -> None:
    found = make.gate(PART, WHERE, [answered(True, False)] + [answered(True, True)] * 30)
    assert (found.verdict, found.reason, found.needed) == (Verdict.INCONCLUSIVE, "excess_possible", 69)


def test_cut_and_failed_answers_count_apart() -> None:
    def cut(pair: Pair) -> Pair:
        return replace(pair, candidate=replace(pair.candidate, finish_reason="length"))

    def failed(pair: Pair) -> Pair:
        return replace(pair, candidate=make.generation(error="it broke"))

    found = make.fold(PART, WHERE, [cut(answered(True, None)), failed(answered(True, None)), answered(None, None)])
    assert found["sampled.cut_candidate"] == 1
    assert found.values.sum() == 1
    assert found.peaks["structured_validity"] == pytest.approx(0, abs=1e-12)


def test_a_route_without_structure_has_no_gate() -> None:
    plain: Context = make.context()
    assert PART.assess(plain, make.fold(PART, plain, [answered(None, None)])) == []


def test_the_errors_budget_is_shared() -> None:
    shared = replace(WHERE, error_shares=4)
    assert shared.error_alpha * 4 == pytest.approx(shared.alpha)
    pairs = [answered(True, False)] * 9 + [answered(True, True)] * 5
    alone, four = (make.gate(PART, context, pairs).details["e_value_progress"] for context in (WHERE, shared))
    assert isinstance(alone, float)
    assert isinstance(four, float)
    assert four < alone or alone == 1.0


def test_many_ordinals_at_once_give_the_same_bits() -> None:
    pairs = drawn(3, 40, 0.2, 0.3, Stratum)
    sums = np.add.accumulate([PART.increments(WHERE, pair) for pair in pairs], axis=0)
    together = PART.log_e(WHERE, sums)["structured_validity"]
    assert [float(v) for v in np.asarray(together)] == [float(PART.log_e(WHERE, row)["structured_validity"]) for row in sums]
