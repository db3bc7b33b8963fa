"""Buckets are flagd's, pinned to published vectors and to golden values; every doubt resolves to the baseline."""

from __future__ import annotations

import itertools

import pytest

from canary.domain.flag import BUCKETS, Flag, Resolution, Snapshot, bucket, murmur3_32, resolve

UNITS = [f"user-{i}" for i in range(5000)]


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0x00000000),
        (b"", 1, 0x514E28B7),
        (b"", 0xFFFFFFFF, 0x81F16F39),
        (b"\0", 0, 0x514E28B7),
        (b"\0\0", 0, 0x30F4C306),
        (b"\0\0\0", 0, 0x85F0B427),
        (b"\0\0\0\0", 0, 0x2362F9DE),
        (b"\xff\xff\xff\xff", 0, 0x76293B50),
        (b"!", 0, 0x72661CF4),
        (b"!C", 0, 0xA0F7B07A),
        (b"!Ce", 0, 0x7E4A8634),
        (b"!Ce\x87", 0, 0xF55B516B),
        (b"!Ce\x87", 0x5082EDEE, 0x2362F9DE),
        (b"aaaa", 0x9747B28C, 0x5A97808A),
        (b"Hello, world!", 0x9747B28C, 0x24884CBA),
        (b"The quick brown fox jumps over the lazy dog", 0x9747B28C, 0x2FA826CD),
    ],
)
def test_murmur3_published_vectors(data: bytes, seed: int, expected: int) -> None:
    assert murmur3_32(data, seed) == expected


@pytest.mark.parametrize(
    ("salt", "unit", "expected"),
    [
        ("specdec.math", "user-1", 8315),
        ("specdec.math", "user-2", 696),
        ("specdec.rag", "user-1", 864),
        ("specdec.math", "", 1431),
        ("", "specdec.mathuser-1", 8315),
        ("specdec.math", "ünïcode-⛵", 9906),
    ],
)
def test_golden_buckets(salt: str, unit: str, expected: int) -> None:
    assert bucket(salt, unit) == expected


def test_a_bucket_is_the_hash_of_salt_and_unit_scaled_down() -> None:
    for unit in UNITS[:200]:
        assert bucket("specdec.math", unit) == murmur3_32(f"specdec.math{unit}".encode()) * 10_000 // 2**32
        assert 0 <= bucket("specdec.math", unit) < BUCKETS


def candidates(weight: int, salt: str = "specdec.math") -> set[str]:
    snapshot = Snapshot(1, 0.0, {"math": Flag("math", weight, salt)})
    return {u for u in UNITS if resolve(snapshot, "math", u).variant == "candidate"}


def test_raising_the_weight_moves_nobody_back() -> None:
    weights = [0, 1, 500, 1000, 2500, 5000, 9999, 10_000]
    shares = [candidates(w) for w in weights]
    assert all(a <= b for a, b in itertools.pairwise(shares))
    assert (shares[0], shares[-1]) == (set(), set(UNITS))


@pytest.mark.parametrize("weight", [500, 1000, 5000])
def test_the_share_is_the_weight(weight: int) -> None:
    share, expected = len(candidates(weight)) / len(UNITS), weight / BUCKETS
    assert abs(share - expected) < 4 * (expected * (1 - expected) / len(UNITS)) ** 0.5


def test_another_salt_draws_another_share() -> None:
    one, other = candidates(1000), candidates(1000, "specdec.rag")
    assert len(one & other) < 0.2 * len(one)


def flag(weight: int, *, killed: bool = False) -> Snapshot:
    return Snapshot(1, 0.0, {"math": Flag("math", weight, "specdec.math", killed)})


@pytest.mark.parametrize(
    ("snapshot", "route", "unit", "variant", "reason"),
    [
        (None, "math", "u", "baseline", "UNKNOWN"),
        (flag(500), "nothing", "u", "baseline", "FLAG_NOT_FOUND"),
        (flag(10_000, killed=True), "math", "u", "baseline", "DISABLED"),
        (flag(0, killed=True), "math", None, "baseline", "DISABLED"),
        (flag(0), "math", None, "baseline", "STATIC"),
        (flag(-1), "math", "u", "baseline", "STATIC"),
        (flag(10_000), "math", None, "candidate", "STATIC"),
        (flag(10_001), "math", "u", "candidate", "STATIC"),
        (flag(500), "math", None, "baseline", "TARGETING_KEY_MISSING"),
        (flag(9999), "math", "", "baseline", "TARGETING_KEY_MISSING"),
    ],
)
def test_resolve(snapshot: Snapshot | None, route: str, unit: str | None, variant: str, reason: str) -> None:
    assert resolve(snapshot, route, unit) == Resolution(variant, reason)


def test_the_weight_is_an_exclusive_bound() -> None:
    at = bucket("specdec.math", "user-1")
    assert resolve(flag(at), "math", "user-1") == Resolution("baseline", "SPLIT")
    assert resolve(flag(at + 1), "math", "user-1") == Resolution("candidate", "SPLIT")


def test_a_snapshot_survives_its_json_and_ignores_when_it_was_issued() -> None:
    flags = {"math": Flag("math", 500, "s", False, "", "canary-5"), "rag": Flag("rag", 0, "t", True, "manual: x", "shadow")}
    one, other = Snapshot(7, 1.0, flags), Snapshot(7, 2.0, dict(reversed(flags.items())))
    assert one.to_json() == other.to_json()
    assert Snapshot.from_json(one.to_json(), 1.0) == one
    assert Snapshot(8, 1.0, flags).to_json() != one.to_json()
    assert flags["math"].key == "specdec.math"
