"""The flag that a gateway reads: who is in the candidate's share, and what a snapshot says.

Resolving is pure and needs nothing but a snapshot and a unit; every doubt resolves to `baseline`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from canary.domain.bucket import BUCKETS as BUCKETS
from canary.domain.bucket import bucket as bucket
from canary.domain.bucket import murmur3_32 as murmur3_32
from canary.domain.match import EVERYTHING, Match

VARIANTS = ("baseline", "candidate")
LOST = ("keep", "baseline")
MAX_STALE_SECONDS = 60.0

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Flag:
    """One route's flag.

    Args:
        weight: basis points of units that get the candidate.
        salt: what is hashed with the unit; kept for the life of a rollout so that raising the weight moves nobody back.
        killed: the kill switch; beats the weight and the pins.
        kill_reason: stable code and sentence, for people.
        stage: the rollout's stage name, for people.
        kill_epoch: rises whenever the kill switch is turned, so that an older snapshot cannot turn it back (`joined`).
        kill_id: names the kill, "" without one.
        killed_at: when, seconds since the epoch; 0 without one.
        on_lost: what a full route does when the control plane is lost longer than `max_stale`: `keep` or `baseline`.
        max_stale: seconds without a vouched snapshot after which it counts as lost; None is `MAX_STALE_SECONDS`.
        policy_version: content hash of the policy that decides.
        config: what the candidate is (engine, target, drafter, `num_speculative_tokens`), for gateways that set it per request.
        pins: unit -> variant, for units that a person has pinned; at weight 0 nobody gets the candidate all the same.
        match: the requests that may get the candidate; all others get the baseline.
    """

    route: str
    weight: int
    salt: str
    killed: bool = False
    kill_reason: str = ""
    stage: str = "shadow"
    kill_epoch: int = 0
    kill_id: str = ""
    killed_at: float = 0.0
    on_lost: str = "keep"
    max_stale: float | None = None
    policy_version: str = ""
    config: Mapping[str, Scalar] = field(default_factory=dict)
    pins: Mapping[str, str] = field(default_factory=dict)
    match: Match = EVERYTHING

    @classmethod
    def initial(cls, route: str) -> Flag:
        """A new route's flag: no weight, salted with its own key, as flagd's buckets are."""
        return cls(route, weight=0, salt=f"specdec.{route}")

    @classmethod
    def from_dict(cls, route: str, values: Mapping[str, Any]) -> Flag:
        """The inverse of `dataclasses.asdict`, which leaves lists of tuples behind in JSON.

        Raises:
            ValueError, TypeError: a field is missing, unknown, or of another type or range.
        """
        rules: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.get("match", {}).items()}
        match = Match(**rules)
        found = {**values, "match": EVERYTHING if match == EVERYTHING else match}
        return cls(route=route, **found).check()

    @property
    def key(self) -> str:
        return f"specdec.{self.route}"

    @property
    def config_key(self) -> str:
        return f"specdec-config.{self.route}"

    def switched(
        self, killed: bool, *, reason: str = "", epoch: int | None = None, kill_id: str = "", at: float = 0.0, weight: int = 0
    ) -> Flag:
        """The flag with its kill switch turned.

        Args:
            reason: stable code and sentence of a kill.
            epoch: the new kill epoch; by default the next one.
            at: when, seconds since the epoch.
            weight: basis points afterwards.
        """
        return replace(
            self,
            weight=weight,
            killed=killed,
            kill_reason=reason if killed else "",
            kill_epoch=self.kill_epoch + 1 if epoch is None else epoch,
            kill_id=kill_id if killed else "",
            killed_at=at if killed else 0.0,
        )

    def check(self) -> Flag:
        """The flag itself, if `resolve` can work with all of it.

        Raises:
            ValueError: names the field whose type or range is wrong.
        """
        legal = {
            "weight": type(self.weight) is int and 0 <= self.weight <= BUCKETS,
            "salt": isinstance(self.salt, str),
            "killed": type(self.killed) is bool,
            "kill_reason": isinstance(self.kill_reason, str),
            "stage": isinstance(self.stage, str),
            "kill_epoch": type(self.kill_epoch) is int and self.kill_epoch >= 0,
            "kill_id": isinstance(self.kill_id, str),
            "killed_at": _is_seconds(self.killed_at),
            "on_lost": self.on_lost in LOST,
            "max_stale": self.max_stale is None or _is_seconds(self.max_stale),
            "policy_version": isinstance(self.policy_version, str),
            "config": isinstance(self.config, Mapping) and all(isinstance(v, Scalar) for v in self.config.values()),
            "pins": isinstance(self.pins, Mapping) and all(v in VARIANTS for v in self.pins.values()),
            "match": isinstance(self.match, Match),
        }
        for name, good in legal.items():
            if not good:
                raise ValueError(f"flag {self.route!r}: {name} is malformed")
        return self


def _is_seconds(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0  # type: ignore[arg-type, operator]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All flags at one moment.

    Args:
        version: rises with every change of any flag.
        issued_at: seconds since the epoch.
    """

    version: int
    issued_at: float
    flags: Mapping[str, Flag]

    @property
    def kill_epoch(self) -> int:
        """The newest kill epoch of any route."""
        return max((flag.kill_epoch for flag in self.flags.values()), default=0)

    def to_json(self) -> str:
        """Canonical text (sorted keys), whose hash is an ETag; without `issued_at`, it changes with the flags only."""
        flags = {route: {k: v for k, v in asdict(f).items() if k != "route"} for route, f in self.flags.items()}
        return json.dumps({"version": self.version, "flags": flags}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, issued_at: float) -> Snapshot:
        """The inverse of `to_json`.

        Raises:
            ValueError, TypeError, KeyError: the text is no snapshot, or a field has another type or range.
        """
        body = json.loads(text)
        if type(body["version"]) is not int:
            raise ValueError("version is not an integer")
        return cls(body["version"], issued_at, {r: Flag.from_dict(r, f) for r, f in body["flags"].items()})


def joined(held: Snapshot | None, new: Snapshot) -> Snapshot:
    """What is known after seeing both: the flags of the higher version, and per route the younger turn of the kill switch.

    A turn is younger by its kill epoch, then by its snapshot's version, and at a tie a kill beats its absence. So the order of
    arrival does not matter, and no older snapshot undoes a kill.
    """
    if held is None:
        return new
    base, other = (new, held) if new.version >= held.version else (held, new)
    flags = dict(base.flags)
    for route, flag in base.flags.items():
        rival = other.flags.get(route)
        if rival is not None and (rival.kill_epoch, other.version, rival.killed) > (flag.kill_epoch, base.version, flag.killed):
            flags[route] = replace(
                flag,
                weight=0 if rival.killed else flag.weight,
                killed=rival.killed,
                kill_reason=rival.kill_reason,
                kill_epoch=rival.kill_epoch,
                kill_id=rival.kill_id,
                killed_at=rival.killed_at,
            )
    return Snapshot(base.version, base.issued_at, flags)


@dataclass(frozen=True, slots=True)
class Resolution:
    """Which variant one unit gets, and why."""

    variant: str
    reason: str


# Made once: resolving stands in the way of every request.
UNKNOWN = Resolution("baseline", "UNKNOWN")
NOT_FOUND = Resolution("baseline", "FLAG_NOT_FOUND")
DISABLED = Resolution("baseline", "DISABLED")
KEY_MISSING = Resolution("baseline", "TARGETING_KEY_MISSING")
OFF, ON = Resolution("baseline", "STATIC"), Resolution("candidate", "STATIC")
OUTSIDE, INSIDE = Resolution("baseline", "SPLIT"), Resolution("candidate", "SPLIT")
LEFT_OUT = Resolution("baseline", "TARGETING_MATCH")
PINNED = {variant: Resolution(variant, "TARGETING_MATCH") for variant in VARIANTS}


def resolve(
    snapshot: Snapshot | None,
    route: str,
    unit: str | None,
    request: Mapping[str, object] | None = None,
    *,
    age: float = 0.0,
    max_stale: float = math.inf,
) -> Resolution:
    """The variant for one unit of one route (interfaces A4.1).

    Args:
        snapshot: None before the first one arrived.
        unit: what is bucketed; needed only between 0 and 100 %.
        request: its `endpoint`, `temperature` and `stream`, as far as known; needed only where the policy leaves requests out.
        age: seconds since the store vouched for the snapshot.
        max_stale: age from which the control plane counts as lost, if the flag does not set a shorter one. A kill and a weight of
            0 stay what they are, a canary falls to `baseline`, and a full route does what its flag says.

    Returns:
        `candidate` with reason STATIC, SPLIT or TARGETING_MATCH, else `baseline` with one of those, DISABLED, UNKNOWN,
        FLAG_NOT_FOUND or TARGETING_KEY_MISSING.
    """
    if snapshot is None:
        return UNKNOWN
    flag = snapshot.flags.get(route)
    if flag is None:
        return NOT_FOUND
    if flag.killed:
        return DISABLED
    weight = flag.weight
    if weight <= 0:
        return OFF
    limit = MAX_STALE_SECONDS if flag.max_stale is None else flag.max_stale
    if (age > limit or age > max_stale) and not (weight >= BUCKETS and flag.on_lost == "keep"):
        return UNKNOWN
    if flag.match is not EVERYTHING and not _takes(flag.match, request or {}):
        return LEFT_OUT
    if unit and unit in flag.pins:
        return PINNED[flag.pins[unit]]
    if weight >= BUCKETS:
        return ON
    if not unit:
        return KEY_MISSING
    return INSIDE if bucket(flag.salt, unit) < weight else OUTSIDE


def _takes(match: Match, request: Mapping[str, object]) -> bool:
    """Whether the rules take a request; what is of another type than it should be is not known."""
    endpoint, temperature, stream = request.get("endpoint"), request.get("temperature"), request.get("stream")
    return match.takes(
        endpoint if isinstance(endpoint, str) else None,
        float(temperature) if isinstance(temperature, int | float) and not isinstance(temperature, bool) else None,
        stream if isinstance(stream, bool) else None,
    )
