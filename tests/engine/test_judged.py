"""Columns of judged drafts, recovered and bonus tokens equal brute force, and are bets and uniforms under an exact engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from canary.domain.pairs import TILTS, Provenance
from canary.engine.judged import draft_ranks, recovered, threshold
from canary.engine.trace import EmittedRows, trace_rows
from canary.engine.verify import verify
from tests.engine.test_trace import VOCAB, every_token, normalised, odd_rows, pairs_of_rows

EXACT = 1e-12


def residual(target: Tensor, draft: Tensor | None, drafts: Tensor) -> Tensor:
    """norm(max(p - q, 0)) straight from the specification, p where it has no mass: [R, VOCAB]."""
    q = torch.nn.functional.one_hot(drafts, target.shape[1]).to(target.dtype) if draft is None else draft
    left = (target - q).clamp_min(0.0) if draft is not None else torch.where(q > 0, 0.0, target)
    return normalised(left, target / target.sum(1, keepdim=True))


def of_every_token(target: Tensor, other: Tensor, *, dense: bool, provenance: Provenance, v: float = 0.0) -> EmittedRows:
    rows = every_token(target, other, dense=dense)
    count = len(rows.tokens)
    return replace(
        rows,
        provenance=torch.full((count,), int(provenance)),
        pit_uniforms=torch.full((count,), v, dtype=torch.float64),
    )


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one_hot"])
def test_the_threshold_is_the_rules_whatever_a_verifier_says(dense: bool) -> None:
    target, other = pairs_of_rows()
    for token in range(VOCAB):
        drafts = torch.full((len(target),), token)
        p = target[:, token]
        q = other[:, token] if dense else torch.ones_like(p)
        wanted = torch.where(q > 0, p / q, 0.0).clamp_max(1.0)
        assert torch.equal(threshold(target, other if dense else None, drafts), wanted)


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one_hot"])
def test_the_threshold_is_the_one_that_verify_used(dense: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    target = (3 * torch.randn(400, 2, 50, generator=generator)).softmax(-1)
    draft = (3 * torch.randn(400, 1, 50, generator=generator)).softmax(-1)
    drafts = torch.randint(0, 50, (400, 1), generator=generator)
    uniforms = torch.rand(400, 3, generator=generator, dtype=torch.float64)
    found = verify(target, drafts, torch.ones(400).long(), draft if dense else None, uniforms[:, :1], uniforms[:, 1:])
    own = threshold(target[:, 0], draft[:, 0] if dense else None, drafts[:, 0])
    assert torch.allclose(own, found.accept_threshold[:, 0].double(), rtol=1e-6, atol=0)
    assert torch.equal(found.num_accepted == 1, uniforms[:, 0] < own)


def test_the_draft_pit_tiles_the_unit_interval_likeliest_first() -> None:
    rows = torch.cat([odd_rows(2), torch.tensor([[0.2, 0.2, 0.3, 0.2, 0.1, 0.0, 0.0]], dtype=torch.float64)])
    for row in rows:
        spread, tokens = row.repeat(VOCAB, 1), torch.arange(VOCAB)
        zero, one = (torch.full((VOCAB,), v, dtype=torch.float64) for v in (0.0, 1.0))
        start, mid = draft_ranks(spread, tokens, zero)
        end, _ = draft_ranks(spread, tokens, one)
        for token in range(VOCAB):
            above, equal = row[row > row[token]].sum(), row[row == row[token]].sum()
            assert start[token] == pytest.approx(above.item(), abs=EXACT)
            assert end[token] == pytest.approx((above + equal).item(), abs=EXACT)
            assert mid[token] == pytest.approx((row[:token].sum() + row[token] / 2).item(), abs=EXACT)


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one_hot"])
def test_every_tilt_of_the_residual_is_a_bet(dense: bool) -> None:
    target, other = pairs_of_rows()
    columns = trace_rows(of_every_token(target, other, dense=dense, provenance=Provenance.RECOVERED), want_tv=False)
    ratios = columns["residual_log_ratio"].exp().view(-1, VOCAB, len(TILTS))
    truth = residual(target, other if dense else None, other.argmax(1))
    means = (truth[:, :, None] * ratios).sum(1)
    assert means.max().item() <= 1 + EXACT
    assert ratios.isfinite().all()
    inert = {"draft_up", "shared_noise"} if not dense else set()
    for at, name in enumerate(TILTS):
        moves = (ratios[:, :, at] - 1).abs().max().item() > 1e-6
        assert moves is (name not in inert), name
        if moves:
            assert means[:, at].min().item() > 1 - 1e-6, name


def test_tilts_equal_brute_force() -> None:
    p = torch.tensor([[0.5, 0.3, 0.15, 0.05, 0.0]], dtype=torch.float64)
    q = torch.tensor([[0.2, 0.1, 0.65, 0.04, 0.01]], dtype=torch.float64)
    res = torch.tensor([0.3, 0.2, 0.0, 0.01, 0.0], dtype=torch.float64) / 0.51
    weights = {
        "draft_up": q[0].sqrt(),
        "target_up": p[0].sqrt(),
        "target_down": 1 / p[0].clamp_min(1e-6).sqrt(),
        "shared_noise": torch.exp(-0.3 * torch.tensor([0.2 / 0.3, 0.5, 20.0, 4.0, 20.0], dtype=torch.float64)),
        "argmax": torch.tensor([1.0, 0, 0, 0, 0], dtype=torch.float64),
    }
    tokens = torch.arange(5)
    none = torch.zeros(5, dtype=torch.float64)
    found, pit = recovered(p.repeat(5, 1), q.repeat(5, 1), none.long() + 2, tokens, none)
    for at, name in enumerate(TILTS):
        wanted = weights[name] / (res * weights[name]).sum()
        assert found[[0, 1, 3], at].tolist() == pytest.approx(wanted[[0, 1, 3]].tolist()), name
        assert found[[2, 4], at].tolist() == [1.0, 1.0], name  # the residual excludes them: that is another test's finding
    assert pit.tolist() == pytest.approx([0, 0.3 / 0.51, 0.5 / 0.51, 0.5 / 0.51, 1.0])


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one_hot"])
def test_the_residual_pit_tiles_the_unit_interval(dense: bool) -> None:
    target, other = pairs_of_rows()
    truth = residual(target, other if dense else None, other.argmax(1))
    given = (
        trace_rows(of_every_token(target, other, dense=dense, provenance=Provenance.RECOVERED, v=v), want_tv=False)
        for v in (0, 1)
    )
    start, end = (columns["residual_pit"].view(-1, VOCAB) for columns in given)
    assert torch.allclose(end - start, truth, rtol=0, atol=EXACT)
    assert torch.allclose(start, truth.cumsum(1) - truth, rtol=0, atol=EXACT)


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one_hot"])
@pytest.mark.parametrize("excess", [1.0, 3.0])
def test_the_last_draft_row_is_a_bet_at_bonus_positions(dense: bool, excess: float) -> None:
    """Also where the reported row has more than unit mass."""
    target, other = pairs_of_rows()
    count = len(target)
    drafts = other.argmax(1)
    means = torch.zeros(count, dtype=torch.float64)
    for token in range(VOCAB):  # the drafted position first, then its bonus
        rows = of_every_token(target[:1], other[:1], dense=dense, provenance=Provenance.ACCEPTED)
        both = torch.stack([target, target], 1).flatten(0, 1)
        judged = torch.tensor([True, False]).repeat(count)
        columns = trace_rows(
            replace(
                rows,
                owner=torch.arange(count).repeat_interleave(2),
                tokens=torch.stack([drafts, torch.full_like(drafts, token)], 1).flatten(),
                target_probs=both,
                position_in_round=torch.tensor([0, 1]).repeat(count),
                provenance=torch.where(judged, int(Provenance.ACCEPTED), int(Provenance.BONUS)),
                drafted=judged,
                greedy=torch.zeros_like(judged),
                pit_uniforms=torch.zeros(2 * count, dtype=torch.float64),
                draft_tokens=drafts.repeat_interleave(2),
                accept_uniform=torch.zeros(2 * count),
                previous_probs=both,
                has_previous=judged,
                draft_probs=torch.stack([other * excess, torch.zeros_like(other)], 1).flatten(0, 1) if dense else None,
                unfiltered_probs=None,
            ),
            want_tv=False,
        )
        found = columns["bonus_log_ratio"].view(count, 2)
        assert not found[:, 0].any()
        means += target[:, token] * found[:, 1].exp()
        if dense and excess == 1.0:
            sure = (target[:, token] > 1e-9) & (other[:, token] > 1e-9)
            wanted = (other[:, token] / target[:, token]).clamp_max(1e9)
            assert torch.allclose(found[sure, 1].exp(), wanted[sure], rtol=1e-6, atol=2e-9)
    assert means.max().item() <= 1 + EXACT


def test_columns_are_empty_where_they_say_nothing() -> None:
    target, other = pairs_of_rows()
    for provenance in (Provenance.PLAIN, Provenance.BONUS):
        rows = of_every_token(target, other, dense=True, provenance=provenance)
        columns = trace_rows(replace(rows, drafted=torch.zeros_like(rows.drafted)), want_tv=False)
        for name in ("accept_threshold", "accept_uniform", "draft_pit", "draft_mid", "residual_pit"):
            assert columns[name].isnan().all(), name
        assert not columns["residual_log_ratio"].any()
        assert not columns["bonus_log_ratio"].any()  # no judged draft of the same request stands before it
    one_hot = trace_rows(of_every_token(target, other, dense=False, provenance=Provenance.RECOVERED), want_tv=False)
    assert one_hot["draft_pit"].isnan().all()
    assert not np.isnan(one_hot["residual_pit"].numpy()).any()
