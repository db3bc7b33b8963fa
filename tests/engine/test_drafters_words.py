"""A draft model with other words: what is shared is drafted losslessly in the target's ids, what cannot be shared is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from canary.domain.errors import ModelError
from canary.engine.decode import Decoder
from canary.engine.drafters.draft_model import DraftModelDrafter
from canary.engine.drafters.vocabulary import LEAST_SHARED, SharedWords, shared_words
from canary.engine.forward import RowForward
from tests.engine.test_drafters import asked
from tests.engine.tiny import EOS, VOCAB, job, noisy_copy, prompts, run_all, spelt, tiny_model, tiny_tokenizer


def permuted(model: PreTrainedModel, seed: int = 3) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, list[int]]:
    """The same model under other ids, its tokenizer with it, and the new id of every old one."""
    order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))
    other, new = copy.deepcopy(model), torch.empty_like(order)
    new[order] = torch.arange(VOCAB)
    with torch.no_grad():
        for weight in {id(w): w for w in (other.get_input_embeddings().weight, other.get_output_embeddings().weight)}.values():
            weight.copy_(weight[order].clone())
    vocab = {word: int(new[at]) for word, at in tiny_tokenizer().get_vocab().items()}
    return other, spelt(vocab), new.tolist()


def loop(target: PreTrainedModel, draft: PreTrainedModel, words: SharedWords | None) -> Decoder:
    return Decoder(RowForward(target, 4), tiny_tokenizer(), frozenset({EOS}), DraftModelDrafter(draft, 4, words=words), 4)


def test_equal_words_need_no_translation() -> None:
    target = tiny_model(), tiny_tokenizer()
    assert shared_words(target, (noisy_copy(target[0]), tiny_tokenizer())) is None


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.0])
def test_the_target_under_other_ids_is_always_accepted(temperature: float) -> None:
    target = tiny_model("qwen2", eos=False)
    draft, draft_words, new = permuted(target)
    words = shared_words((target, tiny_tokenizer()), (draft, draft_words))
    assert words is not None
    assert words.share == 1
    assert words.draft_of.tolist() == new
    jobs = [job(i, p, 20, temperature=temperature, top_p=0.9) for i, p in enumerate(prompts(10, seed=2))]
    done = run_all(loop(target, draft, words), jobs)
    stats = [r.stats(4) for r in done]
    assert sum(s.num_draft_tokens for s in stats) > 80
    assert all(s.num_accepted_tokens == s.num_draft_tokens for s in stats)
    plain = run_all(Decoder(RowForward(target, 4), tiny_tokenizer(), frozenset({EOS})), jobs)
    if temperature == 0:
        assert [r.token_ids for r in done] == [r.token_ids for r in plain]


def test_padded_rows_of_the_head_are_never_drafted() -> None:
    """Two heads of one vocabulary often differ by padding alone; what lies beyond the words has no probability in a draft."""
    target = tiny_model("qwen2", eos=False)
    draft = tiny_model("qwen2", eos=False)
    draft.resize_token_embeddings(VOCAB + 31)
    with torch.no_grad():
        draft.get_output_embeddings().weight[VOCAB:] = 9.0
    words = shared_words((target, tiny_tokenizer()), (draft, tiny_tokenizer()))
    assert words is not None
    done = run_all(loop(target, draft, words), [job(i, p, 20, temperature=1.0) for i, p in enumerate(prompts(4, seed=2))])
    assert all((s := r.stats(4)).num_accepted_tokens == s.num_draft_tokens > 0 for r in done)


@torch.inference_mode()
def test_a_row_is_restricted_and_renormalised_before_it_is_drawn_from() -> None:
    """Words that the draft model lacks have no probability in the reported row, and the others have all of it."""
    target, draft = tiny_model("qwen2", eos=False), tiny_model("qwen2", eos=False, seed=5)
    vocab = tiny_tokenizer().get_vocab()
    missing = sorted(vocab.values())[-20:]
    narrow = spelt({word if at not in missing else f"<{at}>": at for word, at in vocab.items()})
    words = shared_words((target, tiny_tokenizer()), (draft, narrow))
    assert words is not None
    assert words.share == pytest.approx(77 / 97)
    drafter = DraftModelDrafter(draft, 2, words=words)
    for row in range(2):
        drafter.begin(row, [5, missing[row]], 20)
        drafter.commit(row, [missing[3] if row else 9], 0)
    proposal = drafter.propose(asked((3, 3), temperature=1.0))
    assert proposal.probs is not None
    assert proposal.probs[..., missing].abs().max() == 0
    assert torch.allclose(proposal.probs.sum(-1), torch.ones(2, 3), atol=1e-5)
    logits = draft(torch.tensor([[5, narrow.pad_token_id, 9]])).logits[0, -1]
    kept = [at for at in range(VOCAB) if at not in missing]
    assert torch.allclose(proposal.probs[0, 0, kept], logits[kept].softmax(0), atol=1e-5)


@pytest.mark.parametrize("params", [{}, {"temperature": 0.7, "top_k": 5}])
def test_missing_words_cost_acceptance_and_no_token(params: dict[str, float]) -> None:
    target, vocab = tiny_model("qwen2", loopy=True, seed=3), tiny_tokenizer().get_vocab()
    narrow = spelt({word if at % 3 else f"<{at}>": at for word, at in vocab.items() if word not in ("<pad>", "<s>", "</s>")})
    words = shared_words((target, tiny_tokenizer()), (target, narrow))
    assert words is not None
    jobs = [job(i, p, 16, **params) for i, p in enumerate(prompts(8, seed=5))]
    done = run_all(loop(target, target, words), jobs)
    stats = [r.stats(4) for r in done]
    assert 10 < sum(s.num_accepted_tokens for s in stats) < sum(s.num_draft_tokens for s in stats) - 10
    alone = [run_all(loop(target, target, words), [each])[0] for each in jobs]
    assert [r.token_ids for r in done] == [r.token_ids for r in alone]
    if not params:
        plain = run_all(Decoder(RowForward(target, 4), tiny_tokenizer(), frozenset({EOS})), jobs)
        assert [r.token_ids for r in done] == [r.token_ids for r in plain]


def test_a_special_word_is_not_a_plain_one() -> None:
    target, vocab = tiny_model(), tiny_tokenizer().get_vocab()
    plain = spelt(vocab, special=("}",))
    words = shared_words((target, tiny_tokenizer()), (target, plain))
    assert words is None, "equal ids and widths are one vocabulary"
    wide = tiny_model()
    wide.config.vocab_size += 8
    words = shared_words((wide, tiny_tokenizer()), (target, plain))
    assert words is not None
    assert vocab["}"] not in words.target_ids.tolist()


def test_other_words_are_refused_by_name() -> None:
    target = tiny_model(), tiny_tokenizer()
    vocab = tiny_tokenizer().get_vocab()
    special, padding, template, short = tiny_tokenizer(), tiny_tokenizer(), tiny_tokenizer(), tiny_model()
    special.eos_token = "<s>"
    padding.pad_token = "</s>"
    template.chat_template = "{{ messages }}"
    short.config.max_position_embeddings = 64
    few = spelt({word if at < 3 or at % 3 == 0 else f"<{at}>": at for word, at in vocab.items()})
    other_end = spelt({{"</s>": "<end>"}.get(word, word): at for word, at in vocab.items()}, eos="<end>")
    cases = {
        f"tokenizer vocabulary .*shares 35 of 97 words, 36%.*below {LEAST_SHARED:.0%}": (target[0], few),
        "eos_token_id": (target[0], special),
        "pad_token_id": (target[0], padding),
        "eos_token .*'</s>' and '<end>'": (target[0], other_end),
        "chat template": (target[0], template),
        "max_position_embeddings": (short, tiny_tokenizer()),
    }
    for words, draft in cases.items():
        with pytest.raises(ModelError, match=f"subject.drafter.model: the draft model's {words}.*Use a draft model"):
            shared_words(target, draft)
