"""Accepted tokens per draft under block verification against token verification, on three qualities of draft.

    python -m tests.bench.block [--rounds N] [--requests N] [--k K] [--json]

Target rows are those of world A (`tests.stats.world`); draft logits are the target's plus normal noise of three sizes. `paired`:
both methods judge the very same drafts with the same uniforms in the same contexts, one round each. `answers`: whole answers, the
methods apart; the unit of their intervals is the request. Nothing here is timed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from canary.domain.pairs import DrafterKind, Scheme
from canary.engine.hooks import METHODS
from canary.engine.sampling import draw
from tests.stats.world import CONTEXTS, Engine, K, World, _context

NOISE = {"good": 0.5, "fair": 1.0, "poor": 2.0}  # of a draft's logits
Z = 2.576  # 99 % normal interval


@dataclass(frozen=True)
class Row:
    """One quality of draft.

    Args:
        token, block: mean accepted tokens per draft of the paired rounds.
        gain, low, high: their mean difference and its interval.
        more: share of rounds in which block accepts more; fewer: in which it accepts less.
        answers: per method, accepted tokens per draft over whole answers, and the half-width of its interval.
    """

    quality: str
    noise: float
    rounds: int
    token: float
    block: float
    gain: float
    low: float
    high: float
    more: float
    fewer: float
    answers: dict[str, tuple[float, float]]


def noisy(world: World, noise: float, seed: int = 1) -> World:
    """The world with other drafts: target logits plus noise."""
    shift = noise * torch.randn(world.target.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return World(world.target, (world.target.double().log() + shift).softmax(-1).float())


def paired(world: World, rounds: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Accepted tokens of the same rounds by token and by block, [rounds] each."""
    found: list[list[np.ndarray]] = [[], []]
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, rounds, 2000):
        count = min(2000, rounds - start)
        prompts = torch.randint(0, 1 << 30, (count,), generator=generator)
        last = torch.randint(0, world.target.shape[1], (count, 2), generator=generator)
        contexts, drafts = [_context(prompts, last)], []
        for _ in range(k):
            uniforms = torch.rand(count, generator=generator, dtype=torch.float64)
            drafts.append(draw(world.draft[contexts[-1]], uniforms).tokens)
            last = torch.stack([last[:, 1], drafts[-1]], 1)
            contexts.append(_context(prompts, last))
        at = torch.stack(contexts, 1)
        uniforms = torch.rand(count, 2 * k + 1, generator=generator, dtype=torch.float64)
        given = (world.target[at], torch.stack(drafts, 1), torch.full((count,), k), world.draft[at[:, :-1]])
        for into, scheme in zip(found, (Scheme.TOKEN, Scheme.BLOCK), strict=True):
            judged = METHODS[scheme].verify(*given, uniforms[:, :k], uniforms[:, k:])
            into.append(judged.num_accepted.numpy())
    token, block = (np.concatenate(each).astype(np.float64) for each in found)
    return token, block


def answers(world: World, scheme: Scheme, requests: int, seed: int) -> tuple[float, float]:
    """Accepted tokens per draft over whole answers, and the half-width of its interval by request (ratio of sums)."""
    run = Engine(world, DrafterKind.DENSE, scheme=scheme, traced=False).run(requests, seed)
    accepted = np.array([sum(a for _, a in rounds) for rounds in run.rounds], dtype=np.float64)
    drafts = np.array([len(rounds) for rounds in run.rounds], dtype=np.float64)
    rate = accepted.sum() / drafts.sum()
    spread = float(np.std(accepted - rate * drafts, ddof=1)) / drafts.mean() / math.sqrt(requests)
    return float(rate), Z * spread


def measure(quality: str, rounds: int, requests: int, k: int) -> Row:
    """One row of the table."""
    world = noisy(World.make(), NOISE[quality])
    token, block = paired(world, rounds, k, seed=11)
    difference = block - token
    half = Z * float(difference.std(ddof=1)) / math.sqrt(rounds)
    gain = float(difference.mean())
    return Row(
        quality=quality,
        noise=NOISE[quality],
        rounds=rounds,
        token=float(token.mean()),
        block=float(block.mean()),
        gain=gain,
        low=gain - half,
        high=gain + half,
        more=float((difference > 0).mean()),
        fewer=float((difference < 0).mean()),
        answers={str(s): answers(world, s, requests, seed=12) for s in (Scheme.TOKEN, Scheme.BLOCK) if requests},
    )


def table(rows: Sequence[Row], k: int) -> str:
    """The rows for a terminal."""
    lines = [f"Accepted tokens per draft, k = {k}, {CONTEXTS} contexts, 99 % intervals"]
    lines.append(
        f"{'draft':6} {'token':>7} {'block':>7} {'gain':>7} {'interval':>18} {'in %':>6}   whole answers, token and block"
    )
    for row in rows:
        whole = "   ".join(f"{mean:.3f} +- {half:.3f}" for mean, half in row.answers.values())
        lines.append(
            f"{row.quality:6} {row.token:7.3f} {row.block:7.3f} {row.gain:+7.3f} {f'{row.low:+.3f} to {row.high:+.3f}':>18} "
            f"{100 * row.gain / row.token:+6.1f}   {whole}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20_000, help="paired rounds of each quality")
    parser.add_argument("--requests", type=int, default=300, help="whole answers of each quality and method; 0 for none")
    parser.add_argument("--k", type=int, default=K, help="draft tokens of a paired round")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = [measure(quality, chosen.rounds, chosen.requests, chosen.k) for quality in NOISE]
    print(json.dumps([asdict(row) for row in rows], indent=2) if chosen.json else table(rows, chosen.k))
    return 0 if all(row.high > 0 for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
