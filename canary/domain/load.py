"""Load bands: how many requests were in the engine together when something was timed.

A comparison across load bands is none: a batch of many requests is slower per request whatever the arm.
"""

from __future__ import annotations

from collections.abc import Mapping

BANDS: Mapping[str, tuple[int, int | None]] = {"1": (1, 1), "2-4": (2, 4), "5-16": (5, 16), "17+": (17, None)}


def band_of(concurrency: int) -> str:
    """The load band of so many requests in the engine together.

    Raises:
        ValueError: fewer than one.
    """
    for name, (low, high) in BANDS.items():
        if low <= concurrency and (high is None or concurrency <= high):
            return name
    raise ValueError(f"a timing has concurrency {concurrency}, but must have at least 1")
