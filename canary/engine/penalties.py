"""What a request's parameters do to its logits before the temperature: bias, penalties, bans and the minimum length.

Every position sees prompt, answer and the round's earlier drafts. Drafts are counted in a `Cursor` that lives for one round, so a
rejected one leaves nothing behind that would have to be undone. A batch without such a parameter has no `Prefixes` at all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from canary.domain.traffic import SamplingParams
from canary.engine.transfer import to_device

_ANY = -2  # in a ban's prefix: any token; a place before the prompt is -1 and equals none


@dataclass(frozen=True, slots=True)
class Shaping:
    """What one request asks for, as token ids.

    Args:
        prompt_ids: of the request.
        params: of the request, see `SamplingParams` for what each does.
        bans: token sequences; the last token is banned where the others stand right before it.
        ends: tokens that would end the answer, banned up to `min_tokens`.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    bans: tuple[tuple[int, ...], ...]
    ends: frozenset[int]


@dataclass(frozen=True, slots=True)
class Fixed:
    """What the rows of a batch ask for, entry by entry; none of it changes while the batch lives.

    Args:
        counted: [c] int64, rows with a penalty.
        prompted: [c, V] bool, tokens of their prompts.
        repetition, presence, frequency: [c, 1].
        bias_rows, bias_ids, bias: [b] each.
        ban_rows, ban_ids, ban_prefixes: [s], [s] and [s, T] int64, right-aligned after `_ANY`.
        held_rows, held_ids, least: [h] each: an end is banned while the row has emitted less than `least` tokens.
    """

    counted: Tensor
    prompted: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    bias_rows: Tensor
    bias_ids: Tensor
    bias: Tensor
    ban_rows: Tensor
    ban_ids: Tensor
    ban_prefixes: Tensor
    held_rows: Tensor
    held_ids: Tensor
    least: Tensor

    def to(self, device: torch.device) -> Fixed:
        if self.counted.device == device:
            return self
        return Fixed(*(getattr(self, f.name).to(device) for f in fields(self)))


class Cursor:
    """Walks through one round: shapes the rows of a column, then takes the tokens that the next column stands after.

    Args:
        counts: [c, V] int32, how often each answer has each token; never written to.
        tail: [n, T] int64, the last tokens.
        emitted: [n] int64, tokens of the answers.
    """

    def __init__(self, fixed: Fixed, counts: Tensor, tail: Tensor, emitted: Tensor) -> None:
        self._fixed, self._counts, self._tail, self._emitted = fixed, counts, tail, emitted

    def shape(self, logits: Tensor) -> Tensor:
        """The logits of one column after bias, penalties, bans and minimum length.

        Args:
            logits: [n, V], any float type.

        Returns:
            [n, V] float32 (float64 for float64 logits), a fresh tensor.
        """
        scores = logits.to(logits.dtype if logits.dtype == torch.float64 else torch.float32, copy=True)
        fixed = self._fixed
        if len(fixed.bias_ids):
            scores.index_put_((fixed.bias_rows, fixed.bias_ids), fixed.bias.to(scores.dtype), accumulate=True)
        if len(fixed.counted):
            scores[fixed.counted] = self._penalised(scores[fixed.counted])
        if len(fixed.ban_ids):
            before = self._tail[fixed.ban_rows]  # [s, T]
            said = ((before == fixed.ban_prefixes) | (fixed.ban_prefixes == _ANY)).all(1)
            _ban(scores, fixed.ban_rows, fixed.ban_ids, said)
        if len(fixed.held_ids):
            _ban(scores, fixed.held_rows, fixed.held_ids, self._emitted[fixed.held_rows] < fixed.least)
        return scores

    def add(self, tokens: Tensor) -> None:
        """The tokens that follow, [n] int64; a token that could not be drawn (negative) fails its row elsewhere."""
        tokens = tokens.clamp_min(0)
        if len(self._fixed.counted):
            mine = tokens[self._fixed.counted][:, None]
            self._counts = self._counts.scatter_add(1, mine, torch.ones_like(mine, dtype=self._counts.dtype))
        if self._tail.shape[1]:
            self._tail = torch.cat((self._tail[:, 1:], tokens[:, None]), 1)
        self._emitted = self._emitted + 1

    def _penalised(self, scores: Tensor) -> Tensor:
        """[c, V] scores of the rows with a penalty.

        Repetition is that of CTRL (Keskar et al., 1909.05858) over prompt and answer, as `RepetitionPenaltyLogitsProcessor` of
        transformers has it; frequency and presence are OpenAI's, over the answer.
        """
        fixed, counts = self._fixed, self._counts
        repetition, frequency, presence = (each.to(scores.dtype) for each in (fixed.repetition, fixed.frequency, fixed.presence))
        pushed = torch.where(scores < 0, scores * repetition, scores / repetition)
        scores = torch.where(fixed.prompted | (counts > 0), pushed, scores)
        return scores - frequency * counts - presence * (counts > 0)


class Prefixes:
    """What the rows of one batch hold so far, as far as their parameters look back; it follows the answers as they grow.

    Args:
        shapings: of the rows, None for a row that asks for nothing.
        said: each row's answer, the very list that the loop appends to.

    Attributes:
        counts: [c, V] int32, how often the answers of the rows with a penalty have each token.
    """

    def __init__(self, shapings: Sequence[Shaping | None], said: Sequence[list[int]], fixed: Fixed) -> None:
        self.said, self.fixed = said, fixed
        self._prompts = [() if s is None else s.prompt_ids for s in shapings]
        self._counted = [row for row, s in enumerate(shapings) if s is not None and s.params.penalised]
        self._seen = [0] * len(self._counted)
        self.counts = torch.zeros(fixed.prompted.shape, dtype=torch.int32, device=fixed.prompted.device)

    @classmethod
    def of(
        cls,
        shapings: Sequence[Shaping | None],
        said: Sequence[list[int]],
        vocab_size: int,
        device: torch.device | str | None = None,
    ) -> Prefixes | None:
        """The prefixes of a batch, None where no row asks for anything."""
        if not any(shapings):
            return None
        return cls(shapings, said, _fixed(shapings, vocab_size, torch.device(device or "cpu")))

    def altered(self, change: Callable[[Fixed], Fixed]) -> Prefixes:
        """The same rows and counts under other parameters; only a drill asks for them."""
        other = copy.copy(self)
        other.fixed = change(self.fixed)
        return other

    def cursor(self, device: torch.device | None = None) -> Cursor:
        """A cursor before the first column of a round, on the device that asks."""
        self._follow()
        device = device or self.counts.device
        size = self.fixed.ban_prefixes.shape[1]
        tails = [self._last(row, size) for row in range(len(self.said))]
        emitted = to_device([len(answer) for answer in self.said], device)
        tail = to_device(tails, device).view(len(tails), size)
        return Cursor(self.fixed.to(device), self.counts.to(device), tail, emitted)

    def _follow(self) -> None:
        """Count what the answers have gained."""
        rows, ids = [], []
        for at, row in enumerate(self._counted):
            new = self.said[row][self._seen[at] :]
            self._seen[at] += len(new)
            rows += [at] * len(new)
            ids += new
        if ids:
            both = to_device([rows, ids], self.counts.device)
            one = torch.ones(len(ids), dtype=torch.int32, device=self.counts.device)
            self.counts.index_put_((both[0], both[1]), one, accumulate=True)

    def _last(self, row: int, size: int) -> list[int]:
        if size == 0:
            return []
        answer = self.said[row][-size:]
        before = self._prompts[row][-(size - len(answer)) :] if len(answer) < size else ()
        return [-1] * (size - len(before) - len(answer)) + [*before, *answer]


def shape(logits: Tensor, drafts: Tensor, prefixes: Prefixes | None) -> Tensor:
    """A round's logits after bias, penalties, bans and minimum length, each column behind the drafts before it.

    Args:
        logits: raw rows, [n, W, V].
        drafts: [n, W - 1] int64; beyond a row's drafts any token, whose columns nobody reads.
        prefixes: of the n rows; None leaves the logits as they are, the very tensor.
    """
    if prefixes is None:
        return logits
    cursor = prefixes.cursor(logits.device)
    columns = [cursor.shape(logits[:, 0])]
    for at in range(drafts.shape[1]):
        cursor.add(drafts[:, at])
        columns.append(cursor.shape(logits[:, at + 1]))
    return torch.stack(columns, 1)


def _ban(scores: Tensor, rows: Tensor, ids: Tensor, banned: Tensor) -> None:
    """Take entries out of their rows in place; an entry may be named more than once."""
    nothing = torch.zeros_like(banned, dtype=scores.dtype)
    scores.index_put_((rows, ids), nothing.masked_fill(banned, -torch.inf), accumulate=True)


def _fixed(shapings: Sequence[Shaping | None], vocab_size: int, device: torch.device) -> Fixed:
    asked = [(row, s) for row, s in enumerate(shapings) if s is not None]
    counted = [(row, s) for row, s in asked if s.params.penalised]
    bias = [(row, token, value) for row, s in asked for token, value in s.params.logit_bias]
    bans = [(row, ban) for row, s in asked for ban in s.bans]
    held = [(row, end, s.params.min_tokens) for row, s in asked if s.params.min_tokens for end in sorted(s.ends)]
    longest = max((len(ban) - 1 for _, ban in bans), default=0)
    prompted = torch.zeros(len(counted), vocab_size, dtype=torch.bool, device=device)
    for at, (_, s) in enumerate(counted):
        prompted[at, torch.tensor(s.prompt_ids, dtype=torch.int64, device=device)] = True

    def whole(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    def penalty(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)[:, None]

    return Fixed(
        counted=whole([row for row, _ in counted]),
        prompted=prompted,
        repetition=penalty([s.params.repetition_penalty for _, s in counted]),
        presence=penalty([s.params.presence_penalty for _, s in counted]),
        frequency=penalty([s.params.frequency_penalty for _, s in counted]),
        bias_rows=whole([row for row, _, _ in bias]),
        bias_ids=whole([token for _, token, _ in bias]),
        bias=torch.tensor([value for _, _, value in bias], dtype=torch.float32, device=device),
        ban_rows=whole([row for row, _ in bans]),
        ban_ids=whole([ban[-1] for _, ban in bans]),
        ban_prefixes=whole([token for _, ban in bans for token in (*[_ANY] * (longest + 1 - len(ban)), *ban[:-1])]).view(
            len(bans), longest
        ),
        held_rows=whole([row for row, _, _ in held]),
        held_ids=whole([end for _, end, _ in held]),
        least=whole([least for _, _, least in held]),
    )
