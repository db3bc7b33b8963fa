"""Counter-based draws: published vectors, independence of the batch, and no state."""

from __future__ import annotations

import math

import pytest
import torch

from canary.engine.streams import Stream, key_from_bytes, philox, uniforms

# kat_vectors of Random123 (Salmon et al., SC 2011): philox4x32 10, counter, key, result
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def test_philox_gives_the_published_answers() -> None:
    counter = torch.tensor([words(c) for c, _, _ in KNOWN_ANSWERS]).T  # [4, 3], all three in one call
    key = torch.tensor([words(k) for _, k, _ in KNOWN_ANSWERS]).T
    assert philox(counter, key).T.tolist() == [words(r) for _, _, r in KNOWN_ANSWERS]


def test_a_uniform_is_53_bits_of_the_published_answer() -> None:
    key = key_from_bytes(bytes.fromhex("223809a4d0319f29" + "2e8a191344737003"))
    counter = torch.tensor([0x85A308D3, Stream.SAMPLE, 0x13198A2E, 0x03707344])[:, None]
    first, second, _, _ = (int(w) for w in philox(counter, torch.tensor([0xA4093822, 0x299F31D0])[:, None]).flatten())
    drawn = uniforms(torch.tensor([key]), Stream.SAMPLE, torch.tensor([[0x85A308D3]]))
    assert drawn.item() == ((first >> 5) * 2**26 + (second >> 6)) / 2**53


def test_a_key_has_sixteen_bytes() -> None:
    assert key_from_bytes(bytes(range(16))) == (0x0706050403020100, 0x0F0E0D0C0B0A0908)
    assert key_from_bytes(b"\xff" * 16) == (-1, -1)
    with pytest.raises(ValueError, match="16 bytes, not 8"):
        key_from_bytes(bytes(8))


def test_every_bit_of_the_key_the_stream_and_the_position_counts() -> None:
    keys = [bytes(16)] + [(1 << bit).to_bytes(16, "little") for bit in range(128)]
    table = torch.tensor([key_from_bytes(key) for key in keys])
    drawn = uniforms(table, torch.arange(5)[:, None, None], torch.arange(7).expand(5, len(keys), 7))
    assert len(drawn.flatten().unique()) == 5 * len(keys) * 7


def test_a_draw_does_not_depend_on_its_batch() -> None:
    generator = torch.Generator().manual_seed(3)
    keys = torch.randint(-(2**63), 2**63 - 1, (6, 2), generator=generator)
    positions = torch.randint(0, 2**32 - 1, (6, 9), generator=generator)
    together = uniforms(keys, Stream.ACCEPT, positions)
    for row in range(6):
        for column in range(9):
            alone = uniforms(keys[row : row + 1], Stream.ACCEPT, positions[row : row + 1, column : column + 1])
            assert alone.item() == together[row, column].item()


def test_streams_in_one_call_equal_streams_one_by_one() -> None:
    keys = torch.tensor([key_from_bytes(b"sixteen bytes ok"), key_from_bytes(b"another 16 bytes")])
    positions = torch.arange(12).expand(2, 12)
    together = uniforms(keys, torch.tensor(list(Stream))[:, None, None], positions.expand(len(Stream), 2, 12))
    for index, stream in enumerate(Stream):
        assert torch.equal(together[index], uniforms(keys, stream, positions))


def test_draws_leave_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    uniforms(torch.tensor([[1, 2]]), Stream.PIT, torch.arange(100)[None])
    assert torch.equal(before, torch.get_rng_state())


def test_draws_look_uniform_and_unrelated() -> None:
    keys = torch.arange(64).view(32, 2) * 7919
    drawn = uniforms(keys, torch.tensor(list(Stream))[:, None, None], torch.arange(2000).expand(len(Stream), 32, 2000))
    assert drawn.dtype == torch.float64
    assert 0 <= drawn.min().item() < drawn.max().item() < 1
    sd = 1 / math.sqrt(drawn.numel())
    scores = (drawn - 0.5) * math.sqrt(12)
    assert abs(scores.mean().item()) < 5 * sd
    for shifted in (scores.roll(1, 0), scores.roll(1, 1), scores.roll(1, 2)):
        assert abs((scores * shifted).mean().item()) < 5 * sd
    cells = (drawn.flatten() * 100).to(torch.int64).bincount(minlength=100).double()
    expected = drawn.numel() / 100
    assert ((cells - expected) ** 2 / expected).sum().item() < 99 + 5 * math.sqrt(2 * 99)
