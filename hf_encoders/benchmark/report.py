"""The table that people read and the JSON that programs read."""

import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hf_encoders.benchmark.contenders import Contender
from hf_encoders.benchmark.measuring import Measurements, Turn
from hf_encoders.benchmark.settings import Setting
from hf_encoders.records.hardware import describe_hardware, describe_software
from hf_encoders.redaction import published_command


class Spread(NamedTuple):
    """Median, least and greatest over the rounds."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of one value a round."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.least:.2f}-{self.greatest:.2f}]"


@dataclass(frozen=True)
class Line:
    """The figures of a contender.

    Args:
        name (`str`): of the contender.
        pass_ratio, step_ratio (`Spread`): tokens a second over the baseline's in the same round, of forward (and
            backward), and of the whole step.
        tokens_per_second (`Spread`): real tokens, forward (and backward).
        pass_milliseconds, step_milliseconds (`Spread`): a batch.
        activation_megabytes (`float`): 10^6 bytes; as `measure_memory` says.
        padding (`float`): share of the computed tokens that is padding, in [0, 1).
        mfu (`Spread`): share of the machine's matrix-product rate, as in `hf_encoders/records/flops.py`.
        rounds (`list[Turn]`): all that was measured.
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
    """One setting's figures.

    Args:
        setting (`Setting`): what they were measured at.
        parameters (`int`): of this package's model.
        gemm_flops_per_second (`float`): this machine's matrix product, in the setting's type.
        lines (`list[Line]`): the baseline first.
    """

    setting: Setting
    parameters: int
    gemm_flops_per_second: float
    lines: list[Line]


def make_table(
    setting: Setting, contenders: list[Contender], found: list[Measurements], gemm_flops_per_second: float
) -> Table:
    """Medians and spreads of all contenders; the first one is what the ratios are to."""
    baseline = found[0].turns
    lines = [
        make_line(contender.name, measurements, baseline, setting.steps, gemm_flops_per_second)
        for contender, measurements in zip(contenders, found, strict=True)
    ]
    return Table(setting, contenders[-1].model.num_parameters(), gemm_flops_per_second, lines)


def make_line(
    name: str, measurements: Measurements, baseline: list[Turn], steps: int, gemm_flops_per_second: float
) -> Line:
    """The figures of one contender."""
    turns = measurements.turns

    def ratios(seconds: str) -> Spread:
        return Spread.of(
            [
                (turn.tokens / getattr(turn, seconds)) / (other.tokens / getattr(other, seconds))
                for turn, other in zip(turns, baseline, strict=True)
            ]
        )

    return Line(
        name=name,
        pass_ratio=ratios("pass_seconds"),
        step_ratio=ratios("step_seconds"),
        tokens_per_second=Spread.of([turn.tokens / turn.pass_seconds for turn in turns]),
        pass_milliseconds=Spread.of([1e3 * turn.pass_seconds / steps for turn in turns]),
        step_milliseconds=Spread.of([1e3 * turn.step_seconds / steps for turn in turns]),
        activation_megabytes=measurements.activation_bytes / 1e6,
        padding=1 - sum(turn.tokens for turn in turns) / sum(turn.cells for turn in turns),
        mfu=Spread.of([turn.flops / turn.pass_seconds / gemm_flops_per_second for turn in turns]),
        rounds=turns,
    )


def format_table(table: Table) -> str:
    """The table as text, with a heading; figures in front of brackets are medians."""
    setting = table.setting
    heading = (
        f"{setting}\n{table.parameters / 1e6:.1f} million parameters, {setting.rounds} rounds, batches a turn: "
        f"{setting.steps}, GEMM {table.gemm_flops_per_second / 1e9:,.0f} GFLOP/s\n"
        f"{describe_hardware()}, torch {torch.__version__}, transformers {describe_software()['transformers']}"
    )
    passes = "forward + backward" if setting.trains else "forward"
    columns = ["", passes, "tokens/s", "ms/batch", "MFU"]
    if setting.trains:
        columns += ["whole step", "ms/batch"]
    rows = [[*columns, "activations MB", "padding"]]
    for line in table.lines:
        row = [
            line.name,
            str(line.pass_ratio),
            f"{line.tokens_per_second.median:,.0f}",
            f"{line.pass_milliseconds.median:,.1f}",
            f"{line.mfu.median:.1%}",
        ]
        if setting.trains:
            row += [str(line.step_ratio), f"{line.step_milliseconds.median:,.1f}"]
        rows.append([*row, f"{line.activation_megabytes:,.1f}", f"{line.padding:.1%}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(f"{cell:<{width}}" if i == 0 else f"{cell:>{width}}" for i, (cell, width) in enumerate(cells))
        for cells in (zip(row, widths, strict=True) for row in rows)
    )
    return "\n".join([heading, "", *lines])


def make_json(tables: list[Table], threads: int) -> dict[str, Any]:
    """All figures, all rounds, and what they were measured with."""
    return {
        "command": published_command(["hf-encoders", *sys.argv[1:]]),
        "machine": {
            "hardware": describe_hardware(),
            "cpu": cpu_model(),
            "threads": threads,
            "platform": platform.platform(),
            **describe_software(),
            "cuda": torch.version.cuda,
        },
        "tables": [
            {
                **asdict(table),
                "lines": [
                    # `asdict` keeps a named tuple, which JSON would write as a list.
                    {
                        name: value._asdict() if isinstance(value, Spread) else value
                        for name, value in vars(line).items()
                    }
                    | {"rounds": [asdict(turn) for turn in line.rounds]}
                    for line in table.lines
                ],
            }
            for table in tables
        ],
    }


def cpu_model() -> str:
    """The processor's name, where the system tells it."""
    file = Path("/proc/cpuinfo")  # Linux; `platform` knows the name elsewhere
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
