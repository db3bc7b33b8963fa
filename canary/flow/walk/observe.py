"""Step 4, live: keep what gateways saw of served requests, each observation once.

A batch is kept whole or not at all; nothing here compares variants, and nothing of a prompt or an answer is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from enum import StrEnum
from typing import Any

from canary.domain.errors import UsageError
from canary.domain.observations import Observation
from canary.domain.pairs import Arm
from canary.flow.ports import Store

MAX_BATCH = 1_000
LONGEST_ERROR = 200  # characters of an engine's message that are kept
AHEAD_SECONDS = 300.0  # by which a gateway's clock may be ahead of ours

# What a record may say: field -> (type, its word in a complaint).
KINDS: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("observation_id", "arm", "finish_reason", "error", "stage", "engine"), (str, "a string")),
    **dict.fromkeys(("observed_at", "ttft_seconds", "seconds_per_token", "memory_headroom"), (float, "a number")),
    **dict.fromkeys(("num_drafts", "num_draft_tokens", "num_accepted_tokens", "thumbs"), (int, "a whole number")),
    **dict.fromkeys(("weight", "concurrency"), (int, "a whole number")),
    **dict.fromkeys(("valid", "task_success"), (bool, "true or false")),
    "accepted_per_position": (tuple, "a list of whole numbers"),
}
REQUIRED = ("observation_id", "arm", "observed_at")


class Observed(StrEnum):
    """What became of one observation."""

    NEW = "new"
    REPEAT = "repeat"


def observe(store: Store, observations: Sequence[Observation], now: float) -> list[Observed]:
    """Store what is new, in one transaction for the whole batch.

    Args:
        observations: at most `MAX_BATCH`.
        now: seconds since the epoch.

    Returns:
        One state per observation, in order.

    Raises:
        UsageError: the batch is too long, an observation contradicts itself or comes from the future, or its route has no
            rollout. Nothing of the batch is kept then.
    """
    if len(observations) > MAX_BATCH:
        raise UsageError(f"the batch has {len(observations)} observations", remedy=f"Send at most {MAX_BATCH} at a time.")
    for at, observation in enumerate(observations):
        _check(observation, now, at)
    if not observations:
        return []
    with store.transaction() as tx:
        for route in sorted({o.route for o in observations}):
            if tx.rollouts.get(route) is None:
                raise UsageError(f"there is no rollout for route {route!r}", remedy="Apply a policy: canary policy apply FILE.")
        new = tx.observations.add_many([_shortened(o) for o in observations], now)
        tx.commit()
    return [Observed.NEW if was_new else Observed.REPEAT for was_new in new]


def read_observation(record: Any, route: str) -> Observation:
    """One observation from a decoded JSON object.

    Args:
        route: the one it is for; a record may name it too, but no other.

    Raises:
        UsageError: names the field.
    """
    if not isinstance(record, dict):
        raise UsageError("an observation must be a JSON object", remedy="Write one object a line.")
    if record.get("route", route) != route:
        raise _wrong("route", f"is not {route!r}")
    known = [f.name for f in fields(Observation)]
    unknown = sorted(set(record) - set(known))
    if unknown:
        raise _wrong(unknown[0][:100], "is unknown", f"Known are {', '.join(known)}.")
    missing = [name for name in REQUIRED if record.get(name) is None]
    if missing:
        raise _wrong(missing[0], "is missing")
    values = {name: _value(name, record[name]) for name in KINDS if record.get(name) is not None}
    if values["arm"] not in list(Arm):
        raise _wrong("arm", f"must be one of {', '.join(Arm)}")
    made = Observation(**{**values, "route": route, "arm": Arm(values["arm"])})
    made.check()
    return made


def require_past(observation: Observation, now: float) -> None:
    """Refuse what was observed well after now.

    Raises:
        UsageError: a clock is wrong.
    """
    if observation.observed_at > now + AHEAD_SECONDS:
        raise _wrong("observed_at", f"is {observation.observed_at - now:.0f} s in the future", "Set the gateway's clock.")


def _value(name: str, value: Any) -> Any:
    kind, words = KINDS[name]
    whole = isinstance(value, int) and not isinstance(value, bool)
    if kind is float and (whole or isinstance(value, float)):
        try:
            return float(value)
        except OverflowError:
            raise _wrong(name, "is too large") from None
    if kind is tuple and isinstance(value, list) and all(type(each) is int for each in value):
        return tuple(value)
    if (kind is int and whole) or (kind in (str, bool) and isinstance(value, kind)):
        return value
    raise _wrong(name, f"must be {words}")


def _check(observation: Observation, now: float, at: int) -> None:
    try:
        observation.check()
        require_past(observation, now)
    except UsageError as error:
        raise UsageError(error.detail, where=f"/{at}/{error.where}", remedy=error.remedy) from None


def _shortened(observation: Observation) -> Observation:
    """An engine's message may be long, and may quote what it was asked."""
    return observation if observation.error is None else replace(observation, error=observation.error[:LONGEST_ERROR])


def _wrong(name: str, detail: str, remedy: str = "") -> UsageError:
    return UsageError(f"{name} {detail}", where=name, remedy=remedy)
