"""The fast forward gives transformers' logits and texts, bit for bit in 16 bit, or it is not used."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from canary.domain.errors import ModelError
from canary.engine import fused
from canary.engine.decode import Decoder
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.forward import AUTO, FAST, PLAIN, RowForward
from tests.engine.tiny import EOS, VOCAB, job, prompts, run_all, tiny_model, tiny_tokenizer

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "llama_biased": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
}
PROMPTS = prompts(16, seed=5)
NEW = 12


def make(family: str) -> PreTrainedModel:
    """A random model whose norms and biases are no ones and zeros, so that leaving one out shows."""
    torch.manual_seed(1)
    model = FAMILIES[family]()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.add_(torch.randn(weight.shape) * 0.2 + (0.5 if "norm" in name else 0.0))
    return model.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_transformers_own(family: str, dtype: torch.dtype) -> None:
    model = make(family).to(dtype)
    fast, plain = RowForward(model, 3, forward=FAST), RowForward(model, 3, forward=PLAIN)
    with torch.inference_mode():
        for row, prompt in enumerate(PROMPTS[:3]):
            assert_same(fast.prefill(row, prompt), plain.prefill(row, prompt))
        for num_rows, width in ((3, 4), (2, 1), (1, 1), (1, 5)):
            tokens = torch.arange(3, 3 + num_rows * width).view(num_rows, width)
            assert_same(fast.step(tokens), plain.step(tokens))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_prompts_filled_together_are_those_filled_alone(family: str, dtype: torch.dtype) -> None:
    model = make(family).to(dtype)
    together, alone = RowForward(model, 4, forward=FAST), RowForward(model, 4, forward=FAST)
    for rows in (together, alone):
        rows.keep_hidden()
        rows.prefill(0, PROMPTS[3])
    some = [PROMPTS[0], [7], PROMPTS[2]]
    found = together.prefill_all(1, some)
    for at, prompt in enumerate(some):
        wanted = alone.prefill(1 + at, prompt)
        assert_near(found[at], wanted)
        assert_near(together.hidden(1 + at, 0), alone.hidden(1 + at, 0))
    assert together.lengths == alone.lengths == [len(PROMPTS[3]), *map(len, some)]
    tokens = torch.arange(3, 11).view(4, 2)
    assert_near(together.step(tokens), alone.step(tokens))


def assert_near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """As `assert_same`, but a product of another number of rows may round otherwise in 16 bit."""
    tolerance = 1e-5 if found.dtype is torch.float32 else 2e-2
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))


def assert_same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    if found.dtype is torch.bfloat16:
        assert torch.equal(found, wanted)
    else:
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module", params=("llama", "qwen2", "qwen3"))
def target(request: pytest.FixtureRequest) -> tuple[PreTrainedModel, list[list[int]]]:
    model = make(request.param)
    with torch.inference_mode():
        wanted = [model.generate(torch.tensor([p]), max_new_tokens=NEW, do_sample=False)[0, len(p) :].tolist() for p in PROMPTS]
    return model, wanted


@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("forward", [PLAIN, FAST])
@pytest.mark.parametrize("k", [0, 4])
def test_greedy_equals_generate(target: tuple[PreTrainedModel, list[list[int]]], forward: str, rows: int, k: int) -> None:
    model, wanted = target
    drafter = NgramDrafter(rows, 3) if k else None
    loop = Decoder(RowForward(model, rows, forward=forward), tiny_tokenizer(), frozenset({EOS}), drafter, k)
    assert [r.token_ids for r in run_all(loop, [job(i, p, NEW) for i, p in enumerate(PROMPTS)])] == wanted


@pytest.mark.parametrize("part", ["silu", "row_attention"])
def test_other_logits_are_not_used(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Whatever of the written-down layer is a little wrong, the forward stays transformers' own and says so."""
    true, model = getattr(fused, part), make("llama")
    assert RowForward(model, 2).forward == FAST

    def wrong(*args: object, **kwargs: object) -> object:
        out = true(*args, **kwargs)
        return (out[0] * 1.001, None) if isinstance(out, tuple) else out * 1.001

    monkeypatch.setattr(fused, part, wrong)
    assert RowForward(model, 2, forward=AUTO).forward == PLAIN
    with pytest.raises(ModelError, match=r"subject.forward.*Use auto or plain"):
        RowForward(model, 2, forward=FAST)


def test_rotary_positions_and_norms_count(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(fused, "_rotate", lambda x, cos, sin: None)
        assert RowForward(make("qwen3"), 2).forward == PLAIN
    true = fused.FusedForward._norm
    monkeypatch.setattr(fused.FusedForward, "_norm", lambda self, x, weight: true(self, x, weight) * 1.001)
    assert RowForward(make("qwen3"), 2).forward == PLAIN


def test_other_families_and_activations_stay_plain() -> None:
    config = GPTNeoXConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    assert RowForward(GPTNeoXForCausalLM(config).eval(), 1).forward == PLAIN
    gelu = LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu")).eval()
    assert RowForward(gelu, 1).forward == PLAIN


def test_an_unknown_forward_is_refused() -> None:
    with pytest.raises(ModelError, match=r"subject.forward: .*'quick' is unknown"):
        RowForward(tiny_model(), 1, forward="quick")


@torch.inference_mode()
def test_hidden_states_and_first_layers_are_the_plain_ones() -> None:
    model = make("qwen2")
    found = {}
    for forward in (FAST, PLAIN):
        rows = RowForward(model, 2, forward=forward)
        rows.keep_hidden()
        for row in range(2):
            rows.prefill(row, PROMPTS[row])
        rows.step(torch.tensor([[5, 6, 7], [8, 9, 10]]))
        hidden = torch.stack([rows.hidden(1, 0), rows.hidden(0, 2)])
        found[forward] = hidden, rows.first_layers(1).step(torch.tensor([[5], [6]]))
    for fast, plain in zip(found[FAST], found[PLAIN], strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-5)
    whole = RowForward(model, 2, forward=FAST)
    whole.prefill(0, PROMPTS[0])
    whole.prefill(1, PROMPTS[1])
    assert not torch.allclose(whole.step(torch.tensor([[5], [6]])), found[FAST][1], atol=0.1)


@torch.inference_mode()
def test_the_probe_leaves_nothing_behind() -> None:
    rows = RowForward(make("llama"), 3)
    assert (rows.forward, rows.lengths, rows.cache.num_bytes) == (FAST, [0, 0, 0], 0)
