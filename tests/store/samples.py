"""Prompts, rollouts and pairs that the store's tests share."""

from __future__ import annotations

import struct

from canary.domain.pairs import Arm, Columns, DecodeStats, Generation, Pair, Timing
from canary.domain.rollout import Rollout, State
from canary.domain.traffic import Message, Prompt, SamplingParams, Stratum
from canary.flow.ports import Claim

ROLLOUT = Rollout("math", "hash", State.SHADOW, 0, "epoch", 1, entered_at=0.1 + 0.2)


def prompt(number: int, *, route: str = "math", source: str = "gateway", body: bytes = b"{}") -> Prompt:
    return Prompt(
        source=source,
        request_id=f"request-{number}",
        route=route,
        endpoint="chat/completions",
        body=body,
        messages=(Message("system", None), Message("user", f"what is {number}?")),
        text=None,
        params=SamplingParams(max_tokens=40, temperature=0.7, top_p=0.9, stop=("\n\n",), seed=2**70),
    )


def generation(arm: Arm, ordinal: int) -> Generation:
    """Four tokens in two steps; the candidate drafted two and had one accepted."""
    candidate = arm is Arm.CANDIDATE
    return Generation(
        arm=arm,
        token_ids=(ordinal, 7, 2**31 - 1) if candidate else (ordinal, 7),
        text="a\x00b \ud800 \U0001f642",
        finish_reason="stop",
        stats=DecodeStats(4, (0, 2), (0, 1)) if candidate else DecodeStats(0, (0, 0), (0, 0)),
        error=None if candidate else "the baseline failed",
        trace=Columns(3, {"log_prob": struct.pack("<3f", -0.1, float("nan"), -0.0)}) if candidate else None,
        rows=Columns(2, {"row_tv": struct.pack("<2f", 1e-45, 0.5)}),
        request_digest="0d" * 16 if candidate else "",
        valid=candidate,
        agrees=False if candidate else None,
    )


def pair(claim: Claim, *, error: str | None = None) -> Pair:
    return Pair(
        pair_id=claim.pair_id,
        route=claim.route,
        epoch=claim.epoch,
        attempt=claim.attempt,
        ordinal=claim.ordinal,
        stratum=Stratum.SAMPLED,
        first=Arm.CANDIDATE,
        baseline=generation(Arm.BASELINE, claim.ordinal),
        candidate=generation(Arm.CANDIDATE, claim.ordinal),
        increments=struct.pack("<3d", 0.1 * claim.ordinal, float("-inf"), 5e-324),
        calibration_hash="calibration",
        baseline_timing=Timing(0.1, 0.1 + 0.2, 2, concurrency=4),
        error=error,
        control=claim.control,
    )
