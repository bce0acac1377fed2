"""Forward and backward passes on tensors that say they are on CUDA; writes what was counted as JSON lines.

`python -m tests.accelerator.stand_in.passes CLASS...`, with the built `guard.cpp` in LD_PRELOAD: torch asks for
devices when it is imported. `tests/accelerator/test_stand_in.py` does it.
"""

import itertools
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from transformers import PreTrainedModel

import hf_encoders
from hf_encoders.models import encoder_kernels, encoder_losses
from hf_encoders.models.encoder_losses import classification_sums, linear_classification_sums
from tests.accelerator.stand_in import cuda_on_cpu
from tests.accelerator.stand_in.cuda_on_cpu import Cuda, OnCuda, counts
from tests.models.tiny import HEAD_DROPOUTS, NO_DROPOUT, packed, right_padded, tiny_config


LENGTHS = (11, 4, 7, 3, 9)
LAYOUTS = ("padded", "packed", "full")
PRECISIONS = ("float32", "autocast", "bfloat16")


def is_bare_linear(module: torch.nn.Module) -> bool:
    """But for the type of the weight, which is a subclass here."""
    return type(module) is torch.nn.Linear and encoder_kernels.is_bare(module)


def batch_of(model: PreTrainedModel, layout: str) -> dict[str, torch.Tensor]:
    """With a label for each term of the loss; for permutations also an order, of which the first sees nothing."""
    padded = right_padded(model.config, LENGTHS)
    if layout == "full":
        padded = {"input_ids": padded["input_ids"].clamp(min=2), "attention_mask": torch.ones(5, 11).long()}
    is_real, ids = padded["attention_mask"] == 1, padded["input_ids"]
    padded["labels"] = ids.masked_fill(~is_real | (torch.arange(11) % 3 != 1), -100)
    padded["token_type_ids"] = (torch.arange(11) > 4).long().expand(5, -1).contiguous()
    if "plm" in model.loss_terms:
        padded["order"] = torch.rand(ids.shape).argsort(dim=-1).argsort(dim=-1) + 1
    if "rtd" in model.loss_terms:
        padded["labels"] = (torch.arange(11) % 3 == 1).long().expand(5, -1).masked_fill(~is_real, -100)
    if model.config.type_vocab_size < 2:
        del padded["token_type_ids"]
    batch = packed(padded) if layout == "packed" else padded
    if "pair" in model.loss_terms:
        batch[model.loss_terms["pair"]] = torch.arange(5) % 2
    return batch


def on_cuda(tensor: torch.Tensor) -> OnCuda:
    """With the copy on the host that a trainer keeps."""
    marked = OnCuda(tensor.clone())
    marked.host_copy = (id(marked), marked._version, tensor)
    return marked


def measure(
    model_class: type[PreTrainedModel], layout: str, precision: str, width: int, **fields: Any
) -> dict[str, Any]:
    """Kernels, casts and waits of both passes; errors of loss and gradients relative to eager attention in float32.

    `of_eager` is the error of the gradients with eager attention on the CPU, in the same precision.
    """
    torch.manual_seed(5)
    sizes = {"hidden_size": 2 * width, "num_attention_heads": 2, "num_hidden_layers": 2, "initializer_range": 0.05}
    no_dropout = dict.fromkeys((*NO_DROPOUT, *HEAD_DROPOUTS), 0.0)
    model = model_class(tiny_config(model_class.config_class, **{**sizes, **no_dropout, **fields})).train()
    batch = batch_of(model, layout)
    model.set_attn_implementation("eager")
    if precision == "bfloat16":
        model.bfloat16().float()  # rounded
    loss = model(**batch).loss
    loss.backward()
    expected = {name: one.grad.double() for name, one in model.named_parameters() if one.grad is not None}

    def step(inputs: dict[str, torch.Tensor], device: str, meanwhile: Callable[[], None] = lambda: None) -> Any:
        model.zero_grad()
        with torch.autocast(device, torch.bfloat16) if precision == "autocast" else nullcontext():
            loss = model(**inputs).loss
        meanwhile()
        loss.backward()
        return loss.detach()

    def error() -> float:
        found = {name: getattr(p.grad, "on_cpu", p.grad) for name, p in model.named_parameters() if name in expected}
        differences = sum((found[name] - expected[name]).square().sum() for name in expected)
        return float((differences / sum(one.square().sum() for one in expected.values())).sqrt())

    if precision == "bfloat16":
        model.bfloat16()
    step(batch, "cpu")
    result = {"of_eager": error()}
    model.set_attn_implementation("sdpa")
    cuda_on_cpu.move(model)
    marked = {name: on_cuda(value) for name, value in batch.items()}
    counts.clear()
    with Cuda():
        got = step(marked, "cuda", lambda: result.update(forward=counts["kernels"], casts=counts["casts"]))
    assert all(parameter.grad is None or parameter.grad.dtype == parameter.dtype for parameter in model.parameters())
    waits = {name: number for name, number in counts.items() if name.startswith("wait")}
    result |= {"backward": counts["kernels"] - result["forward"], "waits": waits, "gradients": error()}
    return {**result, "loss": abs(float(got.on_cpu / loss.detach() - 1))}


def error_of_scaled_float16() -> float:
    """Of a vocabulary projection's gradient, for a loss times the factor that `GradScaler` begins with."""
    torch.manual_seed(5)
    hidden, labels = torch.randn(3, 16) / 10, torch.tensor([1, 5, 7])
    linear = torch.nn.Linear(16, 41)
    (expected,) = torch.autograd.grad(classification_sums(linear(hidden), labels).nll, linear.weight)
    cuda_on_cpu.move(linear)
    with Cuda():
        with torch.autocast("cuda", dtype=torch.float16):
            loss = linear_classification_sums(OnCuda(hidden), linear, OnCuda(labels)).nll
        (found,) = torch.autograd.grad(loss * 2.0**16, linear.weight)
    return float((found.on_cpu / 2**16 - expected).norm() / expected.norm())


def main(*names: str) -> None:
    torch.set_num_threads(1)
    cuda_on_cpu.install()
    encoder_kernels.is_bare_linear = encoder_losses.is_bare_linear = is_bare_linear

    def report(name: str, *case: Any, **fields: Any) -> None:
        try:
            found = measure(getattr(hf_encoders, name), *case, **fields)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"name": name, "case": [*case, *fields.values()], **found}), flush=True)

    for name in names:
        for case in itertools.product(LAYOUTS, PRECISIONS, (64, 6)):
            report(name, *case)
            report(name, *case, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    for layers in (2, 5):
        dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
        report("HfeBertForMaskedLM", "padded", "autocast", 64, num_hidden_layers=layers, **dropout)
        groups = {"num_hidden_groups": 1, "inner_group_num": 1}
        report("HfeAlbertForMaskedLM", "padded", "autocast", 64, num_hidden_layers=layers, **dropout, **groups)
    print(json.dumps({"name": "scaled float16", "gradients": error_of_scaled_float16()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
