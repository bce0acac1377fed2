"""Describe this machine, and measure memory and floating-point operations of a computation.

Operations needed over those that a matrix product makes in the same time are the model FLOP/s utilisation (MFU;
Chowdhery et al. 2022, https://arxiv.org/abs/2204.02311, appendix B). One forward pass needs

    2 * W * tokens  +  4 * layers * D * sum of L^2  +  2 * (D * E + E * V) * predicted tokens

with W the weights of a token's matrix products, those of a layer `4 * D^2 + 2 * D * I` (query, key, value and output;
feed-forward of width I) for each pass of a token through a layer; L the length of each sequence, whose scores and
weighted sums are `2 * L^2 * D` each; and the masked-LM head's dense layer and projection to V, of width E (D unless
embeddings are factorised). A pair objective adds `2 * (D^2 + 2 * D)` per pair, the backward pass twice the forward
pass. Padding and unused scores lower the MFU; all that is not a matrix product is left out.
"""

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedModel

from hf_encoders.models.encoder_configuration import EncoderConfig


# At this level the profiler's library prints nothing.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def describe_hardware() -> str:
    """Return processor or accelerator of this machine, and on a CPU how much of it this process and its peers use."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    threads = torch.get_num_threads()
    used = f"{threads} threads" if threads > 1 else "1 thread"
    in_parallel = torch.distributed.is_available() and torch.distributed.is_initialized()
    if in_parallel and (processes := torch.distributed.get_world_size()) > 1:
        used = f"{processes} processes of {used}"
    return f"CPU ({platform.machine()}), {used}"


def describe_software() -> dict[str, str]:
    """Return the versions of Python, torch and transformers."""
    return {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}


def cpu_model() -> str:
    """Return the processor's name where the system reports it, otherwise its architecture."""
    file = Path("/proc/cpuinfo")  # Linux; `platform` knows the name elsewhere
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def peak_on_cuda(run: Callable[[], Any], device: torch.device) -> int:
    """Return the peak bytes of torch's allocator during `run()`, above those before it."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def peak_on_cpu(run: Callable[[], Any]) -> int:
    """Return the peak bytes of tensors held during `run()`, above those before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    # Single allocations are only in the exported trace; the profiler's own tables hold sums.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    sizes = [(event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]"]
    held = peak = 0
    for _, size in sorted(sizes, key=lambda event: event[0]):
        held += size
        peak = max(peak, held)
    return peak


# Side of the square matrices: larger ones are not faster, and these take seconds on one core.
GEMM_SIDES = {"cpu": 2048, "cuda": 8192}
GEMM_TRIALS = 5


def forward_flops(config: EncoderConfig, lengths: Sequence[int], predicted: int = 0, pairs: int = 0) -> int:
    """Return the operations of one forward pass over sequences of `lengths` real tokens."""
    squares = sum(length**2 for length in lengths)
    return forward_flops_of_counts(config, sum(lengths), squares, predicted, pairs)


def predicts_tokens(model: nn.Module) -> bool:
    """Return whether labels may be tokens: False for a model without output embeddings."""
    output_embeddings = getattr(model, "get_output_embeddings", None)  # adapters forward the model's
    return output_embeddings is None or output_embeddings() is not None


def forward_flops_of_counts(
    config: EncoderConfig, tokens: int, squared_lengths: int, predicted: int = 0, pairs: int = 0
) -> int:
    """Return `forward_flops` from the sums of L and L^2; the configuration may be transformers' own."""
    width = config.hidden_size
    layers = getattr(config, "num_layers_passed", config.num_hidden_layers)
    embedding_width = getattr(config, "embedding_size", 0)  # with a projection, in some families
    weights = layers * (4 * width**2 + 2 * width * config.intermediate_size) + embedding_width * width
    head = (width + config.vocab_size) * (embedding_width or width)
    pair_head = width**2 + 2 * width
    attention = 4 * layers * width * squared_lengths
    return 2 * (weights * tokens + head * predicted + pair_head * pairs) + attention


def training_flops(
    model: PreTrainedModel, tokens: int, squared_lengths: int, predicted: int = 0, pairs: int = 0
) -> int:
    """Return the operations of the forward and backward passes of a training.

    A model of several says which passes through which of them it makes: `counted_passes(tokens, predicted)`.
    """
    passes = [(3, model.config, predicted)]
    if (counted := getattr(model, "counted_passes", None)) is not None:
        passes, pairs = counted(tokens, predicted), 0
    return sum(
        times * forward_flops_of_counts(config, tokens, squared_lengths, projected, pairs)
        for times, config, projected in passes
    )


def measure_gemm_rate(
    dtype: torch.dtype, device: torch.device, side: int | None = None, most_seconds: float = float("inf")
) -> float:
    """Return the maximum FLOP/s of five products of square matrices of `side` rows; of fewer in `most_seconds`.

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
