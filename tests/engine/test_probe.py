"""What rounds of drafts take is measured as the loop drives a drafter, in every number of rows, and leaves nothing behind."""

from __future__ import annotations

import pytest
import torch

from canary.engine.drafters.base import Proposal, Round
from canary.engine.drafters.composite import CompositeDrafter
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.forward import RowForward
from canary.engine.probe import BATCHES, draft_costs, draft_seconds
from tests.engine.tiny import DRAFTERS, job, tiny_model

MODEL = tiny_model(eos=False)
NAMES = [name for name in DRAFTERS if name != "none"]


@pytest.mark.parametrize("name", NAMES)
def test_every_drafter_is_timed_in_every_number_of_rows(name: str) -> None:
    target = RowForward(MODEL, 8)
    drafter = DRAFTERS[name](MODEL, target)
    found = draft_costs(drafter, target, 3, context=20)
    assert set(found) == {(batch, k) for batch in BATCHES for k in (1, 2, 3)}
    assert all(milliseconds > 0 for milliseconds in found.values())
    assert target.lengths == [0] * 8
    params = job(0, [3], 5, temperature=0.8).params
    assert set(draft_seconds(drafter, target, [3, 4, 5], [6, 7], [2], (1, 3, 9), params=params)) == {(1, 2), (3, 2)}


def test_a_step_that_rejects_every_draft_follows_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    target, seen = RowForward(MODEL, 2), []
    step = target.step
    drafter = NgramDrafter(2, 3)
    propose, commit = drafter.propose, drafter.commit

    def proposed(asked: Round) -> Proposal:
        seen.append(f"propose {max(asked.limits)}")
        return propose(asked)

    def stepped(tokens: torch.Tensor) -> torch.Tensor:
        seen.append(f"step {tokens.tolist()}")
        return step(tokens)

    def committed(row: int, token_ids: list[int], num_accepted: int) -> None:
        seen.append(f"{row} gets {token_ids} with {num_accepted}")
        commit(row, token_ids, num_accepted)

    for patched, name, run in ((drafter, "propose", proposed), (drafter, "commit", committed), (target, "step", stepped)):
        monkeypatch.setattr(patched, name, run)
    draft_seconds(drafter, target, [3, 4], [5, 6, 7], [1, 2], [1], repeats=1)
    assert seen == [
        "0 gets [5] with 0",
        *("propose 1", "step [[5]]", "0 gets [6] with 0"),
        *("propose 2", "step [[6]]", "0 gets [7] with 0"),
        *("propose 1", "step [[7]]", "0 gets [5] with 0"),
        *("propose 2", "step [[5]]", "0 gets [6] with 0"),
    ]


def test_a_composite_drafter_is_timed_by_its_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing repeats no n-gram matches, so that the fallback is not taken for free."""
    target = RowForward(MODEL, 1)
    fallback = DRAFTERS["early_exit"](MODEL, target)
    asked, propose = [], fallback.propose
    monkeypatch.setattr(fallback, "propose", lambda round_: asked.append(1) or propose(round_))
    drafter = CompositeDrafter(NgramDrafter(1, 3), fallback, 1, target.vocab_size)
    draft_costs(drafter, target, 2, context=target.vocab_size // 2)
    assert len(asked) == 4 * 2
