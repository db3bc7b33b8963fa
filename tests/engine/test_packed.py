"""Packed linear layers give the same numbers, and whatever cannot be packed, or is not worth it, stays as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from canary.engine import packed
from canary.engine.forward import RowForward
from canary.engine.packed import CHOICES, FEW_ROWS, OPERATORS, Choice, Operator, PackedLinear, Packer, SideBySide, packed_layers
from tests.engine.tiny import tiny_model

ROWS = (1, 2, 3, 5, 8, 33)


def make_layer(dtype: torch.dtype, bias: bool = False) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(96, 64, bias=bias).to(dtype).requires_grad_(False)


def there(choice: Choice, dtype: torch.dtype) -> bool:
    """Whether this torch has an operator."""
    try:
        PackedLinear([make_layer(dtype)], choice)(torch.zeros(1, 96, dtype=dtype))
    except (AttributeError, RuntimeError):
        return False
    return True


@pytest.fixture
def a_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets what every packed layer takes, the plain one taking 1."""

    def plant(share: float) -> None:
        monkeypatch.setattr(packed, "_seconds", lambda *runs: [1.0, share])

    return plant


@pytest.mark.parametrize("bias", [False, True])
def test_16_bit_keeps_every_bit(bias: bool) -> None:
    layer = make_layer(torch.bfloat16, bias)
    for choice in CHOICES[torch.bfloat16]:
        if not there(choice, torch.bfloat16):
            pytest.skip("this torch has no packed operator in 16 bit")
        ours = PackedLinear([layer], choice)
        for rows in ROWS:
            x = torch.randn(2, rows, 96).to(torch.bfloat16)
            assert torch.equal(ours(x), layer(x))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("dtype", "choice"), [(dtype, c) for dtype in CHOICES for c in CHOICES[dtype]], ids=str)
def test_layers_of_one_input_stand_side_by_side(dtype: torch.dtype, choice: Choice, bias: bool) -> None:
    if not there(choice, dtype):
        pytest.skip(f"this torch has no operator {choice.operator}")
    torch.manual_seed(0)
    layers = [nn.Linear(96, out, bias=bias).to(dtype).requires_grad_(False) for out in (64, 16, 16)]
    ours, plain = PackedLinear(layers, choice), SideBySide(layers)
    for rows in ROWS:
        x = torch.randn(2, rows, 96).to(dtype)
        wanted = torch.cat([layer(x) for layer in layers], -1)
        assert torch.equal(plain(x), wanted)
        assert float((ours(x) - wanted).abs().max()) <= packed.TOLERANCES[dtype] * float(wanted.abs().max())


def test_layers_that_do_not_fit_together_are_packed_one_by_one(a_clock: Callable[[float], None]) -> None:
    a_clock(0.1)
    bare, biased = make_layer(torch.float32), make_layer(torch.float32, bias=True)
    x = torch.randn(5, 96)
    joined = Packer().join(bare, biased)
    assert isinstance(joined, SideBySide)
    assert len(packed_layers(joined)) == 2 or not any(there(c, torch.float32) for c in CHOICES[torch.float32])
    torch.testing.assert_close(joined(x), torch.cat([bare(x), biased(x)], -1))
    odd = nn.Identity()
    assert Packer().join(odd) is odd


def test_a_copy_of_many_times_the_size_is_not_kept(monkeypatch: pytest.MonkeyPatch, a_clock: Callable[[float], None]) -> None:
    a_clock(0.1)
    layer, run = make_layer(torch.float32), lambda x, p, w, b: nn.functional.linear(x, p[: len(layer.weight)], b)
    for times, kept in ((1, True), (2, False)):
        pack = lambda weight, times=times: weight.repeat(times, 1)  # noqa: E731
        monkeypatch.setattr(packed, "OPERATORS", {name: Operator(pack, run) for name in OPERATORS})
        assert (packed.choose([layer]) is not None) is kept


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("choice", CHOICES[torch.float32], ids=str)
def test_single_precision_differs_by_rounding_alone(choice: Choice, bias: bool) -> None:
    if not there(choice, torch.float32):
        pytest.skip(f"this torch has no operator {choice.operator}")
    layer = make_layer(torch.float32, bias)
    ours = PackedLinear([layer], choice)
    for rows in ROWS:
        x = torch.randn(rows, 96)
        wanted, found = layer(x), ours(x)
        assert float((found - wanted).abs().max()) <= packed.TOLERANCES[torch.float32] * float(wanted.abs().max())
        if rows < choice.from_rows:
            assert torch.equal(found, wanted)


def test_the_fastest_choice_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """`good` wins beyond a few rows and loses below, `slow` loses everywhere."""

    def run(x: torch.Tensor, packed: torch.Tensor, _weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return nn.functional.linear(x, packed, bias)

    monkeypatch.setattr(packed, "OPERATORS", {name: Operator(torch.clone, run) for name in ("good", "slow")})
    choices = tuple(Choice(name, rows) for name in ("good", "slow") for rows in (1, FEW_ROWS))
    monkeypatch.setattr(packed, "CHOICES", {torch.float32: choices})

    def seconds(_plain: object, ours: Callable[[], torch.Tensor]) -> list[float]:
        ((x,), layer) = ours.args, ours.func  # type: ignore[attr-defined]
        if len(x) < layer.choice.from_rows:
            return [1.0, 1.0]
        return [1.0, 1.2 if layer.choice.operator == "slow" else 0.6 if len(x) >= FEW_ROWS else 1.5]

    monkeypatch.setattr(packed, "_seconds", seconds)
    assert packed.choose([make_layer(torch.float32)]) == Choice("good", FEW_ROWS)
    monkeypatch.setattr(packed, "CHOICES", {torch.float32: choices[2:]})
    assert packed.choose([make_layer(torch.float32)]) is None


@pytest.mark.parametrize("dtype", CHOICES, ids=str)
def test_a_slower_operator_is_left_alone(a_clock: Callable[[float], None], dtype: torch.dtype) -> None:
    a_clock(1.1)
    assert packed.choose([make_layer(dtype)]) is None


@pytest.mark.parametrize("dtype", CHOICES, ids=str)
def test_other_numbers_are_refused(monkeypatch: pytest.MonkeyPatch, a_clock: Callable[[float], None], dtype: torch.dtype) -> None:
    a_clock(0.1)

    def operators(off: float) -> dict[str, Operator]:
        return {name: Operator(torch.clone, lambda x, p, w, b: nn.functional.linear(x, p, b) * (1 + off)) for name in OPERATORS}

    monkeypatch.setattr(packed, "OPERATORS", operators(0.0))
    assert packed.choose([make_layer(dtype)]) is not None
    monkeypatch.setattr(packed, "OPERATORS", operators(0.01))
    assert packed.choose([make_layer(dtype)]) is None


@pytest.mark.parametrize("dtype", CHOICES, ids=str)
def test_a_missing_operator_leaves_the_layer(
    monkeypatch: pytest.MonkeyPatch, a_clock: Callable[[float], None], dtype: torch.dtype
) -> None:
    a_clock(0.1)

    def missing(*_: object) -> torch.Tensor:
        raise AttributeError("no such operator")

    monkeypatch.setattr(packed, "OPERATORS", {name: Operator(missing, missing) for name in OPERATORS})
    assert packed.choose([make_layer(dtype)]) is None
    assert RowForward(tiny_model().to(dtype), 2).packed == ()


def test_the_given_model_is_never_changed(a_clock: Callable[[float], None]) -> None:
    a_clock(0.1)
    for dtype in CHOICES:
        model = tiny_model().to(dtype)
        before = [type(m) for m in model.modules()]
        assert RowForward(model, 2).packed or not any(there(c, dtype) for c in CHOICES[dtype])
        assert [type(m) for m in model.modules()] == before


def test_a_large_layer_is_probed_with_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[int] = []

    def seconds(_plain: object, ours: Callable[[], torch.Tensor]) -> list[float]:
        probed.append(len(ours.args[0]))  # type: ignore[attr-defined]
        return [1.0, 1.0]

    monkeypatch.setattr(packed, "_seconds", seconds)
    monkeypatch.setattr(packed, "PROBED_WORK", 96 * 64 * 6)
    packed.choose([make_layer(torch.float32)])
    assert set(probed) <= {1, 2, 3, 5}
