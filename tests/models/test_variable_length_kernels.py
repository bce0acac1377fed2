"""Attention kernels for sequences of any length: their arguments and results, as far as a CPU goes."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_encoders import HfeBertConfig, HfeBertModel
from hf_encoders.models import encoder_attention
from hf_encoders.models.encoder_attention import attend_jagged
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


def test_jagged_attention_and_its_gradients_are_those_of_each_sequence_alone() -> None:
    states = [torch.randn(14, 3, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    tokens = flat_tokens(1, 14, torch.device("cpu"), cu_seq_lens=BOUNDS)
    results = [attend_jagged(*states, tokens, 0.3, 0.0), sequence_by_sequence(*states, 0.3)]
    torch.testing.assert_close(*results, atol=1e-12, rtol=1e-12)
    upstream = torch.randn_like(results[0])
    for got, expected in zip(*(torch.autograd.grad(result, states, upstream) for result in results), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12)


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


def test_on_cuda_ragged_batches_go_to_the_jagged_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice alone: a tensor that says it is on CUDA, and a stand-in for the kernel."""

    class OnCuda(torch.Tensor):
        device = torch.device("cuda")

    config = HfeBertConfig(hidden_size=24, num_attention_heads=3)
    attention = encoder_attention.EncoderSelfAttention(config).eval()
    attention.config._attn_implementation_internal = "sdpa"
    monkeypatch.setattr(encoder_attention, "attend_jagged", lambda *arguments: "jagged")
    states = [torch.randn(14, 3, 8).as_subclass(OnCuda) for _ in range(3)]
    tokens = flat_tokens(1, 14, torch.device("cpu"), cu_seq_lens=BOUNDS)
    assert attention._attend(tuple(states), tokens, output_attentions=False) == ("jagged", None)
