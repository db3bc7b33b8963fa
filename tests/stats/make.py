"""Small pairs with exactly the numbers that a test is about, and the fold of one part over many of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np

from canary.domain.evidence import GateEvidence
from canary.domain.pairs import Arm, Columns, DecodeStats, DrafterKind, Generation, Pair, Timing
from canary.domain.policy import Gates
from canary.domain.traffic import Stratum
from canary.stats.part import Calibration, Context, Part, Sums

CALIBRATION = Calibration(tv={}, tv_upper={}, unigram={}, unigram_floor=-10.0, num_requests=20, num_ordinals=20, hash="c" * 8)


def context(gates: Gates | None = None, *, calibrated: bool = True, k: int = 4, exact_rows: bool = False) -> Context:
    """A context with one-hot drafts."""
    return Context(
        gates=gates or Gates(),
        alpha=(gates or Gates()).alpha,
        drafter_kind=DrafterKind.ONE_HOT,
        num_speculative_tokens=k,
        exact_rows=exact_rows,
        vocab_size=1000,
        calibration=CALIBRATION if calibrated else None,
    )


def columns(**values: Sequence[float]) -> Columns:
    """Columns of little-endian float32, all of one length."""
    (size,) = {len(v) for v in values.values()}
    return Columns(size, {name: np.asarray(v, dtype="<f4").tobytes() for name, v in values.items()})


def rows(tv: Sequence[float], gaps: Sequence[float] | None = None) -> Columns:
    """Scored rows; no gap unless given."""
    return columns(row_tv=tv, logit_gap=[0.0] * len(tv) if gaps is None else gaps)


def generation(
    arm: Arm = Arm.CANDIDATE,
    *,
    num_tokens: int = 40,
    steps: Sequence[tuple[int, int]] = (),
    scored: Columns | None = None,
    error: str | None = None,
    finish_reason: str = "length",
    k: int = 4,
) -> Generation:
    """One answer; `steps` are (drafted, accepted)."""
    stats = DecodeStats(k, tuple(d for d, _ in steps), tuple(a for _, a in steps))
    tokens = tuple(range(scored.num_tokens if scored else num_tokens)) if error is None else ()
    return Generation(arm, tokens, "", "error" if error else finish_reason, stats, error=error, rows=scored)


def timing(per_token: float, *, num_tokens: int = 41, ttft: float = 0.1) -> Timing:
    """A pass with exactly these seconds per token after the first."""
    return Timing(ttft, ttft + per_token * (num_tokens - 1), num_tokens)


def pair(
    ordinal: int = 0,
    *,
    stratum: Stratum = Stratum.SAMPLED,
    baseline: Generation | None = None,
    candidate: Generation | None = None,
    timings: tuple[Timing | None, Timing | None] = (None, None),
) -> Pair:
    """A pair; `timings` are (baseline, candidate)."""
    return Pair(
        pair_id=f"{ordinal:032x}",
        route="math",
        epoch="e",
        attempt=1,
        ordinal=ordinal,
        stratum=stratum,
        first=Arm.BASELINE,
        baseline=baseline or generation(Arm.BASELINE, k=0),
        candidate=candidate or generation(),
        increments=b"",
        baseline_timing=timings[0],
        candidate_timing=timings[1],
    )


def fold(part: Part, where: Context, pairs: Iterable[Pair]) -> Sums:
    """The part's sums and peaks over the pairs, looked at after every one."""
    names = part.names(where)
    values = np.zeros(len(names))
    peaks = part.log_e(where, values)
    for one in pairs:
        values = values + part.increments(where, one)
        peaks = {key: max(peaks[key], now) for key, now in part.log_e(where, values).items()}
    return Sums(names, values, peaks)


def gate(part: Part, where: Context, pairs: Iterable[Pair], name: str | None = None) -> GateEvidence:
    """One gate of the part after folding the pairs; the first unless named."""
    found = part.assess(where, fold(part, where, pairs))
    return found[0] if name is None else next(g for g in found if g.gate == name)


def expectation(part: Part, where: Context, key: str, outcomes: Sequence[tuple[float, Pair]], length: int) -> float:
    """E[exp(log_e[key])] after `length` independent pairs, by visiting every sequence of outcomes.

    Args:
        outcomes: (probability, pair) of one draw; probabilities sum to 1.
    """
    added = [part.increments(where, one) for _, one in outcomes]
    total = 0.0
    for chosen in product(range(len(outcomes)), repeat=length):
        values = np.sum([added[i] for i in chosen], axis=0)
        total += float(np.prod([outcomes[i][0] for i in chosen]) * np.exp(part.log_e(where, values)[key]))
    return total
