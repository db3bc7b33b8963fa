"""Drafters replayed on given texts for `tests.bench.engine`: how many target forwards each would have needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from canary.engine.drafters.ngram import History


def forwards(prompt: list[int], text: list[int], draft: Callable[[list[int]], list[int]]) -> int:
    """Target forwards after the prefill that a drafter needs for a given text."""
    at, count = 1, 0
    while at < len(text):
        accepted = 0
        for proposed, token in zip(draft(prompt + text[:at]), text[at:-1], strict=False):
            if proposed != token:
                break
            accepted += 1
        at, count = at + accepted + 1, count + 1
    return count


def replay(texts: Sequence[tuple[list[int], list[int]]], k: int, max_ngram: int) -> float:
    """Tokens per forward of our drafter over those of transformers' prompt lookup, on the same texts.

    Args:
        texts: prompts and their answers.
    """

    def ours(ids: list[int]) -> list[int]:
        history = History(max_ngram)
        history.extend(ids)
        return history.draft(k)

    lookup = PromptLookupCandidateGenerator(num_output_tokens=k, max_length=100_000)

    def theirs(ids: list[int]) -> list[int]:
        found: list[int] = lookup.get_candidates(torch.LongTensor([ids]))[0][0, len(ids) :].tolist()
        return found

    mine, other = (sum(forwards(prompt, text, draft) for prompt, text in texts) for draft in (ours, theirs))
    return other / mine
