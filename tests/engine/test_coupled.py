"""One-hot drafts judged by the target's own draw: the law of token rejection, and answers that do not hang on the drafts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from scipy import stats

from canary.domain.traffic import SamplingParams
from canary.engine.adaptive import AdaptiveK, CostTable
from canary.engine.coupled import verify_coupled
from canary.engine.decode import Decoder
from canary.engine.drafters.adaptive import AdaptiveDrafter
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.forward import RowForward
from canary.engine.hooks import CLEAN
from canary.engine.requests import Job
from canary.engine.sampling import INVALID
from canary.engine.verify import verify
from tests.engine.tiny import prompts, tiny_model

K, SIZE = 2, 4


def rounds(count: int) -> tuple[torch.Tensor, ...]:
    """The same round many times, with fresh uniforms."""
    generator = torch.Generator().manual_seed(3)
    probs = torch.rand(K + 1, SIZE, generator=generator, dtype=torch.float64).softmax(-1).expand(count, -1, -1)
    drafts = torch.tensor([1, 3]).expand(count, -1)
    accept, following = torch.rand(count, K, generator=generator), torch.rand(count, K + 1, generator=generator)
    return probs, drafts, torch.full((count,), K), accept.double(), following.double()


def outcomes(found: object) -> Counter[tuple[int, int]]:
    return Counter(zip(found.num_accepted.tolist(), found.next_token.tolist(), strict=True))  # type: ignore[attr-defined]


def test_outcomes_have_the_law_of_token_rejection() -> None:
    """Of (accepted, next token), enumerated from the rows: p(d1)...p(dj) times the residual, or the bonus row."""
    probs, drafts, lengths, accept, following = rounds(40_000)
    row, (first, second) = probs[0], drafts[0].tolist()
    law = {(0, x): float(row[0, x]) for x in range(SIZE) if x != first}
    law |= {(1, x): float(row[0, first] * row[1, x]) for x in range(SIZE) if x != second}
    law |= {(2, x): float(row[0, first] * row[1, second] * row[2, x]) for x in range(SIZE)}
    assert sum(law.values()) == pytest.approx(1)
    for judge in (verify, verify_coupled):
        seen = outcomes(judge(probs, drafts, lengths, None, accept, following))
        assert set(seen) == set(law)
        assert stats.chisquare([seen[o] for o in law], [law[o] * 40_000 for o in law]).pvalue > 1e-3


def test_the_number_that_a_draft_was_judged_with_is_uniform_and_fits_its_verdict() -> None:
    probs, drafts, lengths, accept, following = rounds(20_000)
    found = verify_coupled(probs, drafts, lengths, None, accept, following)
    assert found.accept_uniforms is not None
    first, threshold = found.accept_uniforms[:, 0], found.accept_threshold[:, 0]
    assert torch.equal(first < threshold, found.num_accepted > 0)
    assert stats.kstest(first.numpy(), "uniform").pvalue > 1e-3
    second = found.accept_uniforms[found.num_accepted > 0, 1]
    assert stats.kstest(second.numpy(), "uniform").pvalue > 1e-3
    # what is recovered says nothing about the number, given that the draft was rejected
    rejected = found.num_accepted == 0
    by_token = [first[rejected & (found.next_token == x)].numpy() for x in range(SIZE) if x != 1]
    assert stats.kruskal(*by_token).pvalue > 1e-3


def test_a_planted_preference_for_drafts_is_seen_in_the_numbers() -> None:
    """A verifier that accepts what was not drawn leaves numbers that are not uniform."""
    probs, drafts, lengths, accept, following = rounds(20_000)
    lucky = torch.where(accept < 0.1, 0.0, 1.0)[:, :1] * following[:, :1]
    found = verify_coupled(probs, drafts * 0, lengths, None, accept, torch.cat([lucky, following[:, 1:]], 1))
    assert found.accept_uniforms is not None
    assert stats.kstest(found.accept_uniforms[:, 0].numpy(), "uniform").pvalue < 1e-6


@pytest.mark.parametrize("length", [0, 1, 2])
def test_only_drafts_inside_the_length_count(length: int) -> None:
    probs, drafts, _, accept, following = rounds(500)
    found = verify_coupled(probs, drafts, torch.full((500,), length), None, accept, following)
    assert int(found.num_accepted.max()) <= length
    assert bool(found.accept_threshold[:, length:].isnan().all())


def test_a_row_that_is_no_distribution_fails_the_request_when_it_is_reached() -> None:
    probs, drafts, lengths, accept, following = rounds(200)
    broken = probs.clone()
    broken[:, 1] = torch.nan
    found = verify_coupled(broken, drafts, lengths, None, accept, following)
    reached = found.num_accepted == 1
    assert bool(reached.any())
    assert bool((found.next_token[reached] == INVALID).all())
    assert bool((found.next_token[~reached] >= 0).all())


def test_sampled_answers_do_not_hang_on_drafts_or_on_company() -> None:
    """k = 0, n-grams of fixed and adaptive k, alone and in batches: one text each."""
    model = tiny_model(eos=False, loopy=True)
    params = SamplingParams(24, temperature=0.3)
    jobs = [Job(i, tuple(ids), params, (5, i)) for i, ids in enumerate(prompts(6, seed=4))]
    costs = CostTable({(n, w): 10.0 + 0.1 * w * n for n in (1, 4) for w in (1, 2, 3, 5)})

    def loop(rows: int, k: int, *, adaptive: bool = False) -> Decoder:
        forward, hooks = RowForward(model, rows), replace(CLEAN, verify=verify_coupled)
        if k == 0:
            return Decoder(forward, None, frozenset())  # type: ignore[arg-type]
        drafter = NgramDrafter(rows, 3)
        asked = AdaptiveDrafter(drafter, AdaptiveK(costs, k, rows)) if adaptive else drafter
        return Decoder(forward, None, frozenset(), asked, k, hooks=hooks, pads=not adaptive)  # type: ignore[arg-type]

    def texts(decoder: Decoder) -> dict[int, list[int]]:
        done = list(decoder.run(jobs))
        assert decoder.k == 0 or sum(sum(r.drafted) for r in done) > 20, "there is something to hang on"
        return {r.job.index: r.token_ids for r in done}

    plain = texts(loop(1, 0))
    for decoder in (loop(1, 4), loop(4, 4), loop(1, 4, adaptive=True), loop(3, 4, adaptive=True)):
        assert texts(decoder) == plain
