"""Greedy output equals transformers' own `generate` token for token; a request's tokens never depend on its company."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from tests.engine.tiny import DRAFTERS, decoder, job, prompts, run_all, tiny_model

MODELS = {
    "llama": lambda: tiny_model("llama"),
    "qwen2": lambda: tiny_model("qwen2"),
    "llama_loopy": lambda: tiny_model("llama", loopy=True, seed=3),
    "qwen2_loopy": lambda: tiny_model("qwen2", loopy=True, seed=3),
    "qwen3_loopy": lambda: tiny_model("qwen3", loopy=True, seed=3),
    "gemma": lambda: tiny_model("gemma"),
    "gpt_neox_loopy": lambda: tiny_model("gpt_neox", loopy=True, seed=3),
}
PROMPTS = prompts(16, seed=5)
NEW = 16


@pytest.fixture(scope="module", params=MODELS)
def target(request: pytest.FixtureRequest) -> tuple[PreTrainedModel, list[list[int]]]:
    model = MODELS[request.param]()
    with torch.inference_mode():
        wanted = [model.generate(torch.tensor([p]), max_new_tokens=NEW, do_sample=False)[0, len(p) :].tolist() for p in PROMPTS]
    return model, wanted


@pytest.mark.parametrize(("rows", "count"), [(1, 4), (4, 10), (16, 16)])
@pytest.mark.parametrize("drafter", [name for name in DRAFTERS if name != "exit_at_the_end"])
def test_greedy_equals_generate(target: tuple[PreTrainedModel, list[list[int]]], drafter: str, rows: int, count: int) -> None:
    model, wanted = target
    done = run_all(decoder(model, drafter, rows=rows), [job(i, p, NEW) for i, p in enumerate(PROMPTS[-count:])])
    assert [r.token_ids for r in done] == wanted[-count:]


def test_copying_is_tried_and_accepted() -> None:
    """The parity above would say little about a drafter whose drafts are never accepted or never rejected."""
    model = tiny_model("llama", loopy=True, seed=3)
    for drafter in ("ngram", "draft_model", "early_exit", "heads", "composite"):
        loop = decoder(model, drafter)
        stats = [r.stats(loop.k) for r in run_all(loop, [job(i, p, NEW) for i, p in enumerate(PROMPTS)])]
        accepted, drafted = sum(s.num_accepted_tokens for s in stats), sum(s.num_draft_tokens for s in stats)
        assert 20 < accepted < drafted - 20, drafter


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("drafter", ["target_itself", "exit_at_the_end"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma", "gpt_neox"])
def test_a_target_that_drafts_for_itself_is_always_accepted(family: str, drafter: str, temperature: float) -> None:
    loop = decoder(tiny_model(family), drafter)
    done = run_all(loop, [job(i, p, NEW, temperature=temperature, top_p=0.9) for i, p in enumerate(PROMPTS)])
    stats = [r.stats(loop.k) for r in done]
    assert sum(s.num_draft_tokens for s in stats) > 100
    assert all(s.num_accepted_tokens == s.num_draft_tokens for s in stats)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_sampled_tokens_do_not_depend_on_the_batch(drafter: str) -> None:
    model = tiny_model("llama", loopy=True, seed=3)
    jobs = [
        job(i, p, NEW - i % 5, temperature=(0.0, 0.6, 1.0)[i % 3], top_p=(1.0, 0.8)[i % 2], top_k=(0, 12)[i % 2])
        for i, p in enumerate(PROMPTS)
    ]
    alone = [run_all(decoder(model, drafter, rows=1), [each])[0] for each in jobs]
    together = run_all(decoder(model, drafter, rows=5), jobs)
    backwards = run_all(decoder(model, drafter, rows=16), jobs[::-1])[::-1]
    for one, other, third in zip(alone, together, backwards, strict=True):
        assert one.token_ids == other.token_ids == third.token_ids
        assert (one.drafted, one.accepted) == (other.drafted, other.accepted) == (third.drafted, third.accepted)


@pytest.mark.parametrize("drafter", ["none", "ngram", "draft_model", "early_exit", "heads", "composite"])
def test_tracing_changes_no_token(drafter: str) -> None:
    model = tiny_model("qwen2", loopy=True)
    jobs = [job(i, p, NEW, temperature=(0.0, 1.0)[i % 2]) for i, p in enumerate(PROMPTS[:6])]
    plain, traced = run_all(decoder(model, drafter), jobs), run_all(decoder(model, drafter), jobs, traced=True)
    assert [r.token_ids for r in plain] == [r.token_ids for r in traced]


def test_other_keys_draw_other_tokens() -> None:
    model = tiny_model("llama", eos=False)
    first = run_all(decoder(model), [job(1, PROMPTS[0], NEW, temperature=1.0)])[0]
    second = run_all(decoder(model), [job(2, PROMPTS[0], NEW, temperature=1.0)])[0]
    assert first.token_ids != second.token_ids
