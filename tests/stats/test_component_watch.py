"""The component tests in the change detector: the same e-processes request by request, fair, quiet on exact engines, and fast."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from canary.domain.pairs import DrafterKind, Scheme
from canary.stats.bank import Bank
from canary.stats.battery import default_parts
from canary.stats.bounded import log_mixed
from canary.stats.components import COMPONENTS, IMPOSSIBLE_NULL, RATES, RULE_NULL, Components, _groups, active_components
from canary.stats.layout import WATCH_SHARES, Layout
from canary.stats.part import Part, Vector, Watched
from canary.stats.rates import log_rate_bets, num_rate_bets, rate_above
from canary.stats.watch import Watch, advance
from tests.stats.world import Engine, World, context_of, pair_of

KINDS = list(DrafterKind)
CLEAN = 100  # requests


@pytest.fixture(scope="module")
def world() -> World:
    torch.set_num_threads(1)
    return World.make()


def increments(part: Part, engine: Engine, requests: int, seed: int) -> Vector:
    context, run = context_of(engine.kind), engine.run(requests, seed)
    return np.stack([part.increments(context, pair_of(run, i, i, (0,))) for i in range(requests)])


# conditional rate of the next chance, given those before it, as a share of the null
RULES: dict[str, Callable[[tuple[int, ...]], float]] = {
    "at the null": lambda before: 1.0,
    "below it": lambda before: 0.3,
    "never": lambda before: 0.0,
    "after a hit": lambda before: float(any(before)),
    "until a hit": lambda before: float(not any(before)),
}


@pytest.mark.parametrize("null", [RULE_NULL, IMPOSSIBLE_NULL])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("ends_at_a_hit", [False, True])
def test_a_requests_bets_on_a_rate_are_fair_under_every_composite_null(null: float, rule: str, ends_at_a_hit: bool) -> None:
    """Every outcome of a request of at most four chances, which may end by what happens in it."""

    def mean(before: tuple[int, ...]) -> np.ndarray:
        if len(before) == 4 or (ends_at_a_hit and any(before)):
            return np.exp(log_rate_bets(np.array([float(sum(before))]), np.array([float(len(before))]), null))[0]
        rate = null * RULES[rule](before)
        return rate * mean((*before, 1)) + (1 - rate) * mean((*before, 0))

    assert len(mean(())) == num_rate_bets(null)
    assert (mean(()) <= 1 + 1e-12).all()
    assert rule != "at the null" or mean(()) == pytest.approx(np.ones(num_rate_bets(null)), abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_bets_multiplied_over_requests_are_the_e_processes_of_the_kill(world: World, kind: DrafterKind) -> None:
    part, context = Components(), context_of(kind)
    table = increments(part, Engine(world, kind, "resample_from_target"), 6, 11)
    logs, weights = part.log_request_bets(context, table), part.request_weights(context)
    assert logs.shape == (6, len(weights))
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    expected, total, at = part.log_e(context, table.sum(axis=0)), logs.sum(axis=0), 0
    found: dict[str, list[float]] = {}
    for name, start, end in _groups(kind, Scheme.TOKEN):
        rate = RATES[name]
        width = end - start if rate is None else num_rate_bets(rate)
        assert weights[at : at + width] == pytest.approx(weights[at])
        found.setdefault(name, []).append(float(log_mixed(total[at : at + width], np.full(width, 1 / width))))
        at += width
    assert at == len(weights)
    for name, values in found.items():
        assert np.log(np.mean(np.exp(values))) == pytest.approx(float(expected[name]), rel=1e-9, abs=1e-9)


def test_every_component_has_an_even_share_under_every_scheme() -> None:
    for kind, scheme in itertools.product(KINDS, Scheme):
        context = replace(context_of(kind), scheme=scheme)
        weights = Components().request_weights(context)
        assert weights.sum() == pytest.approx(1.0, abs=1e-12)
        assert len(weights) == Components().log_request_bets(context, np.zeros((2, len(Components().names(context))))).shape[1]
        assert len(weights) >= len(active_components(kind, scheme))
    assert set(COMPONENTS) == set(RATES)


def test_every_part_with_bets_on_the_draw_is_watched_and_the_bank_keeps_the_fifth_it_had() -> None:
    watched = {part.name for part in default_parts() if isinstance(part, Watched)}
    assert watched == set(WATCH_SHARES) == {"bank", "components", "pit", "outliers", "greedy", "xreq"}
    context = context_of(DrafterKind.DENSE)
    layout = Layout(context, default_parts())
    assert layout.watch_weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert layout.watch_weights[: len(Bank().request_weights(context))].sum() == pytest.approx(0.2, abs=1e-12)


@pytest.fixture(scope="module")
def clean(world: World) -> Vector:
    return increments(Components(), Engine(world, DrafterKind.DENSE), CLEAN, 31)


def test_an_exact_engine_does_not_alarm(clean: Vector) -> None:
    """100 requests at a limit of 3,000: one such run in thirty may alarm."""
    assert watched(clean, 3e3) is None


# fault -> requests within which a change to it is seen by the components alone, at the route's ordinary threshold
SEEN = {"generous_acceptance": 8, "resample_from_target": 8, "accept_iff_argmax": 3, "accept_uniform_reused": 40}


@pytest.mark.parametrize("fault", SEEN)
def test_a_wrong_draw_after_a_clean_history_is_seen_in_a_few_requests(world: World, clean: Vector, fault: str) -> None:
    wrong = increments(Components(), Engine(world, DrafterKind.DENSE, fault), SEEN[fault], 32)
    found = watched(np.concatenate([clean, wrong]), 3.65e7)
    assert found is not None
    assert found >= CLEAN


def watched(table: Vector, limit: float) -> int | None:
    """Ordinal of the alarm that the components raise alone."""
    part, context, nothing = Components(), context_of(DrafterKind.DENSE), np.zeros((len(table), 1))
    logs, weights = part.log_request_bets(context, table), part.request_weights(context)
    alarm = advance(Watch(np.zeros(len(weights))), limit, logs, weights, range(len(table)), nothing, np.ravel).alarm
    return None if alarm is None else alarm.ordinal


def test_counts_that_a_request_does_not_have_change_nothing() -> None:
    context, part = context_of(DrafterKind.DENSE), Components()
    assert not part.log_request_bets(context, np.zeros((3, len(part.names(context))))).any()
    assert rate_above(2.0, 40.0, RULE_NULL) == pytest.approx(
        float(log_mixed(log_rate_bets(2.0, 40.0, RULE_NULL), np.full(6, 1 / 6))), abs=1e-12
    )
