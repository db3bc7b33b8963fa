"""How many target steps a text needs under speculation: in closed form from rates, or along recorded answers.

It counts rounds and knows no time; `cost` prices them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def expected_tokens(conditional: Sequence[float], room: int | None = None) -> float:
    """Tokens that one round emits on average.

    With one rate a for every position this is (1 - a^(k+1)) / (1 - a), eq. 1 of Leviathan, Kalman & Matias, "Fast Inference from
    Transformers via Speculative Decoding" (2023); in general the k-th draft counts only where all before it were accepted.

    Args:
        conditional: acceptance of each draft position given that all before it were accepted, k rates in [0, 1]; a round without
            a draft at a position counts as a rejection there.
        room: tokens that the answer still has room for; the last one is the target's own.

    Raises:
        ValueError: a rate is outside [0, 1], or there is no room.
    """
    rates = np.asarray(conditional, dtype=np.float64)
    if not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError(f"acceptance rates must lie in [0, 1], not {list(conditional)}")
    if room is not None:
        if room < 1:
            raise ValueError("an answer without room emits nothing")
        rates = rates[: room - 1]
    return float(1 + np.cumprod(rates).sum())


def step_speedup(conditional: Sequence[float], verify_ratio: float, draft_ratio: float = 0.0) -> float:
    """Speed-up of decoding over k = 0, prefill left out.

    Theorem 3.8 of Leviathan et al., (1 - a^(k+1)) / ((1 - a) (c k + 1)), where verifying is free; here a verification costs
    `verify_ratio` plain steps.

    Args:
        verify_ratio: a target step of width k + 1 in units of one of width 1 at the same batch.
        draft_ratio: all k draft tokens of a round in the same units (c k).
    """
    return expected_tokens(conditional) / (verify_ratio + draft_ratio)


@dataclass(frozen=True, slots=True)
class Track:
    """How a drafter would fare along one recorded answer, for rounds that start anywhere in it.

    Args:
        survival: [n, K+1]; entry (t, j) is the probability that the first j drafts of a round at the t-th decoded token are all
            accepted, given the recorded text; column 0 is 1. n counts the tokens after the first, which is the prefill's.
        drafts: [n] bool; whether the drafter proposes anything there.
    """

    survival: Array
    drafts: NDArray[np.bool_]

    @classmethod
    def of_matches(cls, matches: Sequence[int], drafts: Sequence[bool], most: int) -> Track:
        """Of a deterministic drafter: how many of its drafts at each token are the recorded text, up to `most`."""
        counts = np.asarray(matches, dtype=np.int64)
        return cls((np.arange(most + 1) <= counts[:, None]).astype(np.float64), np.asarray(drafts, dtype=bool))

    @classmethod
    def of_rates(cls, rates: Sequence[float], most: int) -> Track:
        """Of a drafter that goes on from its own drafts: the acceptance of the recorded token at each place."""
        return cls.of_ratios(windows(rates, most))

    @classmethod
    def of_ratios(cls, ratios: Array, *, block: bool = False) -> Track:
        """Of a drafter with rows of its own, from q / p of the recorded tokens.

        Given that token x was emitted, it was an accepted draft with probability min(1, q(x) / p(x)), independently at each
        place; the mean over x of that is sum(min(p, q)), eq. 6 of Leviathan et al. Judged as a block, the first i tokens were
        accepted drafts with probability w_i q(x_1 .. x_i) / p(x_1 .. x_i), where w_i = min(1, w_(i-1) p(x_i) / q(x_i)) is what
        Sun et al. (2024), algorithm 2, accept i drafts with.

        Args:
            ratios: [n, K]; entry (t, i) of the token that the i-th draft of a round at t would be, 0 beyond the answer's end.
            block: whether drafts are judged as a block.
        """
        weight = np.ones(len(ratios))
        survival = [weight]
        for ratio in ratios.T:
            survival.append(survival[-1] * np.minimum(1.0, ratio / weight))
            if block:
                weight = np.minimum(1.0, np.divide(weight, ratio, out=np.ones_like(weight), where=ratio > 0))
        return cls(np.stack(survival, 1), np.ones(len(ratios), dtype=bool))


def windows(values: Sequence[float], most: int) -> Array:
    """The next `most` values at each place, [n, most], 0 beyond the end."""
    known = np.concatenate([np.asarray(values, dtype=np.float64), np.zeros(max(0, most - 1))])
    return np.lib.stride_tricks.sliding_window_view(known, most).copy() if most else np.zeros((len(values), 0))


@dataclass(frozen=True, slots=True)
class Walk:
    """What k drafts a round come to along one answer, in expectation.

    Args:
        tokens: decoded after the first one.
        rounds: target steps for them.
        num_drafts: rounds in which something was drafted.
        num_draft_tokens: drafted in them; every draft is k long but for the answer's end.
        accepted_at: accepted drafts by position, k numbers.
    """

    tokens: int
    rounds: float
    num_drafts: float
    num_draft_tokens: float
    accepted_at: tuple[float, ...]


def walk(track: Track, k: int) -> Walk:
    """Expected rounds along a recorded answer: the chain of round starts, each followed by its accepted run and one token.

    Exact for the recorded text, also where acceptance differs from place to place; the last token is never drafted.
    """
    n = len(track.survival)
    starts = np.zeros(n + 1)
    starts[0] = 1.0
    accepted = np.zeros(k)
    drafts = offered = 0.0
    for t in range(n):
        most = min(k, n - t - 1)
        reach = track.survival[t, : most + 1]
        starts[t + 1 : t + most + 2] += starts[t] * (reach - np.append(reach[1:], 0.0))
        accepted[:most] += starts[t] * reach[1:]
        if track.drafts[t] and most > 0:
            drafts += starts[t]
            offered += starts[t] * most
    return Walk(n, float(starts[:n].sum()), float(drafts), float(offered), tuple(accepted.tolist()))
