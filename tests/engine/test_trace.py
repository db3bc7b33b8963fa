"""The trace is exact: every bet has mean at most 1 under the row, PIT values are uniform, distances equal brute force."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from canary.domain.pairs import ALTERNATIVES, TRACE_COLUMNS, Provenance
from canary.engine.sampling import draw
from canary.engine.trace import EmittedRows, logit_gap, row_distance, trace_rows

VOCAB = 7
LIMIT = float(np.log(1e9))
DRAFT_BUILT = ("draft", "residual", "over_rejection", "typical", "shared_noise")


def odd_rows(seed: int) -> Tensor:
    """Random rows and every kind of degenerate one: [R, VOCAB] float64."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2.5 * torch.randn(12, VOCAB, generator=generator, dtype=torch.float64)
    logits[4:8].masked_fill_(torch.rand(4, VOCAB, generator=generator) < 0.5, -torch.inf)
    logits[4:8, 2] = 1.0
    logits[8:] *= 20  # masses down to 1e-60
    certain = torch.eye(VOCAB, dtype=torch.float64)[[0, 3, VOCAB - 1]]
    even = torch.full((1, VOCAB), 1 / VOCAB, dtype=torch.float64)
    tied = torch.tensor([[0.0, 0.27, 0.27, 0.27, 0.11, 0.08, 0.0]], dtype=torch.float64)
    tiny = torch.tensor([[1 - 3e-17, 1e-17, 0, 2e-17, 0, 0, 1e-300]], dtype=torch.float64)
    return torch.cat((logits.softmax(-1), certain, even, tied, tiny))


def every_token(target: Tensor, other: Tensor, *, dense: bool, drafts: Tensor | None = None) -> EmittedRows:
    """Each of R rows with each of VOCAB emitted tokens: N = R * VOCAB."""
    rows, vocab = target.shape
    count = rows * vocab
    if drafts is None:
        drafts = other.argmax(1)
    return EmittedRows(
        owner=torch.zeros(count, dtype=torch.int64),
        tokens=torch.arange(vocab).repeat(rows),
        target_probs=target.repeat_interleave(vocab, 0),
        position_in_round=torch.zeros(count, dtype=torch.int64),
        provenance=torch.full((count,), int(Provenance.ACCEPTED)),
        drafted=torch.ones(count, dtype=torch.bool),
        greedy=torch.zeros(count, dtype=torch.bool),
        pit_uniforms=torch.zeros(count, dtype=torch.float64),
        draft_tokens=drafts.repeat_interleave(vocab),
        accept_uniform=torch.full((count,), 0.25),
        previous_probs=other.roll(1, 0).repeat_interleave(vocab, 0),
        has_previous=torch.ones(count, dtype=torch.bool),
        draft_probs=other.repeat_interleave(vocab, 0) if dense else None,
        unfiltered_probs=other.roll(2, 0).repeat_interleave(vocab, 0),
    )


def pairs_of_rows() -> tuple[Tensor, Tensor]:
    """All (target row, draft row) pairs, equal ones included."""
    rows = odd_rows(1)
    many = len(rows)
    return rows.repeat_interleave(many, 0), torch.cat((odd_rows(2)[:-3], rows[-3:])).repeat(many, 1)


def normalised(row: Tensor, fallback: Tensor) -> Tensor:
    total = row.sum(1, keepdim=True)
    return torch.where(total > 0, row / total.clamp_min(1e-320), fallback)


def brute_force(rows: EmittedRows) -> dict[str, Tensor]:
    """Every alternative as a whole row, straight from the specification: [N, VOCAB] each."""
    p = rows.target_probs / rows.target_probs.sum(1, keepdim=True)
    one_hot = torch.nn.functional.one_hot(rows.draft_tokens, p.shape[1]).to(p.dtype)
    q = one_hot if rows.draft_probs is None else rows.draft_probs
    common = torch.minimum(p, q)
    lost = 1 - common.sum(1, keepdim=True)
    res = (p - q).clamp_min(0)
    s = torch.where(p > 0.1, 1.0, torch.where(q > 0, p / q, 1.0).clamp_max(1))
    lean = torch.where(res > 0, torch.exp(-0.3 * (q / res).clamp_max(20)), 0.0)
    assert rows.unfiltered_probs is not None
    return {
        "draft": q,
        "residual": common + lost * p,
        "over_rejection": normalised(res, p),
        "typical": q * s + (1 - (q * s).sum(1, keepdim=True)) * normalised(res, p),
        "shared_noise": common + lost * normalised(res * lean, p) if rows.draft_probs is not None else p,
        "cold": p**1.5 / (p**1.5).sum(1, keepdim=True),
        "hot": p**0.67 / (p**0.67).sum(1, keepdim=True),
        "argmax": torch.nn.functional.one_hot(p.argmax(1), p.shape[1]).to(p.dtype),
        "unfiltered": rows.unfiltered_probs,
        "shift": rows.previous_probs,
    }


@pytest.mark.parametrize("kind", ["dense", *range(VOCAB)])
def test_every_bet_has_mean_at_most_one(kind: str | int) -> None:
    target, other = pairs_of_rows()
    drafts = torch.full((len(target),), kind) if isinstance(kind, int) else None
    rows = every_token(target, other, dense=kind == "dense", drafts=drafts)
    ratios = trace_rows(rows, want_tv=False)["log_ratio"].exp()
    means = (rows.target_probs.flatten().view(-1, VOCAB)[::VOCAB, :, None] * ratios.view(-1, VOCAB, len(ALTERNATIVES))).sum(1)
    assert means.max().item() <= 1 + 1e-12
    lowest = dict(zip(ALTERNATIVES, means.min(0).values.tolist(), strict=True))
    if kind != "dense":  # closed forms lose nothing but what the target rules out
        assert all(lowest[name] > 1 - 1e-8 for name in ("residual", "typical", "shared_noise", "hot", "cold", "argmax"))


def test_a_planted_invalid_bet_is_seen() -> None:
    """The plain clip of small ratios, which the mixture replaces, would push a mean over 1."""
    target = torch.tensor([[0.5, 0.5 - 1e-6, 1e-6, 0, 0, 0, 0]], dtype=torch.float64)
    ratios = torch.tensor([[2.0, 0, 0, 0, 0, 0, 0]], dtype=torch.float64).clamp_min(1e-9)
    assert (target * ratios).sum().item() > 1 + 1e-12


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one_hot"])
def test_ratios_and_distances_equal_brute_force(dense: bool) -> None:
    target, other = pairs_of_rows()
    rows = every_token(target, other, dense=dense)
    columns = trace_rows(rows, want_tv=True)
    p = target.repeat_interleave(VOCAB, 0).gather(1, rows.tokens[:, None])[:, 0]
    spread = torch.arange(len(p)) // VOCAB
    telling = (p > 1e-12) & ((target * target).sum(1) < 1 - 1e-9)[spread]  # the brute force cancels on nearly certain rows
    assert telling.sum() > 500
    for column, (name, row) in enumerate((name, brute_force(rows)[name]) for name in ALTERNATIVES):
        wanted = (row.gather(1, rows.tokens[:, None])[:, 0] / p)[telling].clamp(1e-9, 1e9)
        found = columns["log_ratio"][telling, column].exp()
        assert torch.allclose(found, wanted, rtol=1e-6, atol=2e-9), name
        distance = (row - rows.target_probs).abs().sum(1) / 2
        assert torch.allclose(columns["tv"][:, column], distance, rtol=0, atol=1e-12), name


def test_one_hot_equals_dense_with_a_one_hot_row() -> None:
    target, other = pairs_of_rows()
    rows = every_token(target, other, dense=False)
    as_dense = replace(rows, draft_probs=torch.nn.functional.one_hot(rows.draft_tokens, VOCAB).to(torch.float64))
    closed, general = trace_rows(rows, want_tv=True), trace_rows(as_dense, want_tv=True)
    possible = target.flatten() > 1e-12
    sure = (target.max(1).values > 1 - 1e-12).repeat_interleave(VOCAB)
    for name in ("log_ratio", "tv", "pit_id", "pit_ratio", "pit_mid", "log_prob"):
        keep = possible & ~sure
        assert torch.allclose(closed[name][keep].exp(), general[name][keep].exp(), rtol=1e-6, atol=1e-8), name


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one_hot"])
@pytest.mark.parametrize("column", ["pit_id", "pit_ratio"])
def test_pit_values_are_uniform(dense: bool, column: str) -> None:
    """Given V uniform, U is uniform iff the intervals [start, start + p(x)] of the tokens tile [0, 1]."""
    target, other = pairs_of_rows()
    rows = every_token(target, other, dense=dense)
    starts = trace_rows(rows, want_tv=False)[column].view(-1, VOCAB)
    ends = trace_rows(replace(rows, pit_uniforms=torch.ones(len(rows.tokens), dtype=torch.float64)), want_tv=False)[column].view(
        -1, VOCAB
    )
    assert torch.allclose(ends - starts, target, rtol=0, atol=1e-14)
    heavy = target > 1e-13
    for start, end, real in zip(starts, ends, heavy, strict=True):
        order = start[real].argsort()
        assert torch.allclose(
            torch.cat((start[real][order], torch.ones(1).double())),
            torch.cat((torch.zeros(1).double(), end[real][order])),
            atol=1e-12,
        )


def test_pit_orders_are_by_id_and_by_ratio_with_ties_by_id() -> None:
    target = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    draft = torch.tensor([[0.2, 0.1, 0.15, 0.55]], dtype=torch.float64)  # q/p: 2, .5, .5, 1.375
    dense = trace_rows(every_token(target, draft, dense=True), want_tv=False)
    assert dense["pit_id"].tolist() == pytest.approx([0, 0.1, 0.3, 0.6])
    assert dense["pit_mid"].tolist() == pytest.approx([0.05, 0.2, 0.45, 0.8])
    assert dense["pit_ratio"].tolist() == pytest.approx([0.9, 0, 0.2, 0.5])
    one_hot = trace_rows(every_token(target, draft, dense=False, drafts=torch.tensor([1])), want_tv=False)
    assert one_hot["pit_ratio"].tolist() == pytest.approx([0, 0.8, 0.1, 0.4])


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one_hot"])
def test_inert_places_are_zero(dense: bool) -> None:
    target, other = pairs_of_rows()
    rows = every_token(target, other, dense=dense)
    off = torch.zeros_like(rows.drafted)
    columns = trace_rows(replace(rows, drafted=off, has_previous=off, unfiltered_probs=None), want_tv=True)
    for name in (*DRAFT_BUILT, "unfiltered", "shift"):
        index = ALTERNATIVES.index(name)
        assert not columns["log_ratio"][:, index].any(), name
        assert not columns["tv"][:, index].any(), name
    assert torch.equal(columns["pit_ratio"], columns["pit_id"])
    assert columns["accept_threshold"].isnan().all()
    assert columns["accept_uniform"].isnan().all()
    greedy = trace_rows(replace(rows, greedy=~off), want_tv=True)
    assert not greedy["log_ratio"].any()
    assert not greedy["tv"].any()
    without = trace_rows(rows, want_tv=False)
    assert not without["tv"].any()
    assert without["log_ratio"].any()


def test_columns_stay_finite_and_within_the_limits() -> None:
    target, other = pairs_of_rows()
    for dense in (True, False):
        for dtype in (torch.float64, torch.float32):
            columns = trace_rows(every_token(target.to(dtype), other.to(dtype), dense=dense), want_tv=True)
            assert set(columns) == set(TRACE_COLUMNS)
            nowhere = {"residual_pit"} if dense else {"residual_pit", "draft_pit", "draft_mid"}  # nothing was recovered
            assert all(column.isfinite().all() for name, column in columns.items() if name not in nowhere)
            assert all(columns[name].isnan().all() for name in nowhere)
            assert columns["log_ratio"].abs().max().item() <= LIMIT + 1e-9
            impossible = target.to(dtype).flatten() == 0
            assert (columns["log_ratio"][impossible] >= 0).all()  # what the target rules out is never evidence for it


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one_hot"])
def test_a_reported_row_of_too_much_mass_is_still_no_license(dense: bool) -> None:
    target, other = pairs_of_rows()
    rows = every_token(target, other * 3, dense=dense)
    ratios = trace_rows(replace(rows, has_previous=~rows.drafted, unfiltered_probs=None), want_tv=False)["log_ratio"].exp()
    means = (target[:, :, None] * ratios.view(-1, VOCAB, len(ALTERNATIVES))).sum(1)
    assert means.max().item() <= 1 + 1e-12


def test_float32_rows_stay_close_to_float64() -> None:
    generator = torch.Generator().manual_seed(7)
    logits = 3 * torch.randn(2, 6, 3000, generator=generator)
    target, other = logits.softmax(-1)
    tokens = draw(target, torch.rand(6, generator=generator, dtype=torch.float64)).tokens
    single = replace(
        every_token(target[:, :1], other[:, :1], dense=True), target_probs=target, previous_probs=other, tokens=tokens
    )
    single = replace(single, draft_probs=other, unfiltered_probs=other, draft_tokens=tokens)
    double = replace(single, **{f.name: getattr(single, f.name).double() for f in fields(single) if f.name.endswith("_probs")})
    left, right = trace_rows(single, want_tv=True), trace_rows(double, want_tv=True)
    for name in ("log_ratio", "tv", "pit_id", "pit_ratio", "pit_mid", "log_prob", "max_prob"):
        assert torch.allclose(left[name], right[name], rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one_hot"])
def test_a_row_does_not_depend_on_its_batch(dense: bool) -> None:
    target, other = pairs_of_rows()
    rows = every_token(target.float(), other.float(), dense=dense)
    together = trace_rows(rows, want_tv=True)
    for at in range(0, len(rows.tokens), 211):
        values = {f.name: getattr(rows, f.name) for f in fields(rows)}
        alone = trace_rows(EmittedRows(**{k: None if v is None else v[at : at + 1] for k, v in values.items()}), want_tv=True)
        for name, column in together.items():
            assert torch.equal(column[at : at + 1].nan_to_num(-9), alone[name].nan_to_num(-9)), name


def test_row_distance_and_logit_gap() -> None:
    left, right = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]), torch.tensor([[0.25, 0.25, 0.5], [0.2, 0.3, 0.5]])
    assert row_distance(left, right).tolist() == [0.5, 0.0]
    logits = torch.tensor([[1.0, 3.5, 2.0], [4.0, 0.0, 0.0]]).bfloat16()
    assert logit_gap(logits, torch.tensor([2, 0])).tolist() == [1.5, 0.0]
