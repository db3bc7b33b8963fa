"""One attempt's frozen setting: its pinned policy, the engine that announced itself, and the battery both imply.

Everything here is derived from stored records, so a worker and the assessor always build the same battery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

from canary.domain.errors import NotFoundError
from canary.domain.live_policy import Structured
from canary.domain.pairs import DrafterKind, Scheme
from canary.domain.policy import Policy
from canary.domain.rollout import Rollout
from canary.flow.ports import EngineInfo, Transaction
from canary.flow.tools.policy_files import load_text
from canary.stats.controlled import ControlledBattery
from canary.stats.part import Calibration, Context


@lru_cache(maxsize=256)
def _parsed(content_hash: str, text: str) -> Policy:
    return load_text(text, name=f"policy {content_hash[:12]}")


def pinned_policy(tx: Transaction, rollout: Rollout) -> Policy:
    """The policy that the rollout pinned when it started.

    Raises:
        NotFoundError: the pinned policy is not stored.
    """
    text = tx.policies.get(rollout.policy_hash)
    if text is None:
        raise NotFoundError(f"route {rollout.route!r} pins policy {rollout.policy_hash[:12]}, which is not stored")
    return _parsed(rollout.policy_hash, text)


def locked_rollout(tx: Transaction, route: str) -> Rollout:
    """The route's rollout under its row lock; see `rollout_of`."""
    return rollout_of(tx, route, lock=True)


def rollout_of(tx: Transaction, route: str, *, lock: bool = False) -> Rollout:
    """The route's rollout.

    Raises:
        NotFoundError: there is none; names the routes that there are.
    """
    rollout = tx.rollouts.get(route, lock=lock)
    if rollout is None:
        known = ", ".join(sorted(r.route for r in tx.rollouts.list())) or "none"
        raise NotFoundError(
            f"there is no rollout for route {route!r} (known: {known})", remedy="Apply a policy: canary policy apply FILE."
        )
    return rollout


def context(policy: Policy, attempt: int, engine: EngineInfo, calibration: Calibration | None) -> Context:
    """What increments and verdicts of the attempt depend on."""
    return Context(
        gates=policy.gates,
        alpha=policy.gates.alpha_of(attempt),
        drafter_kind=engine.drafter_kind,
        num_speculative_tokens=engine.num_speculative_tokens,
        exact_rows=engine.exact_rows,
        vocab_size=engine.vocab_size,
        calibration=calibration,
        error_shares=policy.error_shares,
        structured=policy.structured is not None,
        structured_note="" if policy.structured is None else form_note(policy.structured, engine),
        memory=engine.memory,
        scheme=Scheme(policy.subject.drafter.verification),
        max_requests=policy.limits.max_requests,
    )


def form_note(structured: Structured, engine: EngineInfo) -> str:
    """What a reader of the structured gate must know about how the arms came by their answers; "" for nothing."""
    said = [] if engine.constrains else ["No grammar constrains either arm, so both are compared as they write unaided."]
    if engine.left_out and structured.kind != "json":
        said.append(f"The target's chat template leaves {' and '.join(engine.left_out)} out of the prompt.")
    return " ".join(said)


def controlled(policy: Policy, ctx: Context) -> ControlledBattery:
    """The candidate's whole battery for one attempt, the A/A arm's, and what is left out of both."""
    return ControlledBattery(ctx, asked=policy.shadow.control_rate > 0, left_out=policy.left_out)


def calibrated(ctx: Context, calibration: Calibration) -> Context:
    """The context once its calibration is frozen."""
    return replace(ctx, calibration=calibration)


def engine_record(info: EngineInfo) -> dict[str, object]:
    """What an attempt's evidence record keeps of the engine that runs it."""
    return {
        **asdict(info),
        "drafter_kind": info.drafter_kind.value,
        "described": dict(info.described),
        "verify_costs": dict(info.verify_costs),
        "memory": dict(info.memory),
    }


def engine_of(record: Mapping[str, Any]) -> EngineInfo:
    """The inverse of `engine_record`."""
    left_out = tuple(record.get("left_out", ()))
    return EngineInfo(**{**record, "drafter_kind": DrafterKind(record["drafter_kind"]), "left_out": left_out})
