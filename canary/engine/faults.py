"""Known bugs of real engines, as wrappers, for drills and tests: a drill that is not caught means that a pass proves nothing.

A fault reaches an engine only by name, as the subject of a drill's policy; its name is part of the epoch, and a drill never takes
traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from canary.domain.errors import UsageError
from canary.domain.pairs import DrafterKind
from canary.engine.sampling import INVALID, Draw, Drawn
from canary.engine.sampling import draw as clean_draw
from canary.engine.verify import Verified, Verify


@dataclass(frozen=True, slots=True)
class Fault:
    """One injectable bug.

    Args:
        name: what drills and epochs call it.
        catalogue_id: its number in the fault catalogue.
        summary: what goes wrong.
        report: a public report of it.
        sign: what it looks like in shadow data.
        applies_to: drafter kinds that it can show with.
        wrap_verify: faulty `verify` from a clean one.
        wrap_draw: faulty `draw`, as a drafter calls it, from a clean one.
    """

    name: str
    catalogue_id: str
    summary: str
    report: str
    sign: str
    applies_to: frozenset[DrafterKind]
    wrap_verify: Callable[[Verify], Verify]
    wrap_draw: Callable[[Draw], Draw]


def _same_verify(verify: Verify) -> Verify:
    return verify


def _same_draw(draw: Draw) -> Draw:
    return draw


def _greedy_draw(draw: Draw) -> Draw:
    """Draw the most probable token and still report the whole row as what it was drawn from."""

    def wrapped(probs: Tensor, uniforms: Tensor) -> Drawn:
        tokens, reported = draw(probs, uniforms)
        return Drawn(torch.where(tokens == INVALID, INVALID, probs.argmax(-1)), reported)

    return wrapped


def _zero_uniforms(verify: Verify) -> Verify:
    """Judge every draft with the uniform 0."""

    def wrapped(
        target_probs: Tensor,
        draft_tokens: Tensor,
        draft_len: Tensor,
        draft_probs: Tensor | None,
        accept_uniforms: Tensor,
        next_uniforms: Tensor,
    ) -> Verified:
        zeros = torch.zeros_like(accept_uniforms)
        return verify(target_probs, draft_tokens, draft_len, draft_probs, zeros, next_uniforms)

    return wrapped


def _resample_target(verify: Verify) -> Verify:
    """Draw a rejected position from the target row instead of the residual."""

    def wrapped(
        target_probs: Tensor,
        draft_tokens: Tensor,
        draft_len: Tensor,
        draft_probs: Tensor | None,
        accept_uniforms: Tensor,
        next_uniforms: Tensor,
    ) -> Verified:
        clean = verify(target_probs, draft_tokens, draft_len, draft_probs, accept_uniforms, next_uniforms)
        batch = torch.arange(len(target_probs), device=target_probs.device)
        uniforms = next_uniforms[batch, clean.num_accepted]
        faulty = clean_draw(target_probs[batch, clean.num_accepted], uniforms).tokens
        replaced = (clean.num_accepted < draft_len) & (clean.next_token != INVALID)
        return clean._replace(next_token=torch.where(replaced, faulty, clean.next_token))

    return wrapped


_BOTH = frozenset(DrafterKind)

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            name="greedy_draft_softmax_q",
            catalogue_id="A1",
            summary="The drafter proposes its most probable token and reports its softmax as the draft distribution.",
            report="huggingface/transformers 32867, 33534",
            sign="Greedy text is identical; sampled tokens lean to the draft's top token.",
            applies_to=frozenset({DrafterKind.DENSE}),
            wrap_verify=_same_verify,
            wrap_draw=_greedy_draw,
        ),
        Fault(
            name="uniform_zero",
            catalogue_id="A7",
            summary="The uniforms of the acceptance test are all zero, so every possible draft is accepted.",
            report="vllm-project/vllm-ascend 13730, 13766",
            sign="Acceptance is exactly 1; the output is the draft's.",
            applies_to=_BOTH,
            wrap_verify=_zero_uniforms,
            wrap_draw=_same_draw,
        ),
        Fault(
            name="resample_from_target",
            catalogue_id="A11",
            summary="A rejected position is drawn from the target row instead of the residual.",
            report="a classic of textbook implementations, without a public number",
            sign="A small shift to tokens that the draft likes; a recovered token may equal the rejected one.",
            applies_to=_BOTH,
            wrap_verify=_resample_target,
            wrap_draw=_same_draw,
        ),
    )
}


def get_fault(name: str, kind: DrafterKind | None = None) -> Fault:
    """Look a fault up by name.

    Args:
        kind: the drafter that it will be injected into, if known.

    Raises:
        UsageError: there is no such fault, or it cannot show with that kind of drafter.
    """
    fault = FAULTS.get(name)
    if fault is None:
        raise UsageError(f"there is no fault named {name!r}.", remedy=f"Use one of: {', '.join(FAULTS)}.", where="fault")
    if kind is not None and kind not in fault.applies_to:
        kinds = ", ".join(sorted(fault.applies_to))
        raise UsageError(
            f"fault {name!r} cannot show with a {kind} drafter.", remedy=f"Use a drafter of kind {kinds}.", where="fault"
        )
    return fault
