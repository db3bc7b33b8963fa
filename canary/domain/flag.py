"""The flag that a gateway reads: who is in the candidate's share, and what a snapshot says.

Resolving is pure and needs nothing but a snapshot and a unit; every doubt resolves to `baseline`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

BUCKETS = 10_000


@dataclass(frozen=True, slots=True)
class Flag:
    """One route's flag.

    Args:
        weight: basis points of units that get the candidate.
        salt: what is hashed with the unit; kept for the life of a rollout so that raising the weight moves nobody back.
        killed: the kill switch; beats the weight.
        kill_reason: stable code and sentence, for people.
        stage: the rollout's stage name, for people.
    """

    route: str
    weight: int
    salt: str
    killed: bool = False
    kill_reason: str = ""
    stage: str = "shadow"

    @classmethod
    def initial(cls, route: str) -> Flag:
        """A new route's flag: no weight, salted with its own key, as flagd's buckets are."""
        return cls(route, weight=0, salt=f"specdec.{route}")

    @property
    def key(self) -> str:
        return f"specdec.{self.route}"


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

    def to_json(self) -> str:
        """Canonical text (sorted keys), whose hash is an ETag; without `issued_at`, it changes with the flags only."""
        body = {
            "version": self.version,
            "flags": {
                route: {
                    "weight": f.weight,
                    "salt": f.salt,
                    "killed": f.killed,
                    "kill_reason": f.kill_reason,
                    "stage": f.stage,
                }
                for route, f in self.flags.items()
            },
        }
        return json.dumps(body, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, issued_at: float) -> Snapshot:
        """The inverse of `to_json`."""
        body = json.loads(text)
        return cls(body["version"], issued_at, {r: Flag(route=r, **f) for r, f in body["flags"].items()})


@dataclass(frozen=True, slots=True)
class Resolution:
    """Which variant one unit gets, and why."""

    variant: str
    reason: str


def murmur3_32(data: bytes, seed: int = 0) -> int:
    """MurmurHash3 x86 32-bit, unsigned (Appleby's public-domain algorithm), as flagd's fractional evaluation uses it."""
    mask = 0xFFFFFFFF
    h = seed
    tail_at = len(data) & ~3
    for at in range(0, tail_at, 4):
        k = int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & mask
        k = (k << 15 | k >> 17) & mask
        h ^= k * 0x1B873593 & mask
        h = (h << 13 | h >> 19) & mask
        h = (h * 5 + 0xE6546B64) & mask
    if tail := data[tail_at:]:
        k = int.from_bytes(tail, "little") * 0xCC9E2D51 & mask
        k = (k << 15 | k >> 17) & mask
        h ^= k * 0x1B873593 & mask
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    return h ^ h >> 16


def bucket(salt: str, unit: str) -> int:
    """The unit's place in 0..9999; a unit is in the candidate's share when its bucket is below the weight."""
    return murmur3_32(f"{salt}{unit}".encode()) * BUCKETS >> 32


def resolve(snapshot: Snapshot | None, route: str, unit: str | None) -> Resolution:
    """The variant for one unit of one route (interfaces A4.1).

    Args:
        snapshot: None before the first one arrived.
        unit: what is bucketed; needed only between 0 and 100 %.

    Returns:
        `candidate` with reason STATIC or SPLIT, else `baseline` with STATIC, SPLIT, DISABLED, UNKNOWN, FLAG_NOT_FOUND or
        TARGETING_KEY_MISSING.
    """
    if snapshot is None:
        return Resolution("baseline", "UNKNOWN")
    flag = snapshot.flags.get(route)
    if flag is None:
        return Resolution("baseline", "FLAG_NOT_FOUND")
    if flag.killed:
        return Resolution("baseline", "DISABLED")
    if flag.weight <= 0:
        return Resolution("baseline", "STATIC")
    if flag.weight >= BUCKETS:
        return Resolution("candidate", "STATIC")
    if not unit:
        return Resolution("baseline", "TARGETING_KEY_MISSING")
    inside = bucket(flag.salt, unit) < flag.weight
    return Resolution("candidate" if inside else "baseline", "SPLIT")
