"""What transformers' own logits processors make of a row, in the order of its `generate`, for comparison with ours.

Nothing of the engine's sampling or penalties may be used here, or both sides would share a bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from canary.domain.errors import IdentityError
from canary.domain.traffic import SamplingParams
from canary.engine.logprobs import TokenLogprobs, Top
from canary.engine.penalties import Shaping

TOLD_TOLERANCE = 1e-3  # of a told log-probability: it comes from the very row that it is compared with


class FrequencyPresence(LogitsProcessor):
    """OpenAI's two penalties over the answer, which transformers lacks: logit - count * frequency - (count > 0) * presence.

    Args:
        prompt_length: tokens of the prompt, which count for nothing.
    """

    def __init__(self, frequency: float, presence: float, prompt_length: int) -> None:
        self._frequency, self._presence, self._start = frequency, presence, prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        changed, frequency, presence = scores.clone(), scores.new_tensor(self._frequency), scores.new_tensor(self._presence)
        for row, answer in enumerate(input_ids[:, self._start :].tolist()):
            for token in set(answer):
                changed[row, token] = changed[row, token] - answer.count(token) * frequency - presence
        return changed


def shapers(shaping: Shaping | None) -> LogitsProcessorList:
    """Bias, penalties, bans and minimum length of a request; empty where it asks for none."""
    chosen = LogitsProcessorList()
    if shaping is None:
        return chosen
    params, start = shaping.params, len(shaping.prompt_ids)
    if params.logit_bias:
        chosen.append(SequenceBiasLogitsProcessor([[[token], float(bias)] for token, bias in params.logit_bias]))
    if params.repetition_penalty != 1:
        chosen.append(RepetitionPenaltyLogitsProcessor(float(params.repetition_penalty)))
    if params.frequency_penalty or params.presence_penalty:
        chosen.append(FrequencyPresence(params.frequency_penalty, params.presence_penalty, start))
    if shaping.bans:
        chosen.append(NoBadWordsLogitsProcessor([list(ban) for ban in shaping.bans]))
    if params.min_tokens and shaping.ends:
        chosen.append(MinNewTokensLengthLogitsProcessor(start, params.min_tokens, sorted(shaping.ends)))
    return chosen


def warpers(params: SamplingParams) -> LogitsProcessorList:
    """Temperature and filters of a sampled request."""
    chosen = LogitsProcessorList([TemperatureLogitsWarper(float(params.temperature))])
    if params.top_k > 0:
        chosen.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        chosen.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0:
        chosen.append(MinPLogitsWarper(params.min_p))
    if params.typical_p < 1:
        chosen.append(TypicalLogitsWarper(params.typical_p))
    return chosen


def shaped(shaping: Shaping | None, prompt_ids: Sequence[int], token_ids: Sequence[int], rows: torch.Tensor) -> torch.Tensor:
    """An answer's rows after the `shapers`, each behind its own prefix: [T, V] float to [T, V]."""
    chosen = shapers(shaping)
    if not chosen:
        return rows
    ids: Any = torch.tensor([[*prompt_ids, *token_ids]], device=rows.device)
    return torch.cat([chosen(ids[:, : len(prompt_ids) + t], rows[t : t + 1]) for t in range(len(rows))])


def warped(params: SamplingParams, rows: torch.Tensor) -> torch.Tensor:
    """Probabilities of shaped rows: [T, V] to [T, V]."""
    nothing: Any = torch.zeros(len(rows), 1, dtype=torch.int64, device=rows.device)  # no warper looks at the tokens
    probs: torch.Tensor = warpers(params)(nothing, rows).softmax(-1)
    return probs


def check_told(told: Sequence[TokenLogprobs], token_ids: Sequence[int], raw: torch.Tensor, processed: torch.Tensor) -> None:
    """Compare told log-probabilities with the rows that the tokens came from.

    Args:
        told: one per token.
        raw, processed: logarithms of the two rows of every token, [T, V].

    Raises:
        IdentityError: one is missing, or is another row's or token's.
    """
    if len(told) != len(token_ids):
        raise IdentityError(f"{len(told)} log-probabilities were told for {len(token_ids)} tokens")
    for at, (each, token) in enumerate(zip(told, token_ids, strict=True)):
        for name, value, top, row in (
            ("raw", each.raw, each.top_raw, raw[at]),
            ("processed", each.processed, each.top_processed, processed[at]),
        ):
            _compare(f"{name} log-probability of token {at}", ((token, value), *top), row)


def _compare(what: str, told: Top, row: torch.Tensor) -> None:
    right = row[torch.tensor([token for token, _ in told], device=row.device)].tolist()
    for (token, value), wanted in zip(told, right, strict=True):
        if not (value == wanted or abs(value - wanted) <= TOLD_TOLERANCE):
            raise IdentityError(f"the {what} was told as {value:.4f} for id {token}, but its row gives {wanted:.4f}")
