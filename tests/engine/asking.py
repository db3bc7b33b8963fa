"""Requests that ask for bias, penalties, bans, minimum lengths and filters, and what transformers makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import torch
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel

from canary.domain.traffic import SamplingParams
from canary.engine import reference
from canary.engine.requests import Running, Words


class Counted(LogitsProcessor):
    """Frequency and presence by `bincount`, for `generate`, which has neither."""

    def __init__(self, params: SamplingParams, start: int) -> None:
        self._params, self._start = params, start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        counts = torch.stack([row.bincount(minlength=scores.shape[1]) for row in input_ids[:, self._start :]])
        return scores - counts * self._params.frequency_penalty - (counts > 0) * self._params.presence_penalty


def settings(words: Words, free: Sequence[int]) -> dict[str, dict[str, object]]:
    """One setting per parameter that changes greedy text, aimed at what the model says by itself.

    Args:
        free: a greedy answer without any parameter, at least 8 tokens.
    """
    said = words.convert_ids_to_tokens(list(free))
    return {
        "repetition": {"repetition_penalty": 1.4},
        "repetition_raised": {"repetition_penalty": 0.7},
        "presence": {"presence_penalty": 2.0},
        "frequency": {"frequency_penalty": 1.8},
        "bias": {"logit_bias": ((free[1], -100.0), (free[0], 2.5), (50, 3.0))},
        "bad_word": {"bad_words": (said[2],)},
        "bad_words": {"bad_words": ("".join(said[1:3]), "".join(said[3:6]), "".join(said[0:2]))},
        "min_tokens": {"stop_token_ids": (free[1], free[4]), "min_tokens": 6},
        "stop_ids": {"stop_token_ids": (free[4], 96)},
        "ignore_eos": {"ignore_eos": True},
        "all": {
            "repetition_penalty": 1.1, "presence_penalty": 0.4, "frequency_penalty": 0.3, "logit_bias": ((free[0], 1.0),),
            "bad_words": ("".join(said[0:2]), said[3]), "stop_token_ids": (free[2],), "min_tokens": 5,
        },
    }  # fmt: skip


def generated(
    model: PreTrainedModel, prompt: Sequence[int], params: SamplingParams, bans: Sequence[Sequence[int]], ends: Sequence[int]
) -> list[int]:
    """A greedy answer by `generate`; its end is the only thing that is said to it in ids instead of words.

    Args:
        ends: EOS and stop ids; none of them ends anything where the list is empty.
    """
    asked: dict[str, object] = {"eos_token_id": list(ends) or None}
    if params.repetition_penalty != 1:
        asked["repetition_penalty"] = params.repetition_penalty
    if params.logit_bias:
        asked["sequence_bias"] = [[[token], bias] for token, bias in params.logit_bias]
    if bans:
        asked["bad_words_ids"] = [list(ban) for ban in bans]
    if params.min_tokens:
        asked["min_new_tokens"] = params.min_tokens
    more = LogitsProcessorList([Counted(params, len(prompt))])
    ids = torch.tensor([list(prompt)])
    out = model.generate(ids, max_new_tokens=params.max_tokens, do_sample=False, logits_processor=more, **asked)
    return [int(token) for token in out[0, len(prompt) :]]


def expected_rows(running: Running) -> torch.Tensor:
    """What transformers' processors make of the raw rows of an answer's tokens, [T, V]."""
    assert running.record is not None
    job = running.job
    rows = reference.shaped(running.shaping, job.token_ids, running.token_ids, running.record.rows())
    return reference.warped(job.params, rows)


def changed(params: SamplingParams) -> list[str]:
    """Names of the parameters that are not neutral."""
    neutral = asdict(SamplingParams(params.max_tokens))
    return [name for name, value in asdict(params).items() if value != neutral[name]]
