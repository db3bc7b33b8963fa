"""Component tests: layout, standing by drafter and scheme, arithmetic, and what a fault looks like in a few hundred tokens."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from canary.domain.pairs import DrafterKind, Scheme
from canary.domain.traffic import Stratum
from canary.stats import component_bets as bets
from canary.stats.bank import FORBIDDEN, RULE_BOUND, STANDING, Standing, is_active, standing
from canary.stats.batch import Table
from canary.stats.bets import legendre, log_bets
from canary.stats.components import COMPONENTS, Components, active_components
from canary.stats.judged import judged_of
from canary.stats.losslessness import COMPONENT_KEYS
from canary.stats.ragged import Ragged
from canary.stats.rates import rate_above
from tests.stats.world import Engine, Run, World, columns_of, context_of, pair_of

REQUESTS = 12  # of 96 tokens


@pytest.fixture(scope="module")
def world() -> World:
    torch.set_num_threads(1)
    return World.make()


def log_e(run: Run, kind: DrafterKind, requests: int = REQUESTS) -> dict[str, float]:
    part, context = Components(), context_of(kind)
    sums = np.sum([part.increments(context, pair_of(run, i, i, (0,))) for i in range(requests)], axis=0)
    return {key: float(value) for key, value in part.log_e(context, sums).items()}


@pytest.mark.parametrize("kind", list(DrafterKind))
@pytest.mark.parametrize("scheme", list(Scheme))
def test_layout_and_standing(kind: DrafterKind, scheme: Scheme) -> None:
    context, part = replace(context_of(kind), scheme=scheme), Components()
    names = part.names(context)
    assert len(set(names)) == len(names)
    assert {name.split(".")[0] for name in names} == set(active_components(kind, scheme))
    found = part.log_e(context, np.zeros(len(names)))
    assert set(found) == set(active_components(kind, scheme))
    assert all(float(value) == pytest.approx(0, abs=1e-12) for value in found.values())
    lossless = (Scheme.TOKEN, Scheme.BLOCK)
    assert ("draft_pit" in found) is (kind is DrafterKind.DENSE and scheme in lossless)
    assert scheme in lossless or set(found) == {"bonus"}
    assert ("acc_block" in found) is (kind is DrafterKind.DENSE and scheme is Scheme.BLOCK)
    assert ("acc" in found) is (scheme in lossless)


def test_the_table_names_every_component_under_every_scheme() -> None:
    assert set(COMPONENTS) <= set(STANDING)
    assert set(COMPONENTS) == set(COMPONENT_KEYS) - {"xreq"}
    assert set(FORBIDDEN) == set(Scheme)
    assert set(COMPONENTS) >= RULE_BOUND
    assert standing("draft_pit", DrafterKind.ONE_HOT, Scheme.TOKEN) is Standing.INERT
    assert standing("acc", DrafterKind.DENSE, Scheme.EXACT_MATCH) is Standing.FORBIDDEN
    assert is_active("draft", DrafterKind.DENSE, Scheme.TREE)
    with pytest.raises(KeyError):
        is_active("entropy", DrafterKind.DENSE)


def test_many_ordinals_at_once_give_the_bits_of_each(world: World) -> None:
    context, part = context_of(DrafterKind.DENSE), Components()
    run = Engine(world, DrafterKind.DENSE).run(3, 1)
    sums = np.cumsum([part.increments(context, pair_of(run, i, i, (0,))) for i in range(3)], axis=0)
    together = part.log_e(context, sums)
    for at in range(3):
        assert {key: float(np.asarray(value)[at]) for key, value in together.items()} == {
            key: float(value) for key, value in part.log_e(context, sums[at]).items()
        }


def test_what_judged_reads_is_what_the_loop_did(world: World) -> None:
    kind = DrafterKind.DENSE
    run = Engine(world, kind).run(2, 3)
    judged = judged_of(Table([columns_of(run, 0)]), kind)
    drafted, accepted = (sum(step[at] for step in run.rounds[0]) for at in (0, 1))
    assert accepted - run.cut[0] <= judged.accepted.sum() <= accepted
    assert len(judged.accepted) <= drafted
    assert (judged.accepted == (judged.uniform < judged.threshold)).all()
    assert judged.previous_uniform[0] == 0.5
    assert (judged.previous_uniform[1:] == judged.uniform[:-1]).all()
    assert not judged.impossible.any()
    assert len(judged.residual_pit) == (~judged.accepted).sum()


def test_sums_are_the_logs_of_their_bets(world: World) -> None:
    """Also of the steepest ones, which are multiplied before a logarithm is taken."""
    u = np.random.default_rng(0).random(500)
    all_of, none = Ragged([500]), Ragged([0])
    some, nothing = bets.pit_sums([(all_of, u), (none, u[:0])])
    np.testing.assert_allclose(some[0], np.log(bets.pit_bets(legendre(u))).sum(0), rtol=0, atol=1e-11)
    assert not nothing.any()
    refused, sure = np.zeros(500, dtype=bool), np.ones(500)
    deviations = bets.deviations(refused, sure)
    every, below, surely = bets.accept_sums(all_of, refused, sure)
    np.testing.assert_allclose(every[0], np.log(bets.accept_bets(deviations)).sum(0), rtol=1e-12)
    np.testing.assert_allclose(surely[0], np.log(bets.certain_bets(deviations[:, 1])).sum(0), rtol=1e-12)
    assert not below.any()
    ratios = np.array([[25.0, -30.0], [1.0, 0.0]] * 100)
    np.testing.assert_allclose(bets.ratio_sums(Ragged([200]), ratios).reshape(2, -1), log_bets(ratios).sum(0), rtol=1e-12)


def test_greedy_and_failed_pairs_add_nothing(world: World) -> None:
    context, part = context_of(DrafterKind.DENSE), Components()
    pair = pair_of(Engine(world, DrafterKind.DENSE).run(1, 4), 0, 0, (0,))
    assert part.increments(context, pair).any()
    assert not part.increments(context, replace(pair, stratum=Stratum.GREEDY)).any()
    assert not part.increments(context, replace(pair, candidate=replace(pair.candidate, trace=None))).any()


def test_counts_are_rates() -> None:
    context, part = context_of(DrafterKind.DENSE), Components()
    names = part.names(context)
    values = np.zeros(len(names))
    values[names.index("resv.impossible")], values[names.index("resv.recovered")] = 4.0, 60.0
    values[names.index("acc_over.accepted_against_rule")], values[names.index("acc_over.judged")] = 5.0, 300.0
    found = part.log_e(context, values)
    assert found["resv"] == rate_above(4.0, 60.0, 0.005)
    assert found["acc_over"] == rate_above(5.0, 300.0, 1e-3)


@pytest.mark.parametrize("kind", list(DrafterKind))
def test_an_exact_engine_does_not_alarm(world: World, kind: DrafterKind) -> None:
    """Eight runs, looked at after every request: an e-process passes 100 in at most 1 % of them, so 2 of about 70 may."""
    part, context, alarms, rows = Components(), context_of(kind), 0, 8
    run = Engine(world, kind).run(rows * REQUESTS, 77)
    increments = np.array([part.increments(context, pair_of(run, i, i, (0,))) for i in range(rows * REQUESTS)])
    for one in increments.reshape(rows, REQUESTS, -1):
        found = part.log_e(context, np.cumsum(one, axis=0))
        alarms += sum(float(np.max(value)) >= math.log(100) for value in found.values())
        assert max(float(np.max(found[key])) for key in ("acc_over", "acc_under", "resv")) <= 0  # these cannot happen at all
    assert alarms <= 2


# fault -> (drafter kinds, the test that it is for): a wealth of 1e4 within 1,152 tokens
SEEN = {
    "greedy_draft_softmax_q": ((DrafterKind.DENSE,), "draft_pit"),
    "uniform_zero": (tuple(DrafterKind), "acc_over"),
    "resample_from_target": (tuple(DrafterKind), "resv"),
    "residual_argmax": (tuple(DrafterKind), "res"),
    "accept_iff_argmax": (tuple(DrafterKind), "acc_under"),
    "accept_if_equal": ((DrafterKind.DENSE,), "resv"),
    "typical_acceptance": (tuple(DrafterKind), "acc"),
    "generous_acceptance": (tuple(DrafterKind), "acc_over"),
    "bonus_from_draft": ((DrafterKind.DENSE,), "bonus"),
}


@pytest.mark.parametrize(("kind", "fault"), [(kind, fault) for fault, (kinds, _) in SEEN.items() for kind in kinds])
def test_faults_are_seen_by_the_test_that_is_for_them(world: World, kind: DrafterKind, fault: str) -> None:
    found = log_e(Engine(world, kind, fault).run(REQUESTS, 9), kind)
    assert found[SEEN[fault][1]] >= math.log(1e4), found


def pit_sums(u: np.ndarray) -> np.ndarray:
    return bets.pit_sums([(Ragged([len(u)]), u)])[0]


def stuck(uniform: np.ndarray) -> np.ndarray:
    return np.full_like(uniform, 0.37)


def repeated(uniform: np.ndarray) -> np.ndarray:
    return np.repeat(uniform[::4], 4)[: len(uniform)]


@pytest.mark.parametrize("change", [stuck, repeated])
def test_degenerate_uniforms_are_seen(change: object) -> None:
    rng = np.random.default_rng(2)
    uniform = rng.random(400)
    assert pit_sums(uniform).max() < math.log(100)
    changed = change(uniform)  # type: ignore[operator]
    before = np.concatenate([[0.5], changed])[:-1]
    groups = [pit_sums(changed), bets.tie_sums(Ragged([400]), changed, [before])]
    assert max(float(group.max()) for group in groups) > math.log(1e6)


def test_a_uniform_that_the_draft_used_is_seen() -> None:
    rng = np.random.default_rng(3)
    uniform = rng.random(400)
    mid = np.clip(uniform + rng.uniform(-0.15, 0.15, 400), 0, 1)  # the draft stands about where its uniform pointed
    assert bets.tie_sums(Ragged([400]), uniform, [mid]).max() > math.log(1e6)
    assert bets.tie_sums(Ragged([400]), rng.random(400), [mid]).max() < math.log(100)


def test_judgements_that_are_none_add_nothing() -> None:
    nothing = Ragged(np.zeros(1, dtype=np.int64))
    for sums in bets.accept_sums(nothing, np.zeros(0, dtype=bool), np.zeros(0)):
        assert sums.shape[0] == 1
        assert not sums.any()
