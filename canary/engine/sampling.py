"""Logits to probabilities, and probabilities to tokens: one pipeline for baseline, draft and verify rows.

Behind what `penalties` does, the order is temperature, top-k, top-p, min-p, typical-p, as in transformers' generate. A row that
cannot be drawn from (a NaN, an infinite logit, no mass) is poisoned with NaN by `process` and drawn as `INVALID`; it is never
repaired in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from canary.engine.rows import Rows

INVALID = -1  # the token of a row that could not be drawn from
_BLOCK = 256


class Drawn(NamedTuple):
    """Tokens and the very probabilities that they were drawn from.

    Args:
        tokens: [N] int64; `INVALID` where the row cannot be drawn from (clamp before feeding it to a model).
        probs: [N, V], the argument of `draw`.
    """

    tokens: Tensor
    probs: Tensor


Draw = Callable[[Tensor, Tensor], Drawn]


def process(logits: Tensor, rows: Rows) -> Tensor:
    """The distribution that a token is drawn from.

    Args:
        logits: [N, V], any float type; bias, penalties and bans are in them, see `penalties.shape`.
        rows: of the same N rows.

    Returns:
        [N, V] float32 (float64 for float64 logits). Greedy rows are one-hot at the argmax (lowest id of a tie). Rows with a NaN,
        an infinite maximum or no finite logit are NaN throughout.
    """
    if rows.all_greedy:
        return _one_hot(logits)
    temperature = torch.where(rows.greedy, 1.0, rows.temperature).to(_dtype(logits))
    if rows.filtered:
        scaled = logits.to(temperature.dtype) / temperature[:, None]
        for which, apply in (
            (rows.top_k_rows, _top_k),
            (rows.top_p_rows, _top_p),
            (rows.min_p_rows, _min_p),
            (rows.typical_p_rows, _typical_p),
        ):
            if len(which):
                scaled[which] = apply(scaled[which], rows)
        probs = _softmax(scaled)
    else:
        probs = _softmax(logits, None if rows.plain else temperature)
    if rows.any_greedy:
        probs[rows.greedy_rows] = _one_hot(logits[rows.greedy_rows])
    return probs


def unfiltered(logits: Tensor, rows: Rows) -> Tensor | None:
    """The distribution with every parameter dropped, bias, penalties and bans too: the bank's `unfiltered` alternative.

    Args:
        logits: [N, V], raw.
        rows: of the batch that the logits were taken from; only its flags are read.

    Returns:
        [N, V] softmax of the raw logits, or None where it would equal the processed rows everywhere.
    """
    if (rows.plain and not rows.shaped) or rows.all_greedy:
        return None
    return _softmax(logits)


def draw(probs: Tensor, uniforms: Tensor) -> Drawn:
    """Draw one token per row by inverse CDF in order of token id. Every drafter and `verify` draw through here.

    Blocks of masses are added up in float64, so float32 rows are drawn from exactly but for about 1e-7 of total variation.

    Args:
        probs: [N, V], not negative; rows need not be normalised.
        uniforms: [N] in [0, 1).

    Returns:
        The smallest token x with F(x) > u; never a token without mass.
    """
    blocks = block_sums(probs)  # [N, K]
    ends = blocks.cumsum(1)
    total = ends[:, -1:]
    goal = torch.minimum(uniforms.to(torch.float64)[:, None] * total, _just_below(total))
    block = torch.searchsorted(ends, goal, right=True).clamp_max(blocks.shape[1] - 1)  # [N, 1]
    start = torch.where(block > 0, ends.gather(1, (block - 1).clamp_min(0)), 0.0)
    _, inside = _members(probs, block)
    inner = inside.cumsum(1)  # [N, 256]
    inner_goal = torch.minimum(goal - start, _just_below(inner[:, -1:]))
    tokens = (block * _BLOCK + torch.searchsorted(inner, inner_goal, right=True))[:, 0]
    valid = (total > 0) & torch.isfinite(total)
    return Drawn(torch.where(valid[:, 0], tokens, INVALID), probs)


def block_sums(values: Tensor) -> Tensor:
    """Sums over blocks of 256 neighbours.

    Args:
        values: [N, V].

    Returns:
        [N, ceil(V / 256)] float64.
    """
    main = values.shape[1] // _BLOCK * _BLOCK
    whole = values[:, :main].reshape(len(values), main // _BLOCK, _BLOCK).sum(-1) if main else values[:, :0]
    if main < values.shape[1]:
        whole = torch.cat((whole, values[:, main:].sum(-1, keepdim=True)), 1)
    return whole.to(torch.float64)


def mass(values: Tensor) -> Tensor:
    """Sum of every row: [N, V] to [N] float64."""
    return block_sums(values).sum(1)


def argmax(values: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest id of the largest entry per row, by way of block maxima: several times faster than `Tensor.argmax` on a CPU.

    Args:
        values: [N, V], any float type.

    Returns:
        (ids, values), [N] each; a NaN counts as largest.
    """
    main = values.shape[1] // _BLOCK * _BLOCK
    blocks = values[:, :main].reshape(len(values), main // _BLOCK, _BLOCK).amax(-1) if main else values[:, :0]  # [N, K]
    if main < values.shape[1]:
        blocks = torch.cat((blocks, values[:, main:].amax(-1, keepdim=True)), 1)
    first = blocks.argmax(1, keepdim=True) * _BLOCK
    ids = (first + torch.arange(min(_BLOCK, values.shape[1]), device=values.device)).clamp_max(values.shape[1] - 1)
    inside = values.gather(1, ids)
    best = ids.gather(1, inside.argmax(1, keepdim=True))
    return best[:, 0], values.gather(1, best)[:, 0]


def mass_around(probs: Tensor, tokens: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Mass of the ids below and above a token, each added up by itself, so that neither loses digits to the other.

    Args:
        probs: [N, V].
        tokens: [N] int64 ids.
        blocks: `block_sums(probs)`.

    Returns:
        (below, above): [N] float64 each.
    """
    at = tokens[:, None]
    block = at // _BLOCK
    ids, inside = _members(probs, block)
    number = torch.arange(blocks.shape[1], device=probs.device)
    below = torch.where(number < block, blocks, 0.0).sum(1) + torch.where(ids < at, inside, 0.0).sum(1)
    above = torch.where(number > block, blocks, 0.0).sum(1) + torch.where(ids > at, inside, 0.0).sum(1)
    return below, above


def _members(probs: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
    """Ids and float64 probabilities of one block per row ([N, 256] each); ids past the vocabulary have none."""
    size = probs.shape[1]
    ids = block * _BLOCK + torch.arange(min(_BLOCK, size), device=probs.device)
    inside = probs.gather(1, ids.clamp_max(size - 1)).to(torch.float64)
    return ids, torch.where(ids < size, inside, 0.0)


def _just_below(total: Tensor) -> Tensor:
    return torch.nextafter(total, torch.zeros_like(total))


def _dtype(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def _softmax(logits: Tensor, temperature: Tensor | None = None) -> Tensor:
    """Softmax of logits over temperature ([N, V] and [N]) in float32, float64 for float64 logits.

    On a CPU it goes row by row: one float copy of all rows is memory that the allocator hands back to the system after every step
    and faults in again at the next, which costs more than the arithmetic.
    """
    dtype = _dtype(logits)
    if logits.device.type != "cpu":
        return (logits if temperature is None else logits.to(dtype) / temperature[:, None]).softmax(-1, dtype=dtype)
    probs = torch.empty(logits.shape, dtype=dtype)
    for row in range(len(logits)):
        scores = logits[row].to(dtype)
        torch.softmax(scores if temperature is None else scores / temperature[row], -1, out=probs[row])
    return probs


def _one_hot(logits: Tensor) -> Tensor:
    best, value = argmax(logits)
    poison = torch.where(torch.isfinite(value), 0.0, torch.nan).to(_dtype(logits))[:, None]
    return poison.expand(logits.shape).scatter(1, best[:, None], poison + 1)


def _top_k(scores: Tensor, rows: Rows) -> Tensor:
    """Keep what is not below the k-th largest, so ties with it stay, as in `TopKLogitsWarper` of transformers.

    Args:
        scores: [F, V] of `rows.top_k_rows`.
    """
    size = scores.shape[1]
    at = rows.top_k[rows.top_k_rows].clamp_max(size) - 1
    largest = scores.topk(min(rows.max_top_k, size)).values
    return scores.masked_fill(scores < largest.gather(1, at[:, None]), -torch.inf)


def _top_p(scores: Tensor, rows: Rows) -> Tensor:
    """Drop a token when the mass of it and all smaller ones is at most 1 - top_p, as in `TopPLogitsWarper` of transformers.

    Of a tie the lower ids go first (there an unstable sort decides), and the largest token always stays. Tokens under
    (1 - top_p) / 2V go in any case, so they need no order.

    Args:
        scores: [F, V] of `rows.top_p_rows`.
    """
    probs = scores.softmax(-1)
    cut = (1 - rows.top_p[rows.top_p_rows])[:, None]
    candidate = probs > cut / (2 * scores.shape[1])
    tail = mass(torch.where(candidate, 0.0, probs))[:, None]
    nucleus = _nucleus_of_few if scores.device.type == "cpu" else _nucleus
    keep = nucleus(probs, candidate, tail, cut.to(scores.dtype))
    # a poisoned row has no candidates and stays as it is
    return scores.masked_fill(~keep & candidate.any(1, keepdim=True), -torch.inf)


def _nucleus(probs: Tensor, candidate: Tensor, tail: Tensor, cut: Tensor) -> Tensor:
    """Which candidates top-p keeps, [F, V] bool, in shapes that the host knows beforehand: it never waits for the device.

    Args:
        probs, candidate: [F, V].
        tail: [F, 1] float64, mass of the tokens that are no candidates.
        cut: [F, 1], 1 - top_p in the dtype of the probabilities.
    """
    return _kept(torch.where(candidate, probs, 0.0).to(torch.float64), tail, cut) & candidate


def _nucleus_of_few(probs: Tensor, candidate: Tensor, tail: Tensor, cut: Tensor) -> Tensor:
    """The same for a CPU, where a full sort takes several times longer and to ask how many candidates there are costs nothing."""
    row, token = candidate.nonzero(as_tuple=True)
    counts = candidate.sum(1)
    column = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row]
    few = torch.zeros(len(probs), max(1, int(counts.max())), dtype=torch.float64)
    few[row, column] = probs[row, token].to(torch.float64)
    keep = torch.zeros_like(candidate)
    keep[row, token] = _kept(few, tail, cut)[row, column]
    return keep


def _kept(values: Tensor, tail: Tensor, cut: Tensor) -> Tensor:
    """Where a value, all smaller ones and the tail are more than the cut, [F, C] float64 to bool; the largest always is."""
    ordered, order = values.sort(stable=True)
    # transformers' running sum rounds to the scores' own type before it compares
    stays = (ordered.cumsum(1) + tail).to(cut.dtype) > cut
    stays[:, -1] = True
    return torch.zeros_like(stays).scatter(1, order, stays)


def _min_p(scores: Tensor, rows: Rows) -> Tensor:
    """Drop tokens less than min_p times as likely as the likeliest, as in `MinPLogitsWarper` of transformers.

    Args:
        scores: [F, V] of `rows.min_p_rows`.
    """
    probs = scores.softmax(-1)
    least = rows.min_p[rows.min_p_rows, None].to(scores.dtype) * probs.amax(-1, keepdim=True)
    return scores.masked_fill(probs < least, -torch.inf)


def _typical_p(scores: Tensor, rows: Rows) -> Tensor:
    """Keep the tokens whose surprise is nearest to the entropy until their mass reaches typical_p, ties with the last one too.

    Meister, Pimentel, Wiher, Cotterell: "Locally typical sampling" (2202.00666); the same numbers as `TypicalLogitsWarper`.

    Args:
        scores: [F, V] of `rows.typical_p_rows`.
    """
    logs = scores.log_softmax(-1)
    probs = logs.exp()
    entropy = -torch.where(probs == 0, 0.0, logs * probs).sum(-1, keepdim=True)
    farness, order = (-logs - entropy).abs().sort(stable=True)
    running = probs.gather(1, order).cumsum(1)
    short = (running < rows.typical_p[rows.typical_p_rows, None].to(scores.dtype)).sum(1, keepdim=True)
    last = farness.gather(1, short.clamp_max(scores.shape[1] - 1))
    return scores.masked_fill(torch.zeros_like(scores, dtype=torch.bool).scatter(1, order, farness > last), -torch.inf)
