"""The tables of docs/memory.md: rows that fit a GPU, and the time of a billion tokens, by the formulas of `--plan`.

    python -m benchmarks.memory && python benchmarks/tables.py

Full rows, bfloat16, AdamW, 15 % of the tokens predicted. Nothing is run on a GPU.
"""

import json
from pathlib import Path

import torch

from hf_encoders import HfeAlbertConfig, HfeBertConfig, HfeRobertaConfig, HfeXLMRobertaConfig
from hf_encoders.publishing.hardware import training_flops
from hf_encoders.registration import family_classes
from hf_encoders.runs.plan import BYTES_PER_PARAMETER, COPY_BYTES, SHARE_ELSEWHERE, activation_bytes
from hf_encoders.training.health import BatchCounts


SHAPES = {
    "4 layers × 256": HfeBertConfig(
        num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024
    ),
    "ALBERT base": HfeAlbertConfig.base(),
    "6 layers × 384": HfeBertConfig(
        num_hidden_layers=6, hidden_size=384, num_attention_heads=6, intermediate_size=1536
    ),
    "BERT base": HfeBertConfig.base(),
    "RoBERTa base": HfeRobertaConfig.base(),
    "BERT large": HfeBertConfig.large(),
    "XLM-R base": HfeXLMRobertaConfig.base(),
}
LENGTHS = 128, 512
GIB = 8, 16, 24, 40, 80
RESERVED = 1.5  # GiB that CUDA, its kernels and fragments take, an assumption
GPUS = {"RTX 4090, 165 TFLOP/s": 165, "A100, 312": 312, "H100, 989": 989}


def model_of(config):
    name = type(config).__name__.removesuffix("Config") + "ForMaskedLM"
    with torch.device("meta"):
        return family_classes()[name](config)


def counts_of(rows: int, length: int) -> BatchCounts:
    tokens = rows * length
    return BatchCounts(tokens, tokens, rows * length**2, round(0.15 * tokens), tokens)


def most_rows(model, length: int, gib: int, recomputes: bool) -> int:
    """Return the largest power of two of rows that fit."""
    parameters = model.num_parameters()
    weights = parameters * (BYTES_PER_PARAMETER + (0 if recomputes else COPY_BYTES))
    rows, device = 0, torch.device("cuda")
    while rows < 4096:
        counts = counts_of(2 * rows or 1, length)
        held = activation_bytes(model.config, counts, torch.bfloat16, recomputes, device, 2 * rows or 1)
        if weights + held > (gib - RESERVED) * 2**30:
            break
        rows = 2 * rows or 1
    return rows


def main() -> None:
    tables = {
        "rows": {"columns": ["", "length", "parameters", *(f"{gib} GiB" for gib in GIB)], "rows": []},
        "hours": {"columns": ["", "length", *GPUS], "rows": []},
    }
    for name, config in SHAPES.items():
        model = model_of(config)
        for length in LENGTHS:
            cells = [
                " / ".join(f"{most_rows(model, length, gib, recomputes):,}" for recomputes in (False, True))
                for gib in GIB
            ]
            tables["rows"]["rows"].append([name, str(length), f"{model.num_parameters() / 1e6:.0f} M", *cells])
            rows = 10**9 / length
            flops = training_flops(model, 10**9, round(rows * length**2), round(0.15 * 10**9))
            hours = [f"{flops / (SHARE_ELSEWHERE * tflops * 1e12) / 3600:.2f}" for tflops in GPUS.values()]
            tables["hours"]["rows"].append([name, str(length), *hours])
    path = Path(__file__).parent / "results" / "memory.json"
    path.write_text(json.dumps(tables, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
