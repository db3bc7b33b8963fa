"""What the evidence costs: `python -m tests.bench.throughput`.

Tokens a second of a pair's increments, per part and in all; pairs a second of folding, at growing sizes; and the share of an
untraced engine step that tracing adds. One thread; processor time, so that a busy machine does not count. A miss exits with 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch

from canary.domain.pairs import DrafterKind, Pair
from canary.stats.batch import Batch
from canary.stats.battery import Battery
from canary.stats.part import Part
from canary.stats.wellformed import problems
from tests.bench.tracing import Cost, measure
from tests.stats.histories import History, long, record
from tests.stats.world import LENGTH, Item

TOKENS_A_SECOND = 200_000
TOGETHER = (1, 8, 32)  # pairs worked out together; 8 is a worker's batch unless the policy says otherwise
PAIRS_A_SECOND = 20_000
MOST_TRACING = 0.25
FLAT = 0.8  # the largest size keeps at least so much of the rate of the smallest


def rate(call: Callable[[], object], units: float, seconds: float) -> float:
    """Units a second of processor time; the best of three, each of a third of the time."""
    call()
    found = 0.0
    for _ in range(3):
        start, calls = process_time(), 0
        while (spent := process_time() - start) < seconds / 3:
            call()
            calls += 1
        found = max(found, units * calls / spent)
    return found


def quiet(history: History) -> History:
    """The history where the change detector rests: one that hears its few pairs again and again is bound to raise an alarm."""
    gates = replace(history.context.gates, watch_requests_per_day=1e290)
    return replace(history, context=replace(history.context, gates=gates))


def usable(history: History) -> list[Pair]:
    """Sampled pairs that enter, after the calibration."""
    entered = {item.ordinal for item in history.items if item.increments}
    return [
        p for p in history.pairs if p.calibration_hash and p.ordinal in entered and p.stratum == "sampled" and p.candidate.trace
    ]


def increments(battery: Battery, pairs: Sequence[Pair], seconds: float) -> tuple[dict[int, float], dict[str, float]]:
    """Candidate tokens a second: of all parts by the number of pairs together, and of the checks and of every part by itself."""
    tokens = float(sum(p.candidate.trace.num_tokens for p in pairs if p.candidate.trace))

    def over(size: int, one: Callable[[Sequence[Pair]], object]) -> float:
        return rate(lambda: [one(pairs[at : at + size]) for at in range(0, len(pairs), size)], tokens, seconds)

    def part(found: Part) -> float:
        return over(TOGETHER[-1], lambda some: battery.of_part(found, Batch(battery.context, some)))

    parts = {found.name: part(found) for found in battery.parts}
    parts["checks"] = over(TOGETHER[-1], lambda some: problems(Batch(battery.context, some)))
    return {size: over(size, battery.examine) for size in TOGETHER}, parts


def traffic(history: History, pairs: int) -> Iterator[Item]:
    """The history's entered pairs again and again, as ordinals of one attempt."""
    first = [item for item in history.items if not item.calibration_hash][:20]
    later = [item for item in history.items if item.calibration_hash]
    for ordinal in range(pairs):
        item = first[ordinal] if ordinal < len(first) else later[ordinal % len(later)]
        yield Item(ordinal, item.increments, item.calibration_hash, float(ordinal))


def folding(history: History, sizes: Sequence[int]) -> dict[int, float]:
    """Tokens folded -> pairs a second."""
    battery, found = history.battery, {}
    for tokens in sizes:
        pairs = max(tokens // LENGTH, 1)
        repeats, spent = max(1, 3000 // pairs), 0.0
        for _ in range(repeats):
            items = list(traffic(history, pairs)) if pairs < 20_000 else traffic(history, pairs)
            start = process_time()
            battery.fold(battery.start(), items)
            spent += process_time() - start
        found[tokens] = repeats * pairs / spent
    return found


def _print_tracing(cost: Cost) -> bool:
    print(f"\ntracing, {cost.model}, batch {cost.batch}, k = {cost.k}: {1000 * cost.plain:.1f} ms a step untraced")
    for name, seconds in cost.parts.items():
        print(f"{name:32}{1000 * seconds:9.2f} ms{100 * seconds / cost.plain:8.1f} %")
    print(
        f"{'all of it':32}{1000 * cost.traced:9.2f} ms{100 * cost.share:8.1f} %{'' if cost.share <= MOST_TRACING else '  MISS'}"
    )
    return cost.share <= MOST_TRACING


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.5, help="processor time per figure")
    parser.add_argument("--most", type=float, default=1e7, help="tokens of the longest fold")
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--cache", type=Path, default=Path(".canary") / "models")
    parser.add_argument("--skip-tracing", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)

    kept = True
    history = quiet(record(60, seed=1, kind=DrafterKind.DENSE))
    battery, short = history.battery, usable(history)
    print(f"{len(battery.layout.stored_names)} numbers a pair, {8 * len(battery.layout.stored_names)} bytes")
    for length in (LENGTH, 256, 1024):
        together, parts = increments(battery, long(short, length), args.seconds)
        print(f"\nincrements, answers of {length} tokens, tokens/s")
        for size, found in together.items():
            missed = size > 1 and found < TOKENS_A_SECOND
            kept &= not missed
            print(f"  {size:>3} together{found:>12,.0f}{f'  MISS (bar {TOKENS_A_SECOND:,})' if missed else ''}")
        print("  " + "  ".join(f"{name} {value:,.0f}" for name, value in sorted(parts.items(), key=lambda each: each[1])))

    sys.stdout.flush()
    sizes = [int(s) for s in 10 ** np.arange(4, np.log10(args.most) + 1e-9)]
    rates_by_size = folding(history, sizes)
    print(f"\n{'folding':>10}{'pairs/s':>12}{'of the first':>14}")
    for tokens, found in rates_by_size.items():
        flat = found / rates_by_size[sizes[0]]
        missed = found < PAIRS_A_SECOND or flat < FLAT
        kept &= not missed
        print(f"{tokens:>10.0e}{found:>12,.0f}{flat:>14.2f}{'  MISS' if missed else ''}")
    if not args.skip_tracing:
        kept &= _print_tracing(measure(args.model, args.cache))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
