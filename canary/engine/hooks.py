"""The places of the loop at which a drill's fault may take over: plain callables whose defaults are the engine's own functions.

The clean engine runs through the very same calls, so a drill tests the code that serves; nothing here knows a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from canary.engine import sampling, streams, verify
from canary.engine.drafters.base import Drafter
from canary.engine.record import Line
from canary.engine.requests import Running, Words
from canary.engine.rows import Rows
from canary.engine.sampling import Draw
from canary.engine.streams import Uniforms
from canary.engine.verify import Verify

Logits = Callable[[Tensor], Tensor]
Process = Callable[[Tensor, Rows, Tensor], Tensor]
Pending = Callable[[Running], int]
Advance = Callable[[list[int], int, Running, Line], None]
Take = Callable[[Running, Sequence[int], frozenset[int], Words], list[int]]
Count = Callable[[Line], tuple[int, int]]
Text = Callable[[Running, Words], str]
WrapDrafter = Callable[[Drafter], Drafter]


def same_logits(logits: Tensor) -> Tensor:
    """Raw verify rows as the target gave them, [n, W, V]."""
    return logits


def process(logits: Tensor, rows: Rows, lengths: Tensor) -> Tensor:
    """The distributions that a round's tokens are drawn from.

    Args:
        logits: raw rows, [n, W, V].
        rows: sampling parameters of those n * W rows.
        lengths: of the drafts, [n] int64; column `lengths[i]` is row i's bonus position.

    Returns:
        [n, W, V], see `sampling.process`.
    """
    return sampling.process(logits.flatten(0, 1), rows).view(logits.shape)


def pending(running: Running) -> int:
    """The emitted token that the cache does not hold yet: the first one fed in the next step."""
    return running.token_ids[-1]


def advance(lengths: list[int], row: int, running: Running, line: Line) -> None:
    """After a round the row's pending token and accepted drafts are cached; what was rejected lies beyond its length."""
    lengths[row] += 1 + line.num_accepted


def count(line: Line) -> tuple[int, int]:
    """(drafted, accepted) as they enter the request's statistics."""
    return line.num_drafted, line.num_accepted


def same_drafter(drafter: Drafter) -> Drafter:
    """The drafter itself."""
    return drafter


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the loop and its drafter call; see the functions of the same names.

    Args:
        draw: of the drafter alone; `verify` draws by itself.
        uniforms: every random number of the candidate, the drafter's included.
        take: emits the tokens of one step until the request ends, see `Running.take`.
        text: what the client reads of an answer, see `Running.text`.
        drafter: wraps the whole drafter once, when the engine opens.
    """

    verify: Verify = verify.verify
    draw: Draw = sampling.draw
    uniforms: Uniforms = streams.uniforms
    logits: Logits = same_logits
    process: Process = process
    pending: Pending = pending
    advance: Advance = advance
    take: Take = Running.take
    count: Count = count
    text: Text = Running.text
    drafter: WrapDrafter = same_drafter


CLEAN = Hooks()
