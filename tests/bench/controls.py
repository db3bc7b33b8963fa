"""A/A runs of the real model in its own 16-bit rows: `python -m tests.bench.controls --runs 30 --tokens 5000`.

k = 0 in both seats, the candidate's at another batch size, judged by the A/A arm's own battery. Every run draws from other keys;
counted is how often a harness without a fault is called at fault, and how often its losslessness e-value would have killed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count, islice
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

from canary import wiring
from canary.cli.demo import _policy
from canary.cli.demo.routes import FULL_TOUR
from canary.domain.pairs import Arm, Pair
from canary.domain.policy import Policy
from canary.domain.traffic import Prompt, pair_id
from canary.flow import arms
from canary.flow.attempt import context
from canary.flow.ports import ArmRequest, FoldItem, ShadowEngine
from canary.flow.walk.mirror import read_request
from canary.stats import control
from canary.stats.battery import pack

ROUTES = ("math", "faq", "creative")


def policy_of(rows: int, control_rows: int, max_tokens: int) -> Policy:
    """The demo's policy of math at two batch sizes."""
    policy, _ = _policy("math")
    shadow = replace(policy.shadow, batch_size=rows, control_batch_size=control_rows, max_tokens=max_tokens)
    return replace(policy, shadow=shadow)


def prompts_of(seed: int) -> Iterator[Prompt]:
    """The demo's requests of three routes, each at temperature 1, again and again under ids of their own."""
    tour = [replace(next(r for r in FULL_TOUR if r.name == name), temperature=1.0) for name in ROUTES]
    bodies = [(f"{route.name}/{i}", body) for route in tour for i, body in route.bodies()]
    for again in count():
        given = {"route": "math", "endpoint": "chat/completions", "source": f"control-{seed}-{again}"}
        yield from (read_request(body, request_id=i, **given) for i, body in bodies)


def pairs_of(engine: ShadowEngine, policy: Policy, prompts: list[Prompt], first: int) -> Iterator[Pair]:
    """A/A pairs of one batch, without increments."""
    ids = [pair_id(p.source, p.request_id, p.route, "bench", 1) for p in prompts]
    params = [replace(p.params, max_tokens=policy.shadow.max_tokens) for p in prompts]
    asked = {
        arm: [
            ArmRequest(p, s, arms.arm_key(i, arm), control=arm is Arm.CANDIDATE)
            for p, s, i in zip(prompts, params, ids, strict=True)
        ]
        for arm in Arm
    }
    done = {arm: engine.generate(asked[arm], arm) for arm in Arm}
    for at, prompt in enumerate(prompts):
        baseline, candidate = (done[arm][at] for arm in (Arm.BASELINE, Arm.CANDIDATE))
        yield Pair(
            ids[at],
            prompt.route,
            "bench",
            1,
            first + at,
            prompt.params.stratum,
            Arm.BASELINE,
            baseline,
            candidate,
            b"",
            control=True,
        )


def run(engine: ShadowEngine, policy: Policy, seed: int, tokens: int) -> dict[str, Any]:
    """One run of at least so many tokens in the candidate's seat.

    `kill` is the largest log of the losslessness e-value over the run's pairs; from log(1 / alpha) on it would have killed.
    """
    battery = control.control_battery(context(policy, 1, engine.info, None))
    state, given, seen, kill, start = battery.start(), prompts_of(seed), 0, -math.inf, time.perf_counter()
    while seen < tokens:
        for pair in pairs_of(engine, policy, list(islice(given, policy.shadow.batch_size)), state.folded):
            increments = battery.increments(pair)
            block = None if increments is None else pack(increments)
            state = battery.fold(state, [FoldItem(pair.ordinal, block, "", time.time(), control=True)])
            gate = control.judge(battery, state)
            kill = max(kill, gate.details.get("terms", {}).get("losslessness", -math.inf))
            seen += len(pair.candidate.token_ids)
    return {
        "seed": seed,
        "pairs": state.num_pairs,
        "set_aside": state.num_failed,
        "tokens": seen,
        "verdict": gate.verdict.value,
        "kill": kill,
        **{name: gate.details[name] for name in ("log_e_peak", "loudest", "noise_floor")},
        "seconds": round(time.perf_counter() - start),
    }


def main() -> None:
    """Run the seeds one after the other, print a line each, then the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--tokens", type=int, default=5000)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--control-rows", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=120, help="of an answer")
    parser.add_argument("--threads", type=int)
    asked = parser.parse_args()
    policy = policy_of(asked.rows, asked.control_rows, asked.max_tokens)
    engine = wiring.open_engine(policy, threads=asked.threads)
    found: list[dict[str, Any]] = []
    with suppress(KeyboardInterrupt):
        for seed in range(asked.first, asked.first + asked.runs):
            found.append(run(engine, policy, seed, asked.tokens))
            print(json.dumps(found[-1]), flush=True)
    limit = math.log(1 / policy.gates.alpha_of(1))
    killed, at_fault = sum(f["kill"] >= limit for f in found), sum(f["verdict"] == "fail" for f in found)
    sizes = f"{asked.control_rows} against {asked.rows} rows, {policy.subject.dtype}"
    print(f"{len(found)} runs of {asked.tokens} tokens, {sizes}: {killed} would kill, {at_fault} call the harness at fault")


if __name__ == "__main__":
    main()
