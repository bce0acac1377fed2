"""The benchmark's results as a table and as JSON."""

import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from hf_encoders.benchmark.implementations import Implementation
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


@dataclass(frozen=True)
class Result:
    """Metrics of an implementation.

    Args:
        name (`str`): Name of the implementation.
        pass_ratio, step_ratio (`Spread`): Tokens per second relative to the reference in the same round, of forward
            (and backward), and of the whole step.
        tokens_per_second (`Spread`): Real tokens, forward (and backward).
        pass_milliseconds, step_milliseconds (`Spread`): Per batch.
        activation_megabytes (`float`): 10^6 bytes, see `measure_memory`.
        padding (`float`): Share of the computed positions that is padding, in [0, 1).
        mfu (`Spread`): Share of the machine's matrix-product rate, see `hf_encoders/records/flops.py`.
        rounds (`list[Turn]`): All measurements.
    """

    name: str
    pass_ratio: Spread
    step_ratio: Spread
    tokens_per_second: Spread
    pass_milliseconds: Spread
    step_milliseconds: Spread
    activation_megabytes: float
    padding: float
    mfu: Spread
    rounds: list[Turn]


@dataclass(frozen=True)
class Table:
    """Results of one setting.

    Args:
        setting (`Setting`): The setting.
        parameters (`int`): Of this package's model.
        gemm_flops_per_second (`float`): Rate of this machine's matrix product in the setting's data type.
        lines (`list[Result]`): The reference first.
    """

    setting: Setting
    parameters: int
    gemm_flops_per_second: float
    lines: list[Result]


def make_table(
    setting: Setting,
    implementations: list[Implementation],
    found: list[Measurements],
    gemm_flops_per_second: float,
) -> Table:
    """Medians and spreads of all implementations; ratios are to the first one."""
    lines = [
        make_result(implementation.name, measurements, found[0].turns, setting.steps, gemm_flops_per_second)
        for implementation, measurements in zip(implementations, found, strict=True)
    ]
    return Table(setting, implementations[-1].model.num_parameters(), gemm_flops_per_second, lines)


def make_result(
    name: str, measurements: Measurements, reference: list[Turn], steps: int, gemm_flops_per_second: float
) -> Result:
    """Metrics of one implementation."""
    turns = measurements.turns

    def ratios(seconds: str) -> Spread:
        return Spread.of(
            [
                (turn.tokens / getattr(turn, seconds)) / (other.tokens / getattr(other, seconds))
                for turn, other in zip(turns, reference, strict=True)
            ]
        )

    return Result(
        name=name,
        pass_ratio=ratios("pass_seconds"),
        step_ratio=ratios("step_seconds"),
        tokens_per_second=Spread.of([turn.tokens / turn.pass_seconds for turn in turns]),
        pass_milliseconds=Spread.of([1e3 * turn.pass_seconds / steps for turn in turns]),
        step_milliseconds=Spread.of([1e3 * turn.step_seconds / steps for turn in turns]),
        activation_megabytes=measurements.activation_bytes / 1e6,
        padding=1 - sum(turn.tokens for turn in turns) / sum(turn.positions for turn in turns),
        mfu=Spread.of([turn.flops / turn.pass_seconds / gemm_flops_per_second for turn in turns]),
        rounds=turns,
    )


def format_table(table: Table) -> str:
    """The table as text with a heading; metrics without brackets are medians."""
    setting = table.setting
    heading = (
        f"{setting}\n{table.parameters / 1e6:.1f} million parameters, {setting.rounds} rounds of {setting.steps} "
        f"batches, GEMM {table.gemm_flops_per_second / 1e9:,.0f} GFLOP/s\n"
        f"{describe_hardware()}, torch {torch.__version__}, transformers {describe_software()['transformers']}"
    )
    rows = [["", "forward + backward" if setting.trains else "forward", "tokens/s", "ms/batch", "MFU"]]
    rows[0] += ["whole step", "ms/batch"] if setting.trains else []
    rows[0] += ["activations MB", "padding"]
    for line in table.lines:
        row = [line.name, str(line.pass_ratio), f"{line.tokens_per_second.median:,.0f}"]
        row += [f"{line.pass_milliseconds.median:,.1f}", f"{line.mfu.median:.1%}"]
        if setting.trains:
            row += [str(line.step_ratio), f"{line.step_milliseconds.median:,.1f}"]
        rows.append([*row, f"{line.activation_megabytes:,.1f}", f"{line.padding:.1%}"])
    return f"{heading}\n\n{text_table(rows, '<>')}"


def make_json(tables: list[Table], threads: int) -> dict[str, Any]:
    """All metrics of all rounds, and the machine."""
    machine = {
        "hardware": describe_hardware(),
        "cpu": cpu_model(),
        "threads": threads,
        "platform": platform.platform(),
        **describe_software(),
        "cuda": torch.version.cuda,
    }
    found = []
    for table in tables:
        lines = [
            # JSON would write a named tuple as a list.
            {name: value._asdict() if isinstance(value, Spread) else value for name, value in vars(line).items()}
            | {"rounds": [asdict(turn) for turn in line.rounds]}
            for line in table.lines
        ]
        found.append({**asdict(table), "lines": lines})
    return {"command": published_command(["hf-encoders", *sys.argv[1:]]), "machine": machine, "tables": found}
