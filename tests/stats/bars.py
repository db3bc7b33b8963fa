"""What the simulated battery has to reach, at full size and at a tenth of it.

Full size: a clean engine is killed in at most 5 of 500 runs of 9,600 tokens; contamination exactly at the margin is certified in
at most 17 of 800 runs; every fault is killed within 4,000 tokens in at least 95 of 100 runs. The nominal rates are .6 %, 1 % and
nearly all, so that a seeded run passes with room and a broken bet does not.

The tenth: at nominal rates, 30 clean runs give two or more kills with probability .014, and 20 runs at the margin give two or
more false certificates with .017, so one of each is allowed; of 10 faulty runs 9 must be killed (95 % of 10, rounded down).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from canary.domain.pairs import DrafterKind
from canary.domain.policy import Gates
from tests.stats.experiments import Outcome

CLEAN_TOKENS, MARGIN_TOKENS, FAULT_TOKENS = 9_600, 9_600, 4_000
MARGIN_GATES = Gates(margin=0.02)  # certifies within about 3,000 tokens, so that 9,600 give a false certificate every chance
GOAL = math.log(1 / MARGIN_GATES.alpha)

FAULTS = (
    (DrafterKind.DENSE, "greedy_draft_softmax_q"),
    (DrafterKind.DENSE, "uniform_zero"),
    (DrafterKind.ONE_HOT, "uniform_zero"),
    (DrafterKind.DENSE, "resample_from_target"),
    (DrafterKind.ONE_HOT, "resample_from_target"),
)
DIRECTIONS = (
    (DrafterKind.DENSE, "draft"),
    (DrafterKind.DENSE, "residual"),
    (DrafterKind.DENSE, "hot"),
    (DrafterKind.ONE_HOT, "cold"),
)


def num_killed(outcomes: Sequence[Outcome]) -> int:
    return sum(o.killed_at is not None for o in outcomes)


def num_false(outcomes: Sequence[Outcome], alternative: str) -> int:
    """Runs in which the certificate of the contaminating direction itself was reached."""
    return sum(o.peaks[f"certificates.bank:{alternative}"] >= GOAL for o in outcomes)


def figures(outcomes: Sequence[Outcome]) -> str:
    """One line for people: kills, tokens to kill, suspects."""
    at = [o.killed_at for o in outcomes if o.killed_at is not None]
    spread = f"median {statistics.median(at):.0f}, largest {max(at)} tokens" if at else "none"
    return f"{len(at)} of {len(outcomes)} killed ({spread}); {dict(Counter(o.reason for o in outcomes))}"
