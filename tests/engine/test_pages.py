"""Large pages are asked for under whole weights, what they hold stays as it was, and where there are none nothing fails."""

from __future__ import annotations

import ctypes
import sys

import pytest
import torch

from canary.engine import pages
from canary.engine.pages import LARGE, LEAST, use_large_pages


def address(weights: torch.Tensor) -> tuple[int, int]:
    return weights.data_ptr(), weights.data_ptr() + weights.nbytes


def test_what_is_moved_stays_as_it_was() -> None:
    weights = torch.arange(LEAST // 4, dtype=torch.int32)
    held = use_large_pages([address(weights)])
    assert held % LARGE == 0
    assert held <= LEAST + 2 * LARGE
    assert torch.equal(weights, torch.arange(LEAST // 4, dtype=torch.int32))


def test_little_memory_is_left_alone() -> None:
    assert use_large_pages([address(torch.zeros(4))]) == 0
    assert use_large_pages([]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the calls are counted where they are made")
def test_each_page_is_asked_for_once_and_a_refusal_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Refuses:
        @staticmethod
        def madvise(start: ctypes.c_void_p, size: ctypes.c_size_t, advice: int) -> int:
            assert (size.value, advice) == (LARGE, 25)
            asked.append(start.value or 0)
            return -1

    monkeypatch.setattr(pages.ctypes, "CDLL", lambda _name: Refuses)
    first, half = 10 * LARGE, LARGE // 2
    assert use_large_pages([(first, first + LEAST + half), (first + LEAST + half, first + LEAST + LARGE)]) == 0
    assert asked == [first + n * LARGE for n in range(LEAST // LARGE + 1)]


def test_elsewhere_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages.sys, "platform", "darwin")
    assert use_large_pages([(0, LEAST)]) == 0
