"""The reference: one plain forward of the unmodified transformers model over prompt and answer, compared with our rows.

Its attention, its cache (none) and its processing are transformers' own; nothing of the engine's sampling may be used here, or
both sides would share a bug.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, TemperatureLogitsWarper

from canary.domain.pairs import Columns
from canary.domain.traffic import SamplingParams
from canary.engine import reference, trace
from canary.engine.logprobs import TokenLogprobs
from canary.engine.penalties import Shaping

# A processed row farther than this from transformers' processing of the very same raw row is no rounding: ties at the edge of a
# nucleus may fall either way in 16 bit, which moves one token's mass; a skipped temperature or filter moves a tenth and more.
PROCESSING_TOLERANCE = 0.05
REMEMBERED_BYTES = 256 * 2**20


class Remembered:
    """Reference rows of the answers scored last: the arms of a greedy pair mostly say the same, and one forward serves both.

    Args:
        most_bytes: rows beyond it are not kept.
    """

    def __init__(self, most_bytes: int = REMEMBERED_BYTES) -> None:
        self._most = most_bytes
        self._rows: dict[tuple[int, ...], torch.Tensor] = {}
        self._before: dict[tuple[int, ...], torch.Tensor] = {}
        self.num_forwards = 0

    def next_arm(self) -> None:
        """Another arm begins: what the one before it left is kept, anything older is let go."""
        self._before, self._rows = self._rows, {}

    def rows(self, model: PreTrainedModel, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> torch.Tensor:
        """Raw reference rows that an answer's tokens are judged by, [T, V] in the model's dtype."""
        ids = (*prompt_ids, *token_ids[:-1])
        known = self._before.get(ids, self._rows.get(ids))
        if known is not None and len(known) == len(token_ids):
            return known
        found = reference_rows(model, prompt_ids, token_ids)
        self.num_forwards += 1
        if found.nbytes + sum(each.nbytes for each in (*self._rows.values(), *self._before.values())) <= self._most:
            self._rows[ids] = found
        return found


def reference_rows(model: PreTrainedModel, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> torch.Tensor:
    """One plain forward over prompt and answer: raw rows, [T, V] in the model's dtype."""
    ids = torch.tensor([[*prompt_ids, *token_ids[:-1]]], device=model.device)
    rows: torch.Tensor = model(input_ids=ids, use_cache=False, logits_to_keep=len(token_ids)).logits[0]
    return rows


@torch.inference_mode()
def score(
    model: PreTrainedModel,
    prompt_ids: Sequence[int],
    token_ids: Sequence[int],
    engine_logits: torch.Tensor,
    params: SamplingParams,
    processed: torch.Tensor | None = None,
    remembered: Remembered | None = None,
    shaping: Shaping | None = None,
    told: Sequence[TokenLogprobs] = (),
) -> Columns:
    """Compare the engine's rows with the reference's.

    Args:
        model: the target as transformers loads it.
        prompt_ids: at least one token.
        token_ids: the answer, T tokens.
        engine_logits: raw rows that the answer's tokens came from, [T, V].
        params: of the request; greedy compares at temperature 1.
        processed: the rows that the tokens were drawn from, [T, V]; None for greedy requests.
        remembered: where the other arm's reference rows may be.
        shaping: the request's bias, penalties, bans and minimum length as token ids.
        told: log-probabilities that the request asked for.

    Returns:
        `ROW_COLUMNS` without `replay_tv`: total variation between the two raw softmax rows at the temperature, the reference's
        largest logit minus that of the emitted token (after bias, penalties and bans), and that temperature. A token whose
        processed row is not what transformers makes of the same raw row has distance 1.

    Raises:
        IdentityError: a told log-probability is not that of its row.
        ValueError: the parameters change logits and `shaping` is missing.
    """
    if params.shaped and shaping is None:
        raise ValueError("the request changes logits, so its shaping is needed")
    if not token_ids:
        return trace.pack(dict.fromkeys(("row_tv", "logit_gap", "temperature"), torch.zeros(0)))
    ids = torch.tensor([[*prompt_ids, *token_ids[:-1]]], device=model.device)
    found = reference_rows if remembered is None else remembered.rows
    logits = found(model, prompt_ids, token_ids).float()  # [T, V]
    engine = engine_logits.float()
    temperature = float(params.temperature) if params.temperature > 0 else 1.0
    warp = TemperatureLogitsWarper(temperature)
    distance = trace.row_distance(warp(ids, engine).softmax(-1), warp(ids, logits).softmax(-1))  # [T]
    tokens = torch.tensor(list(token_ids), device=logits.device)
    shaped = reference.shaped(shaping, prompt_ids, token_ids, engine)
    logs, wrong = _processing(params, shaped, processed, tokens)
    distance[wrong] = 1.0
    if params.logprobs is not None:
        reference.check_told(told, token_ids, engine.log_softmax(-1), logs)
    gap = trace.logit_gap(reference.shaped(shaping, prompt_ids, token_ids, logits), tokens)
    return trace.pack({"row_tv": distance, "logit_gap": gap, "temperature": torch.full_like(gap, temperature)})


def _processing(
    params: SamplingParams, shaped: torch.Tensor, processed: torch.Tensor | None, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities that an answer's tokens were drawn by, and where our processing is not transformers'.

    Args:
        shaped: [T, V] the engine's rows after transformers' bias, penalties, bans and minimum length.
        processed: [T, V] the rows that were drawn from, None where none were kept.

    Returns:
        [T, V] and [T] bool. A greedy token has no row to compare: it is wrong where it is not the shaped row's largest.
    """
    if params.temperature == 0:
        return shaped.log_softmax(-1), (trace.logit_gap(shaped, tokens) > PROCESSING_TOLERANCE) & params.shaped
    expected = reference.warped(params, shaped)
    if processed is None:
        return expected.log(), torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    return processed.float().log(), trace.row_distance(processed.float(), expected) > PROCESSING_TOLERANCE
