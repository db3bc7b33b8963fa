"""What a gate waits for, in requests of the whole route: by stratum, by position, and silent where nobody knows."""

from __future__ import annotations

from dataclasses import replace

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.traffic import Stratum
from canary.stats.shortfall import Shortfall, of_gate, told

MIX = {Stratum.GREEDY: 100.0, Stratum.SAMPLED: 900.0}


def gate(name: str, verdict: Verdict = Verdict.INCONCLUSIVE, needed: int | None = 90, **more: object) -> GateEvidence:
    return GateEvidence(name, GateRole.EQUIVALENCE, verdict, "too_few", "Not yet.", needed=needed, **more)  # type: ignore[arg-type]


def test_a_stratums_need_waits_for_the_whole_route() -> None:
    assert of_gate(gate("bank_certificate"), MIX) == Shortfall(Stratum.SAMPLED, 100)
    assert of_gate(gate("request_certificate_greedy", needed=461), MIX) == Shortfall(Stratum.GREEDY, 4610)


def test_positions_become_requests_by_the_mean_length() -> None:
    counted = {"baseline_positions": 4000, "baseline_requests": 100}
    short = of_gate(gate("gap_certificate", needed=4000, unit="positions", details=counted), MIX)
    assert short == Shortfall(Stratum.GREEDY, 1000)  # 100 greedy requests of 40 tokens, one request in ten


def test_the_stratum_that_is_short_is_named() -> None:
    strata = {
        "sampled": {"verdict": "pass", "needed": 0},
        "greedy": {"verdict": "inconclusive", "needed": 30},
    }
    assert of_gate(gate("row_gate", details={"strata": strata}), MIX) == Shortfall(Stratum.GREEDY, 300)
    strata["sampled"] = {"verdict": "inconclusive", "needed": 900}
    assert of_gate(gate("row_gate", details={"strata": strata}), MIX) == Shortfall(Stratum.SAMPLED, 1000)


def test_what_nobody_knows_stays_unknown() -> None:
    assert of_gate(gate("bank_certificate", needed=None), MIX) == Shortfall(Stratum.SAMPLED, None)
    assert of_gate(gate("bank_certificate"), {Stratum.GREEDY: 5.0, Stratum.SAMPLED: 0.0}) == Shortfall(Stratum.SAMPLED, None)
    assert of_gate(gate("acceptance", needed=None), MIX) is None
    assert of_gate(gate("acceptance", needed=12), MIX) == Shortfall(None, 12)


def test_a_decided_gate_waits_for_nothing() -> None:
    for verdict in (Verdict.PASS, Verdict.FAIL):
        assert of_gate(gate("bank_certificate", verdict), MIX) is None


def test_only_details_are_added() -> None:
    waiting, done = gate("bank_certificate"), gate("row_gate", Verdict.PASS, 0)
    after = told([waiting, done], MIX)
    assert after[0].details == {"short_stratum": "sampled", "needed_requests": 100}
    assert (after[0].needed, after[1]) == (90, done)


def test_a_budget_that_is_used_up_is_its_own_reason() -> None:
    waiting, drifted = gate("bank_certificate"), replace(gate("pit_certificate"), reason="calibration_drift")
    for limit, reason in ((1000, "expired"), (1001, "too_few"), (None, "too_few")):
        assert [g.reason for g in told([waiting, drifted], MIX, limit)] == [reason, "calibration_drift"]
    expired = told([waiting], MIX, 1000)[0]
    assert expired.sentence == "The budget of 1000 requests is used up. Not yet."
    assert (expired.verdict, expired.details["waited_for"]) == (Verdict.INCONCLUSIVE, "too_few")
    done = gate("bank_certificate", Verdict.PASS, 0)
    assert told([done], MIX, 1000) == (done,)
