"""Spare rows for 16-bit products, the dtype of products, and when a module is a bare projection."""

import pytest
import torch
from torch import nn

from hf_encoders.models.encoder_matmul import is_bare_linear, matmul_dtype, spare_rows, with_spare_rows

from .tiny import MASKED_LM, right_padded, tiny_model


BF16 = torch.bfloat16


def rows_after(rows: int) -> int:
    return rows + spare_rows(torch.zeros(rows, 1, dtype=BF16))


def test_spare_rows_are_few() -> None:
    assert all(0 <= rows_after(rows) - rows <= rows / 32 for rows in range(5000))


def test_few_numbers_of_rows_are_left() -> None:
    """Between a power of two and the next, at most 32: steps of a 32nd of the lower."""
    for power in range(5, 13):
        assert len({rows_after(rows) for rows in range(2**power + 1, 2 ** (power + 1) + 1)}) <= 32
    assert {rows_after(rows) for rows in range(1025, 2049)} == set(range(1056, 2049, 32))


def test_padded_numbers_of_rows_stay() -> None:
    assert all(rows_after(rows_after(rows)) == rows_after(rows) for rows in range(5000))


def test_spare_rows_are_zeros_behind_the_others() -> None:
    rows = torch.randn(1090, 3, dtype=BF16)
    padded = with_spare_rows(rows)
    assert padded.shape == (1120, 3)
    assert torch.equal(padded[:1090], rows) and not padded[1090:].any()


def test_only_16_bit_products_get_spare_rows() -> None:
    for dtype in (torch.float32, torch.float64):
        assert spare_rows(torch.zeros(1090, 1, dtype=dtype)) == 0
    with torch.autocast("cpu", BF16):
        assert spare_rows(torch.zeros(1090, 1)) == 30
        assert spare_rows(torch.zeros(1090, 1, dtype=torch.float64)) == 0
    assert spare_rows(torch.zeros(1090, 1, dtype=BF16, device="meta")) == 0


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
    assert spare_rows(torch.zeros(int(batch["attention_mask"].sum()), 1, dtype=BF16)) == 1
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    results = []
    for _ in range(2):
        model.zero_grad()
        with torch.autocast("cpu", BF16, enabled=mode == "autocast"):
            outputs = model(**batch, return_logits=True)
        outputs.loss.backward()
        assert outputs.logits.shape == (8, 11, 41)
        results.append([outputs.loss, *(parameter.grad for parameter in model.parameters())])
        monkeypatch.setattr("hf_encoders.models.encoder_blocks.with_spare_rows", lambda rows: rows)
    norms = [torch.stack([value.float().norm() for value in values]) for values in results]
    difference = torch.stack([(one - two).float().norm() for one, two in zip(*results, strict=True)])
    assert results[0][0].item() == pytest.approx(results[1][0].item(), rel=1e-3)
    assert (difference <= 0.02 * norms[1] + 1e-3).all()


def hooked(register: str) -> nn.Linear:
    linear = nn.Linear(3, 4)
    getattr(linear, register)(lambda *arguments: None)
    return linear


HOOKS = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
)


class WithAdapter(nn.Linear):
    pass


def test_a_bare_linear_is_nothing_but_the_product() -> None:
    assert is_bare_linear(nn.Linear(3, 4))
    assert is_bare_linear(nn.Linear(3, 4, bias=False))


@pytest.mark.parametrize("register", HOOKS)
def test_a_hook_is_more_than_the_product(register: str) -> None:
    assert not is_bare_linear(hooked(register))


def test_other_modules_are_more_than_the_product() -> None:
    offloaded = nn.Linear(3, 4)
    offloaded.forward = lambda rows: rows
    parametrized = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))
    for module in (WithAdapter(3, 4), nn.Sequential(nn.Linear(3, 4)), nn.Identity(), offloaded, parametrized):
        assert not is_bare_linear(module)
