"""Dropout with 16-bit masks: its values, its statistics, and that a seed repeats it."""

import math

import pytest
import torch
from transformers import PreTrainedModel

from hf_encoders.models import encoder_kernels
from hf_encoders.models.encoder_kernels import (
    EncoderDropout,
    attend_with_dropout,
    random_bits,
    scaled_mask,
)
from tests.models.tiny import MASKED_LM, right_padded, tiny_model


STEPS = 65536
FLOATS = (torch.float32, torch.bfloat16, torch.float64)
DRAWS = 2**18
# Of a normal variable, 1 in 16,000 lies outside; the seeds are fixed, so a test that passes goes on to do so.
STANDARD_ERRORS = 4
each_probability = pytest.mark.parametrize("probability", [0.1, 0.5, 0.03])
each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def share_dropped(probability: float) -> float:
    """The probability as a multiple of 1/65536."""
    return round(probability * STEPS) / STEPS


def mask_of(probability: float, num_elements: int = DRAWS, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return EncoderDropout(probability)(torch.ones(num_elements, dtype=dtype))


# --- exact ---


@each_dtype
def test_bits_below_the_threshold_are_dropped(dtype: torch.dtype) -> None:
    """0.1 is 6554 of 65536: of all 65536 patterns the lowest 6554 are dropped, the rest is scaled by their inverse."""
    bits = torch.arange(-STEPS // 2, STEPS // 2).to(torch.int16)
    mask = scaled_mask(bits, 0.1, dtype)
    assert mask.dtype == dtype
    assert not mask[:6554].any()
    assert torch.equal(mask[6554:], torch.full((STEPS - 6554,), STEPS / (STEPS - 6554), dtype=dtype))
    if dtype != torch.bfloat16:  # which rounds the scale itself
        assert mask.double().mean().item() == pytest.approx(1.0, abs=1e-7)


@each_dtype
def test_residual_form_is_mask_times_input_plus_residual(dtype: torch.dtype) -> None:
    hidden, residual = torch.randn(2, 5, 7, dtype=dtype)
    hidden.requires_grad_(), residual.requires_grad_()
    outputs = []
    for _ in range(2):
        torch.manual_seed(3)
        outputs.append(EncoderDropout(0.3)(hidden, residual))
    torch.manual_seed(3)
    # In bfloat16 the factor is that of float32, and only the result is rounded.
    exact = torch.promote_types(dtype, torch.float32)
    mask = EncoderDropout(0.3)(torch.ones(5, 7, dtype=exact))
    expected = (mask * hidden + residual).to(dtype)
    tolerance = {torch.bfloat16: 1e-2, torch.float32: 1e-6, torch.float64: 1e-14}[dtype]
    torch.testing.assert_close(outputs[0], expected, atol=tolerance, rtol=tolerance)
    assert torch.equal(outputs[0], outputs[1])
    upstream = torch.randn(5, 7, dtype=dtype)
    gradients = torch.autograd.grad(outputs[0], (hidden, residual), upstream)
    assert torch.equal(gradients[0], (mask * upstream).to(dtype))
    assert torch.equal(gradients[1], upstream)


def test_the_mean_is_kept_in_bfloat16_too() -> None:
    """1/0.9 is 1.109 in bfloat16, 0.16 % too little; with many values the mean tells."""
    torch.manual_seed(0)
    values = torch.rand(2000, 1000).add_(0.5).bfloat16()
    dropped = EncoderDropout(0.1)(values)
    # The standard error of the ratio is sqrt(0.1 / 0.9 / 2e6) * 1.04 = 0.00025.
    assert dropped.double().mean() / values.double().mean() == pytest.approx(1.0, abs=0.001)


def test_gradients_without_residual_and_with_a_frozen_one() -> None:
    hidden, upstream = torch.randn(5, 7, requires_grad=True), torch.randn(5, 7)
    for residual in (None, torch.zeros(5, 7)):
        torch.manual_seed(3)
        output = EncoderDropout(0.3)(hidden, residual)
        (gradient,) = torch.autograd.grad(output, hidden, upstream)
        torch.testing.assert_close(gradient * hidden, output * upstream)  # both mask * hidden * upstream


def test_half_precision_joins_a_float32_residual_in_float32() -> None:
    """What autocast makes of a projection and of what went around it."""
    hidden = torch.randn(5, 7).bfloat16().requires_grad_()
    residual = torch.randn(5, 7, requires_grad=True)
    torch.manual_seed(3)
    output = EncoderDropout(0.3)(hidden, residual)
    torch.manual_seed(3)
    mask = mask_of(0.3, 35).view(5, 7)
    assert output.dtype == torch.float32
    torch.testing.assert_close(output, mask * hidden.float() + residual, atol=1e-6, rtol=1e-6)
    output.sum().backward()
    assert torch.equal(hidden.grad, mask.bfloat16())
    assert torch.equal(residual.grad, torch.ones(5, 7))


@pytest.mark.parametrize("shape", [(0, 4), (1,), (3,), (5, 7), (2, 3, 3)])
def test_any_number_of_elements(shape: tuple[int, ...]) -> None:
    """Four elements share a 64-bit draw; the last draw may have bits to spare."""
    assert random_bits(shape, 5).shape == shape and random_bits(shape, 5).dtype == torch.int16
    output = EncoderDropout(0.5)(torch.ones(shape))
    assert output.shape == shape
    assert set(output.unique().tolist()) <= {0.0, 2.0}


@each_dtype
def test_nothing_is_dropped_in_eval_or_with_probability_zero_and_all_with_one(dtype: torch.dtype) -> None:
    hidden, residual = torch.randn(2, 5, 7, dtype=dtype)
    for dropout in (EncoderDropout(0.5).eval(), EncoderDropout(0.0)):
        assert dropout(hidden) is hidden
        assert torch.equal(dropout(hidden, residual), hidden + residual)
    assert not EncoderDropout(1.0)(hidden).any()
    assert torch.equal(EncoderDropout(1.0)(hidden, residual), residual)


@pytest.mark.parametrize("probability", [1e-6, 1 - 1e-6])
def test_probabilities_between_two_steps_are_left_to_torch(probability: float) -> None:
    """Rounded to 16 bits they would drop nothing, or all."""
    hidden = torch.ones(DRAWS)
    torch.manual_seed(3)
    expected = torch.nn.functional.dropout(hidden, probability)
    torch.manual_seed(3)
    assert torch.equal(EncoderDropout(probability)(hidden), expected)


# --- seeded statistics ---


@each_probability
def test_mean_variance_and_share_dropped(probability: float) -> None:
    """A mask has mean 1 and variance p / (1 - p)."""
    dropped, mask = share_dropped(probability), mask_of(probability, 2**20).double()
    error = STANDARD_ERRORS * math.sqrt(dropped * (1 - dropped) / len(mask))  # of the share
    assert (mask == 0).double().mean().item() == pytest.approx(dropped, abs=error)
    assert mask.mean().item() == pytest.approx(1.0, abs=error / (1 - dropped))
    assert mask.var().item() == pytest.approx(dropped / (1 - dropped), rel=error / dropped)


@each_probability
def test_neighbours_are_uncorrelated(probability: float) -> None:
    """Also those four apart, which stand at the same place of two draws."""
    mask = mask_of(probability)
    for distance in (1, 2, 3, 4, 8):
        correlation = torch.corrcoef(torch.stack([mask[:-distance], mask[distance:]]))[0, 1]
        assert abs(correlation) < STANDARD_ERRORS / math.sqrt(DRAWS)


@each_probability
def test_the_four_elements_of_a_draw_are_independent_and_alike(probability: float) -> None:
    """The highest of 64 bits is a sign; no place may be favoured by that."""
    places, dropped = mask_of(probability).view(-1, 4), share_dropped(probability)
    error = STANDARD_ERRORS * math.sqrt(dropped * (1 - dropped) / len(places))
    shares = (places == 0).double().mean(dim=0)
    torch.testing.assert_close(shares, torch.full_like(shares, dropped), atol=error, rtol=0)
    correlations = torch.corrcoef(places.T) - torch.eye(4)
    assert correlations.abs().max() < STANDARD_ERRORS / math.sqrt(len(places))


def test_processes_with_batches_of_different_size_draw_different_masks() -> None:
    """Trainer seeds all of them alike."""
    masks = []
    for rows in (500, 501):
        torch.manual_seed(3)
        mask_of(0.5, 7)
        masks.append(mask_of(0.5, 8 * rows)[:4000])
    assert (masks[0] == masks[1]).float().mean() == pytest.approx(0.5, abs=STANDARD_ERRORS * 0.5 / math.sqrt(4000))


def test_no_mask_is_kept_for_the_way_back() -> None:
    kept = []
    hidden = torch.randn(50, 7, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor), lambda none: none):
        EncoderDropout(0.3)(hidden, torch.zeros(50, 7))
    assert not kept


# --- attention ---


def heads_of(lengths: list[int], dtype: torch.dtype = torch.float64, requires_grad: bool = False) -> torch.Tensor:
    """Query, key and value of 3 heads of width 5: `(3, N, 3, 5)`."""
    return torch.randn(3, sum(lengths), 3, 5, dtype=dtype, requires_grad=requires_grad)


def one_call_a_sequence(query_key_value: torch.Tensor, lengths: list[int], scaling: float) -> torch.Tensor:
    """torch's kernel, without dropout: `(N, A, H)`."""
    sequences = zip(*(x.split(lengths) for x in query_key_value), strict=True)
    contexts = [
        torch.nn.functional.scaled_dot_product_attention(*(x.transpose(0, 1) for x in sequence), scale=scaling)
        for sequence in sequences
    ]
    return torch.cat([context.transpose(0, 1) for context in contexts])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("lengths", [[4, 1, 7], [6]], ids=str)
def test_attention_with_a_mask_of_ones_is_torchs_kernel(
    lengths: list[int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ones(bits: torch.Tensor, probability: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.ones(bits.shape, dtype=dtype)

    monkeypatch.setattr(encoder_kernels, "scaled_mask", ones)
    heads = heads_of(lengths, dtype, requires_grad=True)
    got = attend_with_dropout(*heads, lengths, 0.7, 0.25)
    expected = one_call_a_sequence(heads, lengths, 0.7)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)
    upstream = torch.randn(got.shape, dtype=dtype)
    gradients = [torch.autograd.grad(output, heads, upstream)[0] for output in (got, expected)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("has_private_name", [True, False])
@pytest.mark.parametrize("lengths", [[4, 1, 7], [6]], ids=str)
def test_attention_is_the_formula_with_the_weights_that_were_drawn(
    lengths: list[int], has_private_name: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_private_name:
        monkeypatch.delattr(torch, "_softmax_backward_data")
    bits = torch.randint(-STEPS // 2, STEPS // 2, (sum(3 * length**2 for length in lengths),)).to(torch.int16)
    monkeypatch.setattr(encoder_kernels, "random_bits", lambda shape, _: bits.view(shape).clone())
    heads, masks = heads_of(lengths, requires_grad=True), scaled_mask(bits, 0.25, torch.float64)
    contexts = []
    sizes = [3 * length**2 for length in lengths]
    for length, mask, sequence in zip(lengths, masks.split(sizes), heads.split(lengths, dim=1), strict=True):
        query, key, value = sequence
        weights = (torch.einsum("iah,jah->aij", query, key) * 0.7).softmax(dim=-1)
        contexts.append(torch.einsum("aij,jah->iah", weights * mask.view(3, length, length), value))
    got, expected = attend_with_dropout(*heads, lengths, 0.7, 0.25), torch.cat(contexts)
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12)
    upstream = torch.randn(got.shape, dtype=torch.float64)
    gradients = [torch.autograd.grad(output, heads, upstream)[0] for output in (got, expected)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=1e-12)


def test_attention_of_bfloat16_is_computed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """With autocast or without: only the result is rounded, to 2^-8 of itself."""
    bits = random_bits((3 * 49,), 5)
    monkeypatch.setattr(encoder_kernels, "random_bits", lambda shape, _: bits.view(shape).clone())
    heads = heads_of([7], torch.bfloat16)
    expected = attend_with_dropout(*heads.float(), [7], 0.5, 0.25)
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            got = attend_with_dropout(*heads, [7], 0.5, 0.25)
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.float(), expected, atol=2**-9, rtol=2**-8)


# --- whole models ---


def loss_and_gradients(model: PreTrainedModel, batch: dict[str, torch.Tensor], seed: int) -> list[torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(seed)
    loss = model(**batch).loss
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize("kind", ["full", "ragged"])
@pytest.mark.parametrize("model_class", MASKED_LM)
def test_a_seed_repeats_a_training_step_bit_for_bit_and_under_checkpointing(
    model_class: type[PreTrainedModel], kind: str
) -> None:
    fields = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    model = tiny_model(model_class, **fields).train()
    batch = right_padded(model.config, (7, 4, 2) if kind == "ragged" else (7, 7, 7))
    labels = batch["input_ids"].masked_fill(torch.arange(7) % 2 == 1, -100)
    batch["labels"] = labels.masked_fill(batch["attention_mask"] == 0, -100)
    first, again, other = (loss_and_gradients(model, batch, seed) for seed in (3, 3, 4))
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    for use_reentrant in (False, True):
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        torch.testing.assert_close(loss_and_gradients(model, batch, 3), first, atol=1e-6, rtol=1e-6)


def test_torchs_own_operations_run_where_torch_cannot_say_that_it_transforms(monkeypatch: pytest.MonkeyPatch) -> None:
    assert encoder_kernels.is_eager()
    monkeypatch.delattr(torch._C, "_are_functorch_transforms_active")
    assert not encoder_kernels.is_eager()
