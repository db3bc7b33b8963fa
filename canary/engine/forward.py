"""One transformers model run over the rows of a `RowCache`: a prefill of one row, or a step of the first n rows.

The model's own modules and weights do the work; only attention and cache are ours, and the given model object is never changed.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from canary.domain.errors import ModelError
from canary.engine import attention
from canary.engine.cache import RowCache, require_rollback, step_mask
from canary.engine.packed import pack_linears


def with_row_attention(model: PreTrainedModel) -> PreTrainedModel:
    """A second view of `model` that shares every weight and buffer but attends with `attention.row_attention`."""
    shared: dict[int, object] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    view = copy.deepcopy(model, shared)
    view.set_attn_implementation(attention.NAME)
    return view


class RowForward:
    """A model and its row cache.

    Args:
        model: a decoder-only language model in evaluation mode.
        num_rows: requests that may run together.
        where: the policy field that named the model, for errors.

    Raises:
        ModelError: the model's cache cannot be rolled back, or its attention cannot be replaced.
    """

    def __init__(self, model: PreTrainedModel, num_rows: int, where: str = "subject.target") -> None:
        config = model.config.get_text_config(decoder=True)
        require_rollback(config, where)
        if not getattr(model, "_supports_attention_backend", False):
            raise ModelError(
                f"{config.model_type} does not let its attention be replaced",
                where=where,
                remedy="Choose a model family whose transformers class supports attention backends, such as llama or qwen2.",
            )
        self.view = with_row_attention(model)
        self.packed_layers = pack_linears(self.view)
        self.device = model.device
        self.num_rows = num_rows
        self.vocab_size = int(config.vocab_size)
        self.context = int(config.max_position_embeddings)
        self.cache = RowCache(config.num_hidden_layers, num_rows)
        heads = config.num_attention_heads
        self._groups = heads // (getattr(config, "num_key_value_heads", None) or heads)
        names = inspect.signature(type(model).forward).parameters
        # transformers 5.24 renamed the argument and warns about the old one; 5.17 knows the old one only.
        self._cache_name = "cache" if "cache" in names else "past_key_values"

    @property
    def lengths(self) -> list[int]:
        """Cached tokens of each row; setting a smaller one rolls the row back."""
        return self.cache.lengths

    def prefill(self, row: int, token_ids: Sequence[int]) -> torch.Tensor:
        """Fill one row from its start.

        Args:
            token_ids: the whole prompt, at least one token.

        Returns:
            Logits after the last token, [V], in the model's dtype.
        """
        self.cache.plan_prefill(row, len(token_ids))
        ids = torch.tensor([list(token_ids)], device=self.device)  # [1, T]
        positions = torch.arange(len(token_ids), device=self.device)[None]  # [1, T]
        logits = self._run(ids, positions, None, logits_to_keep=1)  # [1, 1, V]
        self.cache.lengths[row] = len(token_ids)
        return logits[0, 0]

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Append tokens to the first rows; the lengths stay until the caller says how many of them count.

        Args:
            tokens: [n, W] int64; columns beyond what a row needs may hold any token.

        Returns:
            Logits after each token, [n, W, V], in the model's dtype.
        """
        num_rows, width = tokens.shape
        positions = self.cache.plan_step(num_rows, width, self.device)
        mask = step_mask(positions, self.cache.plan.window, self._groups)
        # Padding columns may lie past the context; their logits are never read.
        return self._run(tokens, positions.clamp(max=self.context - 1), mask)

    def _run(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, logits_to_keep: int = 0
    ) -> torch.Tensor:
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
