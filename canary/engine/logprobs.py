"""Log-probabilities that a request asked for: of the target's raw row, and of the processed row that the token was drawn from.

The two have different names everywhere and neither ever stands for the other. They are told, never stored and never drawn from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from canary.domain.traffic import SamplingParams
from canary.engine.transfer import to_device
from canary.engine.verify import Verified

Top = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One emitted token's.

    Args:
        raw: under the target's row as it came.
        processed: under the row after every parameter. A greedy request has no temperature and no filter, so there it is the row
            after bias, penalties, bans and minimum length: never the certainty of the argmax.
        top_raw, top_processed: the likeliest tokens of each row with theirs, likeliest first; tokens without mass are left out.
    """

    raw: float
    processed: float
    top_raw: Top
    top_processed: Top


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one round's log-probabilities are read from, n requests and W positions.

    Args:
        raw: [n, W, V] logits of the target.
        shaped: [n, W, V] after bias, penalties, bans and minimum length; the very `raw` where nothing asks for any.
        probs: [n, W, V] processed rows, None where all requests are greedy.
        greedy: [n] bool.
        tokens: [n, W] int64, what each position emitted; nobody reads on after the last one.
        asked: [a] rows of the requests that asked.
        most: likeliest tokens that one of them asked for.
    """

    raw: Tensor
    shaped: Tensor
    probs: Tensor | None
    greedy: Tensor
    tokens: Tensor
    asked: Tensor
    most: int


Tell = Callable[[Judgement], Tensor]


def table(round_: Judgement) -> Tensor:
    """The log-probabilities of a round as one block, so that one copy brings them to the host.

    Returns:
        [a, W, 2 + 4 * most] float64: raw, processed, then ids and values of the raw row's likeliest tokens, then of the other's.
    """
    at, most = round_.asked, min(round_.most, round_.raw.shape[-1])
    raw = _logs(round_.raw[at])
    processed = _logs(round_.shaped[at])
    if round_.probs is not None:
        drawn_from = round_.probs[at].to(raw.dtype).log()
        processed = torch.where(round_.greedy[at][:, None, None], processed, drawn_from)
    tokens = round_.tokens[at].clamp_min(0)[..., None]  # [a, W, 1]
    parts = [raw.gather(-1, tokens), processed.gather(-1, tokens)]
    for logs in (raw, processed):
        top = logs.topk(most, -1)
        parts += [top.indices.to(torch.float64), top.values]
    return torch.cat([part.to(torch.float64) for part in parts], -1)


@dataclass(frozen=True, slots=True)
class Telling:
    """The requests of a batch that asked.

    Args:
        rows: theirs.
        wanted: likeliest tokens that each of them asked for.
        greedy: [n] bool, of the whole batch.
        asked: `rows` as a tensor.
    """

    rows: tuple[int, ...]
    wanted: tuple[int, ...]
    greedy: Tensor
    asked: Tensor

    @classmethod
    def of(cls, params: Sequence[SamplingParams], device: torch.device) -> Telling | None:
        """Who asked in a batch; None where nobody did."""
        asked = {row: p.logprobs for row, p in enumerate(params) if p.logprobs is not None}
        if not asked:
            return None
        greedy = to_device([p.temperature == 0 for p in params], device, torch.bool)
        return cls(tuple(asked), tuple(asked.values()), greedy, to_device(list(asked), device))

    def judge(self, tell: Tell, raw: Tensor, shaped: Tensor, probs: Tensor | None, drafts: Tensor, verified: Verified) -> Tensor:
        """The table of one judged round; see `Judgement`.

        Args:
            drafts: [n, W - 1].
        """
        tokens = pad(drafts, (0, 1)).scatter(1, verified.num_accepted[:, None], verified.next_token[:, None])
        return tell(Judgement(raw, shaped, probs, self.greedy, tokens, self.asked, max(self.wanted)))

    def give(
        self, told: Sequence[Sequence[Sequence[float]]], counts: Sequence[int], answers: Sequence[list[TokenLogprobs]]
    ) -> None:
        """Append a table's lines to the answers of the batch.

        Args:
            told: the table on the host.
            counts: tokens that each request emitted in the round.
        """
        for row, most, lines in zip(self.rows, self.wanted, told, strict=True):
            answers[row].extend(_read(line, most) for line in lines[: counts[row]])


def _read(line: Sequence[float], most: int) -> TokenLogprobs:
    width = (len(line) - 2) // 4

    def top(start: int) -> Top:
        ids, values = line[start : start + width], line[start + width : start + 2 * width]
        return tuple((int(t), v) for t, v in zip(ids[:most], values[:most], strict=True) if v > -torch.inf)

    return TokenLogprobs(line[0], line[1], top(2), top(2 + 2 * width))


def _logs(logits: Tensor) -> Tensor:
    return logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32).log_softmax(-1)
