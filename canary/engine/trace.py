"""The only code that reduces probability rows for statistics: per emitted token, the columns of `TRACE_COLUMNS`.

It reads what the engine drew from and never draws anything itself; the rows do not outlive the call.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from canary.domain.pairs import ALTERNATIVES, BLOCK_COLUMNS, ROW_COLUMNS, TILTS, TRACE_COLUMNS, Columns, Provenance
from canary.engine import alternatives as bank
from canary.engine import judged
from canary.engine.alternatives import Alternative
from canary.engine.emitted import EmittedRows as EmittedRows
from canary.engine.emitted import gather_emitted as gather_emitted
from canary.engine.sampling import argmax, block_sums, mass, mass_around

_TINY = 1e-300


def trace_rows(rows: EmittedRows, *, want_tv: bool) -> dict[str, Tensor]:
    """Reduce the rows of emitted tokens to the columns of `TRACE_COLUMNS`.

    Args:
        want_tv: also compute TV(p, a_k), which costs several passes over the rows; needed only while an attempt calibrates.

    Returns:
        column -> [N] or [N, values per token], float64 or int64.
    """
    target, tokens = rows.target_probs, rows.tokens
    blocks = block_sums(target)
    below, above = mass_around(target, tokens, blocks)
    p = target.gather(1, tokens[:, None])[:, 0].to(torch.float64)
    total = below + p + above
    below, p = below / total, p / total
    best, largest = argmax(target)
    largest = largest.to(torch.float64) / total
    found = bank.of_target(target, p, want_tv)
    found["argmax"] = bank.of_argmax(p, tokens == best, largest)
    found["shift"] = _where(rows.has_previous, bank.of_row(rows.previous_probs, target, tokens, p, want_tv))
    if rows.unfiltered_probs is not None:
        found["unfiltered"] = bank.of_row(rows.unfiltered_probs, target, tokens, p, want_tv)
    by_draft, before = _draft_side(rows, blocks, below, p, want_tv)
    found.update({name: _where(rows.drafted, each) for name, each in by_draft.items()})

    sampled = ~rows.greedy[:, None]
    inert = torch.ones_like(p)
    ratios = torch.stack([found[name].ratio if name in found else inert for name in ALTERNATIVES], 1)
    tv = torch.zeros_like(ratios)
    for column, name in enumerate(ALTERNATIVES):
        distance = found[name].tv if want_tv and name in found else None
        if distance is not None:
            tv[:, column] = distance
    return {
        "position_in_round": rows.position_in_round,
        "provenance": rows.provenance,
        "drafted": rows.drafted.to(torch.int64),
        "log_prob": p.clamp_min(_TINY).log(),
        "max_prob": largest,
        "log_ratio": torch.where(sampled, bank.log_ratio(ratios), 0.0),
        "tv": torch.where(sampled, tv, 0.0),
        "pit_id": below + rows.pit_uniforms * p,
        "pit_ratio": torch.where(rows.drafted, before, below) + rows.pit_uniforms * p,
        "pit_mid": below + p / 2,
        **_draft_columns(rows),
        **_recovered_columns(rows),
        "bonus_log_ratio": _bonus_column(rows, p),
        **({} if rows.together is None else rows.together.columns()),
    }


def _draft_columns(rows: EmittedRows) -> dict[str, Tensor]:
    """The columns of judged drafts; nan where none was judged."""
    drafts = torch.where(rows.drafted, rows.draft_tokens, 0)
    found = {
        "accept_threshold": judged.threshold(rows.target_probs, rows.draft_probs, drafts),
        "accept_uniform": rows.accept_uniform,
    }
    missing = torch.full_like(rows.pit_uniforms, torch.nan, dtype=torch.float64)
    ranks = (missing, missing)
    if rows.draft_probs is not None:
        ranks = judged.draft_ranks(rows.draft_probs, drafts, rows.pit_uniforms)
    found["draft_pit"], found["draft_mid"] = ranks
    return {name: torch.where(rows.drafted, values.to(torch.float64), torch.nan) for name, values in found.items()}


def _recovered_columns(rows: EmittedRows) -> dict[str, Tensor]:
    """The columns of recovered tokens, from the few rows that have one."""
    ratios = rows.target_probs.new_zeros(len(rows.tokens), len(TILTS), dtype=torch.float64)
    pit = torch.full_like(ratios[:, 0], torch.nan)
    at = (rows.provenance == Provenance.RECOVERED).nonzero()[:, 0]  # [R]
    if len(at):
        draft = None if rows.draft_probs is None else rows.draft_probs[at]
        given = (rows.target_probs[at], draft, rows.draft_tokens[at], rows.tokens[at], rows.pit_uniforms[at])
        found, pit[at] = judged.recovered(*given)
        ratios[at] = bank.log_ratio(found)
    return {"residual_log_ratio": ratios, "residual_pit": pit}


def _bonus_column(rows: EmittedRows, p: Tensor) -> Tensor:
    """The bet that a bonus token is drawn from the round's last draft row, which is that of the emitted row before it."""
    at = (rows.provenance == Provenance.BONUS).nonzero()[:, 0]  # [M]
    at = at[(at > 0) & rows.drafted[at - 1] & (rows.owner[at - 1] == rows.owner[at])]
    found, tokens = torch.zeros_like(p), rows.tokens[at]
    if rows.draft_probs is None:
        a = (tokens == rows.draft_tokens[at - 1]).to(p.dtype)
    else:
        row = rows.draft_probs[at - 1]
        # A reported row of more than unit mass would be no bet.
        a = row.gather(1, tokens[:, None])[:, 0].to(p.dtype) / bank.mass(row).clamp_min(1.0)
    found[at] = bank.log_ratio(bank.over(a, p[at]))
    return found


def _where(active: Tensor, alternative: Alternative) -> Alternative:
    """The alternative where active; the target row itself, ratio 1 and distance 0, elsewhere."""
    ratio, tv = alternative
    return Alternative(torch.where(active, ratio, 1.0), None if tv is None else torch.where(active, tv, 0.0))


def _draft_side(
    rows: EmittedRows, blocks: Tensor, below: Tensor, p: Tensor, want_tv: bool
) -> tuple[dict[str, Alternative], Tensor]:
    """What the draft rows add: the draft-built alternatives, and the mass before the emitted token in ascending q/p (ties by id).

    Args:
        blocks: `block_sums` of the target rows.
        below, p: [N] normalised mass of the lower ids and of the emitted token.
    """
    target, tokens = rows.target_probs, rows.tokens
    if rows.draft_probs is None:
        drafts = torch.where(rows.drafted, rows.draft_tokens, 0)
        left, right = mass_around(target, drafts, blocks)
        p_draft = target.gather(1, drafts[:, None])[:, 0].to(torch.float64)
        total = left + p_draft + right
        p_draft, rest = p_draft / total, (left + right) / total
        is_draft = tokens == drafts
        # The draft token comes last, so ids above it move down by its mass.
        before = torch.where(is_draft, rest, below - torch.where(tokens > drafts, p_draft, 0.0))
        return bank.of_one_hot(p, p_draft, rest, is_draft), before.clamp_min(0.0)
    ratio = rows.draft_probs / target
    at = ratio.gather(1, tokens[:, None])
    ids = torch.arange(target.shape[1], device=target.device)
    earlier = (ratio < at) | ((ratio == at) & (ids < tokens[:, None]))
    before = mass(torch.where(earlier, target, 0.0)) / blocks.sum(1)
    return bank.of_dense(target, rows.draft_probs, tokens, p, want_tv), before


def row_distance(engine_probs: Tensor, reference_probs: Tensor) -> Tensor:
    """TV(engine row, reference row): [N, V] each to [N] float64."""
    return bank.distance(engine_probs, reference_probs)


def logit_gap(logits: Tensor, tokens: Tensor) -> Tensor:
    """Largest logit minus the logit of the emitted token: [N, V] and [N] to [N] float64; 0 where the token is the argmax."""
    at = logits.gather(1, tokens[:, None])[:, 0].to(torch.float64)
    return logits.amax(1).to(torch.float64) - at


def pack(columns: Mapping[str, Tensor]) -> Columns:
    """Pack one request's columns.

    Args:
        columns: any of `TRACE_COLUMNS`, `BLOCK_COLUMNS` and `ROW_COLUMNS`; [n] or [n, values per token], tokens in order.

    Raises:
        ValueError: an unknown column, a wrong shape, or lengths that differ.
    """
    data, num_tokens = {}, None
    for name, values in columns.items():
        kind = TRACE_COLUMNS.get(name) or BLOCK_COLUMNS.get(name) or ROW_COLUMNS.get(name)
        if kind is None:
            raise ValueError(f"{name!r} is not a column of a trace")
        dtype, width = kind
        shape = tuple(values.shape)
        if shape != ((shape[0],) if width == 1 else (shape[0], width)):
            raise ValueError(f"column {name!r} has shape {shape}, but {width} values per token")
        num_tokens = shape[0] if num_tokens is None else num_tokens
        if shape[0] != num_tokens:
            raise ValueError(f"column {name!r} describes {shape[0]} tokens, the others {num_tokens}")
        data[name] = values.detach().cpu().numpy().astype(np.dtype(dtype)).tobytes()
    return Columns(num_tokens or 0, data)
