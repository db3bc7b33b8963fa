"""Target steps of a few fixed shapes, each captured once and run again: CUDA graphs, or compiled by torch.

A step is padded up to the nearest shape. Padding rows and columns write past the ends of rows, where nothing is read and the
next tokens write over them; a capture that fails ends the capturing and never a request.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from canary.domain.errors import ModelError
from canary.engine.cache import Plan, RowCache
from canary.engine.transfer import is_host, to_device

OFF, CUDA_GRAPHS, COMPILE = "off", "cuda_graphs", "compile"
MODES = (OFF, CUDA_GRAPHS, COMPILE)
WIDTHS = (1, 2, 3, 5, 9, 17, 33)  # those of the measured costs, and on to the largest k
WINDOW = 256  # stored positions; a step reads the next multiple of it
COMPILED_SHAPES = 256  # kept by torch for one function, of all loops together

Given = tuple[torch.Tensor, torch.Tensor | None]  # logits [n, W, V], and what the head was given where that is kept
Run = Callable[[], Given]
Capture = Callable[[Run], Run]  # runs the given function at least once, and gives what runs it again
# ids [n, W], first positions [n], window; plans the cache by itself
FixedStep = Callable[[torch.Tensor, torch.Tensor, int], Given]


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """Of a captured step.

    Args:
        rows, width: of its tokens.
        window: stored positions that attention reads.
        capacity: of the cache; where it grows, its memory is another.
    """

    rows: int
    width: int
    window: int
    capacity: int


@dataclass(frozen=True, slots=True)
class _Captured:
    """A step with the memory that it reads, `ids` [rows, width] and `starts` [rows], and the cache's plan for it."""

    ids: torch.Tensor
    starts: torch.Tensor
    run: Run
    plan: Plan


class StepGraphs:
    """The captured steps of one loop.

    Args:
        step: the plain step of fixed shape; the same calls whatever its tokens are.
        cache: whose rows it runs over.
        capture: how it is captured.
        device: of its tokens.
        mode: the name of it all.

    Attributes:
        note: why nothing is captured any more; None while all is well.
        captures: shapes that were captured so far.
    """

    def __init__(self, step: FixedStep, cache: RowCache, capture: Capture, device: torch.device, mode: str) -> None:
        self.mode = mode
        self._step, self._cache, self._capture, self._device = step, cache, capture, device
        self._captured: dict[Shape, _Captured] = {}
        self.note: str | None = None
        self.captures = 0

    def shape(self, num_rows: int, width: int) -> Shape:
        """The shape that a step of the first rows is padded to; makes room in the cache for it.

        Raises:
            EngineMemoryError: see `RowCache.reserve`.
        """
        rows, columns = padded_rows(num_rows, self._cache.num_rows), padded_width(width)
        longest = max(self._cache.lengths[:rows]) + columns
        self._cache.reserve(longest)
        capacity = self._cache.capacity
        return Shape(rows, columns, min(-(-longest // WINDOW) * WINDOW, capacity), capacity)

    def __call__(self, tokens: torch.Tensor) -> Given | None:
        """One step; see `RowForward.step`.

        Args:
            tokens: [n, W] int64 on the device.

        Returns:
            Good until the next step; None where the plain step has to be used.

        Raises:
            EngineMemoryError: the device has no room for it.
        """
        if self.note is not None:
            return None
        num_rows, width = tokens.shape
        shape = self.shape(num_rows, width)
        captured = self._captured.get(shape) or self._new(shape)
        if captured is None:
            return None
        captured.ids[:num_rows, :width].copy_(tokens)
        captured.starts.copy_(self._starts(shape))
        self._cache.plan = captured.plan
        logits, hidden = captured.run()
        return logits[:num_rows, :width], hidden

    def _new(self, shape: Shape) -> _Captured | None:
        """Capture a shape; steps over memory that the cache has left are let go."""
        self._captured = {known: each for known, each in self._captured.items() if known.capacity == shape.capacity}
        ids = torch.zeros(shape.rows, shape.width, dtype=torch.int64, device=self._device)
        starts = self._starts(shape).clone()  # the true ends, so that what the first run writes lies past them too
        try:
            run = self._capture(lambda: self._step(ids, starts, shape.window))
        except Exception as error:  # a compiler may raise anything
            said = next(iter(str(error).splitlines()), type(error).__name__)
            self.note = f"a step of {shape.rows} rows and {shape.width} tokens cannot be captured: {said}"
            self._captured.clear()
            warnings.warn(f"{self.note}; steps run plainly from here on", RuntimeWarning, stacklevel=2)
            return None
        self.captures += 1
        captured = self._captured[shape] = _Captured(ids, starts, run, self._cache.plan)
        return captured

    def _starts(self, shape: Shape) -> torch.Tensor:
        return to_device(self._cache.lengths[: shape.rows], self._device)


def stepping(graphs: StepGraphs | None) -> str:
    """How steps are run, one of `MODES`: what was asked for, unless a capture has failed."""
    return OFF if graphs is None or graphs.note is not None else graphs.mode


def padded_rows(num_rows: int, most: int) -> int:
    """The next power of two, but no more rows than there are."""
    return min(1 << (num_rows - 1).bit_length(), most)


def padded_width(width: int, widths: Sequence[int] = WIDTHS) -> int:
    """The next width that is captured; a wider step than all of them is captured as it is."""
    return next((each for each in widths if each >= width), width)


def cuda_graph(run: Run, device: torch.device, pool: Any) -> Run:
    """Capture work into a CUDA graph; what it gives is always the same memory.

    Args:
        pool: handle of the memory that graphs share; one runs at a time, and its results are read before the next one does.
    """
    with torch.cuda.device(device):
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(here)
        with torch.cuda.stream(side):  # libraries allocate at their first calls, which a capture must not see
            for _ in range(2):
                run()
        here.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # other threads may use the device
            given = run()

    def replay() -> Given:
        graph.replay()
        return given

    return replay


def compiled(run: Run, backend: str = "inductor") -> Run:
    """Compile work for its shapes alone."""
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, COMPILED_SHAPES)
    made: Run = torch.compile(run, dynamic=False, backend=backend)
    made()
    return made


def find_capture(mode: str, device: torch.device, where: str = "subject.graphs") -> Capture | None:
    """How steps are captured on a device; None where they are not.

    Raises:
        ModelError: the mode is unknown, or not one of this device.
    """
    if mode not in MODES:
        raise ModelError(f"graphs {mode!r} is unknown", where=where, remedy=f"Use one of: {', '.join(MODES)}.")
    if mode == CUDA_GRAPHS and is_host(device):
        raise ModelError(
            "a CPU has no CUDA graphs", where=where, remedy="Use off or compile, or name a GPU under `subject.device`."
        )
    if mode == CUDA_GRAPHS:
        return partial(cuda_graph, device=device, pool=torch.cuda.graph_pool_handle())
    return compiled if mode == COMPILE else None
