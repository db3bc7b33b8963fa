"""The losslessness kill: one e-value per attempt out of the bank, PIT, greedy gap and row outliers, and the suspected fault.

It proves difference only; passing says that none has been proven, never that there is none (certificates do that).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.traffic import Stratum
from canary.stats.bets import log_weighted_sum
from canary.stats.part import Context
from canary.stats.suspects import SUSPECTS, Diagnosis

GATE = "losslessness"
FULL_WEIGHT = 0.5  # of each stratum's main test
OUTLIER_WEIGHT = 0.1
# Tests of the acceptance draw, of the recovered draw and across requests hold .1 each; they are not in the battery and count 0.
PAGE_AT = 20.0

MAIN: dict[Stratum, tuple[str, ...]] = {Stratum.SAMPLED: ("bank", "pit_id", "pit_ratio"), Stratum.GREEDY: ("greedy_gap",)}
OUTLIERS = "row_outliers"


def weights(log_e: Mapping[str, float], strata: Mapping[Stratum, float]) -> dict[str, float]:
    """Weight of every e-process in the kill e-value.

    Strata present share the main weight evenly. That a second stratum halves the first one's weight when it arrives costs no
    validity: the e-value never exceeds .5 (E_first + E_second / 2) + .1 E_outliers, whose mean is at most .85, and which stratum
    a request belongs to is known before anything is drawn.

    Args:
        log_e: logs of the e-processes that there are.
        strata: folded pairs per stratum.
    """
    present = [s for s in Stratum if strata[s] > 0]
    shares = {key: FULL_WEIGHT / len(present) / len(MAIN[s]) for s in present for key in MAIN[s]}
    shares[OUTLIERS] = OUTLIER_WEIGHT
    return {key: share for key, share in shares.items() if key in log_e}


def log_kill_e(log_e: Mapping[str, float], strata: Mapping[Stratum, float]) -> float:
    """Log of the losslessness e-value (statistics 0b.4): the weighted sum, missing weight counting 0."""
    terms = [(weight, log_e[key]) for key, weight in weights(log_e, strata).items()]
    return log_weighted_sum(terms) if terms else -math.inf


def suspect(log_e: Mapping[str, float], strata: Mapping[Stratum, float], diagnosis: Diagnosis) -> str:
    """Name in `SUSPECTS` of what explains the evidence best: the heaviest term, and within the bank its leading alternative.

    The bank names the fault as soon as its leading bet alone would page: an unnamed shift in the PIT is then the same fault seen
    less sharply.
    """
    shares = weights(log_e, strata)
    heaviest = max(shares, key=lambda key: math.log(shares[key]) + log_e[key])
    if not diagnosis.leads or heaviest not in MAIN[Stratum.SAMPLED]:
        return heaviest
    named = heaviest == "bank" or diagnosis.leads[0].log_wealth >= math.log(PAGE_AT)
    return diagnosis.name if named else heaviest


def judge(
    context: Context, log_e: Mapping[str, float], strata: Mapping[Stratum, float], peak: float, diagnosis: Diagnosis
) -> GateEvidence:
    """The gate `losslessness`.

    Args:
        log_e: logs of all e-processes at the newest ordinal.
        strata: folded pairs per stratum.
        peak: largest log of the kill e-value so far, looked at after every ordinal.
        diagnosis: what the bank's alternatives say.
    """
    num_pairs = int(sum(strata.values()))
    limit = 1 / context.alpha
    if num_pairs == 0:
        return GateEvidence(GATE, GateRole.SAFETY, Verdict.NO_DATA, "no_data", "No pair has been folded yet.", threshold=limit)
    now = log_kill_e(log_e, strata)
    name = suspect(log_e, strata, diagnosis)
    found = SUSPECTS[name]
    if peak >= math.log(limit):
        verdict, reason = Verdict.FAIL, found.code
        like = f" (like {found.resembles})" if found.resembles else ""
        sentence = (
            f"The output is not the target's: {found.words}{like}; e-value {_shown(peak)} of {limit:g} after {num_pairs} pairs."
        )
    elif now >= math.log(PAGE_AT):
        verdict, reason = Verdict.INCONCLUSIVE, "suspicious"
        sentence = (
            f"A difference is likely but not proven: {found.words}; e-value {_shown(now)} of {limit:g} after {num_pairs} pairs."
        )
    else:
        verdict, reason = Verdict.PASS, "no_difference_proven"
        sentence = f"No difference from the target is proven; e-value {_shown(now)} of {limit:g} after {num_pairs} pairs."
    return GateEvidence(
        gate=GATE,
        role=GateRole.SAFETY,
        verdict=verdict,
        reason=reason,
        sentence=sentence,
        value=_plain(max(now, peak) if verdict is Verdict.FAIL else now),
        threshold=limit,
        n=num_pairs,
        details=_details(log_e, strata, now, peak, name, diagnosis),
    )


def _details(
    log_e: Mapping[str, float],
    strata: Mapping[Stratum, float],
    now: float,
    peak: float,
    name: str,
    diagnosis: Diagnosis,
) -> dict[str, object]:
    """The e-value's parts and the leading alternatives; plain JSON values."""
    found = SUSPECTS[name]
    return {
        "log_e": now,
        "log_e_peak": peak,
        "page_at": PAGE_AT,
        "suspect": {"name": name, "code": found.code, "words": found.words, "resembles": found.resembles},
        "terms": {key: log_e[key] for key in weights(log_e, strata)},
        "alternatives": [
            {"name": lead.name, "log_wealth": lead.log_wealth, "strength": lead.strength} for lead in diagnosis.leads[:5]
        ],
        "recovered": diagnosis.recovered,
        "recovered_impossible": diagnosis.impossible,
        "pairs": {str(s): int(strata[s]) for s in Stratum},
    }


def _plain(log_value: float) -> float:
    return math.exp(min(log_value, 700.0))


def _shown(log_value: float) -> str:
    return f"{_plain(log_value):.3g}" if log_value < 16 else f"1e{log_value / math.log(10):.0f}"
