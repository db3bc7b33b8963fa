"""Rows are independent, roll back exactly, grow without loss, and models that cannot roll back are refused."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, MistralConfig, Qwen2Config

from canary.domain.errors import ModelError
from canary.engine.cache import step_mask
from canary.engine.forward import RowForward
from tests.engine.tiny import decoder, job, prompts, run_all, tiny_model


@torch.inference_mode()
def test_ragged_steps_equal_plain_forwards() -> None:
    for family in ("llama", "qwen2"):
        model = tiny_model(family)
        rows, texts = RowForward(model, 3), prompts(3, seed=2, shortest=3)
        for row, text in enumerate(texts):
            last = rows.prefill(row, text)
            assert torch.allclose(last, model(torch.tensor([text])).logits[0, -1], atol=1e-4)
        new = [[5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]
        logits = rows.step(torch.tensor(new))
        for row, text in enumerate(texts):
            wanted = model(torch.tensor([text + new[row]])).logits[0, -4:]
            assert torch.allclose(logits[row], wanted, atol=1e-4)


@torch.inference_mode()
def test_rollback_is_a_smaller_length() -> None:
    rows = RowForward(tiny_model(), 2)
    for row in range(2):
        rows.prefill(row, [3, 4, 5])
    clean = rows.step(torch.tensor([[6], [7]]))
    rows.step(torch.tensor([[8, 9, 10, 11], [12, 13, 14, 15]]))
    rows.lengths[0] += 2
    rows.lengths[0] -= 2
    assert torch.allclose(rows.step(torch.tensor([[6], [7]])), clean, atol=1e-5)


@torch.inference_mode()
def test_move_grow_and_reuse_keep_a_row() -> None:
    model = tiny_model()
    rows = RowForward(model, 3)
    rows.prefill(0, [3, 4])
    rows.prefill(2, [5, 6, 7])
    rows.cache.move(2, 0)
    rows.cache.reserve(200)
    assert (rows.lengths, rows.cache.capacity) == ([3, 0, 0], 224)
    wanted = model(torch.tensor([[5, 6, 7, 9]])).logits[0, -1]
    assert torch.allclose(rows.step(torch.tensor([[9]]))[0, 0], wanted, atol=1e-4)
    rows.prefill(0, [40])
    assert torch.allclose(rows.step(torch.tensor([[9]]))[0, 0], model(torch.tensor([[40, 9]])).logits[0, -1], atol=1e-4)


@torch.inference_mode()
def test_the_given_model_is_untouched() -> None:
    model = tiny_model()
    kind = model.config._attn_implementation
    rows = RowForward(model, 1)
    assert model.config._attn_implementation == kind
    assert rows.view.config._attn_implementation != kind
    assert rows.view.lm_head.weight is model.lm_head.weight


def test_mask_shows_the_past_of_each_query_and_nothing_else() -> None:
    mask = step_mask(torch.tensor([[2, 3], [0, 1]]), window=5, groups=2)
    assert mask.shape == (2, 1, 4, 5)
    assert mask[0, 0].sum(-1).tolist() == [3, 4, 3, 4]
    assert mask[1, 0].tolist() == [[True] + [False] * 4, [True] * 2 + [False] * 3] * 2


SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def test_sliding_windows_are_refused_with_the_field_and_the_remedy() -> None:
    for config in (
        MistralConfig(**SMALL, sliding_window=8),
        Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=8, max_window_layers=1),
    ):
        with pytest.raises(ModelError, match=r"subject.drafter.model.*rolled back.*full attention"):
            RowForward(AutoModelForCausalLM.from_config(config), 1, where="subject.drafter.model")
    RowForward(AutoModelForCausalLM.from_config(MistralConfig(**SMALL, sliding_window=None)), 1)


def test_rotary_positions_that_tie_rows_together_are_refused() -> None:
    config = MistralConfig(
        **SMALL, sliding_window=None, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    )
    with pytest.raises(ModelError, match="dynamic rotary positions"):
        RowForward(AutoModelForCausalLM.from_config(config), 1)


def test_recurrent_models_are_refused() -> None:
    from transformers import MambaConfig

    model = AutoModelForCausalLM.from_config(MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(ModelError, match="full attention"):
        RowForward(model, 1)


def test_memory_is_the_formulas_and_does_not_grow() -> None:
    """2 x layers x rows x key heads x capacity x head width x 4 bytes, after 2,000 requests as after the longest one."""
    loop = decoder(tiny_model(layers=1), "ngram", rows=8, k=2)
    texts = prompts(40, seed=4, longest=20)
    longest = max(texts, key=len)
    run_all(loop, [job(0, longest, 4)])
    cache = loop.target.cache
    held = cache.num_bytes
    assert held == 2 * 1 * 8 * 2 * cache.capacity * 16 * 4
    for turn in range(50):
        run_all(loop, [job(i, text, 1 + (i + turn) % 2) for i, text in enumerate(texts)])
        assert (cache.num_bytes, len(list(cache.layers))) == (held, 1)
    assert loop.target.lengths == [0] * 8
