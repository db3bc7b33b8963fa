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
from canary.stats.part import UNCOUNTED
from canary.stats.ratio import SampleRatio
from canary.stats.shares import Kept, Losses, Split
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
    assert found.details["not_tested"] == list(UNCOUNTED)
    assert found.sentence.count("Not tested: ") == len(UNCOUNTED)
    mirrors_all = replace(context(), untested=("the mirrored share: the policy mirrors every request",))
    found = gate(SampleRatio(), mirrors_all, [ended("stop", "stop")] * 30)
    assert found.sentence.endswith(" Not tested: the mirrored share: the policy mirrors every request.")


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
        where = replace(context(), traffic=(Split("mirrored requests by prompt length", counts, planned),), untested=())
        found = gate(SampleRatio(), where, pairs)
        assert found.verdict is verdict
        assert found.details["not_tested"] == []
        assert "Not tested" not in found.sentence
    where = replace(context(), traffic=(Losses("completed by stratum", {"a": 500.0, "b": 500.0}, {"a": 0.0, "b": 60.0}),))
    assert gate(SampleRatio(), where, pairs).verdict is Verdict.FAIL


def test_thinning_that_spares_no_group_gains_nothing_whatever_the_mix() -> None:
    """Every stream of five requests of two groups, the mix moving with what was kept before: the mean is exactly 1."""
    for rate in (0.1, 0.5):
        chances, groups = [], ("short", "long", "never")
        streams: dict[str, dict[str, list[int]]] = {what: {g: [] for g in groups} for what in ("seen", "kept")}
        for drawn in product(range(2), repeat=10):
            chance, seen, kept = 1.0, dict.fromkeys(groups, 0), dict.fromkeys(groups, 0)
            for which, is_kept in zip(drawn[:5], drawn[5:], strict=True):
                p_long = 0.7 if sum(kept.values()) else 0.2
                chance *= (p_long if which else 1 - p_long) * (rate if is_kept else 1 - rate)
                seen[groups[which]] += 1
                kept[groups[which]] += is_kept
            chances.append(chance)
            for g in groups:
                streams["seen"][g].append(seen[g])
                streams["kept"][g].append(kept[g])
        seen_by, kept_by = ({g: np.array(n) for g, n in streams[what].items()} for what in ("seen", "kept"))
        values = np.exp(Kept("requests", seen_by, kept_by, rate).log_e)  # type: ignore[arg-type]
        assert sum(chances) == pytest.approx(1.0, abs=1e-12)
        assert float(np.array(chances) @ values) == pytest.approx(1.0, abs=1e-9)


def thinned(seed: int, count: int, rates: tuple[float, float]) -> Kept:
    """Requests of which nine in ten are short, kept by a rate of each group's own; one value per request."""
    dice = np.random.default_rng(seed)
    is_long, u = dice.random(count) < 0.1, dice.random(count)
    is_kept = u < np.where(is_long, rates[1], rates[0])
    groups = {"short": ~is_long, "long": is_long, "never": np.zeros(count, bool)}
    seen, kept = ({g: np.cumsum(of & which) for g, of in groups.items()} for which in (np.ones(count, bool), is_kept))
    return Kept("mirrored requests by prompt length", seen, kept, 0.1)  # type: ignore[arg-type]


def test_a_mirror_that_drops_long_prompts_is_found_and_a_fair_one_is_left_in_peace() -> None:
    """Half of the long prompts, 5 % of what is kept, are lost on their way; the share as a whole sees it much later."""
    needed, needed_by_share = [], []
    for seed in range(11):
        table = thinned(seed, 25_000, (0.1, 0.05))
        hits = np.flatnonzero(np.asarray(table.log_e) >= GOAL)
        needed.append(hits[0] + 1 if hits.size else 10**9)
        kept, seen = (np.sum(list(n.values()), axis=0) for n in (table.kept, table.seen))
        whole = Split("all", {"kept": kept, "left": seen - kept}, {"kept": 0.1, "left": 0.9})
        hits = np.flatnonzero(np.asarray(whole.log_e) >= GOAL)
        needed_by_share.append(hits[0] + 1 if hits.size else 10**9)
        assert np.asarray(thinned(500 + seed, 25_000, (0.1, 0.1)).log_e).max() < GOAL
    assert np.median(needed) <= 8_000
    assert np.median(needed_by_share) > 3 * np.median(needed)


def test_a_thinning_that_does_not_fit_is_refused() -> None:
    for seen, kept, rate, words in (
        ({"a": 1}, {"b": 1}, 0.1, "groups"),
        ({}, {}, 0.1, "groups"),
        ({"a": 1}, {"a": 1}, 1.0, "rate"),
        ({"a": 1}, {"a": 2}, 0.1, "more were kept"),
    ):
        with pytest.raises(ValueError, match=words):
            Kept("requests", seen, kept, rate)


def test_a_group_that_is_mirrored_too_little_is_named() -> None:
    """A5.15: by prompt length, stream and endpoint."""
    table = Kept("mirrored requests by stream", {"streamed": 4000, "whole": 4000}, {"streamed": 200, "whole": 401}, 0.1)
    found = gate(SampleRatio(), replace(context(), traffic=(table,), untested=()), [ended("stop", "stop")] * 30)
    assert (found.verdict, found.reason) == (Verdict.FAIL, "sample_ratio_mismatch")
    assert "mirrored requests by stream: streamed 200 of 4000 (planned 0.1), whole 401 of 4000" in found.sentence
    splits = found.details["splits"]
    assert isinstance(splits, dict)
    assert splits["mirrored requests by stream"]["kept"] == {"streamed": 200, "whole": 401}
