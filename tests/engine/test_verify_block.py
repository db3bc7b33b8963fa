"""Block verification is exact and accepts no less than token verification: enumerated, and batched like its sibling."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from canary.domain.pairs import DrafterKind
from canary.domain.traffic import SamplingParams
from canary.engine.faults import get_fault
from canary.engine.rows import Rows
from canary.engine.sampling import INVALID, draw, process
from canary.engine.verify import Verified, Verify, verify, verify_greedy
from canary.engine.verify_block import accepted_by, block_rule, verify_block
from tests.engine.test_verify import batch, worst
from tests.engine.worlds import VOCAB, Prefix, exact, first_round, round_distribution, table, total_variation
from tests.engine.worlds import Rows as Table

ROUNDS = [(width, length) for width in (1, 2, 3) for length in range(width + 1)]


def ends_of(target: Tensor, drafts: Sequence[int], draft: Tensor) -> tuple[list[list[float]], Tensor]:
    """Breakpoints after the paper's algorithm 2, number by number."""
    weight, weights, thresholds = 1.0, [1.0], []
    for at, token in enumerate(drafts):
        p, q = float(target[at, token]), float(draft[at, token])
        weight = min(1.0, weight * p / q) if q else 0.0
        weights.append(weight)
        if at + 1 == len(drafts):
            thresholds.append([weight])
            continue
        left = sum(max(weight * float(p) - float(q), 0.0) for p, q in zip(target[at + 1], draft[at + 1], strict=True))
        thresholds.append([1.0 if weight == 1 else left / (left + 1 - weight)])
    rows = [(w * p - q).clamp_min(0) for w, p, q in zip(weights, target, draft, strict=False)]
    return thresholds, torch.stack(rows) if rows else target[:0]


def accepted(found: dict[tuple[Prefix, Prefix], float]) -> float:
    return sum(weight * (len(sequence) - 1) for (sequence, _), weight in found.items())


def models(zeros: float) -> tuple[Table, Table]:
    return table(11, zeros=zeros), table(12, sharp=0.8, zeros=zeros / 2)


@pytest.mark.parametrize(("width", "length"), ROUNDS)
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_a_round_emits_the_targets_distribution(width: int, length: int, zeros: float) -> None:
    target, draft = models(zeros)
    found = round_distribution(verify_block, draw, target, draft, width, length, True, ends_of)
    assert worst(found, exact(target, width + 1)) < 1e-9


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("length", [1, 2, 3])
def test_no_fewer_drafts_are_accepted_than_by_token(seed: int, length: int) -> None:
    target, draft = table(100 + seed), table(200 + seed, sharp=(0.8, 3.0)[seed])
    by_block = accepted(first_round(verify_block, draw, target, draft, length, length, True, ends_of))
    by_token = accepted(first_round(verify, draw, target, draft, length, length, True))
    if length == 1:
        assert by_block == pytest.approx(by_token, abs=1e-9)
    else:
        assert by_block > by_token + 1e-3


@pytest.mark.parametrize("length", [1, 2, 3])
def test_on_one_hot_rows_it_is_token_rejection(length: int) -> None:
    """What `verify_block` relies on where it hands one-hot drafts to `verify`."""
    target = table(13)
    certain: Table = lambda prefix: torch.eye(VOCAB, dtype=torch.float64)[(sum(prefix) + 1) % VOCAB]  # noqa: E731
    dense = first_round(verify_block, draw, target, certain, length, length, True, ends_of)
    plain = first_round(verify, draw, target, certain, length, length, False)
    handed = first_round(verify_block, draw, target, certain, length, length, False)
    assert dense == pytest.approx(plain, abs=1e-9)
    assert handed == plain


# Faults of the library that the exact integral can hold: their breakpoints are among those above, or none.
FAULTS = (
    "greedy_draft_softmax_q", "cold_draft", "hot_draft", "shifted_draft_q", "greedy_verify", "accept_iff_argmax", "uniform_zero",
    "typical_acceptance", "resample_from_target", "residual_argmax", "dense_accept_one_hot_residual", "bonus_temperature",
    "bonus_from_draft",
)  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_verification_show_here_too(name: str) -> None:
    fault = get_fault(name, DrafterKind.DENSE)
    target, draft = models(0.0)
    found = round_distribution(fault.wrap_verify(verify_block), fault.wrap_draw(draw), target, draft, 2, 2, True, ends_of)
    assert total_variation(found, exact(target, 3)) > 1e-3


def first_failure_ends_it(
    target: Tensor, tokens: Tensor, lengths: Tensor, draft: Tensor | None, accept: Tensor, following: Tensor
) -> Verified:
    assert draft is not None
    thresholds = block_rule(target, tokens, lengths, draft).thresholds
    taken = (accept < thresholds).long().cumprod(1)
    return verify_block(target, tokens, lengths, draft, torch.where(taken == 1, 0.0, 1.0).to(accept.dtype), following)


def token_residual(
    target: Tensor, tokens: Tensor, lengths: Tensor, draft: Tensor | None, accept: Tensor, following: Tensor
) -> Verified:
    assert draft is not None
    found = verify_block(target, tokens, lengths, draft, accept, following)
    judged = torch.arange(tokens.shape[1]) < found.num_accepted[:, None]
    return verify(target, tokens, lengths, draft, torch.where(judged, 0.0, 1.0).to(accept.dtype), following)


def token_thresholds(
    target: Tensor, tokens: Tensor, lengths: Tensor, draft: Tensor | None, accept: Tensor, following: Tensor
) -> Verified:
    found = verify(target, tokens, lengths, draft, accept, following)
    last = accepted_by(found.accept_threshold, accept)
    forced = torch.where(torch.arange(1, tokens.shape[1] + 1) == last[:, None], 0.0, 1.0)
    return verify_block(target, tokens, lengths, draft, forced.to(accept.dtype), following)


@pytest.mark.parametrize("planted", [first_failure_ends_it, token_residual, token_thresholds])
def test_the_two_methods_must_not_be_mixed(planted: Verify) -> None:
    target, draft = models(0.0)
    found = round_distribution(planted, draw, target, draft, 2, 2, True, ends_of)
    assert total_variation(found, exact(target, 3)) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_does_not_depend_on_its_batch(dtype: torch.dtype) -> None:
    target, tokens, lengths, draft, accept, following = batch(21, 24, 3, 700, dtype)
    together = verify_block(target, tokens, lengths, draft, accept, following)
    assert len(together.num_accepted.unique()) == 4
    for row in range(24):
        one = slice(row, row + 1)
        alone = verify_block(target[one], tokens[one], lengths[one], draft[one], accept[one], following[one])
        for whole, single in zip(together[:3], alone[:3], strict=True):
            assert torch.equal(whole[one].nan_to_num(-7), single.nan_to_num(-7))


def test_nothing_beyond_the_drafts_and_no_other_uniform_matters() -> None:
    target, tokens, lengths, draft, accept, following = batch(22, 60, 3, 40)
    clean = verify_block(target, tokens, lengths, draft, accept, following)
    columns = torch.arange(4)
    unread = columns[:3] >= lengths[:, None]
    beyond = columns > lengths[:, None]
    changed = verify_block(
        target.masked_fill(beyond[..., None], torch.nan),
        torch.where(unread, INVALID, tokens),
        lengths,
        draft.masked_fill(unread[..., None], torch.nan),
        torch.where(unread, 0.0, accept),
        torch.where(columns == clean.num_accepted[:, None], following, 1 - following),
    )
    for left, right in zip(clean[:3], changed[:3], strict=True):
        assert torch.equal(left.nan_to_num(-7), right.nan_to_num(-7))
    assert (clean.next_token >= 0).all()
    assert torch.equal(clean.accept_threshold.isnan(), unread)


def test_no_draft_columns_is_a_plain_draw() -> None:
    target, _, _, _, _, following = batch(23, 9, 0, 300)
    empty = torch.zeros(9, 0)
    found = verify_block(target, empty.long(), torch.zeros(9, dtype=torch.int64), torch.zeros(9, 0, 300), empty, following)
    assert torch.equal(found.next_token, draw(target[:, 0], following[:, 0]).tokens)
    assert found.num_accepted.tolist() == [0] * 9


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    target, _, _, _, accept, following = batch(24, 50, 3, 700)
    draft = target[:, :-1].clone()
    tokens = draw(draft.flatten(0, 1), accept.flatten()).tokens.view(50, 3)
    found = verify_block(target, tokens, torch.full((50,), 3), draft, torch.full_like(accept, 1 - 2**-53), following)
    assert found.num_accepted.tolist() == [3] * 50


def test_a_draft_that_its_row_rules_out_is_rejected() -> None:
    target = torch.tensor([[[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]])
    draft = torch.tensor([[[0.0, 1.0], [0.5, 0.5]]])
    found = verify_block(target, torch.tensor([[0, 1]]), torch.tensor([2]), draft, torch.zeros(1, 2), torch.full((1, 3), 0.9))
    assert (found.num_accepted.item(), found.next_token.item(), found.accept_threshold.tolist()) == (0, 0, [[0.0, 0.0]])


def test_a_broken_row_fails_its_own_request_only() -> None:
    target, tokens, _, draft, accept, following = batch(25, 7, 2, 30)
    lengths = torch.tensor([2, 2, 2, 2, 0, 2, 2])
    accept = torch.zeros_like(accept)  # everything is accepted
    target[1, 0] = torch.nan
    target[2, 2] = 0.0
    tokens[3, 1] = INVALID
    target[4, 1] = torch.nan  # never read
    draft[5, 1] = torch.nan
    target[6, 1] = torch.nan
    found = verify_block(target, tokens, lengths, draft, accept, following)
    assert (found.next_token == INVALID).tolist() == [False, True, True, True, False, True, True]


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one_hot"])
def test_greedy_requests_are_greedy_either_way(dense: bool) -> None:
    generator = torch.Generator().manual_seed(26)
    logits = torch.randn(40, 4, 600, generator=generator)
    best = logits.argmax(-1)
    tokens = torch.where(torch.rand(40, 3, generator=generator) < 0.7, best[:, :3], 5)
    lengths = torch.randint(0, 4, (40,), generator=generator)
    rows = Rows.of([SamplingParams(max_tokens=1, temperature=0.0)] * 40, repeat=4)
    probs = process(logits.flatten(0, 1), rows).view(40, 4, 600)
    uniforms = torch.rand(40, 7, generator=generator, dtype=torch.float64)
    for draft in (torch.full((40, 3, 600), 1 / 600), torch.nn.functional.one_hot(tokens, 600).float()):
        found = verify_block(probs, tokens, lengths, draft if dense else None, uniforms[:, :3], uniforms[:, 3:])
        greedy = verify_greedy(logits, tokens, lengths)
        assert torch.equal(found.num_accepted, greedy.num_accepted)
        assert torch.equal(found.next_token, greedy.next_token)
