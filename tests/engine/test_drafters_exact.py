"""Every drafter in the loop: answers are exact draws, work is what the counts say, and requests leave nothing behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product

import pytest
import torch
from scipy.stats import chisquare
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from canary.engine import sampling
from canary.engine.decode import Decoder
from canary.engine.drafters.base import Drafter
from canary.engine.drafters.composite import CompositeDrafter
from canary.engine.drafters.draft_model import DraftModelDrafter
from canary.engine.drafters.drawing import Drawing
from canary.engine.drafters.early_exit import EarlyExitDrafter
from canary.engine.drafters.heads import HeadsDrafter
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.drafters.vocabulary import SharedWords
from canary.engine.forward import RowForward
from tests.engine.test_drafters import asked
from tests.engine.tiny import decoder, job, noisy_copy, prompts, run_all, tiny_heads, tiny_model, tiny_tokenizer

VOCAB, LENGTH, SAMPLES = 3, 4, 500
Make = Callable[[PreTrainedModel, RowForward, Drawing], Drafter]
# The draft model's ids are shifted, and one word in three is never drafted.
SHIFTED = SharedWords(torch.tensor([0, 2]), torch.tensor([1, 0]), VOCAB, torch.tensor([1, 1, 0]), 2 / 3)


def _composite(model: PreTrainedModel, rows: RowForward, drawing: Drawing) -> Drafter:
    return CompositeDrafter(NgramDrafter(rows.num_rows, 2), _model(model, rows, drawing), rows.num_rows, VOCAB)


def _model(model: PreTrainedModel, rows: RowForward, drawing: Drawing) -> Drafter:
    return DraftModelDrafter(noisy_copy(model, 0.5), rows.num_rows, drawing)


MAKE: dict[str, Make] = {
    "draft_model": _model,
    "other_words": lambda m, rows, drawing: DraftModelDrafter(noisy_copy(m, 0.5), rows.num_rows, drawing, words=SHIFTED),
    "early_exit": lambda m, rows, drawing: EarlyExitDrafter(rows, 1, drawing),
    "heads": lambda m, rows, drawing: HeadsDrafter(rows, tiny_heads(m, 3), drawing),
    "composite": _composite,
}


def few_words() -> PreTrainedModel:
    """A model whose answers can all be enumerated."""
    torch.manual_seed(5)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8}
    made = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, max_position_embeddings=64, initializer_range=0.4, **sizes))
    made.generation_config.eos_token_id = None
    return made.eval()


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return few_words()


@torch.inference_mode()
def enumerated(model: PreTrainedModel, prompt: list[int]) -> dict[tuple[int, ...], float]:
    """Probability of every answer of `LENGTH` tokens, by plain forwards of the unmodified model."""
    answers = list(product(range(VOCAB), repeat=LENGTH))
    rows = model(torch.tensor([[*prompt, *answer] for answer in answers])).logits[:, len(prompt) - 1 : -1].double().softmax(-1)
    each = rows.gather(2, torch.tensor(answers)[..., None])[..., 0].prod(1)
    return dict(zip(answers, each.tolist(), strict=True))


def p_value(model: PreTrainedModel, make: Make, drawing: Drawing, samples: int = SAMPLES) -> tuple[float, int, int]:
    """Of sampled answers against their probabilities, and how many drafts there were and were accepted."""
    prompt, target = [1, 2], RowForward(model, 250)
    loop = Decoder(target, tiny_tokenizer(), frozenset(), make(model, target, drawing), 2)
    done = run_all(loop, [job(i, prompt, LENGTH, temperature=1.0) for i in range(samples)])
    stats = [r.stats(2) for r in done]
    seen = Counter(tuple(r.token_ids) for r in done)
    wanted = {answer: samples * p for answer, p in enumerated(model, prompt).items()}
    often = [answer for answer, count in wanted.items() if count >= 5]
    observed, expected = [seen[a] for a in often], [wanted[a] for a in often]
    rest = samples - sum(expected)
    if rest > 0:
        observed, expected = [*observed, samples - sum(observed)], [*expected, rest]
    assert len(observed) > 12
    drafted, accepted = sum(s.num_draft_tokens for s in stats), sum(s.num_accepted_tokens for s in stats)
    return float(chisquare(observed, expected).pvalue), drafted, accepted


@pytest.mark.parametrize("name", MAKE)
def test_sampled_answers_have_the_targets_probabilities(model: PreTrainedModel, name: str) -> None:
    p, drafted, accepted = p_value(model, MAKE[name], Drawing())
    assert drafted / 10 < accepted < drafted * 9 / 10
    assert p > 1e-3


def test_drafts_from_another_row_than_the_reported_one_are_found(model: PreTrainedModel) -> None:
    """The test above would say little if it passed whatever is drawn."""

    def sharper(probs: torch.Tensor, uniforms: torch.Tensor) -> sampling.Drawn:
        return sampling.Drawn(sampling.draw(probs**8, uniforms).tokens, probs)

    assert p_value(model, MAKE["heads"], Drawing(sharper))[0] < 1e-3


@pytest.mark.parametrize("name", ["draft_model", "early_exit", "heads", "composite"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_target_steps_are_what_the_counts_say(name: str, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, steps = decoder(tiny_model("llama", loopy=True, seed=3), name, rows=1, k=3), []
    step = loop.target.step
    monkeypatch.setattr(loop.target, "step", lambda tokens: (steps.append(tokens.shape), step(tokens))[1])
    for i, prompt in enumerate(prompts(5, seed=6)):
        steps.clear()
        (done,) = run_all(loop, [job(i, prompt, 20, temperature=temperature)])
        stats = done.stats(3)
        assert len(steps) == len(done.drafted) - 1, "the first token comes from the prefill"
        assert len(done.token_ids) == 1 + len(steps) + stats.num_accepted_tokens - done.num_cut


@pytest.mark.parametrize("name", ["draft_model", "early_exit", "heads", "composite"])
def test_a_used_loop_drafts_like_a_new_one(name: str) -> None:
    model = tiny_model("qwen3", loopy=True, seed=3)
    first = [job(i, p, 12, temperature=(0.0, 1.0)[i % 2]) for i, p in enumerate(prompts(7, seed=8))]
    later = [job(i, p, 12, temperature=(0.0, 1.0)[i % 2]) for i, p in enumerate(prompts(7, seed=9))]
    used = decoder(model, name, rows=3)
    run_all(used, first)
    assert not any(used.target.lengths)
    again, new = run_all(used, later), run_all(decoder(model, name, rows=3), later)
    assert [(r.token_ids, r.drafted, r.accepted) for r in again] == [(r.token_ids, r.drafted, r.accepted) for r in new]


def test_rows_of_a_mixed_round_are_those_that_were_drawn_from() -> None:
    """Copied drafts come with exact one-hot rows, the fallback's with its own, each in its own row of the round."""
    model = tiny_model()
    fallback = DraftModelDrafter(noisy_copy(model), 2)
    drafter = CompositeDrafter(NgramDrafter(2, 3), fallback, 2, model.config.vocab_size)
    alone = DraftModelDrafter(noisy_copy(model), 2)
    with torch.inference_mode():
        for row, text in enumerate(([5, 6, 7, 5], [8, 9, 10])):
            for each in (drafter, alone):
                each.begin(row, text, 40)
                each.commit(row, [(6, 11)[row]], 0)
        mixed, wanted = drafter.propose(asked((2, 3), temperature=0.9)), alone.propose(asked((0, 3), temperature=0.9))
    assert mixed.lengths == (2, 3)
    assert mixed.tokens[0, :2].tolist() == [7, 5]
    assert mixed.probs is not None
    assert wanted.probs is not None
    assert mixed.probs[0, :2].nonzero().tolist() == [[0, 7], [1, 5]]
    assert mixed.probs[0, :2].sum() == 2
    assert torch.equal(mixed.tokens[1], wanted.tokens[1])
    assert torch.equal(mixed.probs[1], wanted.probs[1])


def test_a_text_without_a_gap_never_asks_the_fallback() -> None:
    class Refusing(NgramDrafter):
        def propose(self, asked: object) -> None:  # type: ignore[override]
            raise AssertionError("nothing was left to draft")

    drafter = CompositeDrafter(NgramDrafter(1, 3), Refusing(1, 3), 1, 20)
    drafter.begin(0, [1, 2, 1], 20)
    drafter.commit(0, [2], 0)
    assert drafter.propose(asked((3,))).tokens.tolist() == [[1, 2, 1]]
    greedy, sampled = drafter.propose(asked((3,))), drafter.propose(asked((3,), temperature=1.0))
    assert greedy.probs is None
    assert sampled.probs is not None
    assert torch.equal(sampled.probs.argmax(-1), sampled.tokens)
