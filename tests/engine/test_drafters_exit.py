"""Leaving the target early: the drafts are those of its first layers, over the target's own rows, and leave no mark on them."""

from __future__ import annotations

import copy

import pytest
import torch

from canary.domain.errors import ModelError
from canary.domain.traffic import SamplingParams
from canary.engine import sampling
from canary.engine.drafters.early_exit import EarlyExitDrafter
from canary.engine.forward import RowForward
from canary.engine.memory import weight_bytes
from canary.engine.rows import Rows
from tests.engine.test_drafters import asked
from tests.engine.tiny import decoder, job, prompts, run_all, tiny_model

TEXTS = [[5, 6, 7, 8], [9, 10]]


def begun(rows: RowForward, drafter: EarlyExitDrafter) -> None:
    """Two rows after their prompts and first tokens."""
    for row, text in enumerate(TEXTS):
        rows.prefill(row, text)
        drafter.begin(row, text, 30)
        drafter.commit(row, [11 + row], 0)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma", "gpt_neox"])
@torch.inference_mode()
def test_drafts_are_those_of_the_first_layers(family: str) -> None:
    model = tiny_model(family, layers=3)
    short = copy.deepcopy(model)
    short.base_model.layers = short.base_model.layers[:2]
    short.config.num_hidden_layers = 2
    rows = RowForward(model, 2)
    drafter = EarlyExitDrafter(rows, 2)
    begun(rows, drafter)
    proposal = drafter.propose(asked((3, 3), temperature=0.8))
    assert proposal.probs is not None
    for row, text in enumerate(TEXTS):
        prefix = [*text, 11 + row]
        for i, token in enumerate(proposal.tokens[row].tolist()):
            logits = short(torch.tensor([prefix]), use_cache=False).logits[0, -1:]
            wanted = sampling.process(logits, Rows.of([SamplingParams(9, temperature=0.8)]))
            assert torch.allclose(proposal.probs[row, i], wanted[0], atol=1e-4)
            assert proposal.probs[row, i, token] > 0
            prefix.append(token)


@torch.inference_mode()
def test_a_round_leaves_lengths_and_text_as_they_were() -> None:
    rows = RowForward(tiny_model(layers=3), 2)
    drafter = EarlyExitDrafter(rows, 1)
    begun(rows, drafter)
    before = list(rows.lengths)
    kept = [
        [stored[row, :, :length].clone() for stored in layer.stored()]
        for layer in rows.cache._rows
        for row, length in enumerate(before)
    ]
    drafter.propose(asked((4, 0)))
    assert rows.lengths == before
    after = [
        [stored[row, :, :length] for stored in layer.stored()] for layer in rows.cache._rows for row, length in enumerate(before)
    ]
    assert all(torch.equal(a, b) for old, new in zip(kept, after, strict=True) for a, b in zip(old, new, strict=True))
    assert drafter.propose(asked((0, 0))).lengths == (0, 0)


def test_weights_and_cache_are_the_targets_own() -> None:
    rows = RowForward(tiny_model(layers=3), 2)
    short = rows.first_layers(2)
    assert short.cache is rows.cache
    assert weight_bytes(rows.view, short.view) == weight_bytes(rows.view)
    assert len(rows.view.base_model.layers) == rows.view.config.num_hidden_layers == 3
    assert len(short.view.base_model.layers) == 2


def test_layers_that_are_not_there_are_refused() -> None:
    rows = RowForward(tiny_model(layers=3), 2)
    for count in (0, 4):
        with pytest.raises(ModelError, match=f"subject.drafter.exit_layer: there are 3 layers, not {count}. Use 1 to 3"):
            EarlyExitDrafter(rows, count)
    del rows.view.base_model.layers
    with pytest.raises(ModelError, match="llama does not keep its layers in a plain list"):
        EarlyExitDrafter(rows, 1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_more_layers_are_accepted_more(temperature: float) -> None:
    model = tiny_model("llama", layers=4, loopy=True, seed=3)
    jobs = [job(i, p, 24, temperature=temperature) for i, p in enumerate(prompts(8, seed=4))]
    rates = []
    for layer in (1, 3, 4):
        loop = decoder(model)
        loop = type(loop)(loop.target, loop.words, loop.eos_ids, EarlyExitDrafter(loop.target, layer), 3)
        stats = [r.stats(3) for r in run_all(loop, jobs)]
        rates.append(sum(s.num_accepted_tokens for s in stats) / sum(s.num_draft_tokens for s in stats))
    assert rates == sorted(rates)
    assert rates[0] < rates[1] < rates[2] == 1
