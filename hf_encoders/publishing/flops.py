"""Floating-point operations needed for a step, and the rate of a matrix product on this machine.

Their ratio is the model FLOP/s utilisation (MFU; Chowdhery et al. 2022, https://arxiv.org/abs/2204.02311, appendix B).
One forward pass needs

    2 * W * tokens  +  4 * layers * D * sum of L^2  +  2 * (D * E + E * V) * predicted tokens

with W the weights of a token's matrix products, those of a layer `4 * D^2 + 2 * D * I` (query, key, value and output;
feed-forward of width I) for each pass of a token through a layer; L the length of each sequence, whose scores and
weighted sums are `2 * L^2 * D` each; and the masked-LM head's dense layer and projection to V, of width E (D unless
embeddings are factorised). A pair objective adds `2 * (D^2 + 2 * D)` per pair. The backward pass needs twice the
forward pass. Only real tokens and, in the head, predicted tokens count: padding and unused scores lower the MFU.

Excludes everything except matrix products: embeddings, LayerNorm, activations, softmax, dropout, the optimizer.
"""

import time
from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_encoders.models.encoder_configuration import EncoderConfig


# Side of the square matrices: larger ones are not faster, and these take seconds on one core.
GEMM_SIDES = {"cpu": 2048, "cuda": 8192}
GEMM_TRIALS = 5


def forward_flops(config: EncoderConfig, lengths: Sequence[int], predicted: int = 0, pairs: int = 0) -> int:
    """Operations of one forward pass over sequences of `lengths` real tokens with predicted tokens and pairs."""
    squares = sum(length**2 for length in lengths)
    return forward_flops_of_counts(config, sum(lengths), squares, predicted, pairs)


def predicts_tokens(model: nn.Module) -> bool:
    """Whether labels may be tokens: False for a model without output embeddings."""
    output_embeddings = getattr(model, "get_output_embeddings", None)  # adapters forward the model's
    return output_embeddings is None or output_embeddings() is not None


def forward_flops_of_counts(
    config: EncoderConfig, tokens: int, squared_lengths: int, predicted: int = 0, pairs: int = 0
) -> int:
    """`forward_flops` from the sums of L and L^2 over the sequences; the configuration may be transformers' own."""
    width = config.hidden_size
    # Groups of layers, and embeddings of another width with a projection, exist in some families only.
    layers = config.num_hidden_layers * getattr(config, "inner_group_num", 1)
    embedding_width = getattr(config, "embedding_size", 0)
    weights = layers * (4 * width**2 + 2 * width * config.intermediate_size) + embedding_width * width
    head = (width + config.vocab_size) * (embedding_width or width)
    pair_head = width**2 + 2 * width
    attention = 4 * layers * width * squared_lengths
    return 2 * (weights * tokens + head * predicted + pair_head * pairs) + attention


def training_flops(
    model: PreTrainedModel, tokens: int, squared_lengths: int, predicted: int = 0, pairs: int = 0
) -> int:
    """Operations of the forward and backward passes of a training; with a forward pass of the model's teacher.

    Of a model with `parts`, such as a generator and a discriminator, those of all parts.
    """
    if parts := getattr(model, "parts", ()):
        return sum(training_flops(part, tokens, squared_lengths, predicted * predicts_tokens(part)) for part in parts)
    own, teacher = model.config, getattr(model, "teacher", None)
    if teacher is None:
        return 3 * forward_flops_of_counts(own, tokens, squared_lengths, predicted, pairs)
    # One projection of a token serves the soft targets and the hard ones.
    projected = tokens if model.loss_terms.get("ce") == "input_ids" else predicted
    both = ((3, own), (1, teacher.config))
    return sum(times * forward_flops_of_counts(one, tokens, squared_lengths, projected) for times, one in both)


def measure_gemm_rate(
    dtype: torch.dtype, device: torch.device, side: int | None = None, most_seconds: float = float("inf")
) -> float:
    """Maximum FLOP/s of five products of square matrices of `side` rows, or fewer in `most_seconds` but at least one.

    Does not change the state of torch's random generators.
    """
    side = side or GEMM_SIDES.get(device.type, GEMM_SIDES["cuda"])
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(side, side, generator=generator, device=device).to(dtype) for _ in range(2))
    started = time.perf_counter()
    left @ right  # warm-up
    seconds = []
    while len(seconds) < GEMM_TRIALS and (not seconds or time.perf_counter() - started < most_seconds):
        wait_for(device)
        begin = time.perf_counter()
        left @ right
        wait_for(device)
        seconds.append(time.perf_counter() - begin)
    return 2 * side**3 / min(seconds)


def wait_for(device: torch.device) -> None:
    """Synchronize with a CUDA device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
