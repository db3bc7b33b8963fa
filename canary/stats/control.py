"""The A/A arm: the baseline against itself, in a state of its own, tested with the same bets as the candidate.

It is a test of the harness (scorer, trace, batching, clock) and never a noise level to subtract: whatever it finds says nothing
about the candidate. Source: statistics 7.8.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.pairs import Scheme
from canary.domain.traffic import Stratum
from canary.stats import losslessness
from canary.stats.battery import Battery, default_parts
from canary.stats.control_clock import Clock
from canary.stats.fold import log_kill
from canary.stats.part import Context, Part, Sums, Vector
from canary.stats.state import State

GATE = "control"

# Parts of the battery that the A/A arm runs too; what is about drafts, promotion or speed has no question here.
KEPT = ("bank", "pit", "row_gate", "outliers", "greedy", "xreq", "errors")

# What speaks loudest -> what that says about the harness.
WORDS: Mapping[str, str] = {
    "bank": "tokens do not look drawn from the rows that were traced with them: look at the trace and the sampler",
    "pit_id": "tokens do not fall evenly over the rows that were traced with them: look at the trace and the random numbers",
    "pit_ratio": "tokens do not fall evenly over the rows that were traced with them: look at the trace and the random numbers",
    "xreq": "requests look drawn with shared random numbers: look at the keys of the draws",
    "row_outliers": "rows at the control batch size are far from the reference model's: look at the scorer and at batching",
    "greedy_gap": "greedy tokens at the control batch size are not the reference's choice: look at the scorer and at batching",
    "errors": "requests fail at the control batch size that the same engine answers otherwise: look at batching and memory",
    "clock": "one of two passes of the same engine is faster too often: look at the clock and at what else runs on the machine",
}


def control_context(context: Context) -> Context:
    """The attempt's context with k = 0: nothing is drafted, so whatever is built from a draft is inert."""
    return replace(context, num_speculative_tokens=0, scheme=Scheme.TOKEN)


def control_battery(context: Context) -> Battery:
    """The A/A arm's battery.

    Args:
        context: of the attempt; the A/A arm is scored against the attempt's own calibration record.
    """
    parts: tuple[Part, ...] = (*(p for p in default_parts() if p.name in KEPT), Clock())
    return Battery(control_context(context), parts, log_control_e)


def terms(log_e: Mapping[str, float], strata: Vector) -> dict[str, Vector]:
    """Logs of the three e-values that the control's is the mean of: `losslessness` (as for the candidate), `errors`, `clock`.

    Args:
        log_e: e-processes by key, `[ordinals]` each.
        strata: folded pairs per stratum, `[ordinals, strata]`.
    """
    return {"losslessness": log_kill(log_e, strata), **{key: np.asarray(log_e[key]) for key in ("errors", "clock")}}


def log_control_e(log_e: Mapping[str, float], strata: Vector) -> Vector:
    """Log of the control's e-value, the mean of its `terms`, `[ordinals]`; a mean of e-processes is one, whatever ties them."""
    found = list(terms(log_e, strata).values())
    return np.asarray(reduce(np.logaddexp, found)) - math.log(len(found))


def judge(battery: Battery, state: State) -> GateEvidence:
    """The gate `control`: fails from `control_limit` on, and otherwise passes as `quiet`.

    A limit is all it has: an e-value below it proves no harness sound, and the sentence says on how many pairs it rests. Only
    before the first A/A pair has it no data.

    Args:
        battery: `control_battery`'s.
        state: what it folded.
    """
    gates, n = battery.context.gates, state.num_pairs
    made = GateEvidence(GATE, GateRole.HARNESS, Verdict.NO_DATA, "no_data", "", threshold=gates.control_limit, n=n)
    if not n:
        lost = f" ({state.num_failed} were lost or set aside)" if state.num_failed else ""
        return replace(made, sentence=f"No A/A pair has been folded yet{lost}.", needed=1)
    log_e, strata = battery.e_values(state), battery.strata(state)
    at_once: dict[str, Any] = {key: np.array([value]) for key, value in log_e.items()}  # as the folder has them, one ordinal long
    split = {key: float(value[0]) for key, value in terms(at_once, np.array([list(strata.values())])).items()}
    now = float(log_control_e(at_once, np.array([list(strata.values())]))[0])
    peak = max(now, state.kill_peak if state.kill_peak is not None else now)
    loudest, noise = _loudest(log_e, strata), _noise(battery.sums_of(state, "row_gate"))
    failed = peak >= math.log(gates.control_limit)
    tail = "".join(f"; {s} rows are {d['control']:.4f} from the reference, against {d['baseline']:.4f}" for s, d in noise.items())
    facts = f"A/A e-value {losslessness.shown(peak if failed else now)} of {gates.control_limit:g} after {n} pairs"
    sentence = (
        f"The harness, not the candidate, is at fault: the baseline differs from itself ({facts}); {WORDS[loudest]}."
        if failed
        else f"The baseline shows no difference from itself: {facts}{tail}."
    )
    return replace(
        made,
        verdict=Verdict.FAIL if failed else Verdict.PASS,
        reason="harness_at_fault" if failed else "quiet",
        sentence=sentence,
        value=math.exp(min(peak if failed else now, 700.0)),
        details={
            "log_e": now,
            "log_e_peak": peak,
            "terms": split,
            "loudest": loudest,
            "noise_floor": noise,
            "failed": state.num_failed,
            **_timed(battery.sums_of(state, "clock")),
        },
    )


def _loudest(log_e: Mapping[str, float], strata: Mapping[Stratum, float]) -> str:
    """Key in `WORDS` of the largest share of the e-value; inside losslessness, of its own largest."""
    shares = {key: math.log(weight) + log_e[key] for key, weight in losslessness.weights(log_e, strata).items()}
    shares |= {key: log_e[key] for key in ("errors", "clock")}
    return max(shares, key=lambda key: shares[key])


def _noise(rows: Sums) -> dict[str, dict[str, float]]:
    """Mean row distance of both seats to the reference by stratum: what a change of the batch size alone does to the rows."""
    found = {}
    for stratum in Stratum:
        n = rows[f"{stratum}.n"]
        if n:
            seats = {"control": rows[f"{stratum}.candidate"] / n, "baseline": rows[f"{stratum}.baseline"] / n}
            found[str(stratum)] = {**{seat: float(d) for seat, d in seats.items()}, "requests": float(n)}
    return found


def _timed(clock: Sums) -> dict[str, object]:
    n = float(clock["timed"])
    return {
        **{name: int(clock[name]) for name in Clock.counts},
        "mean_speed_ratio": math.exp(clock["log_ratio"] / n) if n else None,
    }
