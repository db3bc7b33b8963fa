"""CPU time of one resolve in process, against an empty function: `python -m tests.bench.resolve`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from uuid import UUID

from canary.client import FlagClient
from canary.client.held import Held
from canary.domain.flag import Flag, Snapshot
from canary.domain.match import Match

BAR_MICROSECONDS = 8.0
NOBODY = "http://127.0.0.1:9"


def microseconds(function: Callable[[str], object], units: Sequence[str], repeats: int) -> float:
    """CPU microseconds of one call: the best of several rounds, since whatever disturbs a round only adds to it."""
    best = float("inf")
    for _ in range(repeats):
        started = time.process_time()
        for unit in units:
            function(unit)
        best = min(best, time.process_time() - started)
    return best / len(units) * 1e6


def holding(flag: Flag) -> FlagClient:
    """A client that holds one flag and talks to nobody."""
    client = FlagClient(NOBODY, start=False)
    client._keeper.held = Held(Snapshot(1, 0.0, {flag.route: flag}), "", time.monotonic() + 1e9)
    return client


def measure(count: int, repeats: int) -> dict[str, float]:
    """CPU microseconds per case, those of an empty function taken off."""
    short = [f"user-{at}" for at in range(count)]
    uuids = [str(UUID(int=at * 0x9E3779B97F4A7C15F39CC0605CEDC834 % 2**128)) for at in range(count)]
    split = Flag("math", 500, "specdec.math")
    cases: dict[str, tuple[Flag, list[str]]] = {
        "off": (Flag("math", 0, "s"), short),
        "full": (Flag("math", 10_000, "s"), short),
        "killed": (Flag("math", 0, "s", killed=True), short),
        "5 %, unit of 10": (split, short),
        "5 %, unit of 36": (split, uuids),
        "5 %, unit of 36, matched": (
            Flag("math", 500, "specdec.math", match=Match(strata=("greedy",), max_temperature=1.0)),
            uuids,
        ),
    }
    found = {"an empty function": microseconds(lambda unit: None, short, repeats)}
    for name, (flag, units) in cases.items():
        resolve = holding(flag).resolve
        request = {"endpoint": "chat/completions", "temperature": 0.0, "stream": False}
        call = (lambda u, r=resolve, q=request: r("math", u, q)) if "matched" in name else (lambda u, r=resolve: r("math", u))  # type: ignore[misc]
        found[name] = microseconds(call, units, repeats) - found["an empty function"]
    return found


def main() -> int:
    """Measure and print; 1 if a case is over the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    found = measure(given.count, given.repeats)
    print(json.dumps({name: round(value, 3) for name, value in found.items()}, indent=1))
    return int(max(found.values()) > BAR_MICROSECONDS)


if __name__ == "__main__":
    sys.exit(main())
