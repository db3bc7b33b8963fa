"""What is printed on a certificate: where its requests came from, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from canary.domain.pairs import DrafterKind, Pair
from canary.stats import coverage
from canary.stats.batch import Batch
from canary.stats.part import Sums
from tests.stats.make import CALIBRATION, columns
from tests.stats.world import Engine, World, context_of, pair_of

WHERE = replace(context_of(DrafterKind.ONE_HOT), calibration=CALIBRATION)


@pytest.fixture(scope="module")
def plain() -> Pair:
    return pair_of(Engine(World.make(), DrafterKind.ONE_HOT).run(1, 3), 0, 0, (0,))


def at(pair: Pair, temperature: float) -> Pair:
    size = len(pair.candidate.token_ids)
    rows = columns(row_tv=[0.0] * size, logit_gap=[0.0] * size, temperature=[temperature] * size)
    return replace(pair, candidate=replace(pair.candidate, rows=rows))


def summed(*pairs: Pair) -> Sums:
    return Sums(coverage.NAMES, coverage.increments(Batch(WHERE, pairs)).sum(axis=0))


@pytest.mark.parametrize(
    ("temperatures", "expected", "words"),
    [
        ((0.7,), (0.6, 0.7), "at temperatures above 0.6 up to 0.7,"),
        ((1.0, 0.3), (0.2, 1.0), "at temperatures above 0.2 up to 1,"),
        ((0.05,), (0.0, 0.1), "at temperatures above 0 up to 0.1,"),
        ((5.0,), (2.0, None), "at temperatures above 2,"),
        ((), None, "of unknown temperature,"),
    ],
)
def test_temperatures_are_told_by_bucket(
    plain: Pair, temperatures: tuple[float, ...], expected: tuple[float, float | None] | None, words: str
) -> None:
    sums = summed(*(at(plain, t) for t in temperatures)) if temperatures else summed(plain)
    assert coverage.temperatures(sums) == expected
    assert words in coverage.sentence(sums, ())
    shown = coverage.details(sums, ())["temperatures"]
    assert shown == (None if expected is None else {"above": expected[0], "up_to": expected[1]})


def test_every_counted_request_is_in_one_bucket(plain: Pair) -> None:
    sums = summed(*(at(plain, t) for t in (0.1, 0.2, 0.65, 1.0, 1.3, 9.0)))
    assert sum(sums[f"temperature_{edge:g}"] for edge in coverage.TEMPERATURES) == sums["requests"] == 6


def test_directions_inside_the_margin_are_named(plain: Pair) -> None:
    sums = summed(plain)
    assert "inside the margin" not in coverage.sentence(sums, ())
    told = coverage.sentence(sums, ("residual", "typical"))
    assert told.endswith("inside the margin even at full strength, and so not excluded: residual, typical.")
    assert coverage.details(sums, ("residual",))["inside_margin"] == ["residual"]


def test_positions_reach_as_far_as_the_longest_answer(plain: Pair) -> None:
    assert coverage.longest(summed(plain)) == 64  # 96 tokens
    assert "positions up to 64" in coverage.sentence(summed(plain), ())


def test_calibrating_requests_are_not_covered(plain: Pair) -> None:
    added = coverage.increments(Batch(replace(WHERE, calibration=None), [at(plain, 0.7)]))[0]
    assert added[list(coverage.NAMES).index("requests")] == 0
    assert coverage.temperatures(Sums(coverage.NAMES, added)) is None
