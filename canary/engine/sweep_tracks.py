"""How a drafter would fare along recorded text: n-grams are replayed, drafters with weights are led along it once.

A drafter is driven as the loop drives it (propose, target step, commit), but the recorded token is what is emitted at each place.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from canary.domain.pairs import Scheme
from canary.domain.policy import Drafter as DrafterPolicy
from canary.domain.policy import Subject
from canary.engine import sampling
from canary.engine.drafters.base import Drafter, Proposal, Round
from canary.engine.drafters.build import Setting, build
from canary.engine.drafters.drawing import Drawing
from canary.engine.drafters.head_files import CONFIG
from canary.engine.drafters.ngram import History
from canary.engine.forward import RowForward
from canary.engine.probe import draft_seconds
from canary.engine.rows import Rows
from canary.engine.streams import key_from_bytes
from canary.flow.tools.sweep_facts import Drafted, Recorded
from canary.stats.cost import Curve
from canary.stats.rounds import Track, windows

TIMED_KS = (1, 4, 16)
_KEY = key_from_bytes(bytes(16))


@dataclass(frozen=True, slots=True)
class Target:
    """A loaded target and its rows."""

    path: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    rows: RowForward


def along(
    drafter: DrafterPolicy,
    target: Target,
    answers: Sequence[Recorded],
    batches: Sequence[int],
    most: int,
    subject: Subject,
    cache_dir: Path,
) -> Drafted:
    """See `flow.tools.sweep_facts.SweepEngine.along`."""
    if drafter.name == "ngram":
        return Drafted(tuple(replayed(drafter.max_ngram, answer, most) for answer in answers), None, (), True)
    if drafter.name == "composite":
        assert drafter.fallback is not None
        alone = replace(drafter, name=drafter.fallback, fallback=None)
        return _composite(
            [replayed(drafter.max_ngram, answer, most) for answer in answers],
            along(alone, target, answers, batches, most, subject, cache_dir),
        )
    at_once = drafter.name == "heads"
    if at_once:
        most = min(most, num_heads(drafter.heads or ""))
    drafter = replace(drafter, num_speculative_tokens=most)
    setting = Setting(replace(subject, drafter=drafter), target.rows, target.model, target.tokenizer, cache_dir, Drawing())
    built = build(setting).drafter
    led = [_lead(built, target.rows, answer, most if at_once else 1) for answer in answers]
    # The rows of heads do not depend on the drafts before them; other drafters' rows are those of the text so far.
    ratios = (np.stack([_ratios(e, i) for i in range(most)], 1) if at_once else windows(_ratios(e, 0), most) for e in led)
    tracks = tuple(Track.of_ratios(each, block=drafter.verification == Scheme.BLOCK) for each in ratios)
    cost = draft_curve(built, target.rows, answers[0], batches, most)
    return Drafted(tracks, cost, tuple(each.begin_seconds for each in led), False)


def num_heads(directory: str) -> int:
    """How many heads a directory says that it has; 1 where it says nothing, so that loading it says what is wrong."""
    try:
        return max(1, int(json.loads((Path(directory) / CONFIG).read_text(encoding="utf-8"))["medusa_num_heads"]))
    except (OSError, ValueError, KeyError, TypeError):
        return 1


def replayed(max_ngram: int, answer: Recorded, most: int) -> Track:
    """An n-gram drafter on the recorded text, without a forward."""
    history, ids = History(max_ngram), answer.token_ids
    history.extend((*answer.prompt_ids, *ids[:1]))
    matches, drafts = [], []
    for t in range(1, len(ids)):
        draft = history.draft(most)
        wrong = (i for i, (a, b) in enumerate(zip(draft, ids[t:], strict=False)) if a != b)
        matches.append(next(wrong, min(len(draft), len(ids) - t)))
        drafts.append(bool(draft))
        history.extend(ids[t : t + 1])
    return Track.of_matches(matches, drafts, most)


@dataclass(frozen=True, slots=True)
class _Led:
    """A drafter led along one answer.

    Args:
        tokens: the answer after its first token.
        drafts: the draft tokens at each place.
        target, draft: probability of the recorded tokens: `target[t]`, and `draft[t][i]` that the i-th row at place t gives to
            the token at t + i; None for greedy requests.
        begin_seconds: what the drafter did at the request's start.
    """

    tokens: tuple[int, ...]
    drafts: list[list[int]]
    target: list[float] | None
    draft: list[list[float]] | None
    begin_seconds: float


@torch.inference_mode()
def _lead(drafter: Drafter, rows: RowForward, answer: Recorded, width: int) -> _Led:
    """Propose at every place of the answer; penalties and biases are left out of both sides' rows."""
    ids, greedy = answer.token_ids, answer.greedy
    params = None if greedy else Rows.of([answer.params], 1, rows.device)
    reach = min(len(answer.prompt_ids) + len(ids) + width + 1, rows.context)
    rows.cache.reserve(reach)
    rows.prefill(0, answer.prompt_ids)
    start = perf_counter()
    drafter.begin(0, answer.prompt_ids, reach)
    seconds = perf_counter() - start
    drafter.commit(0, ids[:1], 0)
    drafts: list[list[int]] = []
    target: list[float] = []
    draft: list[list[float]] = []
    try:
        for t in range(1, len(ids)):
            proposal = drafter.propose(_round(rows, (min(width, len(ids) - t),), params, t))
            drafts.append(proposal.tokens[0].tolist())
            logits = rows.step(torch.tensor([[ids[t - 1]]], device=rows.device))[:, 0]  # [1, V]
            if params is not None:
                target.append(float(sampling.process(logits, params)[0, ids[t]]))
                draft.append(_given(proposal, ids[t:]))
            rows.lengths[0] += 1
            drafter.commit(0, ids[t : t + 1], 0)
    finally:
        rows.lengths[0] = 0
        drafter.end(0)
    return _Led(ids[1:], drafts, None if greedy else target, None if greedy else draft, seconds)


def _given(proposal: Proposal, tokens: Sequence[int]) -> list[float]:
    """Probabilities that a proposal's rows give to the recorded tokens."""
    assert proposal.probs is not None
    return [float(proposal.probs[0, i, tokens[i]]) for i in range(min(proposal.probs.shape[1], len(tokens)))]


def _ratios(led: _Led, i: int) -> list[float]:
    """q / p of the token i after each place by the i-th draft row of that place, or 0 and 1 for greedy; 0 beyond the end."""
    n = len(led.tokens)
    if led.target is None or led.draft is None:
        return [float(len(led.drafts[t]) > i and led.drafts[t][i] == led.tokens[t + i]) if t + i < n else 0.0 for t in range(n)]
    found = []
    for t in range(n):
        q = led.draft[t][i] if i < len(led.draft[t]) else 0.0
        p = led.target[t + i] if t + i < n else 0.0
        found.append(q / p if p > 0 else 0.0)
    return found


def _composite(copied: Sequence[Track], fallback: Drafted) -> Drafted:
    """N-grams where one matches, the fallback elsewhere; its cost is shared out over all rounds."""
    tracks = tuple(
        Track(np.where(c.drafts[:, None], c.survival[:, : f.survival.shape[1]], f.survival), c.drafts | f.drafts)
        for c, f in zip(copied, fallback.tracks, strict=True)
    )
    places = sum(len(c.drafts) for c in copied)
    share = 1 - sum(int(c.drafts.sum()) for c in copied) / places if places else 1.0
    cost = None if fallback.cost is None else Curve({point: share * s for point, s in fallback.cost.points.items()})
    return Drafted(tracks, cost, fallback.prefill, False)


def draft_curve(drafter: Drafter, rows: RowForward, answer: Recorded, batches: Sequence[int], most: int) -> Curve:
    """Seconds of one round of drafts by (0, rows, k), on copies of one recorded request."""
    ks, params = sorted({k for k in TIMED_KS if k < most} | {most}), None if answer.greedy else answer.params
    found = draft_seconds(drafter, rows, answer.prompt_ids, answer.token_ids, ks, batches, params=params)
    return Curve({(0, batch, k): seconds for (batch, k), seconds in found.items()})


def _round(rows: RowForward, limits: tuple[int, ...], params: Rows | None, position: int) -> Round:
    keys = torch.tensor([_KEY] * len(limits), device=rows.device)
    return Round(limits, params, keys, torch.full((len(limits),), position, device=rows.device))
