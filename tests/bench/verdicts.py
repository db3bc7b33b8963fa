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

os.environ["HF_HUB_OFFLINE"] = "1"

from canary import telemetry, wiring
from canary.cli.demo import _policy
from canary.cli.demo.routes import FULL_TOUR
from canary.domain.evidence import Evidence, GateRole, Verdict
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout
from canary.flow.attempt import battery, calibrated, context
from canary.flow.ports import ShadowEngine, Store
from canary.flow.tools.gate import run_gate
from canary.flow.walk.mirror import read_request
from canary.stats import calibration as calibrations


def tokens_to_kill(store: Store, policy: Policy, engine: ShadowEngine) -> int | None:
    """Candidate tokens folded when the losslessness gate failed; None if it never did."""
    with store.transaction() as tx:
        rollout: Rollout | None = tx.rollouts.get(policy.route)
        assert rollout is not None
        key = (rollout.route, rollout.epoch, rollout.attempt)
        ctx, frozen = context(policy, rollout.attempt, engine.info, None), tx.evidence.get_calibration(*key)
        built = battery(calibrated(ctx, calibrations.from_json(frozen)) if frozen else ctx)
        items = tx.pairs.contiguous(*key, after=0, limit=10_000)
        pairs = [tx.pairs.get(i) for i in tx.pairs.ids(*key)]
    state, tokens = built.start(), 0
    for item, pair in zip(items, pairs, strict=True):
        state = built.fold(state, [item])
        tokens += len(pair.candidate.token_ids) if pair else 0
        if any(g.gate == "losslessness" and g.verdict is Verdict.FAIL for g in built.assess(state)):
            return tokens
    return None


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
        quiet = telemetry.SilentObserver()
        result = run_gate(
            policy, prompts, engine, store, clock=time.time, observer=quiet, progress=lambda done, total, evidence: None
        )
        killed = tokens_to_kill(store, policy, engine)
        kills += [] if killed is None else [killed]
        found = {
            "seed": seed,
            "verdict": result.code.name.lower(),
            "cause": result.decision.cause,
            "pairs": result.pairs,
            "tokens_to_kill": killed,
            "equivalence": short(result.evidence),
            "seconds": round(time.perf_counter() - start),
        }
        print(json.dumps(found), flush=True)
    if kills:
        print(f"killed {len(kills)} of {asked.seeds}; tokens to kill: median {statistics.median(kills):.0f}, most {max(kills)}")


if __name__ == "__main__":
    main()
