"""Closed forms of planning: how many requests a gate will need, and how weak a fault may be and still be killed within so many.

Expectations under an exact candidate and first-order bets; nothing here decides, and no figure here is a bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from canary.domain.policy import Gates
from canary.domain.traffic import Stratum
from canary.stats.bets import LAMBDAS
from canary.stats.bounded import log_budget
from canary.stats.part import Context
from canary.stats.rates import clean_needed
from canary.stats.rows import ROW_BETS, RowGate

NINE_IN_TEN = 1.2815515655446004  # quantile of the normal distribution


def chi_square(growth: float, strength: float, tv: float) -> float:
    """Effective chi2_k = E_p[(a/p - 1)^2] per token (statistics 3.5).

    A certificate at strength lam* grows by -E log(1 + lam* (r - 1)), about lam*^2 chi2 / 2; solved for chi2, that is the value
    which counts at strengths of this size, where a few huge ratios would make the plain mean meaningless. It is at least 4 TV^2.

    Args:
        growth: measured log growth of the certificate per token.
        strength: lam*.
        tv: mean TV(p, a_k).
    """
    return max(2 * growth / strength**2, 4 * tv**2)


def smallest_share(chi2: float, num_tokens: float, log_goal: float) -> float | None:
    """The smallest contamination l that is killed within so many tokens with probability about .9; None if even l = 1 is not.

    Under (1 - l) p + l a the bet of strength lam grows by (l lam - lam^2 / 2) chi2 a token, with variance lam^2 chi2 (both to
    second order); the best strength of the grid counts, and the sum is taken for normal.

    Args:
        chi2: see `chi_square`.
        num_tokens: that are seen.
        log_goal: what one bet's log has to reach: ln(1 / alpha) less the log of its weight in the kill e-value.
    """
    strengths = np.asarray(LAMBDAS)

    def killed(share: float) -> bool:
        mean = num_tokens * (share * strengths - strengths**2 / 2) * chi2
        spread = strengths * math.sqrt(num_tokens * chi2)
        return bool((mean - NINE_IN_TEN * spread).max() >= log_goal)

    low, high = 0.0, 1.0
    if not killed(high):
        return None
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if killed(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class Need:
    """What one gate needs from its stratum, from nothing.

    Args:
        requests: of the stratum; None where the evidence does not grow.
        slowest: what sets the bill.
    """

    stratum: Stratum
    requests: int | None
    slowest: str = ""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one stratum's requests carry, on average.

    Args:
        tokens: emitted by a request's candidate; `baseline_tokens` by its baseline.
        informative: of the candidate's tokens, those with a choice.
    """

    tokens: float
    baseline_tokens: float
    informative: float


def sampled_needs(context: Context, traffic: Traffic, growth: Mapping[str, float], degrees: int = 1) -> dict[str, Need]:
    """Certificates of the sampled stratum, gate -> need.

    Args:
        growth: measured log growth per token of each bank certificate that is not left out, by alternative.
        degrees: the lowest degree among the PIT certificates, which is the slowest: 2 m^2 (2 j + 1) a token.
    """
    goal, gates = log_budget(context.alpha), context.gates
    slowest = min(growth, key=lambda k: growth[k], default=None)
    if slowest is None:
        bank = Need(Stratum.SAMPLED, None, "no direction can be tested")
    else:
        bank = Need(Stratum.SAMPLED, _requests(goal, growth[slowest] * traffic.tokens), slowest)
    informed = _requests(gates.min_informative, traffic.informative)
    if bank.requests is not None and (informed is None or informed > bank.requests):
        bank = Need(Stratum.SAMPLED, informed, "informative tokens")
    pit = _requests(goal, 2 * gates.margin**2 * (2 * degrees + 1) * traffic.tokens)
    whole = _requests(goal, -math.log1p(-gates.request_margin))
    return {
        "bank_certificate": bank,
        "pit_certificate": Need(Stratum.SAMPLED, pit, f"L{degrees}"),
        "request_certificate": Need(Stratum.SAMPLED, whole, "clean requests"),
    }


def row_needs(context: Context, stratum: Stratum, traffic: Traffic) -> dict[str, Need]:
    """Gates on rows, and on gaps where the stratum is greedy, for rows without noise and without an event."""
    gates, alpha = context.gates, context.alpha
    margin = RowGate().margin(context)
    step = ROW_BETS.below(0.0, margin, gates.tau_row)
    rows = ROW_BETS.needed(step, 1.0, alpha)
    found = {
        "row_gate": Need(stratum, None if rows is None else rows + 1, "noiseless rows"),
        "outliers": _rare(gates, stratum, traffic, gates.outlier_rate, alpha),
        "outlier_requests": Need(stratum, clean_needed(0.0, 0.0, gates.request_margin, alpha), "clean requests"),
    }
    if stratum is Stratum.GREEDY:
        found["gap_certificate"] = _rare(gates, stratum, traffic, gates.gap_rate, alpha)
        found["request_certificate_greedy"] = Need(stratum, clean_needed(0.0, 0.0, gates.request_margin, alpha), "clean requests")
    return found


def _rare(gates: Gates, stratum: Stratum, traffic: Traffic, rate: float, alpha: float) -> Need:
    clean = _requests(clean_needed(0.0, 0.0, rate, alpha), traffic.tokens)
    floor = _requests(gates.noise_floor_positions, traffic.baseline_tokens)
    if clean is None or floor is None:
        return Need(stratum, None)
    return Need(stratum, max(clean, floor), "clean positions" if clean >= floor else "baseline positions for the noise floor")


def _requests(goal: float, per_request: float) -> int | None:
    return math.ceil(goal / per_request) if per_request > 0 else None
