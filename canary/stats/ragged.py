"""Sums over groups of different lengths that lie one after the other: a pair's tokens, or its judged drafts.

A group's sum does not depend on the groups beside it, to the last bit: it never matters which pairs were worked out together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from canary.stats.part import Vector

Flags = NDArray[np.bool_]
Places = NDArray[np.int64]

MOST_LOG = 690.0  # a product of doubles lies within exp(-690) and exp(690)
LONGEST = 32  # rounding of a block is at most its length times 1.1e-16
AT_ONCE = 1 << 13  # quantities whose factors are multiplied in one go: more would leave the processor's cache


def block_length(most_log: float) -> int:
    """Tokens whose factors may be multiplied before a logarithm is taken.

    Args:
        most_log: largest absolute log of a factor.
    """
    return max(1, min(LONGEST, math.floor(MOST_LOG / most_log)))


class Ragged:
    """Where the groups lie.

    Args:
        lengths: of each group, in order; a group may be empty.
    """

    def __init__(self, lengths: Sequence[int] | Places) -> None:
        self.lengths: Places = np.asarray(lengths, dtype=np.int64)
        self.ends: Places = np.cumsum(self.lengths)
        self.starts: Places = self.ends - self.lengths
        self.size = int(self.lengths.sum())
        self._layouts: dict[int, _Layout] = {}

    @cached_property
    def group(self) -> Places:
        """The group that each entry belongs to, [size]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def offset(self) -> Places:
        """The place of each entry in its group, [size]."""
        return np.arange(self.size) - np.repeat(self.starts, self.lengths)

    def select(self, where: Flags) -> tuple[Places, Ragged]:
        """The entries that fulfil a condition, and the groups that they form.

        Args:
            where: [size].
        """
        places = where.nonzero()[0]
        return places, Ragged(np.bincount(self.group[places], minlength=len(self.lengths)))

    def sum(self, values: Vector | Flags) -> Vector:
        """Sums by group: [size, ...] to [groups, ...]; of booleans, how many are true."""
        if values.ndim == 1:
            return np.bincount(self.group, values, minlength=len(self.lengths)).astype(np.float64)
        flat = values.reshape(self.size, math.prod(values.shape[1:]))
        found = np.empty((len(self.lengths), flat.shape[1]))
        for at in range(flat.shape[1]):
            found[:, at] = np.bincount(self.group, flat[:, at], minlength=len(self.lengths))
        return found.reshape(len(self.lengths), *values.shape[1:])

    def any(self, where: Flags) -> Flags:
        """Whether any entry of each group fulfils a condition: [size] to [groups]."""
        return np.asarray(np.bincount(self.group[where], minlength=len(self.lengths)) > 0)

    def sum_log(self, bets: Callable[[Vector], Vector], quantity: Vector, most_log: float) -> Vector:
        """Sums by group of log(bets(quantity)), as logs of products of a few entries each: a tenth of the logarithms.

        Args:
            bets: factors of entries, [..., more] for quantities [...]; of a quantity 0 exactly 1, and none of them negative.
            quantity: [size, ...].
            most_log: largest absolute log of a factor.

        Returns:
            [groups, more], each within 4e-15 for every `LONGEST` entries; 0 for an empty group.
        """
        layout = self._layout(block_length(most_log))
        blocks = layout.blocks(quantity)  # [blocks, length, ...]
        step = max(1, AT_ONCE // max(1, math.prod(blocks.shape[1:])))
        products = [np.multiply.reduce(bets(blocks[at : at + step]), axis=1) for at in range(0, max(len(blocks), 1), step)]
        return layout.sums(np.log(products[0] if len(products) == 1 else np.concatenate(products)))

    def _layout(self, length: int) -> _Layout:
        if length not in self._layouts:
            self._layouts[length] = _Layout(self, length)
        return self._layouts[length]


class _Layout:
    """The groups cut into blocks of one length, every group's last block filled up with zeros."""

    def __init__(self, groups: Ragged, length: int) -> None:
        per_group = -(-groups.lengths // length)
        ends = np.cumsum(per_group)
        starts = ends - per_group
        self._length, self._num_groups, self._num_blocks = length, len(per_group), int(per_group.sum())
        self._place: Places | None = None
        if self._num_blocks * length != groups.size:
            self._place = np.repeat(starts * length - groups.starts, groups.lengths) + np.arange(groups.size)
        # The groups that have a block of each number, and where it lies.
        most = int(per_group.max(initial=0))
        self._there = [(there := (per_group > at).nonzero()[0], starts[there] + at) for at in range(most)]

    def blocks(self, values: Vector) -> Vector:
        """[size, ...] to [blocks, length, ...]."""
        shape = (self._num_blocks, self._length, *values.shape[1:])
        if self._place is None:
            return values.reshape(shape)
        padded = np.zeros((self._num_blocks * self._length, *values.shape[1:]))
        padded[self._place] = values
        return padded.reshape(shape)

    def sums(self, values: Vector) -> Vector:
        """Sums by group of one value per block, [blocks, ...] to [groups, ...], each in the order of its blocks."""
        found = np.zeros((self._num_groups, *values.shape[1:]))
        for groups, blocks in self._there:
            if len(groups) == self._num_groups:
                found += values[blocks]
            else:
                found[groups] += values[blocks]
        return found


def joined(*groups: Ragged) -> Ragged:
    """The groups of each, one after the other."""
    return Ragged(np.concatenate([each.lengths for each in groups]))
