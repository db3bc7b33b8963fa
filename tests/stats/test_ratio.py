"""Sample-ratio mismatch: exact martingales on counts, quiet where shares are kept, loud where they are not."""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from canary.domain import budget
from canary.domain.evidence import GateRole, Verdict
from canary.domain.pairs import Arm, Pair
from canary.domain.traffic import Stratum
from canary.stats.ratio import SampleRatio
from canary.stats.shares import Losses, Split
from tests.stats.make import context, expectation, fold, gate, generation, pair

GOAL = math.log(1 / budget.RATIO_ALPHA)


def ended(baseline: str, candidate: str) -> Pair:
    return pair(baseline=generation(Arm.BASELINE, k=0, finish_reason=baseline), candidate=generation(finish_reason=candidate))


def failed(stratum: Stratum) -> Pair:
    return pair(stratum=stratum, candidate=generation(error="boom"))


@pytest.mark.parametrize("planned", [{"kept": 0.1, "left": 0.9}, {"a": 0.2, "b": 0.3, "c": 0.5}])
def test_a_planned_split_gains_nothing(planned: Mapping[str, float]) -> None:
    names = list(planned)
    total = 0.0
    for drawn in product(names, repeat=6):
        table = Split("requests", {name: drawn.count(name) for name in names}, planned)
        total += math.prod(planned[name] for name in drawn) * math.exp(table.log_e)
    assert total == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_losses_at_one_rate_gain_nothing_whatever_the_rate(rate: float) -> None:
    claimed = {"greedy": 4, "sampled": 3}
    total = 0.0
    for lost in product(range(5), range(4)):
        found = dict(zip(claimed, lost, strict=True))
        chance = math.prod(math.comb(n, found[g]) * rate ** found[g] * (1 - rate) ** (n - found[g]) for g, n in claimed.items())
        total += chance * math.exp(Losses("requests", claimed, found).log_e)
    assert total <= 1 + 1e-12


def test_arrays_of_counts_give_the_bits_of_single_ones() -> None:
    counts = np.arange(0.0, 60.0)
    whole = np.asarray(Split("x", {"a": counts, "b": 2 * counts}, {"a": 0.4, "b": 0.6}).log_e)  # type: ignore[dict-item]
    one = [float(Split("x", {"a": n, "b": 2 * n}, {"a": 0.4, "b": 0.6}).log_e) for n in counts.tolist()]
    assert whole.tolist() == one


def test_a_mirror_that_keeps_too_much_is_found_within_twice_the_tabled_requests() -> None:
    """Shares .12 and .11 for a planned .10: 3,800 and 15,400 requests (statistics 4)."""
    for share, tabled in ((0.12, 3_800), (0.11, 15_400)):
        needed = []
        for seed in range(20):
            kept = np.cumsum(np.random.default_rng(seed).random(4 * tabled) < share).astype(float)
            n = np.arange(1.0, len(kept) + 1)
            log_e = Split("m", {"kept": kept, "left": n - kept}, {"kept": 0.1, "left": 0.9}).log_e  # type: ignore[dict-item]
            hits = np.flatnonzero(np.asarray(log_e) >= GOAL)
            needed.append(hits[0] + 1 if hits.size else 10**9)
        assert np.median(needed) <= 2 * tabled


def test_no_false_alarm_over_sixty_thousand_requests() -> None:
    for seed in range(20):
        kept = np.cumsum(np.random.default_rng(900 + seed).random(60_000) < 0.1).astype(float)
        n = np.arange(1.0, 60_001)
        table = Split("m", {"kept": kept, "left": n - kept}, {"kept": 0.1, "left": 0.9})  # type: ignore[dict-item]
        assert np.asarray(table.log_e).max() < GOAL


def test_counts_that_do_not_fit_are_refused() -> None:
    for planned in ({"a": 0.5, "b": 0.6}, {"a": 1.0, "b": 0.0}, {"a": 0.5, "c": 0.5}, {"a": 1.0}):
        with pytest.raises(ValueError, match="requests"):
            Split("requests", {"a": 1.0, "b": 1.0}, planned)
    with pytest.raises(ValueError, match="at least 0"):
        Split("requests", {"a": -1.0, "b": 1.0}, {"a": 0.5, "b": 0.5})
    with pytest.raises(ValueError, match="more were lost"):
        Losses("requests", {"a": 1.0}, {"a": 2.0})
    with pytest.raises(ValueError, match="groups"):
        Losses("requests", {"a": 1.0}, {"b": 1.0})


def test_the_parts_processes_gain_nothing_under_equal_arms() -> None:
    longer, shorter, same = ended("stop", "length"), ended("length", "stop"), ended("stop", "stop")
    for length in (1, 3, 5):
        assert (
            expectation(SampleRatio(), context(), "ratio.finish", [(0.2, longer), (0.2, shorter), (0.6, same)], length)
            <= 1 + 1e-12
        )
    sampled, greedy = (pair(stratum=s) for s in (Stratum.SAMPLED, Stratum.GREEDY))
    mixed = [(0.15, failed(Stratum.SAMPLED)), (0.35, sampled), (0.15, failed(Stratum.GREEDY)), (0.35, greedy)]
    for length in (1, 3, 4):
        assert expectation(SampleRatio(), context(), "ratio.answered", mixed, length) <= 1 + 1e-12


def test_quiet_traffic_passes_and_names_what_was_not_tested() -> None:
    few = gate(SampleRatio(), context(), [ended("stop", "length")] * 5)
    assert (few.role, few.verdict, few.reason, few.needed) == (GateRole.HARNESS, Verdict.NO_DATA, "too_few", 15)
    found = gate(SampleRatio(), context(), [ended("stop", "length"), ended("length", "stop"), ended("stop", "stop")] * 20)
    assert (found.gate, found.verdict, found.reason, found.n) == ("sample_ratio", Verdict.PASS, "quiet", 60)
    assert found.threshold == 1000
    assert found.details["not_tested"] == ["the mirrored share and the mirrored sample against the route's traffic"]


def test_a_candidate_that_never_stops_is_a_mismatch() -> None:
    found = gate(SampleRatio(), context(), [ended("stop", "length")] * 60)
    assert (found.verdict, found.reason) == (Verdict.FAIL, "sample_ratio_mismatch")
    assert "candidate_longer 60 of 60 (planned 0.5)" in found.sentence
    assert fold(SampleRatio(), context(), [failed(Stratum.SAMPLED)])["candidate_longer"] == 0


def test_failures_of_one_stratum_alone_are_a_mismatch() -> None:
    greedy = [pair(stratum=Stratum.GREEDY)] * 30
    found = gate(SampleRatio(), context(), [*greedy, *([failed(Stratum.SAMPLED)] * 10), *([pair()] * 20)])
    assert (found.verdict, found.reason) == (Verdict.FAIL, "sample_ratio_mismatch")
    assert "sampled 10 of 30 lost" in found.sentence
    even = [failed(Stratum.SAMPLED), failed(Stratum.GREEDY), *([pair()] * 5), *([pair(stratum=Stratum.GREEDY)] * 5)]
    assert gate(SampleRatio(), context(), even * 5).verdict is Verdict.PASS


def test_counts_known_to_flow_join_the_gate() -> None:
    pairs = [ended("stop", "stop")] * 30
    planned = {"short": 0.7, "long": 0.3}
    for counts, verdict in (({"short": 690, "long": 310}, Verdict.PASS), ({"short": 950, "long": 50}, Verdict.FAIL)):
        where = replace(context(), traffic=(Split("mirrored requests by prompt length", counts, planned),))
        found = gate(SampleRatio(), where, pairs)
        assert found.verdict is verdict
        assert found.details["not_tested"] == []
    where = replace(context(), traffic=(Losses("completed by stratum", {"a": 500.0, "b": 500.0}, {"a": 0.0, "b": 60.0}),))
    assert gate(SampleRatio(), where, pairs).verdict is Verdict.FAIL
