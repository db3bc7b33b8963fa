"""Sweeps of the demo's routes, predicted against measured: `python -m tests.bench.sweep`.

Each route is recorded once and swept with n-gram drafters; its recommended setting then runs against k = 0 in interleaved blocks,
and where k = 0 is recommended, the fastest other setting, for the error table alone. A recommended k that loses to k = 0 by more
than 3 % exits with 1. Ratios only; what else runs on the machine shifts both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

from canary import wiring
from canary.cli.demo import prompts as demo_prompts
from canary.cli.demo import routes
from canary.domain.policy import Policy
from canary.domain.traffic import Prompt
from canary.flow.tools.policy_files import load
from canary.flow.tools.sweep import Sweep, drafters_of, label, record, sweep
from canary.flow.tools.sweep_facts import RunFile
from canary.flow.tools.sweep_verify import Measured, verify
from canary.flow.walk.mirror import read_request
from canary.stats.cost import Prediction

POLICIES = Path(__file__).parents[2] / "policies" / "demo"
ROUTES = {r.name: r for r in (routes.MATH, routes.RAG, routes.FAQ, routes.CREATIVE)}
LEAST = 0.97  # of k = 0, for a recommended setting


def asked(route: str, count: int) -> tuple[Policy, list[Prompt]]:
    """A demo route's policy and the first prompts that it sends."""
    bodies = ROUTES[route].bodies()[:count]
    return load(POLICIES / f"{route}.yaml"), [
        read_request(body, route=route, endpoint="chat/completions", source="bench", request_id=request_id)
        for request_id, body in bodies
    ]


def tried(found: Sweep) -> tuple[str, int, Prediction]:
    """What is run for the table: the recommended setting, or the fastest that was not recommended."""
    if found.chosen is not None:
        best = found.swept[found.chosen]
        return label(best.drafter), best.best, best.predictions[best.best][0]
    options = [(p[0].speedup, i, k) for i, s in enumerate(found.swept) for k, p in s.predictions.items() if k]
    _, at, k = max(options)
    return label(found.swept[at].drafter), k, found.swept[at].predictions[k][0]


def quiet(what: str, done: int, total: int) -> None:
    print(f"\r{what}: {done} of {total}          ", end="", file=sys.stderr, flush=True)


def one(route: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Sweep and measure a route."""
    policy, prompts = asked(route, args.prompts)
    policy = replace(policy, subject=replace(policy.subject, dtype=args.dtype or policy.subject.dtype))
    engine = wiring.open_sweep(policy, num_rows=args.concurrency, threads=args.threads)
    run = RunFile.named(folder, route, engine.fingerprint, policy.shadow.max_tokens)
    engine.record(prompts[0])
    answers = record(engine, prompts, run, quiet)
    found = sweep(policy, engine, answers, drafters_of(policy), (args.concurrency,), quiet)
    name, k, predicted = tried(found)
    drafter = next(s.drafter for s in found.swept if label(s.drafter) == name)
    subject = replace(policy.subject, drafter=replace(drafter, num_speculative_tokens=k, adaptive=False))
    candidate = wiring.open_engine(replace(policy, subject=subject), threads=args.threads)
    measured = [
        verify(candidate, prompts, predicted.speedup, args.concurrency, policy.shadow.max_tokens, quiet)
        for _ in range(args.rounds)
    ]
    return _row(found, name, k, predicted, sorted(measured, key=lambda m: m.speedup)[len(measured) // 2])


def _row(found: Sweep, name: str, k: int, predicted: Prediction, measured: Measured) -> dict[str, Any]:
    recommended = found.chosen is not None
    return {
        "route": found.route,
        "drafter": name,
        "k": k,
        "recommended": recommended,
        "predicted": predicted.speedup,
        "low": predicted.low,
        "high": predicted.high,
        "tokens_per_round": predicted.tokens_per_round,
        "acceptance_rate": predicted.acceptance_rate,
        "verify": {f"{b}x{w}": 1e3 * s for (_, b, w), s in found.curve.points.items()},
        "memory_multiple": found.memory_multiple,
        "described": dict(found.described),
        "measured": asdict(measured),
        "error": measured.error,
        "held": not recommended or measured.speedup >= LEAST,
    }


def _line(row: dict[str, Any]) -> str:
    interval = f"{row['low']:.2f}..{row['high']:.2f}"
    measured = row["measured"]
    figures = f"{row['predicted']:11.3f}{interval:>15}{measured['speedup']:10.3f}{measured['middle']:8.3f}{row['error']:8.1%}"
    return f"{row['route']:10}{row['drafter']:12}{row['k']:3}{figures}  {'yes' if row['recommended'] else 'no, k = 0'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--routes", nargs="+", choices=list(ROUTES), default=list(ROUTES))
    parser.add_argument("--prompts", type=int, default=12, help="prompts per route")
    parser.add_argument("--rounds", type=int, default=1, help="measured rounds; the middle one counts")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default=None)
    parser.add_argument("--json", type=Path, default=None, help="also write the table here")
    args = parser.parse_args()
    assert set(args.routes) <= set(demo_prompts.NAMES)
    heads = f"{'predicted':>11}{'interval':>15}{'measured':>10}{'middle':>8}{'error':>8}"
    print(f"{'route':10}{'setting':12}{'k':>3}{heads}  recommended", flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for route in args.routes:
            rows.append(one(route, args, Path(folder)))
            print(f"\n{_line(rows[-1])}", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1))
    return int(not all(r["held"] for r in rows))


if __name__ == "__main__":
    sys.exit(main())
