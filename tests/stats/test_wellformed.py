"""Pairs that contradict themselves are set aside with a sentence, and nothing that is merely unlikely is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from canary.domain.pairs import BLOCK_COLUMNS, TRACE_COLUMNS, Columns, DrafterKind, Pair, Provenance, Scheme
from canary.domain.traffic import Stratum
from canary.stats.battery import Battery
from tests.stats.experiments import Setting
from tests.stats.world import Engine, World, context_of, pair_of


def changed(pair: Pair, name: str, change: Callable[[np.ndarray], object]) -> Pair:
    """The pair with one trace column altered in place."""
    trace = pair.candidate.trace
    assert trace is not None
    kind, width = {**TRACE_COLUMNS, **BLOCK_COLUMNS}[name]
    values = np.frombuffer(trace.data[name], kind).reshape(-1, width).copy()
    change(values)
    data = {**trace.data, name: values.tobytes()}
    return replace(pair, candidate=replace(pair.candidate, trace=Columns(trace.num_tokens, data)))


def set_first(value: float) -> Callable[[np.ndarray], object]:
    return lambda values: values.__setitem__((0, 0), value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_prob", 0.01),
        ("log_prob", float("nan")),
        ("log_ratio", float("nan")),
        ("max_prob", 1.1),
        ("pit_id", -0.1),
        ("pit_ratio", 1.5),
        ("tv", float("nan")),
        ("position_in_round", 5),
        ("position_in_round", -1),
        ("provenance", 4),
        ("drafted", 2),
        ("residual_log_ratio", float("nan")),
        ("bonus_log_ratio", float("nan")),
    ],
)
def test_a_trace_that_contradicts_itself_is_set_aside(setting: Setting, name: str, value: float) -> None:
    battery, pairs, _ = setting
    bad = changed(pairs[25], name, set_first(value))
    assert battery.increments(bad) is None
    assert name in (battery.problem(bad) or "")


@pytest.mark.parametrize("value", [float("nan"), 1.2, -0.1])
@pytest.mark.parametrize("name", ["accept_threshold", "accept_uniform", "draft_pit", "draft_mid", "residual_pit"])
def test_judged_drafts_and_recovered_tokens_need_their_columns(setting: Setting, name: str, value: float) -> None:
    battery, pairs, _ = setting
    trace = pairs[25].candidate.trace
    assert trace is not None
    values = np.frombuffer(trace.data[name], "<f4")
    at, empty = int(np.flatnonzero(~np.isnan(values))[0]), int(np.flatnonzero(np.isnan(values))[0])
    assert name in (battery.problem(changed(pairs[25], name, lambda v: v.__setitem__((at, 0), value))) or "")
    assert battery.problem(changed(pairs[25], name, lambda v: v.__setitem__((empty, 0), 7.0))) is None  # read by nobody
    lacking = Columns(trace.num_tokens, {k: v for k, v in trace.data.items() if k != name})
    without = replace(pairs[25], candidate=replace(pairs[25].candidate, trace=lacking))
    assert name in (battery.problem(without) or "")


def test_a_scheme_that_does_not_judge_token_by_token_may_leave_them_empty(setting: Setting) -> None:
    battery, pairs, _ = setting
    other = Battery(replace(battery.context, scheme=Scheme.EXACT_MATCH), battery.parts)
    bare = changed(pairs[25], "accept_uniform", lambda values: values.fill(np.nan))
    assert battery.problem(bare) is not None
    assert other.problem(bare) is None


@pytest.fixture(scope="module")
def block() -> tuple[Battery, Pair]:
    """A battery for drafts that are judged together, and a pair of such an engine."""
    run = Engine(World.make(), DrafterKind.DENSE, scheme=Scheme.BLOCK).run(1, 6)
    return Battery(context_of(DrafterKind.DENSE, scheme=Scheme.BLOCK)), pair_of(run, 0, 0, (0,))


@pytest.mark.parametrize("name", BLOCK_COLUMNS)
def test_rounds_judged_together_need_their_columns(block: tuple[Battery, Pair], name: str) -> None:
    battery, pair = block
    assert battery.problem(pair) is None
    trace = pair.candidate.trace
    assert trace is not None
    lacking = Columns(trace.num_tokens, {k: v for k, v in trace.data.items() if k != name})
    assert name in (battery.problem(replace(pair, candidate=replace(pair.candidate, trace=lacking))) or "")


@pytest.mark.parametrize("value", [float("nan"), 1.2, -0.1])
@pytest.mark.parametrize("name", ["block_pit", "block_weight", "accept_threshold"])
def test_rounds_judged_together_need_numbers(block: tuple[Battery, Pair], name: str, value: float) -> None:
    battery, pair = block
    assert name in (battery.problem(changed(pair, name, lambda values: values.fill(value))) or "")


def shifted(pair: Pair, **stats: object) -> Pair:
    """The pair with other counts of its loop."""
    return replace(pair, candidate=replace(pair.candidate, stats=replace(pair.candidate.stats, **stats)))  # type: ignore[arg-type]


def accepted_places(pair: Pair) -> list[int]:
    trace = pair.candidate.trace
    assert trace is not None
    return np.flatnonzero(np.frombuffer(trace.data["provenance"], "|u1") == Provenance.ACCEPTED).tolist()


@pytest.mark.parametrize("stratum", list(Stratum))
def test_a_trace_must_agree_with_the_counts_of_the_loop(setting: Setting, stratum: Stratum) -> None:
    battery, pairs, _ = setting
    pair = replace(pairs[25], stratum=stratum)
    assert battery.problem(pair) is None
    stats, at = pair.candidate.stats, accepted_places(pair)[0]
    longer = {"accepted": (*stats.accepted[:-1], stats.accepted[-1] + stats.num_cut + 1)}
    cases = {
        "tokens are accepted drafts, but the loop accepted": [
            shifted(pair, accepted=(*stats.accepted, 4), drafted=(*stats.drafted, 4)),
            shifted(pair, **longer),
            shifted(pair, accepted=(0,) * len(stats.accepted)),
            changed(pair, "provenance", lambda v: v.__setitem__((v == Provenance.ACCEPTED).nonzero(), Provenance.PLAIN)),
        ],
        "tokens were drafted, but": [
            changed(pair, "drafted", lambda v: v.__setitem__((at, 0), 0)),
            changed(pair, "drafted", lambda v: v.__setitem__((v == 0).nonzero(), 1)),
        ],
        "acceptance per position rises": [
            changed(pair, "position_in_round", lambda v: v.__setitem__(slice(None), 3)),
            changed(pair, "position_in_round", lambda v: v.__setitem__((v == 0).nonzero(), 1)),
        ],
    }
    for words, broken in cases.items():
        for bad in broken:
            assert words in (battery.problem(bad) or ""), words
            assert battery.increments(bad) is None


def test_what_was_cut_may_be_missing_from_the_trace(setting: Setting) -> None:
    battery, pairs, _ = setting
    stats = pairs[25].candidate.stats
    more = (*stats.accepted[:-1], stats.accepted[-1] + 2)
    assert "and cut" in (battery.problem(shifted(pairs[25], accepted=more, num_cut=0)) or "")
    assert battery.problem(shifted(pairs[25], accepted=more, num_cut=stats.num_cut + 2)) is None


def test_a_greedy_trace_without_its_rounds_is_set_aside(setting: Setting) -> None:
    battery, pairs, _ = setting
    trace = pairs[25].candidate.trace
    assert trace is not None
    lacking = Columns(96, {k: v for k, v in trace.data.items() if k != "drafted"})
    greedy = replace(pairs[25], stratum=Stratum.GREEDY, candidate=replace(pairs[25].candidate, trace=lacking))
    assert "drafted" in (battery.problem(greedy) or "")


def test_malformed_pairs_are_set_aside(setting: Setting) -> None:
    battery, pairs, _ = setting
    pair = pairs[25]
    trace = pair.candidate.trace
    assert trace is not None
    tokens = pair.candidate.token_ids
    lacking = Columns(96, {k: v for k, v in trace.data.items() if k != "pit_id"})
    cases = {
        "the drafter vanished": replace(pair, error="the drafter vanished"),
        "trace is missing": replace(pair, candidate=replace(pair.candidate, trace=None)),
        "pit_id": replace(pair, candidate=replace(pair.candidate, trace=lacking)),
        "outside the vocabulary": replace(pair, candidate=replace(pair.candidate, token_ids=(*tokens[:-1], 256))),
        "token -1": replace(pair, candidate=replace(pair.candidate, token_ids=(*tokens[:-1], -1))),
        "describes 96 tokens": replace(pair, candidate=replace(pair.candidate, token_ids=tokens[:-1])),
        "token_ids are empty": replace(pair, baseline=replace(pair.baseline, token_ids=())),
    }
    for words, bad in cases.items():
        assert words in (battery.problem(bad) or ""), words
        assert battery.increments(bad) is None


def test_a_token_outside_the_support_is_evidence_not_a_broken_pair(setting: Setting) -> None:
    battery, pairs, _ = setting
    impossible = changed(pairs[25], "log_prob", set_first(float("-inf")))
    usual, found = battery.increments(pairs[25]), battery.increments(impossible)
    assert usual is not None
    assert found is not None
    assert (found - usual)[battery.names.index("bank.unigram@0.9")] > 10
