"""Linear layers over weights packed once for a CPU's matrix library: the same numbers in less time.

The operators are private to torch, so each layer shape is probed first: where they are missing, slower, or give other numbers,
the layer stays as it is. In 16 bit "the same" means every bit; in 32 bit another order of summation is allowed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

PROBED_ROWS = (1, 2, 3, 5, 8, 16, 40, 100, 256)  # rows alone, verifications, batches, verified batches, prefills
PROBED_WORK = 3e9  # multiply-adds of one probe; more rows of a large layer would only take longer to tell the same
PACKED_FOR_ROWS = 8  # the operators' hint
FEW_ROWS = 4  # up to here torch's own single-precision kernels are others than beyond
REPEATS = 3
LARGEST_SHARE = {torch.bfloat16: 1.0, torch.float32: 0.97}  # of the plain layer's time; a second copy of the weights is not free
# Largest difference as a share of the largest result, which is what torch's own kernels for 1, 3 and 5 rows differ by among
# themselves (measured: up to 8e-7).
TOLERANCES = {torch.bfloat16: 0.0, torch.float32: 4e-6}


@dataclass(frozen=True, slots=True)
class Operator:
    """A pair of torch's private operators.

    Args:
        pack: [out, in] weight to its packed form.
        run: x [..., in], packed and plain weight, bias or None, to [..., out].
    """

    pack: Callable[[Tensor], Tensor]
    run: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def _pack_onednn(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)
    return packed


def _run_onednn(x: Tensor, packed: Tensor, _weight: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return result


def _pack_mkl(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkl._mkl_reorder_linear_weight(weight, PACKED_FOR_ROWS)
    return packed


def _run_mkl(x: Tensor, packed: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # It multiplies by the plain weight when the last argument is not the number of rows; any number of them may use one packing.
    result: Tensor = torch.ops.mkl._mkl_linear(x, packed, weight, bias, x.numel() // x.shape[-1])
    return result


OPERATORS: Mapping[str, Operator] = {
    "onednn": Operator(_pack_onednn, _run_onednn),
    "mkl": Operator(_pack_mkl, _run_mkl),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """How the layers of one shape are run.

    Args:
        operator: name in `OPERATORS`.
        from_rows: fewer rows than this go through the plain layer.
    """

    operator: str
    from_rows: int = 1


CHOICES: Mapping[torch.dtype, tuple[Choice, ...]] = {
    torch.bfloat16: (Choice("onednn"),),
    torch.float32: tuple(Choice(name, rows) for name in OPERATORS for rows in (1, FEW_ROWS)),
}


class PackedLinear(nn.Module):
    """`nn.Linear` over a packed weight.

    Args:
        weight: [out, in].
        bias: [out] or None.
        choice: how. Only the number of rows may matter to it, as it does to torch's own kernels.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, choice: Choice) -> None:
        super().__init__()
        operator = OPERATORS[choice.operator]
        self.choice = choice
        self._weight = weight.detach()
        self._bias = None if bias is None else bias.detach()
        self._run, self._packed = operator.run, operator.pack(self._weight)

    @property
    def num_bytes(self) -> int:
        """Of the packed weight, which stands beside the original one."""
        return self._packed.numel() * self._packed.element_size()

    def forward(self, x: Tensor) -> Tensor:  # [..., in] -> [..., out]
        if x.numel() < self.choice.from_rows * x.shape[-1]:
            return linear(x, self._weight, self._bias)
        return self._run(x, self._packed, self._weight, self._bias)


@torch.inference_mode()
def pack_linears(view: nn.Module) -> int:
    """Replace the linear layers of a view by packed ones, where that gives the same numbers faster.

    Args:
        view: a module tree of our own; its weights may be shared with a model that stays as it is.

    Returns:
        How many layers were replaced.
    """
    found = [(name, m) for name, m in view.named_modules() if type(m) is nn.Linear]
    chosen: dict[tuple[int, int, bool], Choice | None] = {}
    replaced = 0
    for name, layer in found:
        shape = (layer.out_features, layer.in_features, layer.bias is not None)
        if shape not in chosen:
            chosen[shape] = choose(layer)
        choice = chosen[shape]
        if choice is not None:
            parent, _, last = name.rpartition(".")
            setattr(view.get_submodule(parent), last, PackedLinear(layer.weight, layer.bias, choice))
            replaced += 1
    return replaced


def choose(layer: nn.Linear, rows: Sequence[int] = PROBED_ROWS) -> Choice | None:
    """The fastest way to run a layer that gives its numbers, None for the layer as it is."""
    if layer.weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return None
    dtype = layer.weight.dtype
    affordable = [n for n in rows if n * layer.weight.numel() <= PROBED_WORK] or list(rows[:1])
    shares: dict[Choice, float] = {}
    for name in dict.fromkeys(choice.operator for choice in CHOICES.get(dtype, ())):
        try:
            shares |= _shares(layer, name, affordable)
        except (AttributeError, RuntimeError, TypeError):
            continue  # another torch build: the operator is missing or takes other arguments
    best = min(shares, key=lambda choice: shares[choice], default=None)
    return best if best is not None and shares[best] < LARGEST_SHARE[dtype] else None


def _shares(layer: nn.Linear, operator: str, rows: Sequence[int]) -> Iterator[tuple[Choice, float]]:
    """Time of each choice with an operator, as a mean share of the plain layer's; none where the numbers are others."""
    dtype, packed = layer.weight.dtype, PackedLinear(layer.weight, layer.bias, Choice(operator))
    share = {}
    for count in rows:
        x = torch.linspace(-2, 2, count * layer.in_features).reshape(count, -1).sin().to(dtype)
        wanted = linear(x, layer.weight, layer.bias)
        if float((packed(x) - wanted).abs().max()) > TOLERANCES[dtype] * float(wanted.abs().max()):
            return
        plain, ours = _seconds(partial(linear, x, layer.weight, layer.bias), partial(packed, x))
        share[count] = ours / plain
    for choice in CHOICES[dtype]:
        if choice.operator == operator:
            yield choice, statistics.fmean(share[n] if n >= choice.from_rows else 1.0 for n in rows)


def _seconds(*runs: Callable[[], Tensor]) -> list[float]:
    """Least time of a few calls of each, turn by turn."""
    times = []
    for _ in range(REPEATS):
        for run in runs:
            start = perf_counter()
            run()
            times.append(perf_counter() - start)
    return [min(times[at :: len(runs)]) for at in range(len(runs))]
