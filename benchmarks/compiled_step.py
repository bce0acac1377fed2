"""Compiled over eager, without padding, and beside transformers' compiled class.

Run `python benchmarks/compiled_step.py`.
Interleaved in each round, float32, rows of 20 to 128 tokens; ratios of seconds, median [min-max]. The first two calls
of each compiled model are left out and timed by themselves. Inference is compiled with torch's `freezing`, which lays
out the weights for oneDNN; `--no-freezing` compiles it as training is.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch._inductor import config as inductor
from transformers import BertConfig, BertForMaskedLM

from hf_encoders import HfeBertConfig, HfeBertForMaskedLM


SIZES = {"tiny": (64, 2, 2, 4), "small": (256, 4, 4, 32), "base": (768, 12, 12, 16)}  # width, layers, heads, rows
ROW_LENGTH = 128


def batch(rows: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Rows of 20 to 128 tokens, 15 % of them predicted."""
    lengths = torch.randint(20, ROW_LENGTH, (rows,), generator=generator)
    mask = (torch.arange(ROW_LENGTH)[None] < lengths[:, None]).long()
    ids = torch.randint(5, 30000, mask.shape, generator=generator)
    is_left_out = (torch.rand(mask.shape, generator=generator) > 0.15) | (mask == 0)
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": ids.masked_fill(is_left_out, -100)}


def seconds(model: torch.nn.Module, called: Callable, batch: dict[str, torch.Tensor], trains: bool) -> float:
    """Of one training step without an optimizer, or of one encoding."""
    model.train(trains)
    start = time.perf_counter()
    with torch.set_grad_enabled(trains):
        if trains:
            called(**batch).loss.backward()
        else:
            called(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    model.zero_grad()
    return time.perf_counter() - start


def compare(size: str, rounds: int, trains: bool) -> None:
    """Print a row of ratios."""
    width, layers, heads, rows = SIZES[size]
    fields = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    fields["intermediate_size"] = 4 * width
    ours, stock = HfeBertForMaskedLM(HfeBertConfig(**fields)), BertForMaskedLM(BertConfig(**fields))
    pairs = {"ours": ours, "stock": stock} if trains else {"ours": ours.bert, "stock": stock.bert}
    generator = torch.Generator().manual_seed(0)
    batches = [batch(rows, generator) for _ in range(rounds + 2)]
    models = {name: (model, model) for name, model in pairs.items()}
    models |= {f"{name}, compiled": (model, torch.compile(model, dynamic=True)) for name, model in pairs.items()}
    compiling, times = {}, {name: [] for name in models}
    for name, (model, called) in models.items():
        compiling[name] = sum(seconds(model, called, batch, trains) for batch in batches[:2])
    for batch in batches[2:]:
        for name, (model, called) in models.items():
            times[name].append(seconds(model, called, batch, trains))
    print(f"{size}, {'training' if trains else 'inference'}; seconds of two first calls, speed over ours, eager:")
    for name, its_times in times.items():
        ratios = [eager / other for eager, other in zip(times["ours"], its_times, strict=True)]
        spread = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]"
        print(f"  {name:16} {compiling[name]:6.1f}  {spread}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--freezing", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    for trains in (False, True):
        inductor.freezing = arguments.freezing and not trains
        torch._dynamo.reset()
        compare(arguments.size, arguments.rounds, trains)
