"""A flag as OpenFeature sees it: a key's value, variant, reason and metadata. API and in-process provider both answer this.

Pure, and total: an unknown key and a missing unit are answers with an error code, everything else has a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from canary.domain.flag import LEFT_OUT, Flag, Resolution, Scalar, Snapshot, resolve

BOOLEAN, CONFIG = "specdec.", "specdec-config."
FLAG_NOT_FOUND, TARGETING_KEY_MISSING = "FLAG_NOT_FOUND", "TARGETING_KEY_MISSING"
BASELINE_CONFIG: Mapping[str, Scalar] = {"num_speculative_tokens": 0}

Value = bool | Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one key comes to for one unit.

    Args:
        value: whether the unit gets the candidate; of a configuration key, what its engine is to be set to.
        error: OpenFeature's error code, "" where there is a value to be used.
        details: the error in a sentence.
    """

    key: str
    value: Value
    variant: str
    reason: str
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    error: str = ""
    details: str = ""


def route_of(key: str) -> str | None:
    """The route that a key is about; None if it is no key of ours."""
    for prefix in (BOOLEAN, CONFIG):
        if key.startswith(prefix):
            return key[len(prefix) :]
    return None


def evaluate(
    snapshot: Snapshot | None,
    key: str,
    unit: str | None,
    request: Mapping[str, object] | None = None,
    *,
    age: float = 0.0,
    max_stale: float = float("inf"),
) -> Evaluation:
    """One key for one unit; see `domain.flag.resolve` for the arguments."""
    route = route_of(key)
    if route is None:
        return _error(key, FLAG_NOT_FOUND, f"no flag {key!r}; keys are {BOOLEAN}ROUTE and {CONFIG}ROUTE")
    return described(snapshot, key, route, resolve(snapshot, route, unit, request, age=age, max_stale=max_stale), age)


def described(snapshot: Snapshot | None, key: str, route: str, found: Resolution, age: float) -> Evaluation:
    """A resolution of a route's flag as an evaluation of one of its keys.

    Args:
        age: of the snapshot, in seconds.
    """
    if found.reason == FLAG_NOT_FOUND:
        return _error(key, FLAG_NOT_FOUND, f"there is no route {route!r}")
    if found.reason == TARGETING_KEY_MISSING:
        return _error(key, TARGETING_KEY_MISSING, f"{key} is split by unit: send `targetingKey`")
    flag = snapshot.flags.get(route) if snapshot is not None else None
    candidate = found.variant == "candidate"
    value: Value = candidate
    if key.startswith(CONFIG):
        value = flag.config if candidate and flag is not None else BASELINE_CONFIG
    return Evaluation(key, value, found.variant, found.reason, _metadata(snapshot, flag, found, age))


def baseline(key: str, reason: str = "UNKNOWN", metadata: Mapping[str, Scalar] | None = None) -> Evaluation:
    """The safe answer."""
    return Evaluation(key, BASELINE_CONFIG if key.startswith(CONFIG) else False, "baseline", reason, metadata or {})


def _metadata(snapshot: Snapshot | None, flag: Flag | None, found: Resolution, age: float) -> dict[str, Scalar]:
    if snapshot is None or flag is None:
        return {"stale": True}
    said: dict[str, Scalar] = {
        "stage": flag.stage,
        "weight_bp": flag.weight,
        "salt": flag.salt,
        "policy_version": flag.policy_version,
        "snapshot_version": snapshot.version,
        "kill_epoch": flag.kill_epoch,
    }
    if found.reason == "DISABLED":
        said |= {"kill_reason": flag.kill_reason, "kill_id": flag.kill_id, "killed_at": float(flag.killed_at)}
    elif found.reason == "UNKNOWN":
        said |= {"stale": True, "age_seconds": int(age)}
    elif found.reason == "TARGETING_MATCH":
        said["rule"] = "match" if found is LEFT_OUT else "pin"
    return said


def _error(key: str, code: str, details: str) -> Evaluation:
    return Evaluation(key, BASELINE_CONFIG if key.startswith(CONFIG) else False, "baseline", "ERROR", {}, code, details)
