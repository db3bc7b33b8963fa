"""What is known about a route, as plain JSON for the page, the API and the command line; reads only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from canary.domain.errors import ExitCode
from canary.domain.evidence import Verdict
from canary.domain.flag import Flag
from canary.domain.rollout import Rollout
from canary.flow.ports import Transaction
from canary.flow.tools.commands import rollout_of

EXIT_CODES: Mapping[str, ExitCode] = {
    "pass": ExitCode.PASS,
    "fail": ExitCode.FAIL,
    "inconclusive": ExitCode.INCONCLUSIVE,
    "no_data": ExitCode.NO_DATA,
    "error": ExitCode.UNREACHABLE,
    "killed": ExitCode.KILLED,
}

# The worst of a route's gates speaks for it, in this order.
WORST_FIRST = (Verdict.FAIL, Verdict.ERROR, Verdict.NO_DATA, Verdict.INCONCLUSIVE, Verdict.PASS)


@dataclass(frozen=True, slots=True)
class RouteVerdict:
    """One small object that CI, Argo and people read alike.

    Args:
        verdict: `pass fail inconclusive no_data error killed`.
        code: its exit code.
        samples: pairs behind it.
        needed: further requests until the slowest gate can pass, None if unknown.
        reasons: a sentence per gate that does not pass, or the kill's.
    """

    route: str
    ok: bool
    verdict: str
    code: int
    samples: int
    needed: int | None
    reasons: tuple[str, ...]
    policy_version: str


def rfc3339(at: float | None) -> str | None:
    """Seconds since the epoch as UTC text."""
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def overview(tx: Transaction) -> list[dict[str, object]]:
    """Every rollout with its flag, by route."""
    return [summary(r, tx.flags.get(r.route)) for r in sorted(tx.rollouts.list(), key=lambda r: r.route)]


def summary(rollout: Rollout, flag: Flag | None) -> dict[str, object]:
    """One rollout and its flag; a route without a flag row serves the baseline."""
    return {
        "route": rollout.route,
        "state": rollout.state.value,
        "stage": flag.stage if flag else "",
        "weight": flag.weight if flag else 0,
        "killed": rollout.killed or bool(flag and flag.killed),
        "kill_reason": flag.kill_reason if flag else "",
        "reason": rollout.reason,
        "attempt": rollout.attempt,
        "epoch": rollout.epoch,
        "policy_version": rollout.policy_hash,
        "entered_at": rfc3339(rollout.entered_at),
        "assessed_at": rfc3339(rollout.assessed_at),
        "baked_seconds": rollout.baked_seconds,
        "version": rollout.version,
    }


def last_decision(tx: Transaction, rollout: Rollout) -> dict[str, Any] | None:
    """The newest decision with its gates: `{"decision": {...}, "gates": [...], ...}`; None before the first.

    The attempt's evidence record holds it. Before an engine has announced itself there is none; then the audit log's newest
    decision is shown, marked `earlier_attempt` if it is older than the attempt or rests on another one's gates.
    """
    record = tx.evidence.get(rollout.route, rollout.epoch, rollout.attempt)
    newest: Any = record.get("last") if record else None
    if newest:
        return dict(_finite(newest))
    for event in tx.audit.list(rollout.route):
        if event["kind"] == "decision":
            body: Any = event["body"]
            earlier = _seconds(event["at"]) < rollout.entered_at or bool(body.get("gates"))
            return {**_finite(body), **({"earlier_attempt": True} if earlier else {})}
    return None


def _finite(value: Any) -> Any:
    """The value with null in place of numbers that JSON cannot hold, such as an open bound."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def detail(tx: Transaction, route: str, events: int = 20) -> dict[str, object]:
    """One rollout with its last decision and its newest audit events.

    Raises:
        NotFoundError: there is no such route.
    """
    rollout = rollout_of(tx, route)
    audit = [
        {"kind": e["kind"], "actor": e["actor"], "at": rfc3339(_seconds(e["at"])), "sentence": _sentence(e["body"])}
        for e in tx.audit.list(route, events)
    ]
    flag = tx.flags.get(route)
    prompts = tx.prompts.count(route)
    return {**summary(rollout, flag), "prompts": prompts, "last": last_decision(tx, rollout), "audit": audit}


def _seconds(at: Any) -> float:
    return at.timestamp() if isinstance(at, datetime) else float(at)


def _sentence(body: Any) -> str:
    """What an audit event says in words."""
    if not isinstance(body, Mapping):
        return ""
    decision = body.get("decision")
    if isinstance(decision, Mapping):
        return str(decision.get("sentence") or decision.get("reason") or "")
    return str(body.get("sentence") or body.get("reason") or "")


def route_verdict(tx: Transaction, route: str) -> RouteVerdict:
    """The route's verdict, from its kill switch and its last decision's gates; no data never passes.

    Raises:
        NotFoundError: there is no such route.
    """
    rollout = rollout_of(tx, route)
    flag = tx.flags.get(route)
    found = last_decision(tx, rollout)
    if found and found.get("earlier_attempt"):
        found = None
    gates: list[dict[str, Any]] = found["gates"] if found else []
    verdict = _worst(gates)
    reasons = tuple(str(g["sentence"]) for g in gates if g["verdict"] != Verdict.PASS)
    if rollout.killed or (flag and flag.killed):
        verdict = "killed"
        reasons = ((flag.kill_reason if flag else "") or rollout.reason, *reasons)
    needed = [int(g["needed"]) for g in gates if g["verdict"] != Verdict.PASS and g.get("needed") is not None]
    return RouteVerdict(
        route=route,
        ok=verdict == "pass",
        verdict=verdict,
        code=int(EXIT_CODES[verdict]),
        samples=int(found.get("num_pairs", 0)) if found else 0,
        needed=max(needed) if needed else None,
        reasons=reasons,
        policy_version=rollout.policy_hash,
    )


def _worst(gates: list[dict[str, Any]]) -> str:
    found = {Verdict(g["verdict"]) for g in gates}
    return next((v.value for v in WORST_FIRST if v in found), Verdict.NO_DATA.value)
