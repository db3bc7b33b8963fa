"""What may be bet on where the drafts of a round are judged together: every outcome of a round, with its exact probability."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from canary.domain.pairs import DrafterKind, Scheme
from canary.engine.verify import verify
from canary.stats.battery import Battery, pack
from canary.stats.bets import LAMBDAS
from canary.stats.components import COMPONENTS, Components, _pit_sums, active_components
from canary.stats.judged import judged_of
from canary.stats.pit import log_pit_bets
from canary.stats.xreq import THETAS
from tests.bench.power_block import JudgingEngine
from tests.engine.worlds import Prefix, Rows
from tests.stats.enumerate_block import NODES, WEIGHTS, Outcomes, outcomes
from tests.stats.world import Engine, Item, World, context_of, pair_of

DENSE = DrafterKind.DENSE
VOCAB, K = 3, 2
EXACT = 1e-12


def model(seed: int, sharp: float) -> Rows:
    """A row for every prefix, drawn once from its seed and the prefix."""

    def row(prefix: Prefix) -> torch.Tensor:
        rng = np.random.default_rng([seed, *(token + 1 for token in prefix)])
        return torch.tensor(sharp * rng.standard_normal(VOCAB)).softmax(0)

    return row


WORLDS = [(model(1, 1.0), model(2, 1.0)), (model(5, 0.3), model(6, 2.5)), (model(7, 1.5), model(8, 1.5))]


@pytest.fixture(scope="module", params=range(len(WORLDS)))
def rounds(request: pytest.FixtureRequest) -> list[Outcomes]:
    """The outcomes at each Gauss node of V."""
    torch.set_num_threads(1)
    return [outcomes(*WORLDS[request.param], K, float(v)) for v in NODES]


def histories(found: Outcomes) -> dict[tuple[int, Prefix], np.ndarray]:
    """Everything that is known before a token of the round is drawn -> the outcomes with that past, [outcomes] bool.

    The past is what was emitted before it, all of it accepted drafts: had the round ended, the token would be the next round's.
    """
    pasts = {(at, tokens[:at]) for tokens in found.emitted for at in range(len(tokens))}
    return {(at, past): np.array([len(tokens) > at and tokens[:at] == past for tokens in found.emitted]) for at, past in pasts}


def per_token(found: Outcomes, values: np.ndarray, at: int, where: np.ndarray) -> np.ndarray:
    """The values of the tokens at one position of these outcomes."""
    return values[found.table.tokens.starts[where] + at]


def test_chances_are_those_of_all_outcomes(rounds: list[Outcomes]) -> None:
    assert rounds[0].chances.sum() == pytest.approx(1, abs=EXACT)


def test_given_the_round_so_far_the_next_token_is_the_targets(rounds: list[Outcomes]) -> None:
    """Whole-token bets may know position, provenance and draft row: the round so far says nothing about the next token."""
    found = rounds[0]
    p = np.exp(found.table.column("log_prob"))
    for (at, _), where in histories(found).items():
        mass = found.chances[where].sum()
        shares, probs = {}, {}
        for token, chance, prob in zip(
            [found.emitted[i][at] for i in where.nonzero()[0]], found.chances[where], per_token(found, p, at, where), strict=True
        ):
            shares[token] = shares.get(token, 0.0) + chance / mass
            probs[token] = prob
        assert shares == pytest.approx(probs, abs=EXACT)


def test_bets_on_whole_tokens_are_bets_given_every_past(rounds: list[Outcomes]) -> None:
    found = rounds[0]
    for (at, _), where in histories(found).items():
        chances = found.chances[where] / found.chances[where].sum()
        ratios = np.exp(per_token(found, found.table.column("log_ratio"), at, where))  # [outcomes, alternatives]
        for lam in LAMBDAS:
            assert (chances @ (1 + lam * (ratios - 1)) <= 1 + EXACT).all()
        mid = 2 * per_token(found, found.table.column("pit_mid"), at, where) - 1
        for theta in THETAS:
            assert chances @ (1 + theta * mid) == pytest.approx(1, abs=EXACT)
        for order in ("pit_id", "pit_ratio"):
            means = np.zeros(1)
            for weight, each in zip(WEIGHTS, rounds, strict=True):
                bets = np.exp(log_pit_bets(per_token(each, each.table.column(order), at, where)))
                means = means + weight * (chances @ bets.reshape(len(chances), -1))
            np.testing.assert_allclose(means, 1, rtol=0, atol=EXACT)


def component_means(rounds: list[Outcomes], names: tuple[str, ...], scheme: Scheme) -> dict[str, float]:
    """The largest mean of the bets of every e-process over a round; of counts, the largest number of hits."""
    found: dict[str, float] = {}
    for name in names:
        total: np.ndarray | None = None
        for weight, each in zip(WEIGHTS, rounds, strict=True):
            judged = judged_of(each.table, DENSE, scheme)  # type: ignore[arg-type]
            groups = COMPONENTS[name].increments(judged, DENSE, _pit_sums(judged, names))
            if COMPONENTS[name].rate is not None:
                means = groups[0].max(axis=0)[:1]
            else:
                means = weight * (each.chances @ np.exp(np.concatenate(groups, axis=1)))
            total = means if total is None or COMPONENTS[name].rate is not None else total + means
        assert total is not None
        found[name] = float(total.max())
    return found


def test_component_bets_are_bets_over_every_round(rounds: list[Outcomes]) -> None:
    names = active_components(DENSE, Scheme.BLOCK)
    found = component_means(rounds, names, Scheme.BLOCK)
    assert set(found) == set(COMPONENTS)
    assert all(found[name] == 0 for name in ("acc_over", "acc_under", "resv"))
    assert all(mean <= 1 + EXACT for mean in found.values()), found


def test_the_same_bets_read_as_under_token_rejection_would_be_none() -> None:
    """All verdicts, uniforms and drafts that were emitted or recovered from, each alone, and the residual of token rejection."""
    rounds = [outcomes(*WORLDS[-1], K, float(v), Scheme.TOKEN) for v in NODES]
    found = component_means(rounds, active_components(DENSE, Scheme.TOKEN), Scheme.TOKEN)
    assert found["acc_over"] > 0  # an exact engine would be charged with breaking the rule
    assert min(found[name] for name in ("acc", "acc_uniform", "draft_pit", "res", "res_pit")) > 1 + 1e-3, found
    assert found["bonus"] <= 1 + EXACT


@pytest.fixture(scope="module")
def world() -> World:
    torch.set_num_threads(1)
    return World.make()


def log_e(engine: Engine, requests: int, seed: int) -> dict[str, np.ndarray]:
    """Log of every e-process after every request, [requests]."""
    part, context, run = Components(), context_of(DENSE, scheme=engine.scheme), engine.run(requests, seed)
    rows = [part.increments(context, pair_of(run, i, i, (0,))) for i in range(requests)]
    return {key: np.asarray(value) for key, value in part.log_e(context, np.cumsum(rows, axis=0)).items()}


def test_an_exact_engine_does_not_alarm(world: World) -> None:
    found = log_e(Engine(world, DENSE, scheme=Scheme.BLOCK), 30, 77)
    assert max(float(value.max()) for value in found.values()) < np.log(100)
    assert max(float(found[key].max()) for key in ("acc_over", "acc_under", "resv")) <= 0  # these cannot happen at all


SEEN = {
    "greedy_draft_softmax_q": "draft_pit",
    "uniform_zero": "acc_over",
    "resample_from_target": "resv",
    "residual_argmax": "res",
    "accept_iff_argmax": "acc_under",
    "bonus_from_draft": "bonus",
}


@pytest.mark.parametrize("fault", SEEN)
def test_faults_are_seen_by_the_test_that_is_for_them(world: World, fault: str) -> None:
    found = log_e(Engine(world, DENSE, fault, scheme=Scheme.BLOCK), 16, 9)
    assert found[SEEN[fault]][-1] >= np.log(1e4), {key: float(value[-1]) for key, value in found.items()}


def test_an_engine_that_judges_by_token_is_not_taken_for_one_that_judges_together(world: World) -> None:
    """The declared scheme is tested, not believed."""
    by_token = JudgingEngine(world, DENSE, scheme=Scheme.BLOCK, verifier=verify)
    found = log_e(by_token, 30, 10)
    assert found["acc_under"][-1] > np.log(1e4)


def test_the_verdict_names_what_is_not_tested(world: World) -> None:
    for scheme, kind, told in (
        (Scheme.BLOCK, DENSE, True),
        (Scheme.TOKEN, DENSE, False),
        (Scheme.BLOCK, DrafterKind.ONE_HOT, False),
    ):
        battery = Battery(context_of(kind, scheme=scheme))
        run = Engine(world, kind, scheme=scheme).run(1, 3)
        state = battery.fold(battery.start(), [Item(0, pack(battery.increments(pair_of(run, 0, 0, (0,)))), "", 0.0)])
        gate = battery.assess(state)[0]
        assert ("not_tested" in gate.details) is told
        assert ("Not tested under block verification: acc (single verdicts" in gate.sentence) is told
