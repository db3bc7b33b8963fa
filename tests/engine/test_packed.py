"""Packed linear layers give the same bits, and whatever cannot be packed stays as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from canary.engine import packed
from canary.engine.forward import RowForward
from tests.engine.tiny import tiny_model

needs_operator = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"), reason="this torch has no packed linear operator"
)


@needs_operator
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
def test_the_bits_are_the_same(rows: int, bias: bool) -> None:
    torch.manual_seed(rows)
    layer = nn.Linear(96, 64, bias=bias).to(torch.bfloat16)
    x = torch.randn(2, rows, 96).to(torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(packed.PackedLinear(layer.weight, layer.bias)(x), layer(x))


def test_single_precision_is_left_alone() -> None:
    model = tiny_model()
    assert packed.pack_linears(nn.Sequential(nn.Linear(8, 8))) == 0
    assert RowForward(model, 2).packed_layers == 0


def test_an_operator_that_gives_other_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(64, 64).to(torch.bfloat16)

    class Wrong(nn.Module):
        def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
            super().__init__()
            self._layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self._layer(x) * 1.01

    monkeypatch.setattr(packed, "PackedLinear", Wrong)
    assert not packed._is_worth_it(layer)


def test_the_given_model_is_never_changed() -> None:
    model = tiny_model().to(torch.bfloat16)
    before = [type(m) for m in model.modules()]
    RowForward(model, 2)
    assert [type(m) for m in model.modules()] == before
