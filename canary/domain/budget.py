"""The error budget, stated once: how often an exact candidate may be killed, a lossy one certified, or a page be false.

Statistics and rules read their levels and weights from here and never write one of their own.
Source: statistics 0b.4, 0b.5, 4 and 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from canary.domain.evidence import GateEvidence, GateRole, Verdict

KILL_ALPHA = 0.01  # of each kill e-value and of every promotion gate, in attempt 1; a policy may say less in `gates.alpha`

# The e-values that may kill, each at the attempt's alpha; economy kills nothing.
KILL_E_VALUES = ("losslessness", "errors")
GATES_OF: Mapping[str, tuple[str, ...]] = {"losslessness": ("losslessness",), "errors": ("errors", "structured_validity")}

LEVELS = (80, 100)  # per cent of a day's mirror budget at which a person is told

# Weights of the losslessness e-value. A weighted mean of e-processes needs no correction; a test that is not built, or that says
# nothing about a route, counts 0, which only makes the mean smaller.
FULL_WEIGHT = 0.5  # bank and PIT of the sampled stratum, logit gap of the greedy one
ACC_WEIGHT = 0.1  # the accept draw
RES_WEIGHT = 0.1  # the recovered draw
XREQ_WEIGHT = 0.1  # randomness shared between requests
OUTLIER_WEIGHT = 0.1  # rows far from the reference
TEXT_WEIGHT = 0.1  # held for engines of which only texts are known; no such test feeds this e-value

PAGE_AT = 20.0  # losslessness e-value from which a person is told and nothing advances
CONTROL_LIMIT = 1000.0  # e-value of the baseline against itself (A/A) from which the measuring counts as broken
CONFIRM_ALPHA = 0.001  # of the e-process that starts from nothing when a change is suspected after promotion; only that kills
RATIO_ALPHA = 0.001  # of every sample-ratio mismatch (SRM)
RATIO_SPLITS = 8  # of them at most: finish reasons, answered; mirrored, by length, stream, endpoint; completed by stratum, length
DAYS_PER_FALSE_PAGE = 3650  # of the change detector: one false page in ten years a route


def alpha_of(alpha: float, attempt: int) -> float:
    """Error budget of one attempt: alpha for the first, then alpha * 6 / (pi^2 j^2) (statistics 0b.4).

    Args:
        alpha: of the first attempt.
        attempt: j, from 1.
    """
    if attempt < 1:
        raise ValueError(f"attempt {attempt} does not exist, attempts count from 1")
    return alpha if attempt == 1 else alpha * 6 / (math.pi**2 * attempt**2)


def spent(gates: Iterable[GateEvidence]) -> tuple[str, ...]:
    """The kill e-values whose budget in this attempt is spent: one has reached 1 / alpha, and no further claim may be bought.

    Whether traffic is taken off is for `decide`: a failing harness, or `inside_margin: hold`, keeps it on all the same.
    """
    failed = {gate.gate for gate in gates if gate.role is GateRole.SAFETY and gate.verdict is Verdict.FAIL}
    return tuple(name for name in KILL_E_VALUES if failed & set(GATES_OF[name]))


def level_of(used: int, most: int) -> int:
    """The highest of `LEVELS` that so much of a budget reaches; 0 below the first.

    Args:
        used: requests kept; most: as many as may be kept, at least 1.
    """
    return max((level for level in LEVELS if 100 * used >= level * most), default=0)


def window_alpha(alpha: float, window: int) -> float:
    """Error budget of an economy gate in one window of an attempt: the attempts' own series.

    Each stage that counts the economy anew opens a window; the shadow's is 1. A false claim of a gate, either way, then has
    probability at most `lifetime_alpha(alpha)` over all windows together. A promotion has to pass every window, so that a
    candidate that never exceeds a threshold reaches full with probability at most alpha all the same.

    Args:
        alpha: of the attempt.
        window: j, from 1.
    """
    return alpha_of(alpha, window)


def lifetime_alpha(alpha: float) -> float:
    """Sum of `alpha_of` over all attempts of an epoch (or windows of an attempt), however many: about 1.392 alpha.

    It is alpha * (2 - 6 / pi^2): the series of 1 / j^2 sums to pi^2 / 6 (Euler); from the second attempt on 6 / pi^2 of it is
    spent, less the first term.
    """
    return alpha * (2 - 6 / math.pi**2)


def run_length(requests_per_day: float) -> float:
    """Mean number of requests between two false pages of the change detector (statistics 0b.5), at least 1.

    Args:
        requests_per_day: of the route's mirrored traffic.
    """
    return max(1.0, requests_per_day * DAYS_PER_FALSE_PAGE)
