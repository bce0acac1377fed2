"""Spare rows for 16-bit products, the dtype of products, and when a module is a bare projection."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers.activations import ACT2FN

from hf_encoders.models import encoder_kernels
from hf_encoders.models.encoder_blocks import activation as activation_of
from hf_encoders.models.encoder_kernels import (
    is_bare_linear,
    matmul_dtype,
    num_padding_rows,
    project,
    with_padding_rows,
)
from tests.models.tiny import MASKED_LM, right_padded, tiny_model


BF16 = torch.bfloat16


def test_spare_rows_are_zeros_behind_the_others() -> None:
    rows = torch.randn(1090, 3, dtype=BF16)
    padded = with_padding_rows(rows)
    assert padded.shape == (1120, 3)
    assert torch.equal(padded[:1090], rows) and not padded[1090:].any()


def test_only_16_bit_products_get_spare_rows() -> None:
    for dtype in (torch.float32, torch.float64):
        assert num_padding_rows(torch.zeros(1090, 1, dtype=dtype)) == 0
    with torch.autocast("cpu", BF16):
        assert num_padding_rows(torch.zeros(1090, 1)) == 30
        assert num_padding_rows(torch.zeros(1090, 1, dtype=torch.float64)) == 0
    assert num_padding_rows(torch.zeros(1090, 1, dtype=BF16, device="meta")) == 0


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_dtype_of_products_is_what_linear_gives(dtype: torch.dtype, autocast: torch.dtype | None) -> None:
    rows, linear = torch.zeros(2, 3, dtype=dtype), nn.Linear(3, 4).to(dtype)
    with torch.autocast("cpu", autocast, enabled=autocast is not None):
        assert matmul_dtype(rows) == linear(rows).dtype


@pytest.mark.parametrize("mode", ["bfloat16", "autocast"])
@pytest.mark.parametrize("model_class", MASKED_LM)
def test_spare_rows_change_nothing(model_class: type, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """75 real tokens get one spare row; a model that never adds any gives the same to bfloat16's rounding."""
    model = tiny_model(model_class, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train()
    model = model.to(BF16) if mode == "bfloat16" else model
    batch = right_padded(model.config, (11, 9, 11, 8, 10, 11, 9, 6))
    assert num_padding_rows(torch.zeros(int(batch["attention_mask"].sum()), 1, dtype=BF16)) == 1
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    results = []
    for _ in range(2):
        model.zero_grad()
        with torch.autocast("cpu", BF16, enabled=mode == "autocast"):
            outputs = model(**batch, return_logits=True)
        outputs.loss.backward()
        assert outputs.logits.shape == (8, 11, 41)
        results.append([outputs.loss, *(parameter.grad for parameter in model.parameters())])
        monkeypatch.setattr("hf_encoders.models.encoder_blocks.with_padding_rows", lambda rows: rows)
    norms = [torch.stack([value.float().norm() for value in values]) for values in results]
    difference = torch.stack([(one - two).float().norm() for one, two in zip(*results, strict=True)])
    assert results[0][0].item() == pytest.approx(results[1][0].item(), rel=1e-3)
    assert (difference <= 0.02 * norms[1] + 1e-3).all()


def test_a_bare_linear_is_nothing_but_the_product() -> None:
    assert is_bare_linear(nn.Linear(3, 4)) and is_bare_linear(nn.Linear(3, 4, bias=False))
    offloaded = nn.Linear(3, 4)
    offloaded.forward = lambda rows: rows
    others = [nn.Sequential(nn.Linear(3, 4)), nn.Identity(), offloaded, type("WithAdapter", (nn.Linear,), {})(3, 4)]
    others.append(nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)))
    for kind in ("forward", "forward_pre", "full_backward", "full_backward_pre"):
        others.append(nn.Linear(3, 4))
        getattr(others[-1], f"register_{kind}_hook")(lambda *arguments: None)
    assert not any(map(is_bare_linear, others))


# --- project ---


def with_gradients(function: Callable, dtype: torch.dtype, activation: nn.Module | None) -> list[torch.Tensor]:
    """The output and the gradients of 5 rows, of width 6 to 4, with the same numbers for every `function`."""
    torch.manual_seed(0)
    linear, rows, upstream = nn.Linear(6, 4).to(dtype), torch.randn(5, 6, dtype=dtype), torch.randn(5, 4)
    rows.requires_grad_()
    output = function(linear, rows, activation)
    output.backward(upstream.to(output.dtype))
    return [output, rows.grad, linear.weight.grad, linear.bias.grad]


def plainly(linear: nn.Module, rows: torch.Tensor, activation: nn.Module | None) -> torch.Tensor:
    return linear(rows if activation is None else activation(rows))


@pytest.mark.parametrize("width", [1, 100], ids=["transposed", "as it lies"])
@pytest.mark.parametrize("activation", [None, nn.GELU()], ids=["bare", "activated"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, BF16], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
def test_a_projection_is_linear_of_the_activation(
    dtype: torch.dtype, activation: nn.Module | None, autocast: bool, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_kernels, "TRANSPOSED_WIDTH", width)
    with torch.autocast("cpu", BF16, enabled=autocast):
        got, expected = (with_gradients(f, dtype, activation) for f in (project, plainly))
    is_16_bit = dtype == BF16 or (autocast and dtype == torch.float32)
    # Autocast computes some activations in float32 and rounds after them; here all is in the dtype of the products.
    tolerance = 2**-6 if is_16_bit else 1e-6 if dtype == torch.float32 else 1e-12
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("frozen", ["rows", "weight", "bias"])
def test_what_is_frozen_gets_no_gradient(frozen: str) -> None:
    linear, rows = nn.Linear(6, 4), torch.randn(5, 6, requires_grad=True)
    tensors = {"rows": rows, "weight": linear.weight, "bias": linear.bias}
    tensors[frozen].requires_grad_(False)
    project(linear, rows, nn.GELU()).sum().backward()
    assert {name for name, tensor in tensors.items() if tensor.grad is None} == {frozen}


def test_only_the_rows_and_the_parameters_are_kept() -> None:
    """Neither what the activation makes of the rows nor the weights in 16 bits."""
    linear, rows, kept = nn.Linear(6, 4), torch.randn(5, 6, dtype=BF16, requires_grad=True), []
    keeping = torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.data_ptr()), lambda none: none)
    with keeping, torch.autocast("cpu", BF16):
        project(linear, rows, nn.GELU())
    assert set(kept) == {rows.data_ptr(), linear.weight.data_ptr()}


@pytest.mark.parametrize("activation", [None, nn.GELU()], ids=["bare", "activated"])
def test_a_projection_can_be_differentiated_twice(activation: nn.Module | None) -> None:
    linear, rows = nn.Linear(6, 4).double(), torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, *_: project(linear, x, activation), (rows, *linear.parameters()))


def test_a_projection_calls_what_is_no_bare_linear() -> None:
    linear, rows, seen = nn.Linear(6, 4), torch.randn(5, 6), []
    linear.register_forward_hook(lambda *_: seen.append(1))
    project(linear, rows)
    assert seen


@pytest.mark.parametrize("name", sorted(ACT2FN))
def test_every_activation_and_its_own_parameters_get_their_gradients(name: str) -> None:
    """Some have parameters, `prelu` for one."""
    torch.manual_seed(0)
    act, linear = activation_of(name).double(), nn.Linear(6, 4).double()
    rows, gradients = torch.randn(5, 6, dtype=torch.float64, requires_grad=True), []
    inputs = [rows, *act.parameters(), *linear.parameters()]
    for function in (project, plainly):
        gradients.append(torch.autograd.grad(function(linear, rows, act).sum(), inputs))
    for got, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected)


def test_operations_are_counted_as_for_the_modules() -> None:
    """By hooks for all modules at once, which must not be called on the way back."""
    counts = []
    for function in (project, plainly):
        rows = torch.randn(5, 6, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            function(nn.Linear(6, 4), rows, nn.GELU()).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 3 * 2 * 5 * 6 * 4


@pytest.mark.parametrize("frozen, kept", [("rows", {"rows"}), ("weight", {"weight"})])
def test_what_no_gradient_needs_is_not_kept(frozen: str, kept: set[str]) -> None:
    linear, rows, seen = nn.Linear(6, 4), torch.randn(5, 6, requires_grad=True), []
    tensors = {"rows": rows, "weight": linear.weight}
    tensors[frozen].requires_grad_(False)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x.data_ptr()), lambda none: none):
        project(linear, rows)
    assert set(seen) == {tensors[name].data_ptr() for name in kept}
