"""Counts what the mirror sees and keeps, each request id once as far as that can be told; it stores nothing and decides nothing.

An id that was kept is known for ever, by its stored key. One that was sampled out leaves no row: a repeat of it is known within a
batch and among the latest `RECENT` ids of the process, and beyond that it counts as seen once more. Where a share r of the
sampled-out requests are such late repeats, the kept share falls from the rate p to p / (1 + r (1 - p)) by itself, so a gateway
that sends ids again after hours, or each time to another replica, may be reported as mirroring too little; nothing is ever
reported as in order because of them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

from canary.domain.mirrored import MirrorCount, kind
from canary.domain.traffic import Prompt

RECENT = 65_536  # ids, at about 100 bytes each


class Recent:
    """The latest ids that were sampled out, first in, first out; one writer's, and never shared between threads."""

    def __init__(self, capacity: int = RECENT) -> None:
        self._capacity = capacity
        self._known: dict[bytes, None] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._known

    def add(self, keys: Iterable[bytes]) -> None:
        """Remember them, and forget the oldest beyond the capacity."""
        for key in keys:
            self._known[key] = None
        while len(self._known) > self._capacity:
            del self._known[next(iter(self._known))]


def sampled_key(prompt: Prompt, rate: float) -> bytes:
    """8 bytes for one id under one rate; two of 65,536 ids share theirs once in some eight billion batches."""
    parts = "\x1f".join((prompt.route, prompt.source, prompt.request_id, repr(rate)))
    return hashlib.blake2b(parts.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def counted(
    kept: Sequence[tuple[Prompt, float]], sampled_out: Sequence[tuple[Prompt, float]], recent: Recent
) -> tuple[list[MirrorCount], list[bytes]]:
    """What one batch adds.

    Args:
        kept: requests that were new and stored, each with its route's rate.
        sampled_out: requests that were not; repeats among them, and those of `recent`, are left out.

    Returns:
        The counts, and the ids to remember once they are committed.
    """
    stored = Counter(kind(prompt, rate) for prompt, rate in kept)
    seen = stored.copy()
    new: dict[bytes, None] = {}
    for prompt, rate in sampled_out:
        key = sampled_key(prompt, rate)
        if key not in new and key not in recent:
            new[key] = None
            seen[kind(prompt, rate)] += 1
    return [MirrorCount(*of, n, stored[of]) for of, n in seen.items()], list(new)
