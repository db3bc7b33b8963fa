"""Linear layers over weights packed once for a CPU's matrix library: the same numbers in less time.

Layers that read the same input may be packed side by side into one product. The operators are private to torch, so each shape is
probed first: where they are missing, slower, too large, or give other numbers, the layers stay as they are. In 16 bit "the same"
means every bit; in 32 bit another order of summation is allowed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from canary.engine.pages import use_large_pages

PROBED_ROWS = (1, 2, 3, 5, 8, 16, 40, 100, 256)  # rows alone, verifications, batches, verified batches, prefills
PROBED_WORK = 3e9  # multiply-adds of one probe; more rows of a large layer would only take longer to tell the same
PACKED_FOR_ROWS = 8  # the operators' hint
FEW_ROWS = 4  # up to here torch's own single-precision kernels are others than beyond
REPEATS = 3
LARGEST_PACKED = 1.5  # times the weights: one library packs small layers into many times their size
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


ONEDNN, MKL = "onednn", "mkl"
OPERATORS: Mapping[str, Operator] = {
    ONEDNN: Operator(_pack_onednn, _run_onednn),
    MKL: Operator(_pack_mkl, _run_mkl),
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
    torch.bfloat16: (Choice(ONEDNN),),
    torch.float32: tuple(Choice(name, rows) for name in OPERATORS for rows in (1, FEW_ROWS)),
}


class PackedLinear(nn.Module):
    """One or more `nn.Linear` of the same input over one packed weight; their results stand side by side.

    Args:
        layers: all with a bias or all without.
        choice: how. Only the number of rows may matter to it, as it does to torch's own kernels.
    """

    def __init__(self, layers: Sequence[nn.Linear], choice: Choice) -> None:
        super().__init__()
        operator = OPERATORS[choice.operator]
        self.choice = choice
        weight, self._bias = _joined([m.weight for m in layers]), _joined([m.bias for m in layers if m.bias is not None])
        assert weight is not None
        self._run, self._packed = operator.run, operator.pack(weight)
        keeps = choice.operator == MKL or choice.from_rows > 1
        self._weight = weight if keeps else weight.new_empty(0)
        self._own = self._weight.nbytes if len(layers) > 1 else 0

    @property
    def packed_bytes(self) -> int:
        """Of the packed weight."""
        return _packed_range(self._packed)[1]

    @property
    def num_bytes(self) -> int:
        """Of the packed weight, and of a plain one where that is no layer's own."""
        return self.packed_bytes + self._own

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Addresses of the memory that is this layer's alone, see `use_large_pages`."""
        start, size = _packed_range(self._packed)
        yield start, start + size
        if self._own:
            yield self._weight.data_ptr(), self._weight.data_ptr() + self._own

    def forward(self, x: Tensor) -> Tensor:  # [..., in] -> [..., out]
        if x.numel() < self.choice.from_rows * x.shape[-1]:
            return linear(x, self._weight, self._bias)
        return self._run(x, self._packed, self._weight, self._bias)


class SideBySide(nn.Module):
    """Layers of the same input that were not packed; their results stand side by side."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:  # [..., in] -> [..., out]
        return torch.cat([layer(x) for layer in self.layers], -1)


class Packer:
    """Packs the layers of one model; each shape is probed once.

    Args:
        packs: False leaves every layer as it is, for steps that torch compiles: it cannot compile the private operators.
    """

    def __init__(self, *, packs: bool = True) -> None:
        self._packs = packs
        self._chosen: dict[tuple[tuple[int, int, bool], ...], Choice | None] = {}

    @torch.inference_mode()
    def join(self, *layers: nn.Module) -> nn.Module:
        """What gives the results of layers of the same input side by side, in as few products as that is faster in."""
        plain = [m for m in layers if type(m) is nn.Linear]
        if len(plain) == len(layers) and len({m.bias is None for m in plain}) == 1:
            shapes = tuple((m.out_features, m.in_features, m.bias is not None) for m in plain)
            if shapes not in self._chosen:
                self._chosen[shapes] = choose(plain) if self._packs else None
            choice = self._chosen[shapes]
            if choice is not None:
                return PackedLinear(plain, choice)
        return layers[0] if len(layers) == 1 else SideBySide([self.join(layer) for layer in layers])

    def replace(self, tree: nn.Module, *only: nn.Module) -> None:
        """Exchange layers of a module tree of our own for packed ones; a model that shares its weights stays as it is.

        Args:
            only: the layers; all of the tree's unless given.
        """
        found = [(name, m) for name, m in tree.named_modules() if type(m) is nn.Linear and (not only or m in only)]
        for name, layer in found:
            parent, _, last = name.rpartition(".")
            setattr(tree.get_submodule(parent), last, self.join(layer))


def packed_layers(*trees: nn.Module) -> tuple[PackedLinear, ...]:
    """The packed layers in module trees, each once."""
    return tuple({id(m): m for tree in trees for m in tree.modules() if isinstance(m, PackedLinear)}.values())


def in_large_pages(*trees: nn.Module) -> int:
    """Ask for large pages under what the packed layers of module trees keep; bytes that are in them now."""
    return use_large_pages(addresses for layer in packed_layers(*trees) for addresses in layer.ranges())


def choose(layers: Sequence[nn.Linear], rows: Sequence[int] = PROBED_ROWS) -> Choice | None:
    """The fastest way to run layers of the same input that gives their numbers, None for the layers as they are."""
    if layers[0].weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return None
    dtype, size = layers[0].weight.dtype, sum(m.weight.numel() for m in layers)
    affordable = [n for n in rows if n * size <= PROBED_WORK] or list(rows[:1])
    shares = {}
    for choice in CHOICES.get(dtype, ()):
        try:
            shares[choice] = _share(layers, choice, affordable)
        except (AttributeError, RuntimeError, TypeError):
            continue  # another torch build: the operator is missing or takes other arguments
    best = min(shares, key=lambda choice: shares[choice], default=None)
    return best if best is not None and shares[best] < LARGEST_SHARE[dtype] else None


def _share(layers: Sequence[nn.Linear], choice: Choice, rows: Sequence[int]) -> float:
    """Time of a choice as a mean share of the layers' own time; infinite where it is too large or gives other numbers."""
    packed, plain, dtype = PackedLinear(layers, choice), SideBySide(layers), layers[0].weight.dtype
    if packed.packed_bytes > LARGEST_PACKED * sum(m.weight.nbytes for m in layers):
        return math.inf
    shares = []
    for count in rows:
        x = torch.linspace(-2, 2, count * layers[0].in_features).reshape(count, -1).sin().to(dtype)
        wanted = plain(x)
        if float((packed(x) - wanted).abs().max()) > TOLERANCES[dtype] * float(wanted.abs().max()):
            return math.inf
        theirs, ours = _seconds(partial(plain, x), partial(packed, x))
        shares.append(ours / theirs)
    return statistics.fmean(shares)


def _joined(parts: Sequence[Tensor]) -> Tensor | None:
    """One tensor of several, one below the other; a single one stays as it is."""
    return None if not parts else parts[0].detach() if len(parts) == 1 else torch.cat([p.detach() for p in parts])


def _packed_range(packed: Tensor) -> tuple[int, int]:
    """Address and bytes of a packed weight, which torch does not tell of its own accord."""
    if not packed.is_mkldnn:
        return packed.data_ptr(), packed.nbytes
    return int(torch.ops.mkldnn.data_ptr(packed)), int(torch.ops.mkldnn._nbytes(packed))


def _seconds(*runs: Callable[[], Tensor]) -> list[float]:
    """Least time of a few calls of each, turn by turn."""
    times = []
    for _ in range(REPEATS):
        for run in runs:
            start = perf_counter()
            run()
            times.append(perf_counter() - start)
    return [min(times[at :: len(runs)]) for at in range(len(runs))]
