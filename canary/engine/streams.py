"""Counter-based random numbers: a draw depends on (key, stream, position) alone.

Nothing here keeps state, so the composition of a batch can never change what a request draws.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

# Under token rejection what lies behind the first rejection of a round decides nothing, so a number may be drawn once more at its
# position in the next round. Where the drafts of a round are judged together every one of them and every uniform has had its say,
# and drawn again it would be known: there a round's numbers are counted from its start times this, which is above any k.
ROUND_SPACING = 64


class Stream(IntEnum):
    """What a draw is for; two streams of one request never share a number."""

    DRAFT = 0
    ACCEPT = 1
    RECOVER = 2
    SAMPLE = 3
    PIT = 4


class Uniforms(Protocol):
    """The signature of `uniforms`, which faults wrap."""

    def __call__(self, keys: Tensor, stream: Stream | Tensor, positions: Tensor) -> Tensor: ...


def key_from_bytes(key: bytes) -> tuple[int, int]:
    """The two int64 of a 16-byte key, little-endian.

    Raises:
        ValueError: the key is not 16 bytes long.
    """
    if len(key) != 16:
        raise ValueError(f"a key has 16 bytes, not {len(key)}")
    low, high = struct.unpack("<qq", key)
    return low, high


def philox(counter: Tensor, key: Tensor) -> Tensor:
    """Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3).

    Args:
        counter: [4, ...] int64 holding unsigned 32-bit words.
        key: [2, ...] int64 holding unsigned 32-bit words, broadcastable to the counter.

    Returns:
        [4, ...] int64 holding unsigned 32-bit words.
    """
    shape = (2,) + (1,) * (counter.ndim - 1)
    multipliers, weyl = (each.view(shape) for each in _constants(counter.device))
    even, odd = counter[0::2], counter[1::2]  # [2, ...] words 0 and 2, words 1 and 3
    for turn in range(_ROUNDS):
        # int64 products wrap, which leaves all 64 bits right; the mask undoes the sign of the shift.
        product = (even * multipliers).flip(0)
        even = (product >> 32) & _MASK ^ odd ^ ((key + turn * weyl) & _MASK)
        odd = product & _MASK
    return torch.stack((even[0], odd[0], even[1], odd[1]))


@lru_cache
def _constants(device: torch.device) -> tuple[Tensor, Tensor]:
    """Multipliers and key steps on a device, [2] each: copied there once, as every copy makes the device wait."""
    return torch.tensor(_MULTIPLIERS, device=device), torch.tensor(_WEYL, device=device)


def uniforms(keys: Tensor, stream: Stream | Tensor, positions: Tensor) -> Tensor:
    """One uniform per token position; many positions or streams in one call cost about as much as one.

    Args:
        keys: [B, 2] int64, see `key_from_bytes`.
        stream: one stream, or an int64 tensor of them that broadcasts to the positions.
        positions: [B, W] int64 or [S, B, W] (with streams [S, 1, 1]); index of the token in its sequence, 0 to 2**32 - 1.

    Returns:
        float64 in [0, 1), in steps of 2**-53, shaped like the positions.
    """
    low, high = keys[:, :1], keys[:, 1:]  # [B, 1]
    streams = torch.as_tensor(stream, dtype=torch.int64, device=positions.device)
    words = (positions & _MASK, streams, high & _MASK, (high >> 32) & _MASK)
    counter = torch.stack([word.expand(positions.shape) for word in words])  # [4, B, W]
    key = torch.stack([word.expand(positions.shape) for word in (low & _MASK, (low >> 32) & _MASK)])  # [2, B, W]
    first, second, _, _ = philox(counter, key)
    mantissa: Tensor = (first >> 5) * 2**26 + (second >> 6)
    return mantissa.to(torch.float64).mul_(2.0**-53)
