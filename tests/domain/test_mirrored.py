"""Kinds of mirrored requests: fixed buckets of length, and counts that add up in one order."""

from __future__ import annotations

import pytest

from canary.domain.mirrored import LENGTH_EDGES, MirrorCount, added_up, length_bucket, length_name
from canary.domain.traffic import Message, Prompt, SamplingParams

PARAMS = SamplingParams(max_tokens=4)


def test_every_length_has_one_bucket() -> None:
    for at, edge in enumerate(LENGTH_EDGES):
        assert length_bucket(edge) == edge
        if at:
            assert length_bucket(edge - 1) == LENGTH_EDGES[at - 1]
            assert edge & (edge - 1) == 0, "a power of two"
    assert length_bucket(10**9) == LENGTH_EDGES[-1]
    assert [length_name(edge) for edge in LENGTH_EDGES[:2]] == ["0-255 characters", "256-1023 characters"]
    assert length_name(LENGTH_EDGES[-1]) == "65536 characters and more"
    with pytest.raises(ValueError, match="fewer than none"):
        length_bucket(-1)
    with pytest.raises(ValueError, match="not in"):
        length_name(300)


def test_a_prompt_is_as_long_as_its_text() -> None:
    chat = Prompt("s", "1", "r", "chat/completions", b"", (Message("system", None), Message("user", "é" * 300)), None, PARAMS)
    assert chat.num_characters == 300
    assert Prompt("s", "2", "r", "completions", b"", (), "abc", PARAMS).num_characters == 3
    assert MirrorCount.of(chat, 0.5, kept=True) == MirrorCount("r", 0.5, "chat/completions", False, 256, 1, 1)


def test_counts_of_a_kind_add_up_in_one_order() -> None:
    kinds = [("b", 0.1, "completions", True, 0), ("a", 0.1, "completions", True, 256), ("a", 0.1, "completions", False, 256)]
    found = added_up([MirrorCount(*kind, 2, 1) for kind in kinds] + [MirrorCount(*kinds[0], 3, 0)])
    assert found == [MirrorCount(*kinds[2], 2, 1), MirrorCount(*kinds[1], 2, 1), MirrorCount(*kinds[0], 5, 1)]
    assert found == added_up(reversed(found))
