"""The benchmark's results as a table and as JSON."""

import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from hf_encoders.benchmark.measuring import Measurements, Turn
from hf_encoders.benchmark.settings import Setting
from hf_encoders.publishing.hardware import cpu_model, describe_hardware, describe_software
from hf_encoders.publishing.secrets import published_command
from hf_encoders.writing import markdown_table, text_table


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum of one value per round."""
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}


def metrics_of(
    measurements: Measurements, reference: list[Turn], steps: int, gemm_flops_per_second: float
) -> dict[str, Any]:
    """Metrics of an implementation, from its measurements and the reference's turns in the same rounds.

    Returns:
        `dict`: As `spread`, `pass_ratio` and `step_ratio` (tokens per second of forward and backward, and of whole
        steps, relative to the reference), `tokens_per_second` (of forward and backward), `pass_milliseconds` and
        `step_milliseconds` (per batch), `mfu`; as floats, `activation_megabytes` (10^6 bytes) and `padding` (share of
        the computed positions, in [0, 1)).
    """
    turns = measurements.turns

    def ratios(seconds: str) -> dict[str, float]:
        own, others = ([turn.tokens / getattr(turn, seconds) for turn in one] for one in (turns, reference))
        return spread([rate / other for rate, other in zip(own, others, strict=True)])

    return {
        "pass_ratio": ratios("pass_seconds"),
        "step_ratio": ratios("step_seconds"),
        "tokens_per_second": spread([turn.tokens / turn.pass_seconds for turn in turns]),
        "pass_milliseconds": spread([1e3 * turn.pass_seconds / steps for turn in turns]),
        "step_milliseconds": spread([1e3 * turn.step_seconds / steps for turn in turns]),
        "activation_megabytes": measurements.activation_bytes / 1e6,
        "padding": 1 - sum(turn.tokens for turn in turns) / sum(turn.positions for turn in turns),
        "mfu": spread([turn.flops / turn.pass_seconds / gemm_flops_per_second for turn in turns]),
    }


def table_of(
    setting: Setting, measured: dict[str, Measurements], parameters: int, gemm_flops_per_second: float
) -> dict[str, Any]:
    """All metrics of one setting, with those of each round, as JSON; the first implementation is the reference."""
    reference = next(iter(measured.values())).turns
    lines = [
        {
            "name": name,
            **metrics_of(one, reference, setting.steps, gemm_flops_per_second),
            "rounds": [asdict(turn) for turn in one.turns],
        }
        for name, one in measured.items()
    ]
    about = {"setting": asdict(setting), "parameters": parameters, "gemm_flops_per_second": gemm_flops_per_second}
    return {**about, "lines": lines}


def format_table(setting: Setting, table: dict[str, Any]) -> str:
    """A table of `table_of` as text with a heading; values without brackets are medians."""
    heading = (
        f"{setting}\n{table['parameters'] / 1e6:.1f} million parameters, {setting.rounds} rounds of {setting.steps} "
        f"batches, GEMM {table['gemm_flops_per_second'] / 1e9:,.0f} GFLOP/s\n"
        f"{describe_hardware()}, torch {torch.__version__}, transformers {describe_software()['transformers']}"
    )
    rows = [["", "forward + backward" if setting.trains else "forward", "tokens/s", "ms/batch", "MFU"]]
    rows[0] += ["whole step", "ms/batch"] if setting.trains else []
    rows[0] += ["activations MB", "padding"]
    for line in table["lines"]:
        row = [line["name"], _with_range(line["pass_ratio"]), f"{line['tokens_per_second']['median']:,.0f}"]
        row += [f"{line['pass_milliseconds']['median']:,.1f}", f"{line['mfu']['median']:.1%}"]
        if setting.trains:
            row += [_with_range(line["step_ratio"]), f"{line['step_milliseconds']['median']:,.1f}"]
        rows.append([*row, f"{line['activation_megabytes']:,.1f}", f"{line['padding']:.1%}"])
    return f"{heading}\n\n{text_table(rows, '<>')}"


def format_summary(tables: Sequence[dict[str, Any]]) -> str:
    """All tables as one in Markdown, a line for each: speed of the pass relative to the reference, the last one first.

    MFU and activations are of the reference and of the last implementation.
    """
    names = list(dict.fromkeys(line["name"] for table in tables for line in reversed(table["lines"][1:])))
    heading = ["", "padding", *(name.removeprefix("transformers ") for name in names)]
    rows = [[*heading, "MFU, stock → this", "activations MB, stock → this"]]
    for table in tables:
        of = {line["name"]: line for line in table["lines"]}
        stock, own = table["lines"][0], table["lines"][-1]
        ratios = [_with_range(of[name]["pass_ratio"]) if name in of else "" for name in names]
        mfu = f"{stock['mfu']['median']:.0%} → {own['mfu']['median']:.0%}"
        memory = f"{stock['activation_megabytes']:,.0f} → {own['activation_megabytes']:,.0f}"
        rows.append([str(Setting(**table["setting"])), f"{stock['padding']:.0%}", *ratios, mfu, memory])
    return markdown_table(rows)


def _with_range(values: dict[str, float]) -> str:
    return f"{values['median']:.2f} [{values['least']:.2f}-{values['greatest']:.2f}]"


def report_as_json(tables: list[dict[str, Any]], threads: int) -> dict[str, Any]:
    """The tables with the command and the machine."""
    machine = {
        "hardware": describe_hardware(),
        "cpu": cpu_model(),
        "threads": threads,
        "platform": platform.platform(),
        **describe_software(),
        "cuda": torch.version.cuda,
    }
    return {"command": published_command(["hf-encoders", *sys.argv[1:]]), "machine": machine, "tables": tables}
