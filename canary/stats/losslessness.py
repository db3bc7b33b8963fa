"""The losslessness kill: one e-value per attempt out of bank, PIT, greedy gap, components and outliers, and the suspected fault.

It proves difference only; passing says that none has been proven, never that there is none (certificates do that).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from canary.domain import budget
from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.traffic import Stratum
from canary.stats.bets import log_weighted_sum
from canary.stats.components import not_tested
from canary.stats.part import Context
from canary.stats.suspects import DRAFT_FAMILY, SUSPECTS, Diagnosis

GATE = "losslessness"

MAIN: dict[Stratum, tuple[str, ...]] = {Stratum.SAMPLED: ("bank", "pit_id", "pit_ratio"), Stratum.GREEDY: ("greedy_gap",)}
OUTLIERS = "row_outliers"

# Shares of the main weight that a stratum holds alone and beside the other. When the second arrives, the first one's share falls;
# what it gave up must not count twice, so the two largest shares that can follow each other sum to 1.2: with every other weight
# the mean stays below .5 * 1.2 + .4 = 1. The greedy gap gives way, because one violation multiplies its wealth by thousands.
ALONE: dict[Stratum, float] = {Stratum.SAMPLED: 1.0, Stratum.GREEDY: 0.6}
TOGETHER: dict[Stratum, float] = {Stratum.SAMPLED: 0.6, Stratum.GREEDY: 0.2}

# Tests of single draws and across requests, by group; the e-processes that the drafter and the scheme allow share its weight
# evenly. A drafted token that is not from the reported row belongs to the acceptance draw: min(1, p/q) is the wrong rule for it,
# so that the output is not the target's, however right the verifier is.
COMPONENTS: tuple[tuple[float, tuple[str, ...]], ...] = (
    (budget.ACC_WEIGHT, ("acc", "acc_block", "acc_over", "acc_under", "acc_uniform", "draft_pit")),
    (budget.RES_WEIGHT, ("res", "res_pit", "resv", "bonus")),
    (budget.XREQ_WEIGHT, ("xreq",)),
)
COMPONENT_KEYS = tuple(key for _, keys in COMPONENTS for key in keys)
# Of these the bank may know better: what is wrong with the rows shows in how drafts are judged, too.
UNSPECIFIC = ("acc", "acc_block", "acc_over", "acc_under", "res", "resv")
UNNAMED = ("pit_id", "pit_ratio", "res_pit")  # they see that something leans, never what does


def weights(log_e: Mapping[str, float], strata: Mapping[Stratum, float]) -> dict[str, float]:
    """Weight of every e-process in the kill e-value (statistics 0b.4).

    Which stratum a request belongs to is known before anything is drawn, so the weights may follow the strata that are there.

    Args:
        log_e: logs of the e-processes that there are.
        strata: folded pairs per stratum.
    """
    present = [s for s in Stratum if strata[s] > 0]
    held = ALONE if len(present) == 1 else TOGETHER
    shares = {key: budget.FULL_WEIGHT * held[s] / len(MAIN[s]) for s in present for key in MAIN[s]}
    shares[OUTLIERS] = budget.OUTLIER_WEIGHT
    for weight, keys in COMPONENTS:
        active = [key for key in keys if key in log_e]
        shares |= {key: weight / len(active) for key in active}
    return {key: share for key, share in shares.items() if key in log_e}


def log_kill_e(log_e: Mapping[str, float], strata: Mapping[Stratum, float]) -> float:
    """Log of the losslessness e-value (statistics 0b.4): the weighted sum, missing weight counting 0."""
    terms = [(weight, log_e[key]) for key, weight in weights(log_e, strata).items()]
    return log_weighted_sum(terms) if terms else -math.inf


def suspect(log_e: Mapping[str, float], strata: Mapping[Stratum, float], diagnosis: Diagnosis) -> str:
    """Name in `SUSPECTS` of what explains the evidence best: the heaviest term, and within the bank its leading alternative.

    The bank names the fault as soon as its leading bet alone would page: an unnamed shift in the PIT is then the same fault seen
    less sharply, and so are odd verdicts unless the bank, too, sees the draft or the residual in them. An unnamed shift beside
    recovered tokens that no residual has is a wrong residual.
    """
    shares = weights(log_e, strata)
    heaviest = max(shares, key=lambda key: math.log(shares[key]) + log_e[key])
    if not diagnosis.leads:
        return heaviest
    paging = diagnosis.leads[0].log_wealth >= math.log(budget.PAGE_AT)
    if heaviest == "bank" or (heaviest in MAIN[Stratum.SAMPLED] and paging):
        return diagnosis.name
    if heaviest in UNNAMED and log_e.get("resv", 0.0) >= math.log(budget.PAGE_AT):
        return "resv"
    if heaviest in UNSPECIFIC and paging and diagnosis.name not in DRAFT_FAMILY:
        return diagnosis.name
    return heaviest


def component_fired(context: Context, peaks: Mapping[str, float]) -> bool:
    """Whether a component test by itself has ever reached 1 / alpha: such a cause is not excused by being inside a margin.

    Args:
        peaks: largest log so far of every e-process, by its own key.
    """
    return any(peaks[key] >= math.log(1 / context.alpha) for key in COMPONENT_KEYS if key in peaks)


def judge(
    context: Context,
    log_e: Mapping[str, float],
    strata: Mapping[Stratum, float],
    peak: float,
    diagnosis: Diagnosis,
    peaks: Mapping[str, float] | None = None,
) -> GateEvidence:
    """The gate `losslessness`.

    Args:
        log_e: logs of all e-processes at the newest ordinal.
        strata: folded pairs per stratum.
        peak: largest log of the kill e-value so far, looked at after every ordinal.
        diagnosis: what the bank's alternatives say.
        peaks: the largest log so far of every e-process; None: as at the newest ordinal.
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
            f"The output is not the target's: {found.words}{like}; e-value {shown(peak)} of {limit:g} after {num_pairs} pairs."
        )
    elif now >= math.log(budget.PAGE_AT):
        verdict, reason = Verdict.INCONCLUSIVE, "suspicious"
        sentence = (
            f"A difference is likely but not proven: {found.words}; e-value {shown(now)} of {limit:g} after {num_pairs} pairs."
        )
    else:
        verdict, reason = Verdict.PASS, "no_difference_proven"
        sentence = f"No difference from the target is proven; e-value {shown(now)} of {limit:g} after {num_pairs} pairs."
    if untested := not_tested(context.drafter_kind, context.scheme) if strata[Stratum.SAMPLED] > 0 else {}:
        words = "; ".join(f"{name} ({what})" for name, what in untested.items())
        sentence += f" Not tested under {context.scheme} verification: {words}."
    return GateEvidence(
        gate=GATE,
        role=GateRole.SAFETY,
        verdict=verdict,
        reason=reason,
        sentence=sentence,
        value=_plain(max(now, peak) if verdict is Verdict.FAIL else now),
        threshold=limit,
        n=num_pairs,
        details={
            **_details(log_e, strata, now, peak, name, diagnosis),
            "component_fired": component_fired(context, log_e if peaks is None else peaks),
            **({"not_tested": untested} if untested else {}),
        },
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
        "page_at": budget.PAGE_AT,
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


def shown(log_value: float) -> str:
    """An e-value for people, from its log."""
    return f"{_plain(log_value):.3g}" if log_value < 16 else f"1e{log_value / math.log(10):.0f}"
