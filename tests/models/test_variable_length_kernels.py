"""Attention kernels for sequences of any length: their arguments and results, as far as a CPU goes."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_encoders import HfeBertConfig, HfeBertForMaskedLM, HfeBertModel
from hf_encoders.cuda_kernels import attend_without_padding, bounds_of
from hf_encoders.models import encoder_attention
from hf_encoders.models.encoder_attention import without_cudnn
from hf_encoders.models.encoder_tokens import flat_tokens


LENGTHS = [5, 2, 7]
BOUNDS = torch.tensor([0, 5, 7, 14])


def sequence_by_sequence(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    pieces = zip(*(x.split(LENGTHS) for x in (query, key, value)), strict=True)
    return torch.cat(
        [
            nn.functional.scaled_dot_product_attention(*(x.transpose(0, 1) for x in piece), scale=scale).transpose(
                0, 1
            )
            for piece in pieces
        ]
    )


class Kernels:
    """In the place of torch's: the arguments that they take, and attention to each sequence alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, usable: tuple[str, ...] = ("flash", "efficient")) -> None:
        self.calls: list[tuple[str, int, float, bool]] = []
        monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", self.flash)
        monkeypatch.setattr(torch.ops.aten, "_efficient_attention_forward", self.efficient)

        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
        monkeypatch.setattr(torch.backends.cuda, "flash_sdp_enabled", lambda: "flash" in usable)
        monkeypatch.setattr(torch.backends.cuda, "mem_efficient_sdp_enabled", lambda: "efficient" in usable)

    def flash(self, *arguments: Any, scale: float) -> tuple[torch.Tensor, ...]:
        *heads, bounds, same, longest, _, dropout, is_causal, returns_mask = arguments
        assert not is_causal and not returns_mask and heads[0].element_size() == 2
        return self.attend("flash", heads, bounds, same, longest, dropout, scale, False), None

    def efficient(self, *arguments: Any, scale: float) -> tuple[torch.Tensor, ...]:
        *heads, bias, bounds, same, longest, _, dropout, mask_type, needs_gradients = arguments
        assert bias is None and mask_type == 0 and heads[0].shape[0] == 1
        heads = [x.squeeze(0) for x in heads]
        context = self.attend("efficient", heads, bounds, same, longest, dropout, scale, needs_gradients)
        return context.unsqueeze(0), None

    def attend(
        self, name: str, heads: list, bounds: Any, same: Any, longest: int, dropout: float, scale: float, needs
    ):
        assert bounds is same and bounds.dtype == torch.int32 and bounds.tolist() == BOUNDS.tolist() and longest == 7
        self.calls.append((name, heads[0].shape[-1], dropout, needs))
        return sequence_by_sequence(*heads, scale)


@pytest.mark.parametrize("width", [8, 6])
@pytest.mark.parametrize(
    ("dtype", "kernel", "dropout"), [(torch.float32, "efficient", 0.0), (torch.bfloat16, "flash", 0.25)]
)
def test_kernels_for_cuda_attend_to_each_sequence_alone(dtype, kernel, dropout, width, monkeypatch) -> None:
    """With gradients; heads get columns of zeros up to a multiple of 8, which the context is without."""
    kernels = Kernels(monkeypatch)
    states = [torch.randn(14, 3, width, dtype=dtype, requires_grad=True) for _ in range(3)]
    on_cuda = tuple(x.as_subclass(OnCuda) for x in states)
    tokens = flat_tokens(1, 14, torch.device("cpu"), cu_seq_lens=BOUNDS)
    results = [
        attend_without_padding(on_cuda, tokens, 0.3, dropout).as_subclass(torch.Tensor),
        sequence_by_sequence(*states, 0.3),
    ]
    assert kernels.calls == [(kernel, 8, dropout, kernel == "efficient")]
    tolerance = {"atol": 1e-6, "rtol": 1e-6} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    torch.testing.assert_close(*results, **tolerance)
    upstream = torch.randn_like(results[0])
    for got, expected in zip(*(torch.autograd.grad(result, states, upstream) for result in results), strict=True):
        torch.testing.assert_close(got, expected, **tolerance)


def test_the_kernel_that_drops_the_same_weights_everywhere_is_left_out(monkeypatch) -> None:
    kernels = Kernels(monkeypatch)
    states = tuple(torch.randn(14, 3, 8).as_subclass(OnCuda) for _ in range(3))
    tokens = flat_tokens(1, 14, torch.device("cpu"), cu_seq_lens=BOUNDS)
    assert attend_without_padding(states, tokens, 0.3, 0.25) is None and not kernels.calls


def test_where_torch_has_no_kernel_sequences_are_padded(monkeypatch) -> None:
    kernels = Kernels(monkeypatch, usable=())
    states = tuple(torch.randn(14, 3, 8) for _ in range(3))
    tokens = flat_tokens(1, 14, torch.device("cpu"), cu_seq_lens=BOUNDS)
    assert attend_without_padding(states, tokens, 0.3, 0.0) is None and not kernels.calls
    attention = attention_of_3_heads()
    got, _ = attention._attend(tuple(x.as_subclass(OnCuda) for x in states), tokens, output_attentions=False)
    expected = sequence_by_sequence(*states, attention.scaling)
    torch.testing.assert_close(got.as_subclass(torch.Tensor), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("dtype", "calls"), [(torch.float16, ["efficient"]), (torch.bfloat16, [])])
def test_devices_before_ampere_have_no_flash_attention(dtype, calls, monkeypatch) -> None:
    kernels = Kernels(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    states = tuple(torch.randn(14, 3, 8, dtype=dtype).as_subclass(OnCuda) for _ in range(3))
    tokens = flat_tokens(1, 14, torch.device("cpu"), cu_seq_lens=BOUNDS)
    context = attend_without_padding(states, tokens, 0.3, 0.0)
    assert [name for name, *_ in kernels.calls] == calls and (context is None) == (not calls)


def test_bounds_are_on_the_device_of_each_part_of_a_model() -> None:
    tokens = flat_tokens(2, 5, torch.device("cpu"))
    for device in (torch.device("cpu"), torch.device("meta")):
        bounds, longest = bounds_of(tokens.to(device), device)
        assert bounds.device == device and bounds.dtype == torch.int32 and longest == 5


def test_only_cudnn_is_left_out() -> None:
    """Kernels that are switched off stay so, and cuDNN is back afterwards, also after an error."""
    query = torch.randn(1).as_subclass(OnCuda)
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        with pytest.raises(RuntimeError), without_cudnn(query):
            assert not torch.backends.cuda.cudnn_sdp_enabled() and not torch.backends.cuda.flash_sdp_enabled()
            raise RuntimeError
        assert torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


def test_a_replica_of_data_parallel_runs_though_it_has_no_parameters() -> None:
    config = HfeBertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    model = HfeBertForMaskedLM(config).eval()

    def replica_of(module: nn.Module) -> nn.Module:
        replica = module._replicate_for_data_parallel()
        for name, child in module._modules.items():
            setattr(replica, name, replica_of(child))
        for name, parameter in module._parameters.items():
            setattr(replica, name, None if parameter is None else parameter.clone())
        return replica

    replica, ids = replica_of(model), torch.tensor([[5, 6, 7]])
    assert not list(replica.parameters())
    assert torch.equal(replica(ids).logits, model(ids).logits)


def test_the_arguments_are_those_of_torch() -> None:
    """As in torch 2.8: what follows them has a default."""
    forward = ("query", "key", "value")
    lengths = ("cum_seq_q", "cum_seq_k", "max_q", "max_k")
    needed = {
        torch.ops.aten._flash_attention_forward: [*forward, *lengths, "dropout_p", "is_causal", "return_debug_mask"],
        torch.ops.aten._efficient_attention_forward: [*forward, "bias", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q"]
        + ["max_seqlen_k", "dropout_p", "custom_mask_type", "compute_log_sumexp"],
    }
    for kernel, names in needed.items():
        arguments = kernel.default._schema.arguments
        assert [one.name for one in arguments[: len(names)]] == names
        assert all(one.kwarg_only for one in arguments[len(names) :])
        assert "scale" in {one.name for one in arguments}


@pytest.mark.parametrize("packed", [True, False])
def test_flash_attention_gets_flat_tokens_and_bounds(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that does what the kernel would: transformers' signature, `(1, A, N, H)` -> `(1, N, A, H)`."""
    calls = []

    def stand_in(
        module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
    ) -> tuple[torch.Tensor, None]:
        assert mask is None and query.shape[0] == 1
        assert options["cu_seq_lens_q"].dtype == options["cu_seq_lens_k"].dtype == torch.int32
        assert options["cu_seq_lens_q"].tolist() == BOUNDS.tolist() and options["max_length_q"] == 7
        calls.append(options["dropout"])
        flat = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
        return sequence_by_sequence(*flat, options["scaling"]).unsqueeze(0), None

    config = HfeBertConfig(
        vocab_size=50, hidden_size=24, num_attention_heads=3, num_hidden_layers=2, intermediate_size=40
    )
    model = HfeBertModel(config).eval()
    ids = torch.randint(5, 50, (14,))
    if packed:
        batch = {"input_ids": ids[None], "cu_seq_lens_q": BOUNDS}
    else:
        is_real = torch.arange(9) < torch.tensor(LENGTHS)[:, None]
        batch = {
            "input_ids": torch.zeros(3, 9, dtype=torch.long).masked_scatter(is_real, ids),
            "attention_mask": is_real,
        }
    expected = model(**batch)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", stand_in)
    model.config._attn_implementation_internal = "flash_attention_2"
    got = model(**batch)
    assert calls == [0.0, 0.0]
    for name in ("last_hidden_state", "pooler_output"):
        torch.testing.assert_close(got[name], expected[name], atol=1e-5, rtol=1e-5)


class OnCuda(torch.Tensor):
    """Says that it is on CUDA."""

    device = torch.device("cuda")


def attention_of_3_heads() -> encoder_attention.EncoderSelfAttention:
    attention = encoder_attention.EncoderSelfAttention(HfeBertConfig(hidden_size=24, num_attention_heads=3)).eval()
    attention.config._attn_implementation_internal = "sdpa"
    return attention


@pytest.mark.parametrize(
    ("layout", "goes_there"),
    [
        ({"batch_size": 1, "row_length": 14, "cu_seq_lens": BOUNDS}, True),
        ({"batch_size": 2, "row_length": 7}, True),
        ({"batch_size": 2, "row_length": 7, "attention_mask": torch.zeros(2, 1, 7, 7)}, False),
    ],
    ids=["packed", "full", "mask"],
)
def test_on_cuda_sequences_go_to_kernels_for_any_length(layout, goes_there, monkeypatch) -> None:
    """So that cuDNN's kernels are not chosen, with their dropout in sixteenths; where there is a mask they are off."""
    cudnn = []

    def padded(module: nn.Module, query: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
        cudnn.append(torch.backends.cuda.cudnn_sdp_enabled())
        return query.transpose(1, 2), None

    monkeypatch.setattr(encoder_attention, "attend_without_padding", lambda *arguments: "context")
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", padded)
    states = [torch.randn(14, 3, 8).as_subclass(OnCuda) for _ in range(3)]
    tokens = flat_tokens(device=torch.device("cpu"), **layout)
    context, _ = attention_of_3_heads()._attend(tuple(states), tokens, output_attentions=False)
    assert context == "context" if goes_there else context.shape == (14, 3, 8)
    assert cudnn == [False] * (not goes_there)
    assert torch.backends.cuda.cudnn_sdp_enabled()
