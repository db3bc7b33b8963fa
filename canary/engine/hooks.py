"""The places of the loop at which a drill's fault may take over: plain callables whose defaults are the engine's own functions.

The clean engine runs through the very same calls, so a drill tests the code that serves; nothing here knows a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from canary.domain.errors import ModelError
from canary.domain.pairs import DrafterKind, Scheme
from canary.engine import logprobs, penalties, sampling, streams, verify, verify_block
from canary.engine.coupled import verify_coupled
from canary.engine.drafters.base import Drafter
from canary.engine.logprobs import Tell
from canary.engine.penalties import Prefixes
from canary.engine.record import Line
from canary.engine.requests import Running, Words
from canary.engine.rows import Rows
from canary.engine.sampling import Draw
from canary.engine.streams import Uniforms
from canary.engine.verify import Verify

Logits = Callable[[Tensor], Tensor]
Shape = Callable[[Tensor, Tensor, Tensor, Prefixes | None], Tensor]
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


def shape(logits: Tensor, drafts: Tensor, lengths: Tensor, prefixes: Prefixes | None) -> Tensor:
    """A round's logits after bias, penalties, bans and minimum length; see `penalties.shape`.

    Args:
        lengths: of the drafts, [n] int64.
    """
    return penalties.shape(logits, drafts, prefixes)


def process(logits: Tensor, rows: Rows, lengths: Tensor) -> Tensor:
    """The distributions that a round's tokens are drawn from.

    Args:
        logits: rows from `shape`, [n, W, V].
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
        scheme: how `verify` judges; the trace and the random numbers of a round follow it (see `streams.ROUND_SPACING`).
        draw: of the drafter alone; `verify` draws by itself.
        uniforms: every random number of the candidate, the drafter's included.
        shape, process: the two halves of the pipeline for the target's rows; a drafter runs its own rows through the clean ones.
        logprobs: what is told of the emitted tokens, see `logprobs.table`.
        take: emits the tokens of one step until the request ends, see `Running.take`.
        text: what the client reads of an answer, see `Running.text`.
        drafter: wraps the whole drafter once, when the engine opens.
    """

    verify: Verify = verify.verify
    scheme: Scheme = Scheme.TOKEN
    draw: Draw = sampling.draw
    uniforms: Uniforms = streams.uniforms
    logits: Logits = same_logits
    shape: Shape = shape
    process: Process = process
    logprobs: Tell = logprobs.table
    pending: Pending = pending
    advance: Advance = advance
    take: Take = Running.take
    count: Count = count
    text: Text = Running.text
    drafter: WrapDrafter = same_drafter


CLEAN = Hooks()
# By the policy's word for it (`subject.drafter.verification`). Greedy requests are greedy under both.
METHODS: Mapping[str, Hooks] = {
    Scheme.TOKEN: CLEAN,
    Scheme.BLOCK: Hooks(verify=verify_block.verify_block, scheme=Scheme.BLOCK),
}


def of_verification(word: str, adaptive: DrafterKind | None = None) -> Hooks:
    """The clean hooks of a way to judge drafts.

    Args:
        adaptive: kind of the drafts whose number is adapted: those without probabilities are then judged so that an answer's
            tokens do not depend on it.

    Raises:
        ModelError: there is no such way.
    """
    if word not in METHODS:
        raise ModelError(
            f"verification {word!r} is unknown", where="subject.drafter.verification", remedy=f"Use {' or '.join(METHODS)}."
        )
    # Block verification of one-hot drafts is token verification; with rounds spaced, draws would hang on how much was drafted.
    return METHODS[word] if adaptive is not DrafterKind.ONE_HOT else replace(CLEAN, verify=verify_coupled)
