"""What is known about a route, as plain JSON for the page, the API and the command line; reads only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from canary.domain.errors import ExitCode
from canary.domain.flag import Flag
from canary.domain.rollout import Rollout
from canary.flow.attempt import pinned_policy, rollout_of
from canary.flow.ports import Transaction
from canary.flow.tools.verdicts import exit_code
from canary.stats.control import GATE as CONTROL_GATE


@dataclass(frozen=True, slots=True)
class RouteVerdict:
    """One small object that CI, Argo and people read alike.

    Args:
        verdict: `pass fail inconclusive no_data killed`.
        code: its exit code, by the same table as `canary gate`.
        samples: pairs behind it.
        needed: further requests of the route until the slowest gate whose need is known can pass, None if none is.
        terms: what the certificates come to, in user's terms, one sentence per stratum; see `user_terms`.
        reasons: why it is no pass: the kill's, the age's or the decision's sentence, then one per gate that does not pass.
    """

    route: str
    ok: bool
    verdict: str
    code: int
    samples: int
    needed: int | None
    reasons: tuple[str, ...]
    policy_version: str
    terms: tuple[str, ...] = ()


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
        return dict(finite(newest))
    for event in tx.audit.list(rollout.route):
        if event["kind"] == "decision":
            body: Any = event["body"]
            earlier = _seconds(event["at"]) < rollout.entered_at or bool(body.get("gates"))
            return {**finite(body), **({"earlier_attempt": True} if earlier else {})}
    return None


def finite(value: Any) -> Any:
    """The value with null in place of numbers that JSON cannot hold, such as an open bound."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def detail(tx: Transaction, route: str, events: int = 20) -> dict[str, object]:
    """One rollout with its last decision and its newest audit events.

    Raises:
        NotFoundError: there is no such route.
    """
    rollout = rollout_of(tx, route)
    audit = [
        {"kind": e["kind"], "actor": e["actor"], "at": rfc3339(_seconds(e["at"])), "sentence": sentence_of(e["body"])}
        for e in tx.audit.list(route, events)
    ]
    flag = tx.flags.get(route)
    prompts = tx.prompts.count(route)
    more = {"prompts": prompts, "shadow_run": shadow_run(tx, route)}
    return {**summary(rollout, flag), **more, "last": last_decision(tx, rollout), "audit": audit}


def shadow_run(tx: Transaction, route: str) -> dict[str, object] | None:
    """The route's newest scheduled shadow run; None before the first."""
    run = tx.shadow_runs.newest(route)
    if run is None:
        return None
    times = {name: rfc3339(getattr(run, name)) for name in ("due_at", "opened_at", "until")}
    return {**times, "max_requests": run.most, "taken": run.taken}


def control_sentence(gates: Sequence[Mapping[str, Any]]) -> str | None:
    """What the A/A arm found, with the noise floor of the rows; None where the policy has none."""
    return next((str(gate["sentence"]) for gate in gates if gate["gate"] == CONTROL_GATE), None)


def _seconds(at: Any) -> float:
    return at.timestamp() if isinstance(at, datetime) else float(at)


def sentence_of(body: Any) -> str:
    """What an audit event says in words."""
    if not isinstance(body, Mapping):
        return ""
    decision = body.get("decision")
    if isinstance(decision, Mapping):
        return str(decision.get("sentence") or decision.get("reason") or "")
    return str(body.get("sentence") or body.get("reason") or "")


def route_verdict(tx: Transaction, route: str, now: float) -> RouteVerdict:
    """The route's verdict now, from its kill switch and its last decision; no data and stale evidence never pass.

    A decision counts as long as the policy lets evidence count (`limits.fresh`), by its own age and by its newest pair's: that is
    what the next decision would be held to, and a control loop that restarts does not turn a passing route into one without data.

    Args:
        now: seconds since the epoch.

    Raises:
        NotFoundError: there is no such route.
    """
    rollout, flag = rollout_of(tx, route), tx.flags.get(route)
    found = last_decision(tx, rollout)
    if found and found.get("earlier_attempt"):
        found = None
    killed = rollout.killed or bool(flag and flag.killed)
    why = [(flag.kill_reason if flag else "") or rollout.reason] if killed else []
    if found is None:
        why = why or ["No decision yet: no shadow pair has been assessed."]
        code = ExitCode.KILLED if killed else ExitCode.NO_DATA
        return _verdict(rollout, code, {"missing": []}, [], 0, why)
    decision, gates, num_pairs = found["decision"], found["gates"], int(found.get("num_pairs", 0))
    stale = _too_old(tx, rollout, decision["at"], now) if num_pairs and not killed else None
    code = exit_code(decision, gates, num_pairs, killed=killed, stale=stale is not None)
    if not killed and code is not ExitCode.PASS:
        why = [stale if stale and code is ExitCode.NO_DATA else str(decision["sentence"])]
    return _verdict(rollout, code, decision, gates, num_pairs, why)


def _too_old(tx: Transaction, rollout: Rollout, decided_at: float, now: float) -> str | None:
    """Why a decision on pairs no longer counts, None while it does."""
    record: Any = tx.evidence.get(rollout.route, rollout.epoch, rollout.attempt)
    limit = pinned_policy(tx, rollout).limits.fresh_seconds
    for what, at in (("last decision", decided_at), ("newest pair", record["battery"]["newest_pair_at"])):
        if now - at > limit:
            return f"The {what} is {now - at:.0f} s old; evidence is stale after {limit:.0f} s."
    return None


def _verdict(
    rollout: Rollout, code: ExitCode, decision: Mapping[str, Any], gates: list[dict[str, Any]], num_pairs: int, why: list[str]
) -> RouteVerdict:
    sentences = {("live " if g.get("source") == "live" else "") + g["gate"]: str(g["sentence"]) for g in gates}
    missing = decision["missing"]
    needed = [n for m in missing if (n := _needed(m, gates)) is not None]
    return RouteVerdict(
        route=rollout.route,
        ok=code is ExitCode.PASS,
        verdict=code.name.lower(),
        code=int(code),
        samples=num_pairs,
        needed=max(needed) if needed else None,
        reasons=(*why, *(sentences.get(m["gate"]) or f"{m['gate']}: {m['reason']}" for m in missing)),
        policy_version=rollout.policy_hash,
        terms=user_terms(gates),
    )


def _needed(missing: Mapping[str, Any], gates: list[dict[str, Any]]) -> int | None:
    """Requests of the route that a gate waits for: as the gate says for its stratum that is short, else what it counts itself."""
    told = next((g.get("details", {}).get("needed_requests") for g in gates if g["gate"] == missing["gate"]), None)
    if told is not None:
        return int(told)
    return int(missing["needed"]) if missing["needed"] is not None and missing["unit"] == "requests" else None


def user_terms(gates: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """What the certificates come to, one sentence per tested stratum; see `stats.terms`.

    Args:
        gates: in the plain form that the control loop keeps.
    """
    found: list[Any] = [g.get("details", {}).get("user_terms", []) for g in gates if g["gate"] == "losslessness"]
    told = found[0] if found else []
    return tuple(str(each["sentence"]) for each in told)
