"""What the demo's policies find on the real model, seed by seed: `python -m tests.bench.verdicts --route faq --seeds 10`.

The walk runs in memory on the same code as `canary gate`; a seed changes every draw. Tokens to kill are counted at the very
ordinal whose fold crosses the limit, not at the end of its batch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress

os.environ["HF_HUB_OFFLINE"] = "1"

from canary import telemetry, wiring
from canary.cli.demo import _policy
from canary.cli.demo.routes import FULL_TOUR
from canary.domain.evidence import Evidence, GateRole, Verdict
from canary.domain.pairs import Arm, Timing
from canary.domain.policy import Policy
from canary.domain.traffic import Prompt
from canary.flow.ports import ArmRequest, ShadowEngine, Store
from canary.flow.tools.drill_tokens import spent
from canary.flow.tools.gate import GateResult, Progress, run_gate
from canary.flow.walk.mirror import read_request


def tokens_to_kill(evidence: Evidence | None, store: Store, route: str) -> int | None:
    """Candidate tokens folded when the losslessness gate failed; None if it never did."""
    gate = evidence.gate("losslessness") if evidence else None
    return spent(store, route, "losslessness").tokens if gate and gate.verdict is Verdict.FAIL else None


class Certified(Exception):
    """Every equivalence gate passes, which is all that was asked."""


def equivalence_only(engine: ShadowEngine, policy: Policy, prompts: Sequence[Prompt], store: Store) -> dict[str, object]:
    """The walk untimed, up to its certificates: what the demo's equivalence column says, without the cost of its speed column."""

    def refuse(request: ArmRequest, arm: Arm) -> Timing:
        raise RuntimeError("nobody asks for speed")

    seen: list[tuple[int, Evidence | None]] = []

    def progress(done: int, total: int, evidence: Evidence | None) -> None:
        seen.append((done, evidence))
        if short(evidence) == "certified":
            raise Certified

    engine.time = refuse  # type: ignore[method-assign]
    with suppress(Certified):
        run(policy, prompts, engine, store, progress)
    pairs, evidence = seen[-1]
    loss = evidence.gate("losslessness") if evidence else None
    return {"pairs": pairs, "equivalence": short(evidence), "losslessness": loss.verdict.value if loss else "no_data"}


def run(policy: Policy, prompts: Sequence[Prompt], engine: ShadowEngine, store: Store, progress: Progress) -> GateResult:
    """The gate's walk, in silence."""
    return run_gate(policy, prompts, engine, store, clock=time.time, observer=telemetry.SilentObserver(), progress=progress)


def verdict(engine: ShadowEngine, policy: Policy, prompts: Sequence[Prompt], store: Store) -> dict[str, object]:
    """The whole verdict, and the tokens that a kill took."""
    result = run(policy, prompts, engine, store, lambda done, total, evidence: None)
    return {
        "verdict": result.code.name.lower(),
        "cause": result.decision.cause,
        "pairs": result.pairs,
        "tokens_to_kill": tokens_to_kill(result.evidence, store, policy.route),
        "equivalence": short(result.evidence),
    }


def short(evidence: Evidence | None) -> str:
    """Equivalence gates that do not pass, with what they lack."""
    gates = [g for g in (evidence.gates if evidence else ()) if g.role is GateRole.EQUIVALENCE and g.verdict is not Verdict.PASS]
    return ", ".join(f"{g.gate} {g.reason} (needs {g.needed})" for g in gates) or "certified"


def main() -> None:
    """Run the seeds of one route and print a line each, then the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--route", default="math-drill", choices=[r.name for r in FULL_TOUR])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--equivalence", action="store_true", help="untimed, and only until the certificates pass")
    asked = parser.parse_args()
    route = next(r for r in FULL_TOUR if r.name == asked.route)
    policy, _ = _policy(route.name)
    engine = wiring.open_engine(policy)
    kills: list[int] = []
    for seed in range(asked.first, asked.first + asked.seeds):
        prompts = [
            read_request(
                body, route=route.name, endpoint="chat/completions", source=f"demo-{seed}", request_id=f"{route.name}/{i}"
            )
            for i, body in route.bodies()
        ]
        store, start = wiring.memory_store(), time.perf_counter()
        found = (equivalence_only if asked.equivalence else verdict)(engine, policy, prompts, store)
        killed = found.get("tokens_to_kill")
        kills += [killed] if isinstance(killed, int) else []
        print(json.dumps({"seed": seed, **found, "seconds": round(time.perf_counter() - start)}), flush=True)
    if kills:
        print(f"killed {len(kills)} of {asked.seeds}; tokens to kill: median {statistics.median(kills):.0f}, most {max(kills)}")


if __name__ == "__main__":
    main()
