"""Second module objects over a model's own weights: with the rows' attention, or with its first layers alone."""

from __future__ import annotations

import copy
from typing import Any, cast

from torch import nn
from transformers import PreTrainedModel

from canary.domain.errors import ModelError
from canary.engine import attention


def with_row_attention(model: PreTrainedModel) -> PreTrainedModel:
    """A second view of `model` that shares every weight and buffer but attends with `attention.row_attention`."""
    shared: dict[int, object] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    view = copy.deepcopy(model, shared)
    view.set_attn_implementation(attention.NAME)
    return view


def with_first_layers(view: PreTrainedModel, count: int, where: str) -> PreTrainedModel:
    """A view of `view` that ends after its first layers, and goes from there to the same last norm and head.

    Args:
        where: the policy field that asked for so many layers, for errors.

    Raises:
        ModelError: the model has fewer layers, or does not keep them in a plain list.
    """
    name = view.base_model_prefix
    trunk = getattr(view, name)
    layers = getattr(trunk, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise ModelError(
            f"{view.config.model_type} does not keep its layers in a plain list",
            where=where,
            remedy="Use another drafter with this target.",
        )
    if not 1 <= count <= len(layers):
        raise ModelError(f"there are {len(layers)} layers, not {count}", where=where, remedy=f"Use 1 to {len(layers)}.")
    outer, inner = _sharing(view), _sharing(trunk)
    config: Any = copy.copy(trunk.config)
    config.num_hidden_layers = count
    inner.config = config
    inner._modules["layers"] = nn.ModuleList(list(layers)[:count])
    outer._modules[name] = inner
    return cast(PreTrainedModel, outer)


def _sharing(module: nn.Module) -> nn.Module:
    """A second module object over the same submodules, which may then be exchanged in it alone."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other
