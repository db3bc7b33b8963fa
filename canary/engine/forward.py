"""One transformers model run over the rows of a `RowCache`: a prefill of one row, or a step of the first n rows.

The model's own modules and weights do the work, through transformers' forward or through `fused`; attention and cache are ours,
and the given model object is never changed.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from canary.domain.errors import ModelError
from canary.engine.cache import RowCache, memory_errors, require_rollback, step_mask
from canary.engine.fused import FusedForward, agrees, is_fusable
from canary.engine.graphs import OFF, Given, StepGraphs, find_capture
from canary.engine.packed import Packer, in_large_pages, packed_layers
from canary.engine.transfer import to_device
from canary.engine.views import with_first_layers, with_row_attention

AUTO, PLAIN, FAST = "auto", "plain", "fast"
FORWARDS = (AUTO, PLAIN, FAST)
PREFILL_CHUNK = 256  # tokens
_PROBED_PROMPTS, _PROBED_STEPS = (9, 4), (3, 1)  # tokens of each row, and then columns of each step


class RowForward:
    """A model and its row cache.

    Args:
        model: a decoder-only language model in evaluation mode.
        num_rows: requests that may run together.
        where: the policy field that named the model, for errors.
        forward: `plain` is transformers' own, `fast` is `fused`, `auto` is `fast` on a CPU where it gives the same logits.
        graphs: whether steps are captured, see `graphs.MODES`.

    Attributes:
        forward: `plain` or `fast`, whichever it is.
        packed: the layers whose weights were packed.
        graphs: the captured steps; None where every step is run anew.

    Raises:
        ModelError: the cache cannot be rolled back, the attention cannot be replaced, or `fast` or `graphs` is not to be had.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        num_rows: int,
        where: str = "subject.target",
        forward: str = AUTO,
        graphs: str = OFF,
    ) -> None:
        if forward not in FORWARDS:
            raise ModelError(
                f"forward {forward!r} is unknown", where="subject.forward", remedy=f"Use one of: {', '.join(FORWARDS)}."
            )
        config = model.config.get_text_config(decoder=True)
        require_rollback(config, where)
        if not getattr(model, "_supports_attention_backend", False):
            raise ModelError(
                f"{config.model_type} does not let its attention be replaced",
                where=where,
                remedy="Choose a model family whose transformers class supports attention backends, such as llama or qwen2.",
            )
        self.view = with_row_attention(model)
        self.device = model.device
        capture = find_capture(graphs, self.device)
        self.num_rows = num_rows
        self.vocab_size = int(config.vocab_size)
        self.context = int(config.max_position_embeddings)
        self._num_layers = int(config.num_hidden_layers)
        self.cache = RowCache(self._num_layers, num_rows)
        heads = config.num_attention_heads
        self._groups = heads // (getattr(config, "num_key_value_heads", None) or heads)
        names = inspect.signature(type(model).forward).parameters
        # transformers 5.24 renamed the argument and warns about the old one; 5.17 knows the old one only.
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._hidden: torch.Tensor | None = None
        self._keeps_hidden = False
        self.graphs: StepGraphs | None = None
        packer = Packer(packs=capture is None)
        fuses = forward == FAST or (forward == AUTO and self.device.type == "cpu")
        self._fused = self._fuse(packer) if fuses else None
        if self._fused is None:
            packer.replace(self.view)
        self.packed = packed_layers(self.view, *(() if self._fused is None else (self._fused.joined,)))
        in_large_pages(*self.packed)
        if forward == FAST and self._fused is None:
            raise ModelError(
                f"{config.model_type} has no fast forward that gives transformers' logits",
                where="subject.forward",
                remedy="Use auto or plain.",
            )
        self.forward = PLAIN if self._fused is None else FAST
        if capture is not None:
            self.graphs = StepGraphs(self._fixed_step, self.cache, capture, self.device, graphs)

    @property
    def lengths(self) -> list[int]:
        """Cached tokens of each row; setting a smaller one rolls the row back."""
        return self.cache.lengths

    def keep_hidden(self) -> None:
        """From now on every forward keeps what it gave the head, for `hidden`; nothing is computed for it."""
        if not self._keeps_hidden:
            head: nn.Module = self.view.get_output_embeddings()  # type: ignore[no-untyped-call]
            head.register_forward_pre_hook(self._keep)
            self._keeps_hidden = True

    def hidden(self, row: int, column: int) -> torch.Tensor:
        """The state after the last norm that gave a row's logits in the last forward, [H].

        Args:
            column: of a step; a prefill has one. A faulty loop of a drill may ask past the end and gets the last one.
        """
        assert self._hidden is not None, "keep_hidden has to be called before the forward"
        kept = self._hidden[row - self.cache.plan.row]  # [W, H]
        return kept[min(max(column, 0), len(kept) - 1)]

    def first_layers(self, count: int, where: str = "subject.drafter.exit_layer") -> RowForward:
        """The same rows through the model's first layers alone: weights, cache and lengths are this one's.

        A step of it writes what those layers have to say of its tokens where a step of this one writes the same again.
        """
        other = copy.copy(self)
        other.graphs = None
        other.view = with_first_layers(self.view, count, where)
        other._fused = None if self._fused is None else self._fused.first(count)
        return other

    def _keep(self, _head: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        self._hidden = given[0]

    def prefill(self, row: int, token_ids: Sequence[int]) -> torch.Tensor:
        """Fill one row from its start, all at once.

        Args:
            token_ids: the whole prompt, at least one token.

        Returns:
            Logits after the last token, [V], in the model's dtype.

        Raises:
            EngineMemoryError: the device has no room for it; the other rows stay as they were.
        """
        return self._fill(row, token_ids, 0)

    @property
    def fills_together(self) -> bool:
        """Whether several prompts may be filled in one forward, by `prefill_all`."""
        return self._fused is not None

    def prefill_all(self, first: int, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Fill several rows from their start in one pass over the weights, nothing padded.

        Args:
            first: row of the first prompt; the others' follow.

        Returns:
            Logits after each prompt's last token, [m, V], in the model's dtype.

        Raises:
            EngineMemoryError: the device has no room for it; the other rows stay as they were.
        """
        assert self._fused is not None, "the plain forward fills one row at a time"
        sizes = [len(prompt) for prompt in prompts]
        plans = []
        for row, size in enumerate(sizes, first):
            self.cache.plan_prefill(row, 0, size)
            plans.append(self.cache.plan)
        ids = to_device([[token for prompt in prompts for token in prompt]], self.device)  # [1, T]
        positions = torch.cat([torch.arange(size, device=self.device) for size in sizes])[None]  # [1, T]
        with memory_errors(f"a forward of {sum(sizes)} tokens"):
            logits = self._fused.fill(ids, positions, plans, self.cache)[:, 0]  # [m, V]
        self.cache.plan = plans[0]  # for `hidden`
        for row, size in enumerate(sizes, first):
            self.cache.lengths[row] = size
        return logits

    def prefill_chunk(self, row: int, token_ids: Sequence[int], start: int, size: int = PREFILL_CHUNK) -> torch.Tensor | None:
        """Fill one row a piece at a time, so that other rows may step in between and scratch memory stays bounded.

        In 16 bit the pieces round otherwise than the whole: evidence is made with `prefill`.

        Args:
            token_ids: the whole prompt.
            start: tokens of it that the row holds already, a multiple of `size` if every call uses the same.
            size: tokens of one piece.

        Returns:
            Logits after the prompt's last token, [V], if this piece held it; else None, and `lengths[row]` is the next start.

        Raises:
            EngineMemoryError: the device has no room for it; the other rows stay as they were.
        """
        if not 0 <= start < len(token_ids):
            raise ValueError(f"a piece starts at {start}, but the prompt has {len(token_ids)} tokens")
        stop = min(start + size, len(token_ids))
        logits = self._fill(row, token_ids[:stop], start)
        return logits if stop == len(token_ids) else None

    def _fill(self, row: int, token_ids: Sequence[int], start: int) -> torch.Tensor:
        """Append the tokens from `start` on to a row that holds those before it; logits after the last one, [V]."""
        stop = len(token_ids)
        self.cache.plan_prefill(row, start, stop)
        ids = to_device([list(token_ids[start:])], self.device)  # [1, T]
        positions = torch.arange(start, stop, device=self.device)[None]  # [1, T]
        mask = step_mask(positions, stop, self._groups) if start and stop - start > 1 else None
        logits = self._run(ids, positions, mask, logits_to_keep=1)  # [1, 1, V]
        self.cache.lengths[row] = stop
        return logits[0, 0]

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Append tokens to the first rows; the lengths stay until the caller says how many of them count.

        Args:
            tokens: [n, W] int64; columns beyond what a row needs may hold any token.

        Returns:
            Logits after each token, [n, W, V], in the model's dtype. Those of a captured step are good until the next one.

        Raises:
            EngineMemoryError: the device has no room for it; what the rows hold stays as it was.
        """
        given = None if self.graphs is None else self.graphs(tokens)
        if given is not None:
            logits, self._hidden = given
            return logits
        num_rows, width = tokens.shape
        positions = self.cache.plan_step(num_rows, width, self.device)
        # One token of one row sees all that is stored in it.
        mask = step_mask(positions, self.cache.plan.window, self._groups) if num_rows * width > 1 else None
        # Padding columns may lie past the context; their logits are never read.
        return self._run(tokens, positions.clamp(max=self.context - 1), mask)

    def _fixed_step(self, ids: torch.Tensor, starts: torch.Tensor, window: int) -> Given:
        """A step that asks the host nothing: the first rows' tokens at given positions, [n, W] and [n]."""
        positions = starts[:, None] + torch.arange(ids.shape[1], device=self.device)  # [n, W]
        self.cache.plan_fixed(positions, window)
        mask = step_mask(positions, window, self._groups)
        logits = self._run(ids, positions.clamp(max=self.context - 1), mask)
        return logits, self._hidden

    def _run(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, logits_to_keep: int = 0
    ) -> torch.Tensor:
        with memory_errors(f"a forward of {ids.numel()} tokens"):
            if self._fused is not None:
                return self._fused(ids, positions, mask, self.cache, logits_to_keep)
            out = self.view(
                input_ids=ids,
                position_ids=positions,
                attention_mask=mask,
                use_cache=True,
                logits_to_keep=logits_to_keep,
                **{self._cache_name: self.cache},
            )
            logits: torch.Tensor = out.logits
            return logits

    def _fuse(self, packer: Packer) -> FusedForward | None:
        """The fast forward, if the model is of its kind and it is found to give the same logits."""
        if not is_fusable(self.view.config):
            return None
        packer.replace(self.view, self.view.get_output_embeddings())  # type: ignore[no-untyped-call]
        try:
            fused = FusedForward(self.view, packer)
        except AttributeError:
            return None  # a family whose modules have other names in this release of transformers
        return fused if agrees(lambda: self._probe(None), lambda: self._probe(fused)) else None

    @torch.inference_mode()
    def _probe(self, fused: FusedForward | None) -> list[torch.Tensor]:
        """Logits of a few prefills and steps on rows of its own, on tokens spread over the vocabulary."""
        probe = copy.copy(self)
        num_rows = min(self.num_rows, len(_PROBED_PROMPTS))
        probe.cache, probe._fused = RowCache(self._num_layers, num_rows), fused
        drawn = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, self.vocab_size, (64,), generator=drawn).tolist()
        found = [probe.prefill(row, tokens[: _PROBED_PROMPTS[row]]) for row in range(num_rows)]
        for width in _PROBED_STEPS:
            columns = torch.tensor(tokens[-num_rows * width :], device=self.device).view(num_rows, width)
            found.append(probe.step(columns))
            probe.lengths[:] = [length + width for length in probe.lengths]
        return found
