"""From a verified round to the rows of its emitted tokens, and from their columns to packed bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from canary.domain.pairs import ROW_COLUMNS, TRACE_COLUMNS, Provenance
from canary.engine.trace import gather_emitted, pack, trace_rows
from canary.engine.verify import Verified, verify

VOCAB = 7


def round_of(seed: int, width: int, dense: bool) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor], Verified, Tensor]:
    """(arguments of verify without the next uniforms, its result, draft lengths) of eight requests."""
    generator = torch.Generator().manual_seed(seed)
    target = (2 * torch.randn(8, width + 1, VOCAB, generator=generator)).softmax(-1)
    guesses = torch.randint(0, VOCAB, (8, width), generator=generator)
    tokens = torch.where(torch.rand(8, width, generator=generator) < 0.8, target[:, :width].argmax(-1), guesses)
    lengths = torch.arange(8) % (width + 1)
    draft = (2 * torch.randn(8, width, VOCAB, generator=generator)).softmax(-1) if dense else None
    uniforms = torch.rand(8, 2 * width + 1, generator=generator, dtype=torch.float64)
    arguments = (target, tokens, lengths, draft, uniforms[:, :width])
    return arguments, verify(*arguments, uniforms[:, width:]), lengths


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "one_hot"])
@pytest.mark.parametrize("width", [0, 3])
def test_gathering_follows_every_request_by_hand(width: int, dense: bool) -> None:
    arguments, verified, lengths = round_of(1, width, dense)
    target, drafts, _, draft_probs, accept = arguments
    emitted = verified.num_accepted + 1
    emitted[3] = 0
    emitted[7] = 1  # cut inside the accepted run
    previous = torch.eye(8, VOCAB)
    started = torch.arange(8) != 2
    pit = torch.arange(8 * (width + 1)).view(8, -1) / 100
    rows = gather_emitted(
        verified, *arguments, num_emitted=emitted, greedy=torch.arange(8) == 1, pit_uniforms=pit,
        previous_probs=previous, has_previous=started, unfiltered_probs=target + 1,
    )  # fmt: skip
    at = 0
    seen = set()
    for request in range(8):
        accepted = int(verified.num_accepted[request])
        for position in range(int(emitted[request])):
            judged = position < int(lengths[request])
            taken = position < accepted
            kind = (
                (Provenance.ACCEPTED if taken else Provenance.RECOVERED)
                if judged
                else Provenance.BONUS
                if lengths[request]
                else Provenance.PLAIN
            )
            seen.add(kind)
            assert rows.owner[at] == request
            assert rows.tokens[at] == (drafts[request, position] if taken else verified.next_token[request])
            assert (rows.position_in_round[at], rows.provenance[at], bool(rows.drafted[at])) == (position, kind, judged)
            assert torch.equal(rows.target_probs[at], target[request, position])
            assert torch.equal(rows.previous_probs[at], target[request, position - 1] if position else previous[request])
            assert bool(rows.has_previous[at]) is bool(position or started[request])
            assert rows.pit_uniforms[at] == pit[request, position]
            assert bool(rows.greedy[at]) is (request == 1)
            assert rows.unfiltered_probs is not None
            assert torch.equal(rows.unfiltered_probs[at], target[request, position] + 1)
            if judged:
                assert rows.draft_tokens[at] == drafts[request, position]
                assert rows.accept_uniform[at] == accept[request, position]
                assert taken is bool(rows.accept_uniform[at] < verified.accept_threshold[request, position])
                assert rows.draft_probs is None or (
                    draft_probs is not None and torch.equal(rows.draft_probs[at], draft_probs[request, position])
                )
            at += 1
    assert at == len(rows.tokens)
    assert seen == (set(Provenance) if width else {Provenance.PLAIN})


def test_packing_keeps_order_types_and_bytes() -> None:
    arguments, verified, _ = round_of(6, 3, dense=False)
    rows = gather_emitted(
        verified,
        *arguments,
        num_emitted=verified.num_accepted + 1,
        greedy=torch.zeros(8, dtype=torch.bool),
        pit_uniforms=torch.full((8, 4), 0.5),
        previous_probs=arguments[0][:, 0],
        has_previous=torch.ones(8, dtype=torch.bool),
    )
    columns = trace_rows(rows, want_tv=True)
    packed = pack(columns)
    assert packed.num_tokens == len(rows.tokens)
    assert list(packed.data) == list(columns)
    for name, (dtype, width) in TRACE_COLUMNS.items():
        back = np.frombuffer(packed.data[name], dtype).reshape(-1, width)
        assert np.allclose(back, columns[name].view(-1, width).numpy(), rtol=1e-6, equal_nan=True)


def test_packing_refuses_what_is_not_a_column() -> None:
    three, four = torch.zeros(3), torch.zeros(4)
    with pytest.raises(ValueError, match="'entropy' is not a column"):
        pack({"entropy": three})
    with pytest.raises(ValueError, match="'tv' has shape"):
        pack({"tv": three})
    with pytest.raises(ValueError, match="'logit_gap' describes 4 tokens, the others 3"):
        pack({"row_tv": three, "logit_gap": four})
    assert set(pack(dict.fromkeys(ROW_COLUMNS, three)).data) == set(ROW_COLUMNS)
