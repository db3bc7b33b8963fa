"""Is the evidence about the traffic, or only about the requests that did not get lost on the way?

It counts ordinals without statistics, whatever the cause, and never holds one against an arm.
"""

from __future__ import annotations

from canary.domain.evidence import GateEvidence, GateRole, Verdict

GATE = "completeness"
MAX_LOST = 0.05
MIN_FOLDED = 20
RECENT = 50.0  # ordinals over which the recent share forgets
MAX_RECENT = 0.25  # fifteen in a row


def recent_share(share: float, lost: bool) -> float:
    """The recent share of lost ordinals after one more: an exponentially weighted mean over about the last `RECENT`."""
    return share + (float(lost) - share) / RECENT


def judge(folded: int, lost: int, recent: float = 0.0) -> GateEvidence:
    """The gate `completeness` (statistics 7.4).

    A bet is fair over all requests. If which requests get lost depends on what they would have answered (a timeout of long
    answers, a crash on some), the rest may look exact while the whole is not, and no bet can see it. So the plain share of the
    attempt's own ordinals is compared with the limit, not a proof about a rate behind it: the ordinals are the whole that the
    evidence claims to cover, nothing is estimated, and a share within the limit again passes again. A long clean history would
    hide a rise for long, so the recent share has a limit of its own.

    Args:
        folded: ordinals folded.
        lost: of those, tombstones and pairs set aside.
        recent: see `recent_share`.
    """
    facts = f"{lost} of {folded} requests were lost or set aside"
    if not folded:
        found = Verdict.NO_DATA, "no_data", "No request has been folded yet."
    elif not lost:
        found = Verdict.PASS, "few_lost", f"{facts}."
    elif folded < MIN_FOLDED:
        found = Verdict.NO_DATA, "too_few", f"{facts}; at least {MIN_FOLDED} requests are needed."
    elif lost > MAX_LOST * folded:
        sentence = f"{facts}, more than {100 * MAX_LOST:g} %: what is left may not be like the traffic."
        found = Verdict.FAIL, "too_many_lost", sentence
    elif recent > MAX_RECENT:
        sentence = f"{facts}, but about {100 * recent:.0f} % of the latest {RECENT:.0f}, and {100 * MAX_RECENT:g} % is the limit."
        found = Verdict.FAIL, "rising", sentence
    else:
        found = Verdict.PASS, "few_lost", f"{facts}, not more than {100 * MAX_LOST:g} %."
    verdict, reason, sentence = found
    return GateEvidence(
        GATE,
        GateRole.HARNESS,
        verdict,
        reason,
        sentence,
        value=lost / folded if folded else None,
        threshold=MAX_LOST,
        n=folded,
        needed=max(0, MIN_FOLDED - folded) if verdict is Verdict.NO_DATA else None,
        details={"lost": lost, "recent_share": recent},
    )
