"""Verification is exact: the distribution that a round emits is the target's, cell by cell of its uniforms' partition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from canary.domain.traffic import SamplingParams
from canary.engine.rows import Rows
from canary.engine.sampling import INVALID, draw, process
from canary.engine.verify import Verified, verify, verify_greedy
from tests.engine.worlds import VOCAB, emitted, exact, round_distribution, table, total_variation

ROUNDS = [(width, length) for width in (1, 2, 3) for length in range(width + 1)]


def worst(found: dict[tuple[int, ...], float], wanted: dict[tuple[int, ...], float]) -> float:
    return max(abs(found.get(key, 0.0) - wanted.get(key, 0.0)) for key in {*found, *wanted})


@pytest.mark.parametrize(("width", "length"), ROUNDS)
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one_hot"])
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_a_round_emits_the_targets_distribution(width: int, length: int, dense: bool, zeros: float) -> None:
    target, draft = table(11, zeros=zeros), table(12, sharp=0.8, zeros=zeros / 2)
    found = round_distribution(verify, draw, target, draft, width, length, dense)
    assert worst(found, exact(target, width + 1)) < 1e-9


@pytest.mark.parametrize("width", [1, 2, 3])
def test_every_fixed_one_hot_draft_is_exact_by_itself(width: int) -> None:
    """Whatever rule proposed them, also one that knows the prefix: the drafts of an n-gram table are not random at all."""
    target = table(13)
    for token in range(VOCAB):
        drafts = [(token + i * i) % VOCAB for i in range(width)]
        found = emitted(verify, target, drafts, width, None)
        for at in range(width + 1):  # the marginal of each position given that the drafts before it were accepted
            reached = {seq: w for seq, w in found.items() if seq[:at] == tuple(drafts[:at]) and len(seq) > at}
            mass = sum(reached.values())
            for candidate in range(VOCAB):
                share = sum(w for seq, w in reached.items() if seq[at] == candidate) / mass
                assert share == pytest.approx(float(target(tuple(drafts[:at]))[candidate]), abs=1e-9)


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one_hot"])
def test_a_planted_wrong_threshold_is_seen(dense: bool) -> None:
    def generous(
        target_probs: Tensor,
        draft_tokens: Tensor,
        draft_len: Tensor,
        draft_probs: Tensor | None,
        accept: Tensor,
        following: Tensor,
    ) -> Verified:
        return verify(target_probs, draft_tokens, draft_len, draft_probs, accept / 1.1, following)

    target, draft = table(11), table(12, sharp=0.8)
    found = round_distribution(generous, draw, target, draft, 2, 2, dense)
    assert total_variation(found, exact(target, 3)) > 1e-3


def batch(seed: int, rows: int, width: int, vocab: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """(target, drafts, lengths, draft rows, accept uniforms, next uniforms) of a random batch; drafts are often right."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, width + 1, vocab, generator=generator)
    logits[..., 0] += 9
    target = logits.to(dtype).softmax(-1)
    draft = (logits[:, :-1] + torch.randn(rows, width, vocab, generator=generator)).to(dtype).softmax(-1)
    uniforms = torch.rand(rows, 3 * width + 1, generator=generator, dtype=torch.float64)
    tokens = draw(draft.flatten(0, 1), uniforms[:, :width].flatten()).tokens.view(rows, width)
    lengths = torch.randint(0, width + 1, (rows,), generator=generator)
    return target, tokens, lengths, draft, uniforms[:, width : 2 * width], uniforms[:, 2 * width :]


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one_hot"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_does_not_depend_on_its_batch(dense: bool, dtype: torch.dtype) -> None:
    target, tokens, lengths, draft, accept, following = batch(21, 24, 3, 700, dtype)
    together = verify(target, tokens, lengths, draft if dense else None, accept, following)
    assert len(together.num_accepted.unique()) == 4
    for row in range(24):
        one = slice(row, row + 1)
        alone = verify(target[one], tokens[one], lengths[one], draft[one] if dense else None, accept[one], following[one])
        for whole, single in zip(together[:3], alone[:3], strict=True):
            assert torch.equal(whole[one].nan_to_num(-7), single.nan_to_num(-7))


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one_hot"])
def test_only_the_drawn_positions_uniform_and_the_judged_drafts_matter(dense: bool) -> None:
    target, tokens, lengths, draft, accept, following = batch(22, 60, 3, 40)
    clean = verify(target, tokens, lengths, draft if dense else None, accept, following)
    columns = torch.arange(4)
    other = torch.where(columns == clean.num_accepted[:, None], following, 1 - following)
    unread = (columns[:3] >= lengths[:, None]) | (columns[:3] > clean.num_accepted[:, None])
    changed = verify(
        target,
        torch.where(unread, (tokens + 1) % 40, tokens),
        lengths,
        draft.masked_fill(unread[..., None], torch.nan) if dense else None,
        torch.where(unread, 1 - accept, accept),
        other,
    )
    assert torch.equal(clean.num_accepted, changed.num_accepted)
    assert torch.equal(clean.next_token, changed.next_token)
    assert (clean.next_token >= 0).all()
    assert torch.equal(clean.accept_threshold.isnan(), columns[:3] >= lengths[:, None])
    assert torch.equal(clean.accept_threshold[~unread], changed.accept_threshold[~unread])


def test_no_draft_columns_is_a_plain_draw() -> None:
    target, _, _, _, _, following = batch(23, 9, 0, 300)
    empty = torch.zeros(9, 0)
    found = verify(target, empty.long(), torch.zeros(9, dtype=torch.int64), None, empty, following)
    assert torch.equal(found.next_token, draw(target[:, 0], following[:, 0]).tokens)
    assert found.num_accepted.tolist() == [0] * 9


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    target, _, _, _, accept, following = batch(24, 50, 3, 700)
    draft = target[:, :-1].clone()
    tokens = draw(draft.flatten(0, 1), accept.flatten()).tokens.view(50, 3)
    found = verify(target, tokens, torch.full((50,), 3), draft, torch.full_like(accept, 1 - 2**-53), following)
    assert found.num_accepted.tolist() == [3] * 50


def test_a_residual_without_mass_falls_back_to_the_target() -> None:
    row = torch.tensor([0.25, 0.75, 0.0], dtype=torch.float64)
    target = row.expand(1, 2, 3)
    low = row[None, None] * (1 + 2**-50)  # above the target everywhere, by rounding alone
    found = verify(target, torch.tensor([[1]]), torch.tensor([1]), low, torch.tensor([[1 - 2**-53]]), torch.tensor([[0.9, 0.9]]))
    assert (found.num_accepted.item(), found.next_token.item()) == (0, 1)


def test_a_draft_that_its_row_rules_out_is_rejected() -> None:
    target = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]])
    draft = torch.tensor([[[0.0, 1.0]]])
    found = verify(target, torch.tensor([[0]]), torch.tensor([1]), draft, torch.zeros(1, 1), torch.full((1, 2), 0.9))
    assert (found.num_accepted.item(), found.next_token.item(), found.accept_threshold.item()) == (0, 0, 0.0)


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one_hot"])
def test_a_broken_row_fails_its_own_request_only(dense: bool) -> None:
    target, tokens, _, draft, accept, following = batch(25, 6, 2, 30)
    lengths = torch.tensor([2, 2, 2, 2, 0, 2])
    accept = torch.zeros_like(accept)  # everything is accepted
    target[1, 0] = torch.nan
    target[2, 2] = 0.0
    tokens[3, 1] = INVALID
    target[4, 1] = torch.nan  # never read
    found = verify(target, tokens, lengths, draft if dense else None, accept, following)
    assert (found.next_token == INVALID).tolist() == [False, True, True, True, False, False]
    if dense:
        draft[5, 1] = torch.nan
        assert verify(target, tokens, lengths, draft, accept, following).next_token[5].item() == INVALID


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_equals_verify_on_greedy_rows(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(26)
    logits = torch.randn(40, 4, 600, generator=generator).to(dtype)
    best = logits.float().argmax(-1)
    tokens = torch.where(torch.rand(40, 3, generator=generator) < 0.7, best[:, :3], 5)
    lengths = torch.randint(0, 4, (40,), generator=generator)
    rows = Rows.of([SamplingParams(max_tokens=1, temperature=0.0)] * 40, repeat=4)
    probs = process(logits.flatten(0, 1), rows).view(40, 4, 600)
    uniforms = torch.rand(40, 7, generator=generator, dtype=torch.float64)
    found = verify_greedy(logits, tokens, lengths)
    for draft_probs in (None, torch.full((40, 3, 600), 1 / 600)):
        general = verify(probs, tokens, lengths, draft_probs, uniforms[:, :3], uniforms[:, 3:])
        for left, right in zip(found[:3], general[:3], strict=True):
            assert torch.equal(left.nan_to_num(-1), right.nan_to_num(-1))
    assert torch.equal(found.next_token, best.gather(1, found.num_accepted[:, None])[:, 0])


def test_greedy_without_drafts_and_with_a_broken_row() -> None:
    logits = torch.randn(3, 1, 20, generator=torch.Generator().manual_seed(27))
    logits[1, 0, 3] = torch.nan
    found = verify_greedy(logits, torch.zeros(3, 0, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))
    assert found.next_token.tolist() == [logits[0, 0].argmax().item(), INVALID, logits[2, 0].argmax().item()]
