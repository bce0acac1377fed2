"""The benchmark's results as a table and as JSON."""

import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch

from hf_encoders.benchmark.measuring import Measurements, Turn
from hf_encoders.benchmark.settings import Setting
from hf_encoders.records.hardware import cpu_model, describe_hardware, describe_software
from hf_encoders.records.tables import text_table
from hf_encoders.redaction import published_command


class Spread(NamedTuple):
    """Median, minimum and maximum over the rounds."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of one value per round."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.least:.2f}-{self.greatest:.2f}]"


def metrics_of(
    measurements: Measurements, reference: list[Turn], steps: int, gemm_flops_per_second: float
) -> dict[str, Any]:
    """Metrics of an implementation.

    Args:
        measurements (`Measurements`): Of the implementation.
        reference (`list[Turn]`): Turns of the reference in the same rounds.
        steps (`int`): Batches per turn.
        gemm_flops_per_second (`float`): Rate of a matrix product on this machine.

    Returns:
        `dict`: As `Spread`, `pass_ratio` and `step_ratio` (tokens per second of forward and backward, and of whole
        steps, relative to the reference), `tokens_per_second` (of forward and backward), `pass_milliseconds` and
        `step_milliseconds` (per batch), `mfu`; as floats, `activation_megabytes` (10^6 bytes) and `padding` (share of
        the computed positions, in [0, 1)).
    """
    turns = measurements.turns

    def ratios(seconds: str) -> Spread:
        return Spread.of(
            [
                (turn.tokens / getattr(turn, seconds)) / (other.tokens / getattr(other, seconds))
                for turn, other in zip(turns, reference, strict=True)
            ]
        )

    return {
        "pass_ratio": ratios("pass_seconds"),
        "step_ratio": ratios("step_seconds"),
        "tokens_per_second": Spread.of([turn.tokens / turn.pass_seconds for turn in turns]),
        "pass_milliseconds": Spread.of([1e3 * turn.pass_seconds / steps for turn in turns]),
        "step_milliseconds": Spread.of([1e3 * turn.step_seconds / steps for turn in turns]),
        "activation_megabytes": measurements.activation_bytes / 1e6,
        "padding": 1 - sum(turn.tokens for turn in turns) / sum(turn.positions for turn in turns),
        "mfu": Spread.of([turn.flops / turn.pass_seconds / gemm_flops_per_second for turn in turns]),
    }


def format_table(
    setting: Setting, metrics: dict[str, dict[str, Any]], parameters: int, gemm_flops_per_second: float
) -> str:
    """The metrics of each implementation as a table with a heading; values without brackets are medians."""
    heading = (
        f"{setting}\n{parameters / 1e6:.1f} million parameters, {setting.rounds} rounds of {setting.steps} batches, "
        f"GEMM {gemm_flops_per_second / 1e9:,.0f} GFLOP/s\n"
        f"{describe_hardware()}, torch {torch.__version__}, transformers {describe_software()['transformers']}"
    )
    rows = [["", "forward + backward" if setting.trains else "forward", "tokens/s", "ms/batch", "MFU"]]
    rows[0] += ["whole step", "ms/batch"] if setting.trains else []
    rows[0] += ["activations MB", "padding"]
    for name, found in metrics.items():
        row = [name, str(found["pass_ratio"]), f"{found['tokens_per_second'].median:,.0f}"]
        row += [f"{found['pass_milliseconds'].median:,.1f}", f"{found['mfu'].median:.1%}"]
        if setting.trains:
            row += [str(found["step_ratio"]), f"{found['step_milliseconds'].median:,.1f}"]
        rows.append([*row, f"{found['activation_megabytes']:,.1f}", f"{found['padding']:.1%}"])
    return f"{heading}\n\n{text_table(rows, '<>')}"


def table_as_json(
    setting: Setting,
    metrics: dict[str, dict[str, Any]],
    turns: list[list[Turn]],
    parameters: int,
    gemm_flops_per_second: float,
) -> dict[str, Any]:
    """All metrics of one setting, with those of each round."""
    lines = [
        {
            "name": name,
            # JSON would write a named tuple as a list.
            **{key: value._asdict() if isinstance(value, Spread) else value for key, value in found.items()},
            "rounds": [asdict(turn) for turn in rounds],
        }
        for (name, found), rounds in zip(metrics.items(), turns, strict=True)
    ]
    about = {"setting": asdict(setting), "parameters": parameters, "gemm_flops_per_second": gemm_flops_per_second}
    return {**about, "lines": lines}


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
