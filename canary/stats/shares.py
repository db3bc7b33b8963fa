"""Sample-ratio mismatch on counts: does a split have its planned shares, and does what gets lost spare no group?

Everything is a closed form of the counts, one value per ordinal where they are arrays; it knows no gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, gammaln, logsumexp, xlog1py, xlogy

CONCENTRATION = 100.0  # of the alternatives around the planned shares (statistics 4)
TOLERANCE = 1e-6  # of the sum of planned shares


@dataclass(frozen=True, slots=True)
class Split:
    """Counts of a split that was planned.

    Args:
        what: what is split, in words, e.g. `mirrored requests`.
        counts: by group.
        planned: share of each group; they sum to 1.
    """

    what: str
    counts: Mapping[str, float]
    planned: Mapping[str, float]

    def __post_init__(self) -> None:
        if set(self.counts) != set(self.planned) or len(self.planned) < 2:
            raise ValueError(f"{self.what}: groups {sorted(self.counts)} are not the planned {sorted(self.planned)}")
        if any(not 0 < share < 1 for share in self.planned.values()) or abs(sum(self.planned.values()) - 1) > TOLERANCE:
            raise ValueError(f"{self.what}: planned shares {dict(self.planned)} must lie between 0 and 1 and sum to 1")
        _require_counts(self.what, self.counts)

    @property
    def log_e(self) -> float:
        """Log of the Dirichlet-multinomial martingale against "every request falls into the groups by the planned shares".

        Lindon and Malek, 2011.03567, the Bayes factor of a Dirichlet(CONCENTRATION * planned) over the planned shares:
        B(a + x) / B(a) / prod planned^x, with B the multivariate beta function; two groups give the beta mixture.
        """
        total = sum(self.counts.values())
        found: float = gammaln(CONCENTRATION) - gammaln(CONCENTRATION + total)
        for group, share in self.planned.items():
            a, x = CONCENTRATION * share, self.counts[group]
            found = found + gammaln(a + x) - gammaln(a) - xlogy(x, share)
        return found


@dataclass(frozen=True, slots=True)
class Losses:
    """How many requests of each group did not get through.

    Args:
        what: the groups, in words, e.g. `completed requests by stratum`.
        claimed: by group.
        lost: of those, by group.
    """

    what: str
    claimed: Mapping[str, float]
    lost: Mapping[str, float]

    def __post_init__(self) -> None:
        if set(self.claimed) != set(self.lost):
            raise ValueError(f"{self.what}: groups {sorted(self.lost)} are not the claimed {sorted(self.claimed)}")
        _require_counts(self.what, self.claimed)
        _require_counts(self.what, self.lost)
        if any(np.any(np.asarray(self.lost[group]) > self.claimed[group]) for group in self.claimed):
            raise ValueError(f"{self.what}: more were lost than claimed")

    @property
    def log_e(self) -> float:
        """Log of the e-process against "each claimed request is lost with the same probability, whatever its group".

        Universal inference (Wasserman, Ramdas and Balakrishnan, 1912.11436): a mixture over one rate per group, Beta(1/2, 1/2)
        each, over the likelihood at the best common rate, which is at least that of the true one.
        """
        total, all_lost = sum(self.claimed.values()), sum(self.lost.values())
        common = np.divide(all_lost, np.maximum(total, 1))
        found: float = -xlogy(all_lost, common) - xlog1py(total - all_lost, -common)
        for group, n in self.claimed.items():
            found = found + betaln(0.5 + self.lost[group], 0.5 + n - self.lost[group]) - betaln(0.5, 0.5)
        return found


@dataclass(frozen=True, slots=True)
class Kept:
    """A thinning that was planned: whatever its group, each request is kept by the same probability, independently of all others.

    It asks whether those that are kept are like those that were seen. The seen ones include the kept, so the two are never
    compared as samples: each group's kept against its own left out is a split whose plan is known exactly.

    Args:
        what: what is kept and by what it is grouped, in words, e.g. `mirrored requests by prompt length`.
        seen: by group; all groups that there can be, those without a request too.
        kept: of those, by group.
        rate: the planned probability, between 0 and 1.
    """

    what: str
    seen: Mapping[str, float]
    kept: Mapping[str, float]
    rate: float

    def __post_init__(self) -> None:
        if set(self.seen) != set(self.kept) or not self.seen:
            raise ValueError(f"{self.what}: groups {sorted(self.kept)} are not the seen {sorted(self.seen)}")
        if not 0 < self.rate < 1:
            raise ValueError(f"{self.what}: the planned rate {self.rate} must lie between 0 and 1")
        _require_counts(self.what, self.seen)
        _require_counts(self.what, self.kept)
        if any(np.any(np.asarray(self.kept[group]) > self.seen[group]) for group in self.seen):
            raise ValueError(f"{self.what}: more were kept than seen")

    @property
    def log_e(self) -> float:
        """Log of the mean over the groups of each one's `Split` martingale, so that all groups spend one alpha together.

        A request moves only its own group's martingale, so each is one in the whole stream, and so is their mean. The groups are
        fixed beforehand: a mean over those seen so far would not be one.
        """
        planned = {"kept": self.rate, "left out": 1 - self.rate}
        logs = [
            Split(self.what, {"kept": self.kept[group], "left out": n - self.kept[group]}, planned).log_e
            for group, n in self.seen.items()
        ]
        found: float = logsumexp(np.asarray(logs), axis=0) - np.log(len(logs))
        return found


def _require_counts(what: str, counts: Mapping[str, float]) -> None:
    if any(np.any(~(np.asarray(count) >= 0)) for count in counts.values()):
        raise ValueError(f"{what}: counts must be numbers of at least 0")
