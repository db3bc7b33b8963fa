"""Tokens to a kill of faults of verification, where drafts are judged together against where each is judged by itself.

    python -m tests.bench.power_block [--world A|B] [--runs N] [--tokens N] [--only NAME ...] [--json]

The shipped battery on the engine's own trace, one look per request; dense drafts. `by` is the component test that reaches
1 / alpha first most often.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from canary.domain.pairs import DrafterKind, Scheme
from canary.engine.faults import get_fault
from canary.engine.hooks import METHODS
from canary.engine.verify import Verified, Verify, verify
from canary.engine.verify_block import block_rule, verify_block
from canary.stats.components import active_components
from tests.bench.power_methods import median
from tests.bench.power_ours import walk
from tests.bench.worlds import PARAMS, make
from tests.stats.experiments import attempts
from tests.stats.world import LENGTH, Engine

SHIPPED = (
    "greedy_draft_softmax_q", "cold_draft", "hot_draft", "shifted_draft_q", "off_by_one_rows", "uniform_zero", "drafts_unjudged",
    "accept_iff_argmax", "resample_from_target", "residual_argmax", "dense_accept_one_hot_residual", "accept_uniform_reused",
    "bonus_from_draft", "bonus_temperature",
)  # fmt: skip


def _forced(thresholds: Tensor, last: Tensor) -> Tensor:
    """Uniforms under which exactly the first `last` drafts are accepted, [B, k]."""
    return torch.where(torch.arange(1, thresholds.shape[1] + 1) == last[:, None], 0.0, 1.0).double()


def first_failure(p: Tensor, d: Tensor, n: Tensor, q: Tensor, u: Tensor, v: Tensor) -> Verified:
    """The thresholds of block rejection, but the first draft that misses its own ends the round."""
    thresholds = block_rule(p, d, n, q).thresholds
    return verify_block(p, d, n, q, _forced(thresholds, (u < thresholds).long().cumprod(1).sum(1)), v)


def token_residual(p: Tensor, d: Tensor, n: Tensor, q: Tensor, u: Tensor, v: Tensor) -> Verified:
    """Accepted as block rejection does, recovered from norm(max(p - q, 0))."""
    count = verify_block(p, d, n, q, u, v).num_accepted
    return verify(p, d, n, q, torch.where(torch.arange(d.shape[1]) < count[:, None], 0.0, 1.0).double(), v)


def token_thresholds(p: Tensor, d: Tensor, n: Tensor, q: Tensor, u: Tensor, v: Tensor) -> Verified:
    """The last draft below min(1, p/q) is accepted, and all before it."""
    met = u < verify(p, d, n, q, u, v).accept_threshold
    return verify_block(p, d, n, q, _forced(u, torch.where(met, torch.arange(1, d.shape[1] + 1), 0).amax(1)), v)


def generous(p: Tensor, d: Tensor, n: Tensor, q: Tensor, u: Tensor, v: Tensor) -> Verified:
    """Every threshold is 1.1 times what it should be."""
    return verify_block(p, d, n, q, u / 1.1, v)


OWN: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Verified]] = {
    "first_failure_ends_it": first_failure,
    "token_residual": token_residual,
    "token_thresholds": token_thresholds,
    "acceptance_1.1": generous,
}
SCHEMES = tuple(Scheme(word) for word in METHODS)
NAMES = ("none", *SHIPPED, *OWN)


@dataclass
class JudgingEngine(Engine):
    """An engine whose verifier is given; None is that of its scheme."""

    verifier: Verify | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.verifier is not None:
            self._verify = self.verifier


@dataclass
class Found:
    """One fault under one scheme.

    Args:
        kills: tokens to the kill of every run, None where there was none.
        first: tokens until a component test reached 1 / alpha.
    """

    kills: list[int | None] = field(default_factory=list)
    first: list[int | None] = field(default_factory=list)
    by: Counter[str] = field(default_factory=Counter)


def engine_of(world: str, name: str, scheme: Scheme) -> Engine | None:
    """The engine with a fault; None where the fault is one of block verification alone."""
    rows = make(world)
    if name in OWN:
        if scheme is not Scheme.BLOCK:
            return None
        return JudgingEngine(rows, DrafterKind.DENSE, scheme=scheme, verifier=OWN[name])  # type: ignore[arg-type]
    return Engine(rows, DrafterKind.DENSE, None if name == "none" else get_fault(name).name, scheme=scheme)


def measure(engine: Engine, runs: int, tokens: int, seed: int = 5_000_000) -> Found:
    """Independent attempts of up to so many tokens, each until its kill."""
    found = Found()
    for context, pairs in attempts(engine, runs, max(21, tokens // LENGTH), seed):
        limit, names = math.log(1 / context.alpha), active_components(engine.kind, engine.scheme)
        kill: int | None = None
        first: int | None = None
        for battery, state in walk(context, pairs):
            if first is None:
                log_e = battery.e_values(state)
                if (best := max(names, key=lambda name: log_e[name])) and log_e[best] >= limit:
                    first = state.folded * LENGTH
                    found.by[best] += 1
            if state.kill_peak is not None and state.kill_peak >= limit:
                kill = state.folded * LENGTH
                break
        found.kills.append(kill)
        found.first.append(first)
    return found


def _row(name: str, found: dict[Scheme, Found]) -> dict[str, object]:
    row: dict[str, object] = {"fault": name}
    for scheme, each in found.items():
        row[str(scheme)] = {
            "median": median(each.kills),
            "killed": sum(tokens is not None for tokens in each.kills),
            "runs": len(each.kills),
            "first_component": median(each.first),
            "by": each.by.most_common(1)[0][0] if each.by else "",
        }
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row per fault as it is found, or JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--world", choices=list(PARAMS), default="A")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=9_600)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = []
    for name in chosen.only:
        engines = {scheme: engine_of(chosen.world, name, scheme) for scheme in SCHEMES}
        found = {s: measure(e, chosen.runs, chosen.tokens) for s, e in engines.items() if e is not None}
        rows.append(_row(name, found))
        cells = [f"{s}: {median(f.kills)} (component {median(f.first)} {f.by.most_common(1)})" for s, f in found.items()]
        print(f"{name:30} {'   '.join(cells)}", file=sys.stderr if chosen.json else sys.stdout, flush=True)
    if chosen.json:
        print(json.dumps({"world": chosen.world, "tokens": chosen.tokens, "rows": rows}, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
