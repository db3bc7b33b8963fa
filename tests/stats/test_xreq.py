"""The test across requests: fair by enumeration, quiet on exact engines, loud when every request starts from the same seed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from canary.domain.pairs import DrafterKind
from canary.domain.traffic import Stratum
from canary.engine.sampling import draw
from canary.engine.verify import verify
from canary.stats.xreq import NUM_SCORES, THETAS, Xreq, scores
from tests.bench.worlds import context_after, make
from tests.stats.world import LENGTH, Engine, World, columns_of, context_of, pair_of

CONTEXT = context_of(DrafterKind.DENSE)
PART = Xreq()


def mid(row: np.ndarray, token: int) -> float:
    return float(row[:token].sum() + row[token] / 2)


def raw(mids: list[float]) -> np.ndarray:
    return np.concatenate([[1.0], scores(np.array(mids))])


def some_rows(rng: np.random.Generator, count: int) -> list[np.ndarray]:
    """Rows of three tokens: ordinary, nearly certain, certain, with zeros."""
    found = [rng.dirichlet([a] * 3) for a in (1.0, 0.05) for _ in range(count)]
    return [*found, np.array([1.0, 0, 0]), np.array([0, 1.0, 0]), np.array([0.5, 0, 0.5]), np.array([0.0, 1e-9, 1 - 1e-9])]


def test_given_the_request_before_every_bet_has_mean_one() -> None:
    rng = np.random.default_rng(0)
    rows = some_rows(rng, 30)
    for _ in range(150):
        pair = [rows[i] for i in rng.integers(len(rows), size=3)]
        carry = raw(rng.random(3).tolist())
        mean = np.zeros(len(THETAS))
        for tokens in product(range(3), repeat=3):
            weight = np.prod([row[t] for row, t in zip(pair, tokens, strict=True)])
            if weight > 0:
                added, _ = PART.chain(CONTEXT, raw([mid(r, t) for r, t in zip(pair, tokens, strict=True)])[None], carry)
                mean += weight * np.exp(added[0, :-1])
        assert np.abs(mean - 1).max() < 1e-12


def test_a_bet_on_the_emitted_token_would_be_caught() -> None:
    row, carry = np.array([0.2, 0.8]), raw([0.9])
    unfair = sum(row[t] * np.exp(PART.chain(CONTEXT, raw([min(1.0, mid(row, t) + 0.1)])[None], carry)[0][0]) for t in range(2))
    assert np.abs(unfair[:-1] - 1).max() > 0.01


def test_deterministic_rows_and_a_first_request_say_nothing() -> None:
    sure = raw([mid(np.array([0, 1.0, 0]), 1)] * NUM_SCORES)
    assert not sure[1:].any()
    some = raw(np.random.default_rng(0).random(200).tolist())
    added, carry = PART.chain(CONTEXT, np.stack([some, sure, some]), PART.first_carry(CONTEXT))
    assert not added[:, :-1].any()
    assert added[:, -1].tolist() == [0, 1, 1]
    assert (carry == some).all()


def test_pairs_without_scores_are_passed_over() -> None:
    rng = np.random.default_rng(1)
    first, second, nothing = raw(rng.random(50).tolist()), raw(rng.random(90).tolist()), np.zeros(1 + NUM_SCORES)
    direct, carry = PART.chain(CONTEXT, np.stack([first, second]), PART.first_carry(CONTEXT))
    around, same = PART.chain(CONTEXT, np.stack([first, nothing, nothing, second, nothing]), PART.first_carry(CONTEXT))
    assert (around[3] == direct[1]).all()
    assert not around[[1, 2, 4]].any()
    assert (same == carry).all()
    quiet, kept = PART.chain(CONTEXT, np.stack([nothing, nothing]), carry)
    assert not quiet.any()
    assert kept is carry


def test_what_a_pair_stores() -> None:
    run = Engine(World.make(), DrafterKind.DENSE).run(2, 5)
    pair = pair_of(run, 0, 0, (0,))
    found = PART.increments(CONTEXT, pair)
    assert found.shape == (len(PART.raw_names(CONTEXT)),)
    assert found[0] == 1
    assert (found[1 : LENGTH + 1] == scores(run.columns["pit_mid"][0].astype(np.float64))[:LENGTH]).all()
    assert not found[LENGTH + 1 :].any()
    for silent in (replace(pair, stratum=Stratum.GREEDY), replace(pair, candidate=replace(pair.candidate, error="boom"))):
        assert not PART.increments(CONTEXT, silent).any()


def exact_peaks(runs: int, requests: int, seed: int) -> np.ndarray:
    """Largest log of the e-process in runs on exact draws; rows of eight tokens, most of them with little choice."""
    rng, peaks = np.random.default_rng(seed), []
    for _ in range(runs):
        rows = rng.dirichlet([0.15] * 8, size=(requests, 64))  # [requests, tokens, 8]
        tokens = (rng.random((requests, 64, 1)) > rows.cumsum(-1)).sum(-1).clip(max=7)[..., None]
        at = np.take_along_axis(rows, tokens, -1)[..., 0]
        below = np.take_along_axis(rows.cumsum(-1), tokens, -1)[..., 0] - at
        table = np.stack([raw(row.tolist()) for row in below + at / 2])
        sums = PART.chain(CONTEXT, table, PART.first_carry(CONTEXT))[0].cumsum(0)
        peaks.append(np.max(PART.log_e(CONTEXT, sums)["xreq"]))
    return np.array(peaks)


def test_an_exact_engine_is_hardly_ever_accused() -> None:
    # At the nominal 1 %, 120 runs give five or more alarms with probability .008.
    assert (exact_peaks(120, 40, seed=2) >= np.log(100)).sum() <= 4


@pytest.mark.prove
def test_an_exact_engine_is_hardly_ever_accused_at_full_size() -> None:
    assert (exact_peaks(2000, 100, seed=3) >= np.log(100)).sum() <= 33  # 1 % and three standard errors


def requests_to_find_a_reset(world: World, runs: int, limit: int, seed: int) -> list[int | None]:
    """Requests until the e-process reaches 100 where every request of a run draws the same number at the same position.

    One position at a time: a draft, `verify`, and the token that comes out first; numbers are keyed by position, as the engine's.
    """
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(0, 1 << 30, (runs * limit,), generator=generator)
    last, mids = torch.zeros(len(prompts), 2, dtype=torch.int64), []
    for _ in range(LENGTH):
        drafted, judged, recovered = torch.rand(3, runs, generator=generator, dtype=torch.float64).repeat_interleave(limit, 1)
        now = context_after(prompts, last)
        draft = draw(world.draft[now], drafted).tokens[:, None]
        following = context_after(prompts, torch.stack([last[:, 1], draft[:, 0]], 1))
        rows, ones = world.target[torch.stack([now, following], 1)], torch.ones_like(prompts)
        found = verify(rows, draft, ones, world.draft[now][:, None], judged[:, None], recovered[:, None].expand(-1, 2))
        token = torch.where(found.num_accepted > 0, draft[:, 0], found.next_token)
        row = world.target[now].double()
        at = row.gather(1, token[:, None])[:, 0]
        mids.append(row.cumsum(1).gather(1, token[:, None])[:, 0] - at / 2)
        last = torch.stack([last[:, 1], token], 1)
    table = torch.stack(mids, 1).numpy().reshape(runs, limit, LENGTH)
    crossed = []
    for run in table:
        added, _ = PART.chain(CONTEXT, np.stack([raw(request.tolist()) for request in run]), PART.first_carry(CONTEXT))
        over = np.flatnonzero(np.asarray(PART.log_e(CONTEXT, added.cumsum(0))["xreq"]) >= np.log(100))
        crossed.append(int(over[0]) + 1 if over.size else None)
    return crossed


@pytest.mark.parametrize(("name", "tokens"), [("A", 1_008), ("B", 2_304)])
def test_a_seed_that_is_reset_at_every_request_is_found_within_twice_the_published_tokens(name: str, tokens: int) -> None:
    torch.set_num_threads(1)
    found = requests_to_find_a_reset(make(name), 10, 2 * tokens // LENGTH, seed=4)
    assert sum(at is not None for at in found) >= 6, found


def test_scores_of_one_request_do_not_depend_on_another() -> None:
    run = Engine(World.make(), DrafterKind.ONE_HOT).run(3, 9)
    assert columns_of(run, 1).num_tokens == LENGTH
    one, other = (PART.increments(CONTEXT, pair_of(run, i, i, (0,))) for i in (1, 2))
    assert (one != other).any()
