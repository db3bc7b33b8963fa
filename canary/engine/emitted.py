"""Which rows one verified round emitted tokens from, and what else belongs to each of them; it reduces nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from canary.domain.pairs import Provenance, Scheme
from canary.engine.judged_block import Together, together
from canary.engine.verify import Verified


@dataclass(frozen=True, slots=True)
class EmittedRows:
    """Everything about the N tokens that one step emitted, request after request, position after position.

    Args:
        owner: [N] int64, the batch row of the request.
        tokens: [N] int64, emitted.
        target_probs: [N, V] processed target rows at their positions.
        position_in_round: [N] int64, 0 is the first position of the round.
        provenance: [N] int64, `Provenance`.
        drafted: [N] bool, a draft token was judged here.
        greedy: [N] bool, the request is greedy: its ratios stay 0.
        pit_uniforms: [N] float64, the V of the randomised PIT.
        draft_tokens: [N] int64, the judged draft; read only where `drafted`.
        accept_uniform: [N], what the draft was judged with; read only where `drafted`.
        previous_probs: [N, V] processed rows one position earlier; read only where `has_previous`.
        has_previous: [N] bool, False at a request's first token.
        draft_probs: [N, V] rows that the drafts were drawn from, read only where `drafted`; None for one-hot drafts. Of rounds
            judged together they are over the weight of their position: what is accepted of p there is min(p, q / w).
        unfiltered_probs: [N, V], see `sampling.unfiltered`; None where it equals the target rows.
        together: what is recorded beside where the scheme judges the drafts of a round together; None elsewhere.
    """

    owner: Tensor
    tokens: Tensor
    target_probs: Tensor
    position_in_round: Tensor
    provenance: Tensor
    drafted: Tensor
    greedy: Tensor
    pit_uniforms: Tensor
    draft_tokens: Tensor
    accept_uniform: Tensor
    previous_probs: Tensor
    has_previous: Tensor
    draft_probs: Tensor | None = None
    unfiltered_probs: Tensor | None = None
    together: Together | None = None


def gather_emitted(
    verified: Verified,
    target_probs: Tensor,
    draft_tokens: Tensor,
    draft_len: Tensor,
    draft_probs: Tensor | None,
    accept_uniforms: Tensor,
    *,
    num_emitted: Tensor,
    greedy: Tensor,
    pit_uniforms: Tensor,
    previous_probs: Tensor,
    has_previous: Tensor,
    unfiltered_probs: Tensor | None = None,
    scheme: Scheme = Scheme.TOKEN,
) -> EmittedRows:
    """Pick the emitted positions out of one verified round.

    Args:
        verified, target_probs, draft_tokens, draft_len, draft_probs, accept_uniforms: as they went through `verify`, B requests.
        num_emitted: [B] int64, tokens of the round that survived the cut by stop, EOS or length; 0 leaves the request out.
        greedy, has_previous: [B] bool; `has_previous` is False where the round starts the request.
        pit_uniforms: [B, k+1].
        previous_probs: [B, V] processed row of each request's last emitted token before the round.
        unfiltered_probs: [B, k+1, V] or None.
        scheme: how the round was judged.
    """
    columns = torch.arange(target_probs.shape[1], device=target_probs.device)
    owner, position = (columns < num_emitted[:, None]).nonzero(as_tuple=True)  # [N]
    accepted, drafted = position < verified.num_accepted[owner], position < draft_len[owner]
    if draft_tokens.shape[1] == 0:  # a column that is never read, so that one indexing serves every width
        nothing = torch.zeros(len(num_emitted), 1, device=target_probs.device)
        draft_tokens, accept_uniforms, draft_probs = nothing.long(), nothing, None
    at = (owner, position.clamp_max(draft_tokens.shape[1] - 1))
    judged_rows = None if draft_probs is None else draft_probs[at]
    block = None
    if scheme is Scheme.BLOCK:
        round_ = (target_probs, draft_tokens, draft_len, draft_probs, accept_uniforms)
        block = together(verified.num_accepted, *round_, pit_uniforms[:, 0], (owner, position))
        judged_rows = None if judged_rows is None else judged_rows / block.weight[:, None].to(judged_rows.dtype)
    return EmittedRows(
        owner=owner,
        tokens=torch.where(accepted, draft_tokens[at], verified.next_token[owner]),
        target_probs=target_probs[owner, position],
        position_in_round=position,
        provenance=_provenance(drafted, accepted, draft_len[owner] > 0),
        drafted=drafted,
        greedy=greedy[owner],
        pit_uniforms=pit_uniforms[owner, position],
        draft_tokens=draft_tokens[at],
        accept_uniform=accept_uniforms[at],
        previous_probs=_one_before(target_probs, previous_probs, owner, position),
        has_previous=has_previous[owner] | (position > 0),
        draft_probs=judged_rows,
        unfiltered_probs=None if unfiltered_probs is None else unfiltered_probs[owner, position],
        together=block,
    )


def _one_before(target_probs: Tensor, previous_probs: Tensor, owner: Tensor, position: Tensor) -> Tensor:
    rows = target_probs[owner, (position - 1).clamp_min(0)]
    first = position == 0
    rows[first] = previous_probs[owner[first]].to(rows.dtype)
    return rows


def _provenance(drafted: Tensor, accepted: Tensor, after_drafts: Tensor) -> Tensor:
    judged = torch.where(accepted, int(Provenance.ACCEPTED), int(Provenance.RECOVERED))
    last = torch.where(after_drafts, int(Provenance.BONUS), int(Provenance.PLAIN))
    return torch.where(drafted, judged, last)
