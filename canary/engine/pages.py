"""Weights in large pages: a step reads all of them, and with pages of 4 KiB much of its time goes into looking up addresses.

Linux alone gives them, and where it does not, nothing is lost but speed.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable

LARGE = 2 << 20  # bytes of a large page; where the system's are others, the request is refused
LEAST = 16 << 20  # bytes for which asking is worth its time
_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1: at once, and whatever the system's setting for large pages is


def use_large_pages(ranges: Iterable[tuple[int, int]]) -> int:
    """Ask for large pages under memory that is read again and again.

    Args:
        ranges: first address and the one after the last, of memory in use; what lies beside it in the same large page moves too.

    Returns:
        Bytes that are held in large pages now.
    """
    ranges = list(ranges)
    if sys.platform != "linux" or sum(stop - start for start, stop in ranges) < LEAST:
        return 0
    advise = ctypes.CDLL(None).madvise
    pages = sorted({page for start, stop in ranges for page in range(start // LARGE, -(-stop // LARGE))})
    held = [advise(ctypes.c_void_p(page * LARGE), ctypes.c_size_t(LARGE), _COLLAPSE) == 0 for page in pages]
    return LARGE * sum(held)
