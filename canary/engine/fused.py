"""The forward of Llama-like models with less between its matrix products: residuals, norms and rotary positions in place.

It runs a view's own weights, those of one input as one product, in transformers' own order of rounding; it must never be used
where `agrees` has not found it to give the transformers forward's logits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import silu
from transformers import PretrainedConfig, PreTrainedModel

from canary.engine.attention import row_attention
from canary.engine.cache import Plan, RowCache
from canary.engine.packed import Packer

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
# Largest difference of a logit as a share of the largest one. The roundings are transformers' own and nothing differs as written
# here; another build of torch may add up in another order, which single precision forgives and 16 bit does not.
TOLERANCES = {torch.float32: 1e-5}


@dataclass(frozen=True, slots=True)
class _Layer:
    """Products and weights of one decoder layer; each product is the layer's own modules, packed where that pays.

    Args:
        before_attention, before_mlp: weights of the norms, [H].
        inward: queries, keys and values side by side.
        q_norm, k_norm: weights of the norms of each head, [D]; None in most families.
        attention: the layer's attention module, for `row_attention`, and its `scaling` of scores.
        gated: gate and up side by side.
    """

    before_attention: torch.Tensor
    inward: nn.Module
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    attention: nn.Module
    scaling: float
    out: nn.Module
    before_mlp: torch.Tensor
    gated: nn.Module
    down: nn.Module

    @classmethod
    def of(cls, layer: Any, packer: Packer) -> _Layer:
        attend, mlp = layer.self_attn, layer.mlp
        norms = (getattr(attend, name, None) for name in ("q_norm", "k_norm"))
        q_norm, k_norm = (None if norm is None else norm.weight.detach() for norm in norms)
        return cls(
            layer.input_layernorm.weight.detach(),
            packer.join(attend.q_proj, attend.k_proj, attend.v_proj),
            q_norm,
            k_norm,
            attend,
            attend.scaling,
            packer.join(attend.o_proj),
            layer.post_attention_layernorm.weight.detach(),
            packer.join(mlp.gate_proj, mlp.up_proj),
            packer.join(mlp.down_proj),
        )


# Queries, keys and values of some tokens, [n, W, heads, D] each, or queries and then keys and values as one.
_Parts = Sequence[torch.Tensor]
_Attend = Callable[[int, _Layer, _Parts], torch.Tensor]  # layer's place, layer and parts to [n, W, H * D]


class FusedForward:
    """A view's forward over a row cache.

    Args:
        view: a view for which `is_fusable` holds.
        packer: packs its layers.

    Attributes:
        joined: the products of all layers.
    """

    def __init__(self, view: PreTrainedModel, packer: Packer) -> None:
        given: Any = view
        config, trunk = given.config, given.model
        self._embed = given.get_input_embeddings()
        self._rotary = trunk.rotary_emb
        self._layers = tuple(_Layer.of(layer, packer) for layer in trunk.layers)
        self.joined = nn.ModuleList(m for each in self._layers for m in (each.inward, each.out, each.gated, each.down))
        self._last_norm = trunk.norm.weight.detach()
        self._head = given.get_output_embeddings()
        self._heads, self._key_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self._head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        device = self._last_norm.device
        self._small = torch.tensor(float(config.rms_norm_eps), device=device)
        self._widths = {n: torch.tensor(float(n), device=device) for n in (config.hidden_size, self._head_dim)}

    def first(self, count: int) -> FusedForward:
        """The same forward, left after its first layers for the last norm and the head."""
        other = copy.copy(self)
        other._layers = self._layers[:count]
        return other

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cache: RowCache, logits_to_keep: int = 0
    ) -> torch.Tensor:
        """Logits after each token, [n, W, V], or after the last few; arguments as the transformers forward takes them.

        Args:
            ids, positions: [n, W] int64.
            mask: of `cache.step_mask`, or None where all of a row's own keys before a query may be seen.
            cache: planned for these tokens.
        """
        num_rows, width = ids.shape
        hidden = self._embed(ids)
        if mask is not None:  # once a step; attention would do it in every layer
            mask = torch.zeros(mask.shape, dtype=hidden.dtype, device=mask.device).masked_fill_(~mask, -torch.inf)

        def attend(index: int, layer: _Layer, parts: _Parts) -> torch.Tensor:
            return _attended(layer, parts, mask, cache, index).view(num_rows, width, -1)

        hidden = self._through(hidden, positions, attend)
        return self._logits(hidden[:, -logits_to_keep:] if logits_to_keep else hidden)

    def fill(self, ids: torch.Tensor, positions: torch.Tensor, plans: Sequence[Plan], cache: RowCache) -> torch.Tensor:
        """Fill several rows in one pass over the weights; logits after the last token of each, [m, 1, V].

        Args:
            ids, positions: [1, T] int64, the whole prompts one after the other.
            plans: of each prompt's row, from its start.
        """
        sizes = [plan.window for plan in plans]

        def attend(index: int, layer: _Layer, parts: _Parts) -> torch.Tensor:
            found = []
            for plan, *own in zip(plans, *(part.split(sizes, 1) for part in parts), strict=True):
                cache.plan = plan
                found.append(_attended(layer, own, None, cache, index))
            return torch.cat(found, 1).view(1, ids.shape[1], -1)

        hidden = self._through(self._embed(ids), positions, attend)
        ends = torch.tensor(sizes).cumsum(0) - 1
        return self._logits(hidden[0, ends.to(hidden.device)][:, None])

    def _through(self, hidden: torch.Tensor, positions: torch.Tensor, attend: _Attend) -> torch.Tensor:
        """All layers over `hidden` [n, W, H], which is new memory: the residuals are added in place."""
        cos, sin = (each[:, :, None] for each in self._rotary(hidden, positions))  # [n, W, 1, D]
        for index, layer in enumerate(self._layers):
            parts = self._inward(layer, self._norm(hidden, layer.before_attention), cos, sin)
            hidden.add_(layer.out(attend(index, layer, parts)))
            gate, up = layer.gated(self._norm(hidden, layer.before_mlp)).chunk(2, -1)
            hidden.add_(layer.down(silu(gate).mul_(up)))
        return hidden

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._head(self._norm(hidden, self._last_norm))
        return logits

    def _inward(self, layer: _Layer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> _Parts:
        """Queries, and keys and values side by side or each alone, of a layer; rotated."""
        heads, turned = self._heads, self._heads + self._key_heads
        inward = layer.inward(x).view(*x.shape[:-1], -1, self._head_dim)  # [n, W, H + 2 H_kv, D]
        if layer.q_norm is None or layer.k_norm is None:
            _rotate(inward.narrow(2, 0, turned), cos, sin)
            return inward.split((heads, 2 * self._key_heads), 2)
        query, key, value = inward.split((heads, self._key_heads, self._key_heads), 2)
        query, key = self._norm(query, layer.q_norm), self._norm(key, layer.k_norm)
        _rotate(query, cos, sin)
        _rotate(key, cos, sin)
        return query, key, value

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm, rounded where transformers rounds: once to the model's dtype before the weight."""
        wide = x.float()
        # The mean and the small number in one call: between products a call costs more than what it computes.
        scale = torch.addcdiv(self._small, (wide * wide).sum(-1, keepdim=True), self._widths[x.shape[-1]]).rsqrt_()
        return (wide * scale).to(x.dtype).mul_(weight)


def _attended(layer: _Layer, parts: _Parts, mask: torch.Tensor | None, cache: RowCache, index: int) -> torch.Tensor:
    """Store keys and values as the cache has planned it, and attend; [n, W, H, D]."""
    query, *stored = (part.transpose(1, 2) for part in parts)
    keys, values = cache.update(*stored, index) if len(stored) == 2 else cache.update_both(*stored, index)
    return row_attention(layer.attention, query, keys, values, mask, scaling=layer.scaling)[0]


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """x cos + rotate_half(x) sin in place, x [n, W, heads, D]; both halves of `sin` are the same numbers."""
    first_turned, second_turned = (x * sin).chunk(2, -1)
    first, second = x.mul_(cos).chunk(2, -1)
    first.sub_(second_turned)
    second.add_(first_turned)


def is_fusable(config: PretrainedConfig) -> bool:
    """Whether a family's layer is the one written down here: gated SiLU, RMS norms, whole rotary heads."""
    return (
        config.model_type in FAMILIES
        and getattr(config, "hidden_act", "") == "silu"
        and (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor", 1.0) == 1.0
    )


def agrees(plain: Callable[[], list[torch.Tensor]], fused: Callable[[], list[torch.Tensor]]) -> bool:
    """Whether two forwards give the same logits, to rounding.

    Args:
        plain, fused: run the same tokens through each from empty rows.
    """
    try:
        pairs = list(zip(plain(), fused(), strict=True))
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False  # a family whose modules have changed since this was written
    return all(_is_close(mine, theirs) for theirs, mine in pairs)


def _is_close(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    if mine.shape != theirs.shape or mine.dtype is not theirs.dtype:
        return False
    most = float((mine.float() - theirs.float()).abs().max())
    return most <= TOLERANCES.get(mine.dtype, 0.0) * float(theirs.float().abs().max())
