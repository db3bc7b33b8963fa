"""Side by side, same outputs, same level: tokens to detection of every fault by Canary and by published black-box tests.

`python -m tests.bench.power --world A --runs 20 --json power.json` writes after every figure and takes up where it stopped.
`--runs small` is a run of a minute that shows the machinery; its figures mean little.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.bench.power_methods import ALPHA, METHODS, BlackBox, ours
from tests.bench.power_pools import SIZES, Pools
from tests.bench.worlds import PARAMS, make
from tests.bench.worlds_faults import FAULTS

CLEAN = "clean"
FIRST = (  # the faults that the comparison is about come first, so that an interrupted run is worth having
    "resample_from_target", "greedy_draft_softmax_q", "uniform_zero", "accept_argmax", "draft_temperature", "typical_0.1",
    "residual_argmax", "accept_if_equal", "top5_draft_raw_q", "draft_temperature_half", "bonus_temperature", "bonus_from_draft",
    "shared_noise", "acceptance_1.1", "typical_0.3", CLEAN,
)  # fmt: skip
QUICK = 4_800
QUICK_FAULTS = frozenset(
    {"resample_from_target", "residual_argmax", "greedy_draft_softmax_q", "uniform_zero", "accept_argmax", "off_by_one_2pct",
     "stale_cache_10pct", "residual_unfiltered", "draft_temperature_half", "bonus_temperature"}
)  # fmt: skip
LIMIT = 19_200
SLOW = 96_000  # tokens for faults of which a run of 19,200 says little
SLOW_FAULTS = frozenset(
    {"typical_0.3", "acceptance_1.1", "shared_noise", "tokens_from_draft_3pct", "requests_from_draft_1pct",
     "uniform_reused_residual", "uniform_reused_accept", "seed_reset"}
)  # fmt: skip
SMALL_FAULTS = ("greedy_draft_softmax_q", "draft_temperature")


def order(small: bool) -> list[str]:
    """Names of the faults, the important ones first, `clean` among them."""
    return list(SMALL_FAULTS) if small else [*FIRST, *(name for name in FAULTS if name not in FIRST)]


def limit_of(fault: str) -> int:
    """Most tokens of one run of ours."""
    return QUICK if fault in QUICK_FAULTS else SLOW if fault in SLOW_FAULTS else LIMIT


def missing(results: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(fault, method) without a figure, ours first for each fault."""
    return ((name, method) for name in names for method in METHODS if method not in results.get(name, {}))


def measure(
    world: str, runs: int, size: str, names: Sequence[str], path: Path | None, again: Sequence[str] = ()
) -> dict[str, Any]:
    """Fill in what the file lacks and give all of it back.

    Args:
        runs: attempts of ours per fault.
        size: of the pools, a key of `SIZES`.
        path: of the results; None keeps them in memory.
        again: methods whose figures are thrown away first.

    Raises:
        ValueError: the file holds figures of another setting.
    """
    setting = {"world": world, "runs": runs, "size": size, "alpha": ALPHA, "pools": vars_of(size)}
    body: dict[str, Any] = {"setting": setting, "results": {}}
    if path is not None and path.exists():
        body = json.loads(path.read_text())
        if body["setting"] != setting:
            raise ValueError(f"{path} was measured with {body['setting']}, not {setting}; name another file")
    for name in names:
        for method in again:
            body["results"].get(name, {}).pop(method, None)
    pools, black_box, asked = Pools(make(world), SIZES[size]), None, ""
    for name, method in missing(body["results"], names):
        inject, start = (None if name == CLEAN else FAULTS[name].inject), time.process_time()
        if method == "ours":
            found = ours(pools, inject, runs, limit_of(name) if size == "full" else 4_800)
        else:
            if black_box is None or asked != name:
                black_box, asked = BlackBox(pools, inject), name
            found = getattr(black_box, method)()
        entry = {**found.to_json(), "seconds": round(time.process_time() - start, 1)}
        body["results"].setdefault(name, {})[method] = entry
        if path is not None:
            path.write_text(json.dumps(body, indent=1))
        print(f"{world} {name} {method}: {found.tokens} of {found.limit} tokens, {entry['seconds']} s", flush=True)
    return body


def vars_of(size: str) -> dict[str, int]:
    """The pool's sizes as plain values."""
    sizes = SIZES[size]
    return {"repeats": sizes.repeats, "distinct": sizes.distinct, "greedy": sizes.greedy}


def main() -> None:
    """Measure and print the table."""
    from tests.bench.power_table import table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default="20", help="attempts of ours per fault, or `small`")
    parser.add_argument("--world", default="A", choices=list(PARAMS))
    parser.add_argument("--json", type=Path, default=None, help="results, kept and continued")
    parser.add_argument("--again", action="append", default=[], choices=list(METHODS), help="measure this method anew")
    parser.add_argument("--fault", action="append", choices=[*FAULTS, CLEAN], help="only these; may be repeated")
    asked = parser.parse_args()
    small = asked.runs == "small"
    torch.set_num_threads(1)
    runs, size = (3, "small") if small else (int(asked.runs), "full")
    body = measure(asked.world, runs, size, asked.fault or order(small), asked.json, asked.again)
    print(table(body))


if __name__ == "__main__":
    main()
