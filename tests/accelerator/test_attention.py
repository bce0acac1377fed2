"""Every attention path beside eager attention, whose rounding is the measure, and the statistics of dropout."""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.utils import is_flash_attn_2_available

from hf_encoders import HfeBertConfig, HfeBertModel, HfeXLNetModel
from hf_encoders.models.encoder_attention import EncoderSelfAttention
from hf_encoders.models.encoder_kernels import EncoderDropout
from hf_encoders.models.encoder_tokens import flat_tokens
from tests.models.tiny import BASE_MODELS, NO_DROPOUT, WITH_RELATIVE, packed, right_padded, tiny_config


FLASH = "flash_attention_2"
needs_flash = pytest.mark.skipif(not is_flash_attn_2_available(), reason="flash-attn is not installed")
# Flash attention takes heads whose width is a multiple of 8, and not XLNet's distances.
EACH_PATH = [
    *(
        (model_class, width, "sdpa", precision)
        for model_class in BASE_MODELS
        for width in (64, 6)
        for precision in ("float32", "autocast", "bfloat16")
    ),
    *(
        pytest.param(model_class, 64, FLASH, precision, marks=needs_flash)
        for model_class in BASE_MODELS
        if model_class._supports_flash_attn
        for precision in ("autocast", "bfloat16")
    ),
]
# Of the norm of the exact result. Eager attention has 1e-6 and 1e-2 on a CPU.
LARGEST = {"float32": 1e-5, "autocast": 5e-2, "bfloat16": 5e-2}
# Of eager attention's error, and in any case. Efficient attention adds three products in TF32 for one in float32.
MOST = {"cpu": (2, 1e-6), "cuda": (4, 3e-6)}
LENGTHS = (11, 4, 7, 1, 9)


def make_model(model_class: type[PreTrainedModel], device: torch.device, width: int, **fields: Any) -> PreTrainedModel:
    """Heads of `width`: kernels for 16 bits take multiples of 8, others fall back."""
    torch.manual_seed(5)
    sizes = {"hidden_size": 2 * width, "num_attention_heads": 2, "initializer_range": 0.1, **NO_DROPOUT}
    return model_class(tiny_config(model_class.config_class, **{**sizes, **fields})).to(device)


def batches_of(config: Any, device: torch.device, ordered: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """A padded, a packed and a full batch; if `ordered`, XLNet's, in which every token is predicted too."""
    padded = right_padded(config, LENGTHS)
    full = {"input_ids": padded["input_ids"].clamp(min=2)}
    for name, batch in (("padded", padded), ("packed", packed(padded)), ("full", full)):
        batch = {key: value.to(device) for key, value in batch.items()}
        if ordered:
            ids = batch["input_ids"]
            order = torch.rand(ids.shape, generator=torch.Generator().manual_seed(2)).argsort(dim=-1) + 1
            queries = batch.get("attention_mask", torch.ones_like(ids)).bool()
            batch |= {"order": order.to(device), "queries": queries, "flat_output": True}
        yield name, batch


def states_and_gradients(
    model: PreTrainedModel, batch: dict[str, torch.Tensor], implementation: str, precision: str
) -> list[torch.Tensor]:
    """Hidden states of the real tokens, and of query rows, and all gradients of a weighted sum of them.

    Two float64 vectors.
    """
    model.set_attn_implementation(implementation)
    model.to({"exact": torch.float64, "bfloat16": torch.bfloat16}.get(precision, torch.float32))
    is_16_bit = precision == "autocast"
    device = model.device.type
    with torch.autocast(device, dtype=torch.bfloat16) if is_16_bit else nullcontext():
        states = model(**batch).last_hidden_state
    if not batch.get("flat_output"):
        states = states[batch["attention_mask"] == 1] if "attention_mask" in batch else states.flatten(0, 1)
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(1)).to(states)
    model.zero_grad()
    (states * weights).sum().backward()
    gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return [values.detach().double() for values in (states.flatten(), torch.cat(gradients))]


def check_against_eager(
    model: PreTrainedModel, implementation: str, precision: str, device: torch.device, ordered: bool = False
) -> None:
    weights = {name: value.clone() for name, value in model.state_dict().items()}

    def found(batch: dict[str, torch.Tensor], implementation: str, precision: str) -> list[torch.Tensor]:
        model.float().load_state_dict(weights)
        return states_and_gradients(model, batch, implementation, precision)

    times, least = MOST[device.type]
    for name, batch in batches_of(model.config, device, ordered):
        exact, eager = (found(batch, "eager", how) for how in ("exact", precision))
        got = found(batch, implementation, precision)
        for what, true, other, one in zip(("states", "gradients"), exact, eager, got, strict=True):
            error, of_eager = ((x - true).norm() / true.norm() for x in (one, other))
            assert error <= max(times * of_eager, least), (name, what, float(error), float(of_eager))
            assert error <= LARGEST[precision], (name, what, float(error))


@pytest.mark.parametrize(("model_class", "width", "implementation", "precision"), EACH_PATH)
def test_every_path_rounds_like_eager(device, model_class, width, implementation, precision):
    check_against_eager(make_model(model_class, device, width), implementation, precision, device)


@pytest.mark.parametrize("precision", ["float32", "autocast"])
@pytest.mark.parametrize("positions", ["relative_key", "relative_key_query"])
@pytest.mark.parametrize("model_class", WITH_RELATIVE)
def test_relative_positions_round_like_eager(device, model_class, positions, precision):
    model = make_model(model_class, device, 64, position_embedding_type=positions)
    check_against_eager(model, "sdpa", precision, device)


@pytest.mark.parametrize("width", [64, 6])
@pytest.mark.parametrize("precision", ["float32", "autocast", "bfloat16"])
def test_an_order_rounds_like_eager(device, precision, width):
    """The query of the first token in an order sees nothing."""
    check_against_eager(make_model(HfeXLNetModel, device, width), "sdpa", precision, device, ordered=True)


@pytest.mark.parametrize("p", [0.1, 0.25])
@pytest.mark.parametrize(
    ("implementation", "dtype"),
    [
        ("eager", torch.float32),
        ("sdpa", torch.float32),
        ("sdpa", torch.bfloat16),
        pytest.param(FLASH, torch.bfloat16, marks=needs_flash),
    ],
)
@pytest.mark.parametrize("ragged", [True, False])
def test_attention_drops_the_share_that_it_should(device, implementation, dtype, ragged, p):
    """All weights are 1 / L and all values 1: a context is its kept weights over their expected number, (1 - p) L.

    Of 256 flash attention drops 64 for a quarter, and 26 for a tenth; other kernels have 16ths.
    """
    length, sequences = 64, 64
    config = HfeBertConfig(hidden_size=128, num_attention_heads=2, attention_probs_dropout_prob=p)
    config._attn_implementation = implementation
    attention = EncoderSelfAttention(config).to(device, dtype).train()
    for parameter in attention.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.ones_(attention.value.bias)
    bounds = torch.arange(0, length * sequences + 1, length, device=device)
    tokens = flat_tokens(1, length * sequences, device, cu_seq_lens=bounds)
    if not ragged:
        tokens = flat_tokens(sequences, length, device)
    states = torch.zeros(length * sequences, 128, device=device, dtype=dtype)
    context, _ = attention(states, tokens)
    again, _ = attention(states, tokens)
    assert not torch.equal(context, again)
    of_heads = context.detach().double().view(-1, 2, 64)[..., 0].flatten().cpu()
    deviation = math.sqrt(p / ((1 - p) * length))
    count = of_heads.numel()  # 8,192 sums of 64 draws each
    rounding = torch.finfo(dtype).eps
    assert abs(of_heads.mean() - 1) < 5 * deviation / math.sqrt(count) + rounding
    assert of_heads.std() == pytest.approx(deviation, rel=5 / math.sqrt(2 * count) + rounding)
    # The backward pass drops the same ones: what a value gets is the sum of its weights.
    context.float().sum().backward()
    sums = context.detach().double().sum(dim=0)
    torch.testing.assert_close(attention.value.bias.grad.double(), sums, rtol=4 * rounding, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_keeps_the_mean_and_repeats_by_seed(device, dtype):
    p, states = 0.1, torch.ones(1000, 1000, device=device, dtype=dtype)
    dropout = EncoderDropout(p).train()
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(dropout(states, states) - states)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    share = drawn[0].double().eq(0).double().mean()
    assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / states.numel()) + 1 / 65536
    assert abs(drawn[0].double().mean() - 1) < 5 * math.sqrt(p / (1 - p) / states.numel()) + torch.finfo(dtype).eps


def test_flash_attention_is_there_or_refused_before_any_step(device):
    """Without the library the error is transformers'."""
    is_there = is_flash_attn_2_available()
    with nullcontext() if is_there else pytest.raises(ImportError, match="(?i)flash"):
        make_model(HfeBertModel, device, 64).set_attn_implementation(FLASH)
