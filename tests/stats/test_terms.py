"""The sum of what is certified, in a user's terms: true arithmetic, and nothing claimed before the gates behind it pass."""

from __future__ import annotations

import itertools
import math

import pytest

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.traffic import Stratum
from canary.stats import terms
from canary.stats.terms import Terms, differs_at_most, differs_evenly


def gate(name: str, verdict: Verdict = Verdict.PASS, threshold: float = 0.01, **more: object) -> GateEvidence:
    role = GateRole.SAFETY if name == "losslessness" else GateRole.EQUIVALENCE
    return GateEvidence(name, role, verdict, "certified", "It holds.", threshold=threshold, **more)  # type: ignore[arg-type]


def route(row: Verdict = Verdict.PASS, lossless: Verdict = Verdict.PASS, **bank: object) -> list[GateEvidence]:
    return [
        gate("losslessness", lossless, 100.0),
        gate("bank_certificate", **bank),  # type: ignore[arg-type]
        gate("pit_certificate"),
        gate("row_gate", row, 0.005, high=0.003, details={"absolute": False}),
    ]


def test_an_answer_differs_as_the_product_says() -> None:
    """Against enumeration: every one of n tokens differs on its own with probability m."""
    for m, n in ((0.1, 3), (0.5, 4), (0.01, 5)):
        exact = sum(
            math.prod(m if differs else 1 - m for differs in which)
            for which in itertools.product((False, True), repeat=n)
            if any(which)
        )
        assert differs_evenly(m, n) == pytest.approx(exact, rel=1e-12)
    assert differs_evenly(0.015, 200) == pytest.approx(0.9513, abs=1e-4)
    assert (differs_evenly(0.0, 200), differs_evenly(1.0, 1), differs_evenly(-0.001, 5)) == (0.0, 1.0, 0.0)


def test_a_mean_alone_only_gives_the_union_bound() -> None:
    """One token of n may carry the whole shift: then the even formula would say too little."""
    n, m = 200, 0.001
    uneven = 1 - (1 - n * m)  # all of it at one token
    assert differs_evenly(m, n) < uneven
    assert uneven <= differs_at_most(m, n) + 1e-12
    assert differs_at_most(0.015, 200) == 1.0


def test_the_sum_adds_the_margin_and_the_rows() -> None:
    (found,) = terms.of_gates(route())
    assert (found.certified, found.sampler, found.rows) == (True, 0.01, 0.003)
    assert found.per_token == pytest.approx(0.013)
    assert found.sentence() == (
        "At most 1.3 tokens in 100 differ in distribution (sampler 0.01 plus row excess 0.003, in the directions tested). "
        "A 200-token answer then differs with probability at most 92.7 % if every token is shifted alike, "
        "and 100 % however the shift is spread."
    )


@pytest.mark.parametrize("missing", ["row_gate", "pit_certificate"])
def test_nothing_is_certified_before_every_gate_behind_it_passes(missing: str) -> None:
    for gates in (
        [g for g in route() if g.gate != missing],
        [gate(missing, Verdict.INCONCLUSIVE, 0.005) if g.gate == missing else g for g in route()],
    ):
        (found,) = terms.of_gates(gates)
        assert found.certified is False
        assert found.sentence().startswith("Not yet certified; once it is, at most ")
    (unproven,) = terms.of_gates(route(row=Verdict.INCONCLUSIVE))
    assert unproven.rows == 0.005  # the margin, not a bound that has not been reached


def test_a_reach_beyond_the_margin_is_what_counts() -> None:
    reach = {"cold": {"contamination": 0.014}, "hot": {"contamination": 0.004}}
    (found,) = terms.of_gates(route(details={"reach": reach}))
    assert found.sampler == 0.014


def test_a_negative_excess_takes_nothing_off() -> None:
    gates = [gate("row_gate", threshold=0.005, high=-0.001) if g.gate == "row_gate" else g for g in route()]
    (found,) = terms.of_gates(gates)
    assert found.per_token == 0.01


def test_greedy_speaks_of_choices() -> None:
    (found,) = terms.of_gates([gate("gap_certificate", threshold=1e-3, high=8e-4)])
    assert (found.stratum, found.per_token) == (Stratum.GREEDY, 8e-4)
    assert found.sentence().startswith("At most 0.08 greedy tokens in 100 are not the reference's choice.")


def test_the_gates_say_it_and_keep_their_verdicts() -> None:
    before = route()
    after = terms.stated(before)
    assert [(g.gate, g.verdict, g.reason, g.sentence) for g in after] == [
        (g.gate, g.verdict, g.reason, g.sentence) for g in before
    ]
    said = after[0].details["user_terms"]
    assert isinstance(said, list)
    assert said[0]["per_token"] == pytest.approx(0.013)
    assert after[0].details["inside_margin"] is False
    assert all("user_terms" in g.details for g in after)
    alone = [gate("losslessness", threshold=100.0)]
    assert terms.stated(alone) == tuple(alone)


def test_a_difference_inside_every_margin_is_said_to_be_one() -> None:
    inside = terms.stated(route(lossless=Verdict.FAIL))[0]
    assert inside.details["inside_margin"] is True
    assert inside.sentence.endswith("The difference lies inside every certified margin.")
    assert (inside.verdict, inside.reason) == (Verdict.FAIL, "certified")
    outside = terms.stated(route(lossless=Verdict.FAIL, row=Verdict.INCONCLUSIVE))[0]
    assert outside.details["inside_margin"] is False


def test_it_is_plain_json() -> None:
    body = Terms(Stratum.SAMPLED, True, 0.01, 0.002, exact=True).to_json()
    assert body["stratum"] == "sampled"
    assert body["differs_evenly"] == pytest.approx(1 - 0.988**200)
    assert "row distance 0.002" in str(body["sentence"])
