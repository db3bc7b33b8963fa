"""A request's parameters against one tokenizer and one vocabulary: which tokens end it, which are banned, and why it cannot run.

It reads and never guesses: what the vocabulary cannot express ends that request alone, with its reason.
"""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from canary.domain.traffic import SamplingParams


def ends_of(params: SamplingParams, eos_ids: frozenset[int]) -> frozenset[int]:
    """The tokens that end the request's answer.

    Args:
        eos_ids: those of the model.
    """
    if not params.stop_token_ids and not params.ignore_eos:
        return eos_ids
    return (frozenset() if params.ignore_eos else eos_ids) | frozenset(params.stop_token_ids)


def spellings(words: PreTrainedTokenizerBase, text: str) -> tuple[tuple[int, ...], ...]:
    """How a bad word is spelt at the start of a text and after a space, where only the first token differs (as vLLM does)."""
    bare = tuple(words(text.lstrip(), add_special_tokens=False)["input_ids"])
    spaced = tuple(words(f" {text.lstrip()}", add_special_tokens=False)["input_ids"])
    both = len(spaced) == len(bare) and spaced[:1] != bare[:1]
    return (bare, spaced) if both else (bare,)


def bans(params: SamplingParams, words: PreTrainedTokenizerBase, ends: frozenset[int]) -> tuple[tuple[int, ...], ...]:
    """The token sequences that may not be completed. A token that ends the answer is not banned alone, as in transformers.

    Args:
        ends: see `ends_of`.
    """
    found = dict.fromkeys(ids for text in params.bad_words for ids in spellings(words, text))
    return tuple(ids for ids in found if ids and not (len(ids) == 1 and ids[0] in ends))


def obstacle(params: SamplingParams, words: PreTrainedTokenizerBase, vocab_size: int) -> str | None:
    """Why a request with these parameters cannot run here, None if it can.

    Args:
        vocab_size: width of the target's rows.
    """
    named = {"stop_token_ids": params.stop_token_ids, "logit_bias": tuple(token for token, _ in params.logit_bias)}
    for name, ids in named.items():
        unknown = next((token for token in ids if not 0 <= token < vocab_size), None)
        if unknown is not None:
            return f"{name} names token {unknown}, but the vocabulary has ids 0 to {vocab_size - 1}; leave it out"
    for at, text in enumerate(params.bad_words):
        spelt = [token for ids in spellings(words, text) for token in ids]
        unwritten = words.unk_token_id is not None and words.unk_token_id in spelt
        if not spelt or unwritten or max(spelt) >= vocab_size:
            return f"bad_words[{at}] cannot be spelt in the target's vocabulary; leave it out"
    return None
