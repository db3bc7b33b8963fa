"""A pair stores the same bits whichever pairs were worked out with it, and one that cannot be read spoils no other."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from canary.domain.pairs import Arm, Columns, DrafterKind, Pair
from canary.domain.traffic import Stratum
from canary.stats.batch import Table
from canary.stats.bets import column
from tests.stats.histories import History, record
from tests.stats.make import columns


@pytest.fixture(scope="module", params=list(DrafterKind))
def history(request: pytest.FixtureRequest) -> History:
    return record(50, seed=3, kind=request.param)


def mixed(history: History) -> list[Pair]:
    """Pairs of both strata and of many lengths, failed arms, and pairs that have to be set aside in every way there is."""
    pairs = [replace(p, calibration_hash="") for p in history.pairs]
    failed = replace(pairs[3], candidate=replace(pairs[3].candidate, error="out of memory", trace=None, rows=None))
    trace = pairs[5].candidate.trace
    assert trace is not None
    unreadable = replace(pairs[5].candidate, trace=Columns(trace.num_tokens, {**trace.data, "pit_id": b"1234"}))
    wrong = replace(
        pairs[6].candidate,
        trace=Columns(trace.num_tokens, {**trace.data, "log_prob": np.full(trace.num_tokens, 2, "<f4").tobytes()}),
    )
    rowless = replace(pairs[8].candidate, rows=Columns(len(pairs[8].candidate.token_ids), {}))
    return [
        *pairs,
        failed,
        replace(pairs[5], candidate=unreadable),
        replace(pairs[6], candidate=wrong),
        replace(pairs[8], candidate=rowless),
        replace(pairs[9], stratum=Stratum.GREEDY),
        replace(pairs[10], baseline=replace(pairs[10].baseline, arm=Arm.CANDIDATE)),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_any_split_into_batches_gives_the_same_bits(history: History, seed: int) -> None:
    battery, pairs = history.battery, mixed(history)
    order = random.Random(seed).sample(range(len(pairs)), len(pairs))
    alone = [battery.examine([pair])[0] for pair in pairs]
    assert {why is None for why, _ in alone} == {True, False}
    assert len({len(p.candidate.token_ids) for p in pairs}) > 1
    at = 0
    while at < len(order):
        chosen = order[at : at + random.Random(at).randrange(1, 12)]
        at += len(chosen)
        for place, (why, numbers) in zip(chosen, battery.examine([pairs[i] for i in chosen]), strict=True):
            assert why == alone[place][0]
            one = alone[place][1]
            assert (numbers is None) == (one is None)
            if numbers is not None and one is not None:
                assert numbers.tobytes() == one.tobytes()


def test_a_table_reads_a_column_once_and_nobody_writes_to_it() -> None:
    blocks = [columns(log_prob=[-1.0, -2.0], pit_id=[0.1, 0.2]), columns(log_prob=[-3.0], pit_id=[0.3])]
    table = Table(blocks)
    first = table.column("log_prob")
    assert first.tolist() == [-1.0, -2.0, -3.0]
    assert table.column("log_prob") is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0.0
    assert column(blocks[1], "log_prob").tolist() == [-3.0]
