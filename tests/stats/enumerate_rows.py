"""Every outcome of one draw: rows of all kinds, and the per-token scalars that the shipped trace gives to each possible token.

Two paths: the trace's own float64 values, and the same after packing, as they are stored and as the statistics read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from canary.domain.pairs import ALTERNATIVES, Columns, Provenance
from canary.engine.trace import EmittedRows, pack, trace_rows
from canary.stats.bets import column, log_ratios
from canary.stats.pit import ORDERS

VOCAB = 7
EXACT = 1e-12
# A stored log-ratio is a float32 of size at most ln 1e9 < 32, so it is off by at most 2^-24 * 16 = 9.5e-7, and so, relatively, is
# the mass of an alternative; a PIT value is off by 3e-8, where the steepest bet has slope .5 * 20.
PACKED = 1e-6


@dataclass(frozen=True)
class Draw:
    """One position and all its outcomes.

    Args:
        p: target row, [VOCAB].
        log_ratio: name -> log a_k(x)/p(x) for x = 0..VOCAB-1.
        pit: order -> PIT value for every x and every given V, [VOCAB, num_v].
    """

    label: str
    p: np.ndarray
    log_ratio: dict[str, np.ndarray]
    pit: dict[str, np.ndarray]


def _trace(p: Tensor, q: Tensor | None, drafted: int | None, previous: Tensor, unfiltered: Tensor, v: float) -> dict[str, Tensor]:
    def spread(row: Tensor) -> Tensor:
        return row.repeat(VOCAB, 1)

    judged = q is not None or drafted is not None
    return trace_rows(
        EmittedRows(
            owner=torch.zeros(VOCAB, dtype=torch.int64),
            tokens=torch.arange(VOCAB),
            target_probs=spread(p),
            position_in_round=torch.zeros(VOCAB, dtype=torch.int64),
            provenance=torch.full((VOCAB,), int(Provenance.BONUS)),
            drafted=torch.full((VOCAB,), judged),
            greedy=torch.zeros(VOCAB, dtype=torch.bool),
            pit_uniforms=torch.full((VOCAB,), v, dtype=torch.float64),
            draft_tokens=torch.full((VOCAB,), drafted or 0),
            accept_uniform=torch.full((VOCAB,), torch.nan),
            previous_probs=spread(previous),
            has_previous=torch.ones(VOCAB, dtype=torch.bool),
            draft_probs=None if q is None else spread(q),
            unfiltered_probs=spread(unfiltered),
        ),
        want_tv=False,
    )


def _rows() -> Iterator[tuple[str, Tensor]]:
    rng = np.random.default_rng(7)
    for at in range(6):
        yield f"random{at}", torch.tensor(rng.dirichlet(np.full(VOCAB, [3.0, 1.0, 0.3, 0.1, 0.05, 0.02][at])))
    one_hot = torch.zeros(VOCAB, dtype=torch.float64)
    one_hot[2] = 1
    yield "one_hot", one_hot
    yield "uniform", torch.full((VOCAB,), 1 / VOCAB, dtype=torch.float64)
    half = torch.tensor([0.5, 0.5, 0, 0, 0, 0, 0], dtype=torch.float64)
    yield "zeros", half
    tiny = torch.tensor([1 - 6e-12, 1e-12, 1e-12, 1e-12, 1e-12, 1e-12, 1e-12], dtype=torch.float64)
    yield "tiny", tiny


def _scalars(trace: dict[str, Tensor], packed: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(log-ratios [VOCAB, alternatives], PIT values [VOCAB] by order) of one trace."""
    if not packed:
        return trace["log_ratio"].numpy(), {order: trace[order].numpy() for order in ORDERS}
    stored = Columns.from_bytes(pack(trace).to_bytes())
    return np.stack(list(log_ratios(stored).values()), 1), {order: column(stored, order) for order in ORDERS}


def draws(v: np.ndarray, *, packed: bool = False) -> Iterator[Draw]:
    """All kinds of target row against all kinds of draft: dense, one-hot on every token, and none.

    Args:
        v: the uniforms of the randomised PIT to evaluate, [num_v].
        packed: through the stored float32 columns.
    """
    rows = list(_rows())
    for name, p in rows:
        previous, unfiltered = rows[0][1], rows[1][1]
        drafts: list[tuple[str, Tensor | None, int | None]] = [(f"dense {other}", q, None) for other, q in rows]
        drafts += [(f"one-hot {token}", None, token) for token in range(VOCAB)] + [("absent", None, None)]
        for other, q, token in drafts:
            found = [_scalars(_trace(p, q, token, previous, unfiltered, float(each)), packed) for each in v]
            ratios = found[0][0]
            yield Draw(
                label=f"{name} against {other}",
                p=p.numpy(),
                log_ratio={k: ratios[:, at] for at, k in enumerate(ALTERNATIVES)},
                pit={order: np.stack([pit[order] for _, pit in found], 1) for order in ORDERS},
            )


def mean(p: np.ndarray, values: np.ndarray) -> float:
    """sum_x p(x) values(x) over the support of p."""
    inside = p > 0
    return float(np.sum(p[inside] * values[inside]))


def check_bet(p: np.ndarray, values: np.ndarray, tolerance: float = EXACT) -> None:
    """Fail unless the values are those of a bet: not negative, and of mean at most 1 under p."""
    assert (values[p > 0] >= 0).all()
    assert mean(p, values) <= 1 + tolerance
