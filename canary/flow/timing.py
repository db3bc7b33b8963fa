"""Which requests of a batch are timed together, and the timing of such a block in both arms.

Blocks are formed before anything is drawn, so that no answer chooses its own company; a block is timed whole or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from canary.domain.pairs import Arm, Generation, Timing
from canary.domain.shadow_policy import Shadow
from canary.flow import arms
from canary.flow.ports import ArmRequest, Observer, ShadowEngine


def blocks(controls: Sequence[bool | None], shadow: Shadow) -> dict[int, tuple[int, ...]]:
    """The blocks of one batch: the place of each block's first request -> places of all of them.

    Candidates' requests form blocks of exactly `timing_concurrency`, in their order. What is left over is not timed: it would run
    under less load, where speculation gains more, and where its own size lies in the same load band it would pass for the load
    that the policy asks about. A/A requests form blocks of at most the control batch size, the last one of what is left: both
    seats run the same block, so that either is as likely to be faster at any size.

    Args:
        controls: of every request, whether its pair is an A/A pair; None for one that is not timed at all, since its stratum gets
            no candidate traffic.
    """
    found = {}
    for control, size in ((False, shadow.timing_concurrency), (True, min(shadow.timing_concurrency, shadow.control_rows))):
        mine = [at for at, other in enumerate(controls) if other is control]
        for start in range(0, len(mine), size):
            block = tuple(mine[start : start + size])
            if control or len(block) == size:
                found[block[0]] = block
    return found


def answered(done: Mapping[Arm, Sequence[Generation]], block: Sequence[int]) -> bool:
    """Whether both arms answered every request of a block."""
    return not any(done[arm][at].error for arm in done for at in block)


def both(
    engine: ShadowEngine, requests: Mapping[Arm, Sequence[ArmRequest]], order: Sequence[Arm], *, observer: Observer
) -> dict[Arm, Timing | None]:
    """Time one block in both arms, one after the other; None for an arm that breaks."""
    return {arm: arms.time_block(engine, requests[arm], arm, observer=observer) for arm in order}


def calibrating(shadow: Shadow) -> float:
    """Timings that the calibrating ordinals of an attempt give on average, were all of them answered.

    They are run in full batches; A/A pairs, which do not calibrate, are ordinals 1 and 3 and, of the other odd ones, a share.
    """
    expected = 0.0
    for start in range(0, shadow.calibration_requests, shadow.batch_size):
        places = range(start, min(start + shadow.batch_size, shadow.calibration_requests))
        early = sum(at % 2 and at < arms.EARLY_CONTROLS for at in places) if shadow.control_rate else 0
        others = sum(at % 2 for at in places) - early
        for controls in range(others + 1):
            chance = (
                math.comb(others, controls) * shadow.control_rate**controls * (1 - shadow.control_rate) ** (others - controls)
            )
            expected += chance * ((len(places) - early - controls) // shadow.timing_concurrency)
    return expected
