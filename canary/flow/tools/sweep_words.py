"""A sweep in plain JSON and in sentences; each figure says whether it was measured, replayed or predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from canary.flow.tools.sweep import FAR_FROM_MEMORY, Sweep, Swept, label
from canary.flow.tools.sweep_verify import Measured


def sentences(found: Sweep) -> list[str]:
    """The recommendation and what has to be said with it."""
    told = [_recommendation(found)]
    best = found.of_best()
    losing = [p for p in best if p.low < 1]
    if losing:
        where = ", ".join(str(p.concurrency) for p in losing)
        told.append(f"On {found.answers} answers it is not certain that it gains at concurrency {where}: sweep more prompts.")
    own = found.swept[0].predictions.get(found.own.num_speculative_tokens, ())
    worst = min((p.speedup for p in own), default=1.0)
    if worst < 1:
        told.append(
            f"The policy's k = {found.own.num_speculative_tokens} with {label(found.own)} is oversized here: predicted "
            f"{worst:.2f} times k = 0."
        )
    multiple = found.memory_multiple
    if multiple >= FAR_FROM_MEMORY:
        told.append(
            f"A slow baseline makes speculation look good: a plain step takes {1e3 * found.baseline.step_seconds:.1f} ms, "
            f"{multiple:.1f} times what reading its weights takes at the measured {found.baseline.bandwidth / 1e9:.1f} GB/s. "
            "On a faster forward the same drafts gain less."
        )
    if found.skipped:
        told.append(f"{found.skipped} prompts could not be run and are left out.")
    return told


def basis(swept: Swept) -> str:
    """Where a drafter's acceptance comes from."""
    return "replayed on the recorded text" if swept.replayed else "scored along the recorded text"


def as_body(found: Sweep, measured: Sequence[Measured]) -> Mapping[str, object]:
    """The sweep as plain JSON."""
    chosen = found.recommended
    return {
        "route": found.route,
        "engine": dict(found.described),
        "answers": found.answers,
        "tokens": found.tokens,
        "skipped": found.skipped,
        "concurrencies": list(found.concurrencies),
        "recommended": {"k": 0}
        if chosen is None
        else {"drafter": label(chosen), "k": chosen.num_speculative_tokens, "predicted": [asdict(p) for p in found.of_best()]},
        "sentences": sentences(found),
        "baseline": {**asdict(found.baseline), "times_the_memory_limit": found.memory_multiple, "basis": "measured"},
        "verify_curve": [
            {"context": c, "batch": b, "width": w, "seconds": s, "basis": "measured"}
            for (c, b, w), s in found.curve.points.items()
        ],
        "drafters": [
            {
                "drafter": label(s.drafter),
                "refused": s.refused or None,
                "best_k": s.best,
                "acceptance_basis": basis(s),
                "speed_basis": "predicted",
                "predictions": [asdict(p) for each in s.predictions.values() for p in each],
            }
            for s in found.swept
        ],
        "measured": [{**asdict(m), "error": m.error, "basis": "measured"} for m in measured],
    }


def _recommendation(found: Sweep) -> str:
    chosen = found.recommended
    if chosen is None:
        return "Recommended: k = 0. No drafter is predicted to be more than 1 % faster than none."
    gains = ", ".join(f"{p.speedup:.2f} ({p.low:.2f} to {p.high:.2f}) at concurrency {p.concurrency}" for p in found.of_best())
    return f"Recommended: {label(chosen)} with k = {chosen.num_speculative_tokens}, predicted speed over k = 0: {gains}."
