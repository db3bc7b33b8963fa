"""Bad input is set aside with its reason, is counted, enters no statistic, and holds the route when it becomes frequent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from canary.domain.evidence import Verdict
from canary.domain.pairs import Arm, Columns, Pair, Timing
from canary.stats.battery import pack
from canary.stats.completeness import MAX_RECENT, judge, recent_share
from tests.stats.experiments import Setting
from tests.stats.test_wellformed import changed

Spoil = Callable[[Pair], Pair]


def candidate(**changes: object) -> Spoil:
    return lambda pair: replace(pair, candidate=replace(pair.candidate, **changes))  # type: ignore[arg-type]


def without(column: str) -> Spoil:
    def spoil(pair: Pair) -> Pair:
        trace = pair.candidate.trace
        assert trace is not None
        left = {name: block for name, block in trace.data.items() if name != column}
        return candidate(trace=Columns(trace.num_tokens, left))(pair)

    return spoil


def cut(pair: Pair) -> Pair:
    """The last token of the text is lost, and its trace and rows with it."""
    found = pair.candidate
    assert found.trace is not None
    num = found.trace.num_tokens

    def shorter(columns: Columns | None) -> Columns | None:
        if columns is None:
            return None
        return Columns(num - 1, {name: block[: len(block) // num * (num - 1)] for name, block in columns.data.items()})

    return candidate(token_ids=found.token_ids[:-1], trace=shorter(found.trace), rows=shorter(found.rows))(pair)


def column(name: str, change: Callable[[np.ndarray], None]) -> Spoil:
    return lambda pair: changed(pair, name, change)


def timed(ttft: float, total: float) -> Spoil:
    return lambda pair: replace(pair, candidate_timing=Timing(ttft, total, 10))


def add(amount: float) -> Callable[[np.ndarray], None]:
    def change(values: np.ndarray) -> None:
        values += amount

    return change


BAD: dict[str, tuple[Spoil, str]] = {
    "a missing trace": (candidate(trace=None), "trace is missing"),
    "a missing field": (without("pit_mid"), "pit_mid"),
    "a row that sums to more than 1": (column("pit_mid", add(0.6)), "does not sum to 1|outside 0 to 1"),
    "values of another row": (column("max_prob", lambda v: v.fill(0.001)), "largest probability"),
    "a uniform of another row": (column("pit_id", lambda v: v.__setitem__(slice(None), 1.0 - v)), "pit_id"),
    "a log-probability above 0": (column("log_prob", lambda v: v.fill(0.1)), "is above 0"),
    "a log-probability that is none": (column("log_prob", lambda v: v.fill(math.nan)), "not a number"),
    "a token outside the vocabulary": (
        lambda p: candidate(token_ids=(10**6, *p.candidate.token_ids[1:]))(p),
        "outside the vocab",
    ),
    "a negative token": (lambda p: candidate(token_ids=(-1, *p.candidate.token_ids[1:]))(p), "outside the vocab"),
    "no token": (candidate(token_ids=()), "token_ids are empty"),
    "a truncated text": (lambda p: candidate(token_ids=p.candidate.token_ids[:-1])(p), "describes"),
    "a truncated answer": (cut, "accepted drafts|tokens emitted"),
    "another prompt": (
        lambda p: candidate(request_digest="b" * 32)(replace(p, baseline=replace(p.baseline, request_digest="a" * 32))),
        "different prompts or parameters",
    ),
    "arms in each other's seats": (candidate(arm=Arm.BASELINE), "candidate: arm is baseline"),
    "an unknown end": (candidate(finish_reason="done"), "'done' is unknown"),
    "a baseline that drafts": (
        lambda p: replace(p, baseline=replace(p.baseline, stats=p.candidate.stats)),
        "the baseline drafts nothing",
    ),
    "a clock that goes backwards": (timed(0.2, 0.1), "clock went backwards"),
    "a clock that went back before the first token": (timed(-0.2, 0.1), "clock went backwards"),
    "a time that is none": (timed(math.nan, 0.1), "not a number"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_set_aside_with_its_reason(setting: Setting, name: str) -> None:
    """A3.4, A3.23, A5.2, A5.4, A5.11: no number that is none, no empty answer and no half of a pair enters a statistic."""
    battery, pairs, _ = setting
    spoil, words = BAD[name]
    assert battery.problem(pairs[25]) is None
    why = battery.problem(spoil(pairs[25]))
    assert why is not None
    assert any(part in why for part in words.split("|")), why
    assert battery.increments(spoil(pairs[25])) is None


def test_what_is_odd_but_possible_is_kept(setting: Setting) -> None:
    battery, pairs, _ = setting
    same = replace(pairs[25].baseline, request_digest="a" * 32)
    for fine in (
        replace(pairs[25], baseline=same, candidate=replace(pairs[25].candidate, request_digest="a" * 32)),
        replace(pairs[25], baseline=same),
        timed(0.1, 0.1)(pairs[25]),
    ):
        assert battery.problem(fine) is None
        found = battery.increments(fine)
        assert found is not None
        assert pack(found)


def test_the_share_of_a_long_history_hides_no_rise() -> None:
    share, folded, lost, verdicts = 0.0, 0, 0, []
    for is_lost in [False] * 2_000 + [True] * 20 + [False] * 60:
        share, folded, lost = recent_share(share, is_lost), folded + 1, lost + is_lost
        verdicts.append(judge(folded, lost, share).verdict)
    assert Verdict.FAIL not in verdicts[:2_010]
    assert verdicts[2_019] is Verdict.FAIL
    assert judge(2_020, 20, MAX_RECENT + 0.01).reason == "rising"
    assert verdicts[-1] is Verdict.PASS


def test_ordinary_losses_are_no_rise() -> None:
    dice, share, most = np.random.default_rng(5), 0.0, 0.0
    for _ in range(20_000):
        share = recent_share(share, bool(dice.random() < 0.04))
        most = max(most, share)
    assert most < MAX_RECENT
