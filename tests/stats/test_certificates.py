"""Certificates are e-values from the margin on, by enumeration, and their gates say what is certified, missing or not tested."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest

from canary.domain.evidence import GateEvidence, Verdict
from canary.domain.pairs import ALTERNATIVES, DrafterKind
from canary.domain.policy import Gates
from canary.stats.bets import log_bets
from canary.stats.certificates import (
    BURST_STRENGTH,
    MAX_STRENGTH,
    Certificates,
    log_certificate,
    log_request_certificate,
    strength,
)
from canary.stats.part import Calibration, Context, Sums
from tests.stats.enumerate_rows import EXACT, PACKED, check_bet, draws
from tests.stats.world import context_of

NONE = np.array([0.5])
NAMES = (*ALTERNATIVES, "unigram")
GOAL = math.log(100)


def record(tv: float = 0.2, upper: float = 0.4, num_requests: int = 20, num_ordinals: int = 20, **others: float) -> Calibration:
    return Calibration(
        tv={**dict.fromkeys(NAMES, tv), **others},
        tv_upper=dict.fromkeys(NAMES, upper),
        unigram={},
        unigram_floor=-5.5,
        num_requests=num_requests,
        num_ordinals=num_ordinals,
        hash="h",
    )


def folded(context: Context, peaks: float | dict[str, float] = 10.0, **counts: float) -> Sums:
    """Sums of 200 requests of 40 tokens; every certificate at its peak."""
    part = Certificates()
    names = part.names(context)
    certificates = [n for group in part.directions(context) for n in group]
    logs = dict.fromkeys(certificates, peaks) if isinstance(peaks, float) else dict.fromkeys(certificates, 10.0) | peaks
    usual = {"sampled_pairs": 220.0, "requests": 200.0, "tokens": 8000.0, "informative": 6000.0, "drafted": 3000.0}
    usual |= {f"reach_{n}": 200.0 for n in (1, 8, 16, 32)} | {f"seen:{k}": 9.0 for k in NAMES}
    calibrated_tv = {} if context.calibration is None else context.calibration.tv
    usual |= {f"tv:{k}": 8000.0 * tv for k, tv in calibrated_tv.items()}
    values = {**dict.fromkeys(names, 0.0), **usual, **logs, **counts}
    return Sums(names, np.array([values[n] for n in names]), logs)


def gates(context: Context, sums: Sums) -> dict[str, GateEvidence]:
    return {g.gate: g for g in Certificates().assess(context, sums)}


def calibrated(kind: DrafterKind = DrafterKind.DENSE, **kwargs: float) -> Context:
    return replace(context_of(kind), calibration=record(**kwargs))  # type: ignore[arg-type]


@pytest.mark.parametrize(("packed", "tolerance"), [(False, EXACT), (True, PACKED)])
@pytest.mark.parametrize("lam", [0.05, 0.3, MAX_STRENGTH])
def test_a_bank_certificate_is_an_e_value_for_every_contamination_from_its_strength_on(
    lam: float, packed: bool, tolerance: float
) -> None:
    for draw, stored in zip(draws(NONE), draws(NONE, packed=packed), strict=True):
        for name, ratio in draw.log_ratio.items():
            a = draw.p * np.exp(ratio)  # [VOCAB], what the alternative leaves on the target's support
            for share in (lam, (lam + 1) / 2, 1.0):
                check_bet((1 - share) * draw.p + share * a, np.exp(log_certificate(stored.log_ratio[name], lam)), tolerance)


def test_a_bank_certificate_below_its_strength_is_not_one() -> None:
    draw = next(d for d in draws(NONE) if d.label == "random1 against dense random0")
    with pytest.raises(AssertionError):
        check_bet(draw.p, np.exp(log_certificate(draw.log_ratio["draft"], 0.3)))


def test_a_request_certificate_is_an_e_value_for_every_share_from_its_margin_on() -> None:
    pool = list(draws(NONE))
    for first, second in ((pool[3], pool[30]), (pool[40], pool[60]), (pool[5], pool[90])):
        for k in ("draft", "shift"):
            one, two = (log_bets(d.log_ratio[k], (BURST_STRENGTH,))[:, 0] for d in (first, second))
            log_likelihood = one[:, None] + two[None, :]
            clean = first.p[:, None] * second.p[None, :]
            corrupted = clean * np.exp(log_likelihood)
            for share in (0.01, 0.05, 0.5, 1.0):
                truth = (1 - share) * clean + share * corrupted
                check_bet(truth.ravel(), np.exp(log_request_certificate(log_likelihood, 0.01)).ravel())


def test_a_clipped_ratio_does_not_flatter_a_certificate() -> None:
    p, a = np.array([1 - 1e-12, 1e-12]), np.array([0.5, 0.5])
    recorded = np.log(np.minimum(a / p, 1e9))
    check_bet(0.3 * a + 0.7 * p, np.exp(log_certificate(recorded, 0.3)))


def test_clean_requests_certify_after_the_closed_form() -> None:
    step = float(log_request_certificate(np.array(-50.0), 0.01))
    assert math.ceil(GOAL / step) == 459  # ln 100 / -ln .99


def test_strength_is_the_margin_over_the_distance_and_never_full() -> None:
    assert strength(record(tv=0.2), "draft", 0.01) == pytest.approx(0.05)
    assert strength(record(tv=0.001), "draft", 0.01) == MAX_STRENGTH
    assert strength(record(tv=0.0), "draft", 0.01) == MAX_STRENGTH


def test_all_certified() -> None:
    found = gates(calibrated(), folded(calibrated()))
    assert set(found) == {"bank_certificate", "pit_certificate", "request_certificate"}
    assert {(g.verdict, g.reason, g.needed, g.progress) for g in found.values()} == {(Verdict.PASS, "certified", 0, 1.0)}
    assert found["bank_certificate"].threshold == 0.01
    coverage = found["bank_certificate"].details["coverage"]
    assert coverage == {
        "strata": ["sampled"],
        "requests": 200,
        "tokens": 8000,
        "informative_tokens": 6000,
        "drafted_tokens": 3000,
        "positions_up_to_at_least": 32,
        "requests_that_long": 200,
        "temperatures": None,
        "inside_margin": [],
    }


def test_what_a_gate_says_is_plain_json() -> None:
    for gate in gates(calibrated(), folded(calibrated())).values():
        assert json.loads(json.dumps(asdict(gate)))["details"]["coverage"]["requests"] == 200


def test_one_slow_direction_holds_its_gate_and_says_how_many_more_requests() -> None:
    context = calibrated()
    found = gates(context, folded(context, {"bank:cold": 2.0}))
    gate = found["bank_certificate"]
    assert (gate.verdict, gate.reason) == (Verdict.INCONCLUSIVE, "too_few")
    assert gate.progress == pytest.approx(2.0 / GOAL)
    # 200 requests gave 2 nats; 20 more count at the closed form 2 m^2 = .0002 nats a token, 40 tokens a request.
    assert gate.needed == math.ceil((GOAL - 2) / ((2 + 20 * 0.008) / 220))
    assert "bank:cold" in gate.sentence
    assert found["pit_certificate"].verdict is Verdict.PASS


def test_a_direction_that_shrinks_has_no_estimate() -> None:
    context = calibrated()
    gate = gates(context, folded(context, {"bank:cold": -30.0}))["bank_certificate"]
    assert (gate.verdict, gate.reason, gate.needed, gate.progress) == (Verdict.INCONCLUSIVE, "not_converging", None, 0.0)


def test_a_peak_stays_certified() -> None:
    context = calibrated()
    sums = folded(context, 10.0)
    later = Sums(sums.names, np.where([n.startswith("bank:") for n in sums.names], 1.0, sums.values), sums.peaks)
    assert gates(context, later)["bank_certificate"].verdict is Verdict.PASS


def test_nothing_is_certified_while_calibrating() -> None:
    context = context_of(DrafterKind.DENSE)
    found = gates(context, folded(context, 0.0, requests=0.0, tokens=0.0, informative=0.0))
    assert {(g.verdict, g.reason) for g in found.values()} == {(Verdict.INCONCLUSIVE, "calibrating")}


def test_too_few_informative_tokens_are_no_information() -> None:
    context = calibrated()
    found = gates(context, folded(context, informative=400.0))
    assert {(g.verdict, g.reason) for g in found.values()} == {(Verdict.INCONCLUSIVE, "no_information")}
    assert found["bank_certificate"].needed == 50  # 100 more, at 2 a request
    none = gates(context, folded(context, informative=0.0))
    assert none["bank_certificate"].needed is None


@pytest.mark.parametrize(("measured", "asked"), [(0, 20), (9, 20), (1, 4), (4, 10), (9, 60)])
def test_strengths_from_too_few_sampled_requests_certify_nothing(measured: int, asked: int) -> None:
    context = calibrated(num_requests=measured, num_ordinals=asked)
    found = gates(context, folded(context))
    assert {(g.verdict, g.reason) for g in found.values()} == {(Verdict.INCONCLUSIVE, "not_calibrated")}
    assert f"Only {measured} sampled requests were among the {asked}" in found["bank_certificate"].sentence


@pytest.mark.parametrize(("measured", "asked"), [(10, 20), (2, 4), (5, 10), (10, 60)])
def test_strengths_from_enough_sampled_requests_certify(measured: int, asked: int) -> None:
    context = calibrated(num_requests=measured, num_ordinals=asked)
    assert gates(context, folded(context))["bank_certificate"].verdict is Verdict.PASS


def test_a_direction_that_the_calibration_under_measured_is_not_certified() -> None:
    """lam* = .05 for a TV of .2; at a TV of .32 it stands for 1.6 % instead of 1 %."""
    context = calibrated()
    drifted = gates(context, folded(context, **{"tv:draft": 8000 * 0.32}))
    gate = drifted["bank_certificate"]
    assert (gate.verdict, gate.reason, gate.needed) == (Verdict.INCONCLUSIVE, "calibration_drift", None)
    for words in ("draft", "0.2000", "0.3200", "1.6 %", "not 1 %", "new attempt"):
        assert words in gate.sentence
    assert gate.details["reach"]["draft"] == pytest.approx(  # type: ignore[index]
        {"strength": 0.05, "calibrated": 0.2, "realised": 0.32, "contamination": 0.016}
    )
    assert {drifted[name].verdict for name in ("pit_certificate", "request_certificate")} == {Verdict.PASS}
    inside = gates(context, folded(context, **{"tv:draft": 8000 * 0.28}))["bank_certificate"]
    assert inside.verdict is Verdict.PASS
    assert "draft is excluded from 1.4 % on" in inside.sentence
    early = gates(context, folded(context, 2.0, **{"tv:draft": 8000 * 0.9}))["bank_certificate"]
    assert early.reason == "too_few"


def test_a_direction_left_out_as_inside_the_margin_must_stay_inside() -> None:
    narrow = record(residual=0.005)
    narrow = replace(narrow, tv_upper={**narrow.tv_upper, "residual": 0.009})
    context = replace(context_of(DrafterKind.DENSE), calibration=narrow)
    assert gates(context, folded(context))["bank_certificate"].verdict is Verdict.PASS
    gate = gates(context, folded(context, **{"tv:residual": 8000 * 0.02}))["bank_certificate"]
    assert gate.reason == "calibration_drift"
    assert "residual" in gate.sentence


def test_a_gate_without_a_direction_never_passes() -> None:
    tiny = replace(record(tv=0.0), tv_upper=dict.fromkeys(NAMES, 0.001))
    context = replace(context_of(DrafterKind.DENSE), calibration=tiny)
    gate = gates(context, folded(context, **{f"seen:{k}": 0.0 for k in NAMES}))["bank_certificate"]
    assert (gate.verdict, gate.reason, gate.needed) == (Verdict.INCONCLUSIVE, "nothing_tested", None)
    equal = calibrated(tv=0.0)
    found = gates(equal, folded(equal, **{f"seen:{k}": 0.0 for k in NAMES}))
    assert {found[name].reason for name in ("bank_certificate", "request_certificate")} == {"nothing_tested"}
    assert found["pit_certificate"].verdict is Verdict.PASS


def test_only_an_upper_bound_below_the_margin_leaves_a_direction_out() -> None:
    narrow = replace(record(residual=0.005), tv_upper={**dict.fromkeys(NAMES, 0.4), "residual": 0.009})
    context = replace(context_of(DrafterKind.DENSE), calibration=narrow)
    gate = gates(context, folded(context, {"bank:residual": 0.0}))["bank_certificate"]
    assert gate.verdict is Verdict.PASS
    assert gate.details["not_tested"] == {"inside_margin": ["residual"], "equal_on_this_traffic": []}
    small_mean = replace(record(), tv={**dict.fromkeys(NAMES, 0.2), "residual": 0.001})
    wide = replace(context_of(DrafterKind.DENSE), calibration=small_mean)
    assert gates(wide, folded(wide, {"bank:residual": 0.0}))["bank_certificate"].verdict is Verdict.INCONCLUSIVE


def test_an_alternative_that_equals_the_target_needs_no_certificate_until_it_is_seen() -> None:
    context = calibrated(unfiltered=0.0)
    still = gates(context, folded(context, {"bank:unfiltered": 0.0}, **{"seen:unfiltered": 0.0}))["bank_certificate"]
    assert still.verdict is Verdict.PASS
    assert still.details["not_tested"]["equal_on_this_traffic"] == ["unfiltered"]  # type: ignore[index]
    seen = gates(context, folded(context, {"bank:unfiltered": 0.0}, **{"seen:unfiltered": 1.0}))["bank_certificate"]
    assert seen.verdict is Verdict.INCONCLUSIVE


def test_no_gate_without_sampled_requests_or_below_their_tested_share() -> None:
    context = calibrated()
    assert gates(context, folded(context, 0.0, sampled_pairs=0.0, greedy_pairs=50.0)) == {}
    assert gates(context, folded(context, 0.0, sampled_pairs=2.0, greedy_pairs=98.0)) == {}
    assert len(gates(context, folded(context, 0.0, sampled_pairs=5.0, greedy_pairs=95.0))) == 3


def test_margins_come_from_the_policy() -> None:
    wide = replace(context_of(DrafterKind.ONE_HOT, Gates(margin=0.02, request_margin=0.05)), calibration=record())
    found = gates(wide, folded(wide))
    assert found["bank_certificate"].threshold == 0.02
    assert found["request_certificate"].threshold == 0.05
    assert "2 %" in found["pit_certificate"].sentence
    assert "bank:shared_noise" not in found["bank_certificate"].details["directions"]  # type: ignore[operator]
