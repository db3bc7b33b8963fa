"""Keys and values of many requests in preallocated rows, each row with its own length.

Writes scatter to each row's end, rollback is a smaller length, and a row is free as soon as its request is. A row never sees
another row's keys, nor its own beyond its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from canary.domain.errors import EngineMemoryError, ModelError
from canary.engine.transfer import to_device

_BLOCK = 32  # windows and capacities are multiples of it, so that attention sees few shapes
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def require_rollback(config: PretrainedConfig, where: str) -> None:
    """Refuse a model whose cache cannot forget its last tokens.

    Args:
        where: the policy field that named the model, for the error.

    Raises:
        ModelError: an encoder-decoder, a layer that is not plain full attention (recurrent, sliding window, shared), or rotary
            frequencies that would let one row of a batch change another.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{config.model_type} is an encoder-decoder model", where=where, remedy="Choose a decoder-only language model."
        )
    kinds = sorted({type(layer).__name__ for layer in DynamicCache(config=config).layers if type(layer) is not DynamicLayer})
    if kinds:
        raise ModelError(
            f"{config.model_type} keeps its past in {', '.join(kinds)}, which cannot be rolled back after a rejected draft",
            where=where,
            remedy="Choose a model in which every layer is full attention.",
        )
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in _LENGTH_DEPENDENT_ROPE:
        raise ModelError(
            f"{config.model_type} uses {rope} rotary positions, which change with the longest text of a batch",
            where=where,
            remedy="Choose a model whose rotary frequencies are fixed.",
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """Where one forward writes: `row` alone from `starts[0]`, or the first `num_rows` rows at their ends.

    `fresh` says that nothing is stored before what is written, so that attention needs the new keys alone.
    """

    row: int
    num_rows: int
    index: tuple[torch.Tensor, torch.Tensor] | None  # rows [num_rows, 1] and positions [num_rows, width]; None for one row
    starts: tuple[int, ...]
    window: int
    fresh: bool = False

    def read(self, stored: torch.Tensor) -> torch.Tensor:
        """What attention reads of a layer's keys or values, [num_rows, H, window, D]."""
        return stored[self.row : self.row + self.num_rows, :, : self.window]


class _RowLayer(CacheLayerMixin):
    """One layer's keys and values, [num_rows, H_kv, capacity, D] each, and of one width the halves of one tensor."""

    is_sliding = False
    supports_early_init = False

    def __init__(self, owner: RowCache) -> None:
        super().__init__()
        self._owner = owner
        self._both: torch.Tensor | None = None  # [num_rows, 2 H_kv, capacity, D]

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        rows, capacity = self._owner.num_rows, self._owner.capacity
        # Zeros, not empty memory: a masked key may be anything finite, but NaN times zero is NaN.
        if key_states.shape == value_states.shape:
            self._share(key_states.new_zeros(rows, 2 * key_states.shape[1], capacity, key_states.shape[3]))
        else:
            self.keys = key_states.new_zeros(rows, key_states.shape[1], capacity, key_states.shape[3])
            self.values = value_states.new_zeros(rows, value_states.shape[1], capacity, value_states.shape[3])
        self.is_initialized = True

    def _share(self, both: torch.Tensor) -> None:
        self._both = both
        self.keys, self.values = both.chunk(2, 1)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.keys is None or self.values is None:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        plan = self._owner.plan
        _write(self.keys, plan, key_states)
        _write(self.values, plan, value_states)
        return (key_states, value_states) if plan.fresh else (plan.read(self.keys), plan.read(self.values))

    def update_both(self, states: torch.Tensor) -> Sequence[torch.Tensor]:
        """`update` with keys and values as the halves of one tensor, [n, 2 H_kv, W, D]: one write for both."""
        if self._both is None:
            self.lazy_initialization(*states.chunk(2, 1))
        assert self._both is not None
        plan = self._owner.plan
        _write(self._both, plan, states)
        return (states if plan.fresh else plan.read(self._both)).chunk(2, 1)

    def stored(self) -> tuple[torch.Tensor, ...]:
        if self._both is not None:
            return (self._both,)
        return () if self.keys is None or self.values is None else (self.keys, self.values)

    def grow(self, capacity: int) -> None:
        if self._both is not None and self._both.shape[2] < capacity:
            self._share(_grown(self._both, capacity))
        elif self._both is None and self.keys is not None and self.values is not None and self.keys.shape[2] < capacity:
            self.keys, self.values = _grown(self.keys, capacity), _grown(self.values, capacity)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._owner.plan.window, 0

    def get_seq_length(self) -> int:
        return max(self._owner.lengths, default=0)

    def get_max_length(self) -> int:
        return self._owner.capacity


def _grown(old: torch.Tensor, capacity: int) -> torch.Tensor:
    new = old.new_zeros(old.shape[0], old.shape[1], capacity, old.shape[3])
    new[:, :, : old.shape[2]] = old
    return new


def _write(stored: torch.Tensor, plan: Plan, states: torch.Tensor) -> None:
    """Write `states` [n, H, W, D] where they are planned in `stored` [rows, H, capacity, D]."""
    if plan.index is None:
        start = plan.starts[0]
        stored[plan.row, :, start : start + states.shape[2]] = states[0]
    else:  # whole vectors, [n, W, H, D]; a scatter of single numbers takes a tenth of a step
        stored.transpose(1, 2).index_put_(plan.index, states.transpose(1, 2))


def _index(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(len(positions), device=positions.device)[:, None], positions


class RowCache(Cache):
    """A transformers cache whose batch rows are independent.

    Args:
        num_layers: layers of the model.
        num_rows: requests that may run together.
        capacity: positions per row; `reserve` raises it.
    """

    def __init__(self, num_layers: int, num_rows: int, capacity: int = _BLOCK) -> None:
        self._rows = [_RowLayer(self) for _ in range(num_layers)]
        super().__init__(layers=list(self._rows))
        self.num_rows = num_rows
        self.capacity = _round_up(capacity)
        self.lengths = [0] * num_rows  # on the host: the loop learns them from the one copy of each step
        self.plan = Plan(0, 0, None, (), 0)

    def update_both(self, states: torch.Tensor, layer: int) -> Sequence[torch.Tensor]:
        """`update` of one layer with its keys and values side by side.

        Args:
            states: [n, 2 H_kv, W, D].

        Returns:
            Keys and values that attention reads, [n, H_kv, S, D].
        """
        return self._rows[layer].update_both(states)

    @property
    def num_bytes(self) -> int:
        """Held by keys and values: 2 x layers x rows x key heads x capacity x head width x bytes of a number."""
        return sum(stored.numel() * stored.element_size() for layer in self._rows for stored in layer.stored())

    def reserve(self, length: int) -> None:
        """Make room for `length` positions per row; what is stored stays.

        Raises:
            EngineMemoryError: the device has no room; every row stays as it was.
        """
        if length > self.capacity:
            capacity = _round_up(length)
            with memory_errors(f"a row of {length} tokens"):
                for layer in self._rows:
                    layer.grow(capacity)
            self.capacity = capacity  # only now: a layer that has grown already does no harm, one that has not would

    def plan_prefill(self, row: int, start: int, stop: int) -> None:
        """The next forward fills positions `start` to `stop` of `row`, whose earlier ones are stored already."""
        self.reserve(stop)
        self.plan = Plan(row, 1, None, (start,), stop, fresh=start == 0)

    def plan_step(self, num_rows: int, width: int, device: torch.device) -> torch.Tensor:
        """The next forward appends `width` tokens to each of the first `num_rows` rows.

        Returns:
            Positions of the new tokens, [num_rows, width] int64.
        """
        starts = tuple(self.lengths[:num_rows])
        longest = max(starts) + width
        self.reserve(longest)
        positions = to_device(starts, device)[:, None] + torch.arange(width, device=device)  # [n, W]
        if num_rows == 1:
            self.plan = Plan(0, 1, None, starts, longest)
        else:
            self.plan = Plan(0, num_rows, _index(positions), starts, min(_round_up(longest), self.capacity))
        return positions

    def plan_fixed(self, positions: torch.Tensor, window: int) -> None:
        """The next forward writes at given positions of the first rows, whatever the lengths on the host are.

        Args:
            positions: [n, W] int64, below the capacity.
            window: stored positions that attention reads, at most the capacity.
        """
        self.plan = Plan(0, len(positions), _index(positions), (), window)

    def move(self, source: int, target: int) -> None:
        """Copy row `source` over row `target`, so that the active rows stay dense."""
        length = self.lengths[source]
        for layer in self._rows:
            for stored in layer.stored():
                stored[target, :, :length] = stored[source, :, :length]
        self.lengths[target] = length
        self.lengths[source] = 0

    def clear(self, row: int) -> None:
        """Forget a row whose numbers may not be finite: they would reach the row's next request through masked positions."""
        for layer in self._rows:
            for stored in layer.stored():
                stored[row].zero_()
        self.lengths[row] = 0


@contextmanager
def memory_errors(what: str) -> Iterator[None]:
    """Give an allocation that fails its own error, so that it can end one request instead of the worker.

    Args:
        what: asked for the memory.

    Raises:
        EngineMemoryError: instead of torch's own error.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch has a class of its own for an accelerator's memory alone
        if not isinstance(error, (torch.OutOfMemoryError, MemoryError)) and "alloc" not in str(error).lower():
            raise
        raise EngineMemoryError(
            f"there is no memory for {what}",
            where="shadow.batch_size",
            remedy="Lower shadow.batch_size or shadow.max_tokens, or give the worker more memory.",
        ) from error


def step_mask(positions: torch.Tensor, window: int, groups: int) -> torch.Tensor:
    """Which stored positions each query may see, with the query heads of a group folded into its length.

    Args:
        positions: of the queries, [n, W].
        window: stored positions that attention reads, S.
        groups: query heads per key head, G.

    Returns:
        Boolean [n, 1, G * W, S], True where position <= query position.
    """
    folded = positions.repeat(1, groups)  # [n, G * W]
    return (torch.arange(window, device=positions.device) <= folded[:, :, None])[:, None]


def _round_up(length: int) -> int:
    return -(-length // _BLOCK) * _BLOCK
