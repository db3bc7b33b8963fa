"""Where a unit lies in 0..9999: flagd's murmur3 bucket, frozen by golden values, so that no release may move anybody."""

from __future__ import annotations

import struct

BUCKETS = 10_000
_MASK = 0xFFFFFFFF


def murmur3_32(data: bytes, seed: int = 0) -> int:
    """MurmurHash3 x86 32-bit, unsigned (Appleby's public-domain algorithm), as flagd's fractional evaluation uses it."""
    h = seed
    size = len(data)
    blocks = size >> 2
    # A product's low 32 bits need its factors' low 32 bits only, so a rotation that is multiplied goes unmasked.
    for k in struct.unpack_from(f"<{blocks}I", data):
        k = k * 0xCC9E2D51 & _MASK
        h ^= (k << 15 | k >> 17) * 0x1B873593 & _MASK
        h = (h << 13 | h >> 19) & _MASK
        h = (h * 5 + 0xE6546B64) & _MASK
    if size & 3:
        k = int.from_bytes(data[blocks << 2 :], "little") * 0xCC9E2D51 & _MASK
        h ^= (k << 15 | k >> 17) * 0x1B873593 & _MASK
    h ^= size
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    return h ^ h >> 16


def bucket(salt: str, unit: str) -> int:
    """The unit's place in 0..9999; a unit is in the candidate's share when its bucket is below the weight."""
    return murmur3_32(f"{salt}{unit}".encode()) * BUCKETS >> 32
