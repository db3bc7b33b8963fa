"""Table models over a small vocabulary, and the exact distribution of what a round of speculation emits from them.

`verify` and `draw` are pure functions of their uniforms and constant between the breakpoints of a partition of the unit
interval, so a visit per cell, weighted by its width, is an exact integral. Each cell is visited just inside both of its ends,
half its width each: a breakpoint that is not where it should be costs half a cell, however little it is off.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from canary.engine.sampling import Draw
from canary.engine.verify import Verify

VOCAB = 5
EDGE = 1e-12  # rounding moves breakpoints by less
Prefix = tuple[int, ...]
Rows = Callable[[Prefix], Tensor]
# Target rows [k+1, V], drafts and their rows [drafts, V] -> further breakpoints: of each draft's uniform, and rows that the next
# token may be drawn from, [n, V].
Ends = Callable[[Tensor, Sequence[int], Tensor], tuple[Sequence[Sequence[float]], Tensor]]


def table(seed: int, sharp: float = 1.5, zeros: float = 0.0) -> Rows:
    """A model whose row depends on the whole prefix; `zeros` is the share of entries without mass, as a filter leaves them."""
    rows: dict[Prefix, Tensor] = {}

    def row(prefix: Prefix) -> Tensor:
        if prefix not in rows:
            code = seed
            for token in prefix:
                code = code * 31 + token + 1
            generator = torch.Generator().manual_seed(code)
            logits = sharp * torch.randn(VOCAB, generator=generator, dtype=torch.float64)
            gone = torch.rand(VOCAB, generator=generator) < zeros
            gone[logits.argmax()] = False
            rows[prefix] = logits.masked_fill(gone, -torch.inf).softmax(0)
        return rows[prefix]

    return row


def cells(breakpoints: Tensor) -> tuple[Tensor, Tensor]:
    """Points just inside both ends of the cells that the breakpoints cut [0, 1] into, and half the cells' widths."""
    inner = breakpoints[(breakpoints > 0) & (breakpoints < 1)]
    edges = torch.cat((torch.zeros(1, dtype=torch.float64), inner.unique(), torch.ones(1, dtype=torch.float64)))
    widths = edges[1:] - edges[:-1]
    nudges = (widths / 4).clamp_max(EDGE)
    return torch.cat((edges[:-1] + nudges, edges[1:] - nudges)), torch.cat((widths, widths)) / 2


def exact(target: Rows, length: int) -> dict[Prefix, float]:
    """The target's own distribution of the first `length` tokens."""
    found = {}
    for sequence in itertools.product(range(VOCAB), repeat=length):
        weight = 1.0
        for at, token in enumerate(sequence):
            weight *= float(target(sequence[:at])[token])
        found[sequence] = weight
    return found


def drafted(draft: Rows, draw: Draw, count: int) -> dict[Prefix, tuple[float, tuple[Tensor, ...]]]:
    """Every draft of `count` tokens that `draw` can make: its probability, and the rows that it reports."""
    found: dict[Prefix, tuple[float, tuple[Tensor, ...]]] = {(): (1.0, ())}
    for _ in range(count):
        longer: dict[Prefix, tuple[float, tuple[Tensor, ...]]] = {}
        for prefix, (weight, reported) in found.items():
            points, widths = cells(draft(prefix).cumsum(0))
            tokens, rows = draw(draft(prefix).expand(len(points), VOCAB), points)
            for token, width, row in zip(tokens.tolist(), widths.tolist(), rows, strict=True):
                before = longer.get((*prefix, token), (0.0, ()))[0]
                longer[(*prefix, token)] = (before + weight * width, (*reported, row))
        found = longer
    return found


def emitted(
    verify: Verify,
    target: Rows,
    drafts: Sequence[int],
    width: int,
    rows: Sequence[Tensor] | None,
    ends_of: Ends | None = None,
) -> dict[Prefix, float]:
    """Exact distribution of what one round emits for given drafts.

    Args:
        width: k of the round; drafts shorter than it are padded with an arbitrary token.
        rows: the reported draft rows, None for one-hot drafts.
        ends_of: of a verifier whose breakpoints are not those of token rejection alone.
    """
    length = len(drafts)
    padded = [*drafts, *[VOCAB - 1] * (width - length)]
    target_probs = torch.stack([target(tuple(padded[:i])) for i in range(width + 1)])  # [k+1, V]
    uniform = torch.full((VOCAB,), 1 / VOCAB, dtype=torch.float64)
    given = rows if rows is not None else [torch.eye(VOCAB, dtype=torch.float64)[token] for token in drafts]
    draft_probs = torch.stack([*given, *[uniform] * (width - length)]) if width else torch.zeros(0, VOCAB, dtype=torch.float64)
    thresholds = [min(1.0, float(target_probs[i, d] / draft_probs[i, d])) for i, d in enumerate(drafts)]
    residuals = (target_probs[:-1] - draft_probs).clamp_min(0)
    further, more = ([()] * length, target_probs[:0]) if ends_of is None else ends_of(target_probs, drafts, draft_probs[:length])
    drawn = torch.cat((target_probs, residuals, more))
    ends = (drawn.cumsum(1) / drawn.sum(1, keepdim=True)).nan_to_num(0).flatten()
    next_points, next_widths = cells(ends)
    accept = [cells(torch.tensor([0.0, t, *f], dtype=torch.float64)) for t, f in zip(thresholds, further, strict=True)]
    accept += [cells(torch.zeros(1, dtype=torch.float64))] * (width - length)
    grid = list(itertools.product(*(zip(m.tolist(), w.tolist(), strict=True) for m, w in accept)))
    accept_uniforms = torch.tensor([[u for u, _ in cell] for cell in grid], dtype=torch.float64).view(len(grid), width)
    accept_widths = torch.tensor([[w for _, w in cell] for cell in grid], dtype=torch.float64).view(len(grid), width).prod(1)
    batch = len(grid) * len(next_points)
    verified = verify(
        target_probs.expand(batch, -1, -1),
        torch.tensor(padded, dtype=torch.int64).expand(batch, -1),
        torch.full((batch,), length),
        None if rows is None else draft_probs.expand(batch, -1, -1),
        accept_uniforms.repeat_interleave(len(next_points), 0),
        next_points.repeat(len(grid))[:, None].expand(-1, width + 1),
    )
    weights = (accept_widths[:, None] * next_widths).flatten()
    outcome = verified.num_accepted * VOCAB + verified.next_token
    chances = outcome.bincount(weights, minlength=(width + 1) * VOCAB).tolist()
    return {(*drafts[: at // VOCAB], at % VOCAB): chance for at, chance in enumerate(chances) if chance}


def completed(target: Rows, partial: dict[Prefix, float], length: int) -> dict[Prefix, float]:
    """Extend every sequence to `length` tokens with plain draws from the target."""
    found: dict[Prefix, float] = defaultdict(float)
    for prefix, weight in partial.items():
        for rest in itertools.product(range(VOCAB), repeat=length - len(prefix)):
            chance = weight
            for at, token in enumerate(rest):
                chance *= float(target((*prefix, *rest[:at]))[token])
            found[(*prefix, *rest)] += chance
    return found


def round_distribution(
    verify: Verify,
    draw: Draw,
    target: Rows,
    draft: Rows,
    width: int,
    length: int,
    dense: bool,
    ends_of: Ends | None = None,
) -> dict[Prefix, float]:
    """Exact distribution of the first `width + 1` tokens when the first round drafts `length` tokens of at most `width`."""
    found = first_round(verify, draw, target, draft, width, length, dense, ends_of)
    partial: dict[Prefix, float] = defaultdict(float)
    for (sequence, _), weight in found.items():
        partial[sequence] += weight
    return completed(target, partial, width + 1)


def first_round(
    verify: Verify,
    draw: Draw,
    target: Rows,
    draft: Rows,
    width: int,
    length: int,
    dense: bool,
    ends_of: Ends | None = None,
) -> dict[tuple[Prefix, Prefix], float]:
    """Exact distribution of (what the first round emits, what it drafted); all but the last emitted token are accepted drafts."""
    found: dict[tuple[Prefix, Prefix], float] = {}
    for drafts, (weight, rows) in drafted(draft, draw, length).items():
        for sequence, chance in emitted(verify, target, drafts, width, rows if dense else None, ends_of).items():
            found[sequence, drafts] = weight * chance
    return found


def total_variation(left: dict[Prefix, float], right: dict[Prefix, float]) -> float:
    return sum(abs(left.get(key, 0.0) - right.get(key, 0.0)) for key in {*left, *right}) / 2
