"""What the candidate costs in memory, from the engine's own report, and how much of the device stays free.

It reads no pair, and it is asked only where the policy names a headroom.
"""

from __future__ import annotations

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.stats.part import Context

GATE = "memory"
GIB = 2**30
BEFORE = ("target", "target_cache")
AFTER = (*BEFORE, "drafter", "drafter_cache")


def judge(context: Context) -> list[GateEvidence]:
    """The gate `memory`: the free share of the device with the candidate against `memory_headroom`; none unless asked.

    `Context.memory` holds bytes: weights and cache of target and drafter, caches at the full context of every row, and the
    device's `total`.
    """
    limit, memory = context.gates.memory_headroom, context.memory
    if limit is None:
        return []
    missing = [name for name in (*AFTER, "total") if name not in memory]
    if missing:
        sentence = f"The engine does not report its memory ({', '.join(missing)})."
        return [GateEvidence(GATE, GateRole.ECONOMY, Verdict.NO_DATA, "not_reported", sentence, threshold=limit, unit="reports")]
    before, after = (sum(memory[name] for name in names) for names in (BEFORE, AFTER))
    total = memory["total"]
    free, free_before = (total - after) / total, (total - before) / total
    facts = (
        f"The candidate needs {after / GIB:.2f} GiB of {total / GIB:.2f} GiB, {(after - before) / GIB:.2f} GiB more than the "
        f"baseline, and leaves {free:.3f} free"
    )
    fits = free >= limit
    return [
        GateEvidence(
            GATE,
            GateRole.ECONOMY,
            Verdict.PASS if fits else Verdict.FAIL,
            "fits" if fits else "too_large",
            f"{facts}, {'at least' if fits else 'below'} {limit:g}.",
            value=free,
            threshold=limit,
            n=1,
            unit="reports",
            details={**{name: int(count) for name, count in memory.items()}, "free_before": free_before},
        )
    ]
