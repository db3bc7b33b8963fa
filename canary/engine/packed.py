"""Linear layers with weights packed once for oneDNN: the same bits in 16 bit, in much less time on a CPU.

The operators are private to torch, so each layer shape is probed first: where they are missing, slower or not bit-equal, the
layer stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

import torch
from torch import nn
from torch.nn.functional import linear

PROBED_ROWS = (1, 2, 3, 5, 8, 16, 40, 100, 256)  # rows alone, verifications, batches, verified batches, prefills
PACKED_FOR_ROWS = 8  # the operator's hint
REPEATS = 5


class PackedLinear(nn.Module):
    """`nn.Linear` over a weight that oneDNN has reordered for itself.

    Args:
        weight: [out, in].
        bias: [out] or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACKED_FOR_ROWS)
        self._bias = None if bias is None else bias.detach()

    @property
    def num_bytes(self) -> int:
        """Of the reordered weight, which stands beside the original one."""
        return self._packed.numel() * self._packed.element_size()

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., in] -> [..., out]
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return result


@torch.inference_mode()
def pack_linears(view: nn.Module) -> int:
    """Replace the linear layers of a view by packed ones, where that gives the same bits faster.

    Args:
        view: a module tree of our own; its weights may be shared with a model that stays as it is.

    Returns:
        How many layers were replaced.
    """
    found = [(name, m) for name, m in view.named_modules() if type(m) is nn.Linear]
    worth: dict[tuple[int, int, bool], bool] = {}
    replaced = 0
    for name, layer in found:
        shape = (layer.out_features, layer.in_features, layer.bias is not None)
        if shape not in worth:
            worth[shape] = _is_worth_it(layer)
        if worth[shape]:
            parent, _, last = name.rpartition(".")
            setattr(view.get_submodule(parent), last, PackedLinear(layer.weight, layer.bias))
            replaced += 1
    return replaced


def _is_worth_it(layer: nn.Linear, rows: Sequence[int] = PROBED_ROWS) -> bool:
    if layer.weight.device.type != "cpu" or layer.weight.dtype is not torch.bfloat16 or not torch.backends.mkldnn.is_available():
        return False
    try:
        packed = PackedLinear(layer.weight, layer.bias)
        gained = 0.0
        for count in rows:
            x = torch.linspace(-2, 2, count * layer.in_features).reshape(count, -1).sin().to(layer.weight.dtype)
            if not torch.equal(packed(x), linear(x, layer.weight, layer.bias)):
                return False
            gained += _seconds(partial(linear, x, layer.weight, layer.bias)) - _seconds(partial(packed, x))
    except (AttributeError, RuntimeError, TypeError):
        return False  # another torch build: the operator is missing or takes other arguments
    return gained > 0


def _seconds(run: Callable[[], torch.Tensor]) -> float:
    """Least time of a few calls."""
    times = []
    for _ in range(REPEATS):
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    return min(times)
