"""A draft model away from its target: what crosses is counted, nothing crosses unseen, and the tokens are the same."""

from __future__ import annotations

import pytest
import torch

from canary.engine.decode import Decoder
from canary.engine.drafters.draft_model import DraftModelDrafter
from canary.engine.drafters.transfers import Transfers
from canary.engine.forward import RowForward
from tests.engine.test_drafters import asked
from tests.engine.tiny import VOCAB, job, noisy_copy, prompts, run_all, tiny_model, tiny_tokenizer

CPU = torch.device("cpu")
ROUND = 2  # tensors of a round beside its sampling parameters: keys and positions


class Border(Transfers):
    """Copies what crosses, so that a tensor that did not cross is recognised by its storage."""

    def __init__(self) -> None:
        super().__init__(CPU, CPU, apart=True)
        self.crossed: set[int] = set()

    def to_device(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        copied = super().to_device(tensor, device).clone()
        self.crossed.add(copied.untyped_storage().data_ptr())
        self.keep = [*getattr(self, "keep", []), copied]  # a storage that is freed may come back under the same address
        return copied

    def has(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.crossed


@torch.inference_mode()
def test_everything_crosses_where_it_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    border = Border()
    drafter = DraftModelDrafter(noisy_copy(tiny_model()), 2, transfers=border)
    for row, text in enumerate(([5, 6, 7], [8, 9])):
        drafter.begin(row, text, 30)
        drafter.commit(row, [11 + row], 0)
    seen = []
    start, step = drafter._drawing.start, drafter.rows.step
    monkeypatch.setattr(drafter._drawing, "start", lambda asked: (seen.append(asked), start(asked))[1])
    fed = []
    monkeypatch.setattr(drafter.rows, "step", lambda tokens: (fed.append(tokens), step(tokens))[1])
    asking = asked((3, 3), temperature=0.8)
    proposal = drafter.propose(asking)
    (given,) = seen
    assert proposal.probs is not None
    assert given.rows is not None
    for tensor in (proposal.tokens, proposal.probs, given.keys, given.positions, given.rows.temperature, fed[0]):
        assert border.has(tensor)
    assert not border.has(fed[1]), "a draft that is fed back never leaves the drafter's device"
    host = 2  # what the rows have not seen yet, and where each of them ends
    inside = sum(1 for name in given.rows.__slots__ if isinstance(getattr(given.rows, name), torch.Tensor))
    assert border.copies == ROUND + inside + host + 2
    assert border.bytes >= proposal.probs.numel() * 4 + proposal.tokens.numel() * 8
    assert border.per_round() == {"copies": border.copies, "bytes": border.bytes}


def test_a_greedy_round_copies_tokens_and_no_rows() -> None:
    border = Transfers(CPU, CPU, apart=True)
    drafter = DraftModelDrafter(noisy_copy(tiny_model()), 1, transfers=border)
    with torch.inference_mode():
        drafter.begin(0, [5, 6, 7], 30)
        drafter.commit(0, [11], 0)
        drafter.propose(asked((4,)))
    keys, positions, fed, last, tokens = 2 * 8, 8, 8, 8, 4 * 8
    assert (border.copies, border.bytes) == (5, keys + positions + fed + last + tokens)
    assert border.bytes < VOCAB * 4


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_tokens_are_the_same(temperature: float) -> None:
    model = tiny_model(loopy=True, seed=3)
    draft = noisy_copy(model)
    jobs = [job(i, p, 16, temperature=temperature) for i, p in enumerate(prompts(6, seed=5))]

    def run(transfers: Transfers | None) -> list[list[int]]:
        drafter = DraftModelDrafter(draft, 3, transfers=transfers)
        loop = Decoder(RowForward(model, 3), tiny_tokenizer(), frozenset(), drafter, 3)
        return [r.token_ids for r in run_all(loop, jobs)]

    border = Transfers(CPU, CPU, apart=True)
    assert run(None) == run(border)
    assert border.rounds > 10


def test_beside_the_target_nothing_is_copied() -> None:
    beside = Transfers(CPU, CPU)
    drafter = DraftModelDrafter(noisy_copy(tiny_model()), 1, transfers=beside)
    with torch.inference_mode():
        drafter.begin(0, [5, 6, 7], 30)
        drafter.commit(0, [11], 0)
        drafter.propose(asked((4,), temperature=1.0))
    assert (beside.rounds, beside.copies, beside.bytes) == (1, 0, 0)
