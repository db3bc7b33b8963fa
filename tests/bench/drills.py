"""The ten most important faults on the real model: `python -m tests.bench.drills --route math --requests 140`.

Per fault: requests, tokens and seconds until the first gate failed, which one, and what was not reached and why. The walk is that
of `canary drill`; `--draft DIR` puts a draft model in the n-gram drafter's place, which faults of draft rows need.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace

os.environ["HF_HUB_OFFLINE"] = "1"

from canary import telemetry, wiring
from canary.cli.demo import _policy
from canary.cli.demo.routes import FULL_TOUR
from canary.domain.drills import FaultResult, power
from canary.domain.policy import Policy
from canary.domain.traffic import Prompt
from canary.flow.tools.drill import Drill, run_drill, wanted
from canary.flow.walk.mirror import read_request

# The commonest in public reports, one of each way to see it: the rule, the random numbers, the rows, the cache, the end.
TEN = (
    "greedy_draft_softmax_q",
    "uniform_zero",
    "greedy_verify",
    "resample_from_target",
    "typical_acceptance",
    "seed_reset",
    "temperature_ignored",
    "rejected_kept",
    "token_fed_twice",
    "end_tested_on_last_only",
)
TEMPERATURES = {"math": 1.0, "faq": 0.7}


def prompts_of(route: str, temperature: float, seed: int) -> list[Prompt]:
    """The demo's requests of a route at one temperature; a seed changes every draw."""
    demo = replace(next(r for r in FULL_TOUR if r.name == route), temperature=temperature)
    given = {"route": route, "endpoint": "chat/completions", "source": f"drill-{seed}"}
    return [read_request(body, request_id=f"{route}/{i}", **given) for i, body in demo.bodies()]


def policy_of(route: str, draft: str | None) -> Policy:
    """The demo's policy, with the drafter asked for."""
    policy, _ = _policy(route)
    if draft is None:
        return policy
    drafter = replace(policy.subject.drafter, name="draft_model", model=draft)
    return replace(policy, subject=replace(policy.subject, drafter=drafter))


def table(results: Sequence[FaultResult]) -> str:
    """The results as Markdown."""
    lines = ["| fault | outcome | by | requests | tokens | seconds | finding |", "|---|---|---|---|---|---|---|"]
    for r in results:
        by = f"{r.gate} ({r.reason})" if r.gate else "-"
        cells = (r.fault, r.outcome.value, by, r.requests, r.tokens, f"{r.seconds:.0f}", r.sentence.split(" (like")[0])
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the faults of one route one after the other, print a line each, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--route", default="math", choices=sorted(TEMPERATURES))
    parser.add_argument("--fault", action="append", help="instead of the ten; may be given several times")
    parser.add_argument("--requests", type=int, default=140, help="requests that each fault may use")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--draft", help="directory of a draft model for the target")
    asked = parser.parse_args()
    policy, results = policy_of(asked.route, asked.draft), []
    drill = Drill(
        policy,
        prompts_of(asked.route, TEMPERATURES[asked.route], asked.seed)[: asked.requests],
        lambda changed: wiring.open_engine(changed, threads=asked.threads),
        wiring.memory_store,
        clock=time.time,
        observer=telemetry.SilentObserver(),
        progress=lambda name, done, total: None,
    )
    clean = wiring.open_engine(policy, threads=asked.threads).info
    for entry in wanted(asked.fault or TEN):
        for result in run_drill(drill, [entry], clean):
            results.append(result)
            print(json.dumps(asdict(result)), flush=True)
    print(table(results))
    caught = power(results)
    print(
        "nothing can show here" if caught is None else f"caught {caught:.0%} of what can show, {asked.route}, seed {asked.seed}"
    )


if __name__ == "__main__":
    main()
