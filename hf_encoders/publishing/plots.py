"""Pictures of runs, and a table and a picture of variants that differ in one thing."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from hf_encoders.publishing.curves import Curve
from hf_encoders.publishing.tables import markdown_table, mean_and_deviation
from hf_encoders.writing import check_file


Points = Sequence[tuple[float, float]]
AXES = {"steps": "optimizer steps", "tokens": "real tokens", "minutes": "minutes of training"}
BASELINE_COLOUR = "0.45"
SOURCE_MARKERS = "v^<>sPXdp*"  # of the sources of a run, which have its colour


@dataclass(frozen=True)
class Line:
    """A line, or row of points, in matplotlib's style and colour; None takes the next colour."""

    points: Points
    style: str
    label: str
    colour: str | None = None


def draw_runs(
    runs: Sequence[Curve],
    path: Path,
    title: str = "",
    against: str = "steps",
    reference: Curve | None = None,
    baselines: dict[str, tuple[str, float]] | None = None,
    phases: Sequence[tuple[int, str]] = (),
    evaluated: str = "",
) -> Path:
    """Write a picture with a panel for each loss term and one for the speed, with all runs in each.

    Args:
        runs (`Sequence[Curve]`): Drawn in colours; training as lines, evaluation as points.
        path, title: File to write, and title of the picture.
        against (`str`, *optional*, defaults to `"steps"`): `"steps"`, `"tokens"` or `"minutes"`.
        reference (`Curve`, *optional*): Drawn dashed and black.
        baselines (`dict`, *optional*): Name and value of the baseline of each loss term.
        phases (`Sequence`, *optional*): Steps and name of each phase; of several, the beginnings are marked.
        evaluated (`str`, *optional*): What all evaluations are of, where phases differ.

    Raises:
        ValueError: If a run did not log the horizontal axis, or none logged a loss.
    """
    styles = [(run, f"C{i % 10}", "-", "o") for i, run in enumerate(runs)]
    if reference is not None:
        styles.append((reference, "black", "--", "x"))
    names = dict.fromkeys(name for run, *_ in styles for name in run.losses())
    panels = []
    for name in [name for name in names if name != "loss"] or ["loss"]:
        lines = []
        for run, colour, line, point in styles:
            lines.append(Line(run.points(name, against), line, run.name, colour))
            held_out = "held-out" if len(styles) == 1 else f"{run.name}, held-out"
            held_out += f" ({evaluated})" * bool(evaluated)
            lines.append(Line(run.points(f"eval_{name}", against), point, held_out, colour))
            for number, source in enumerate(run.sources()):
                marker = SOURCE_MARKERS[number % len(SOURCE_MARKERS)]
                points = run.points(f"eval_{source}_{name}", against)
                lines.append(Line(points, f"{marker}:", f"{held_out}, {source}", colour))
        if name in (baselines or {}):
            baseline, value = baselines[name]
            last = max(x for line in lines for x, _ in line.points)
            lines.append(Line([(0, value), (last, value)], "--", f"{baseline}: {value:.2f}", BASELINE_COLOUR))
        panels.append((f"{name} (nats per item)", lines))
    speeds = [Line(run.points("tokens_per_second", against), line, run.name, c) for run, c, line, _ in styles]
    panels.append(("real tokens per second", speeds))
    drawn = [(label, lines) for label, lines in panels if any(line.points for line in lines)]
    if not drawn:
        raise ValueError(f"{', '.join(run.name for run in runs)}: no loss was logged: set logging_steps in the run.")
    beginnings = [0, *accumulate(steps for steps, _ in phases)]
    changes = list(zip(beginnings, (name for _, name in phases), strict=False)) if len(phases) > 1 else []
    return draw(drawn, path, title, AXES[against], changes)


def check_picture(path: str | Path, option: str) -> None:
    """Raise ValueError, with the option that named it, for a picture of unknown format or that cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    formats = FigureCanvasAgg.get_supported_filetypes()
    if Path(path).suffix[1:].lower() not in formats:
        raise ValueError(f"{option} {path}: must end in one of {', '.join(f'.{one}' for one in sorted(formats))}.")
    check_file(path, option)


def draw(
    panels: Sequence[tuple[str, list[Line]]],
    path: Path,
    title: str,
    x_label: str,
    changes: Points | Sequence[tuple[float, str]] = (),
    log_x: bool = False,
) -> Path:
    """Write a picture of panels one below the other.

    Args:
        panels (`Sequence`): Label of the vertical axis and lines of each; lines without points are left out.
        path, title, x_label: File, title, and label of the horizontal axis.
        changes (`Sequence`, *optional*): Places on the horizontal axis, marked in all panels, and what begins there.
        log_x (`bool`, *optional*, defaults to `False`): Logarithmic horizontal axis, with a tick at each point.
    """
    import matplotlib

    matplotlib.use("Agg")  # works without a display
    from matplotlib import pyplot

    height = 4 if len(panels) == 1 else 3 * len(panels)
    figure, rows = pyplot.subplots(len(panels), figsize=(7, height), layout="constrained", squeeze=False, sharex=True)
    shown: list[str] = []
    for (label, lines), axes in zip(panels, rows[:, 0], strict=True):
        for line in lines:
            if line.points:
                places, values = zip(*line.points, strict=True)
                axes.plot(places, values, line.style, label=line.label, color=line.colour, markersize=5)
        axes.set(ylabel=label)
        axes.grid(alpha=0.3)
        for place, name in changes:
            axes.axvline(place, color=BASELINE_COLOUR, linestyle=":")
            axes.annotate(
                f" {name}", (place, 0.02), xycoords=("data", "axes fraction"), color=BASELINE_COLOUR, fontsize="small"
            )
        labels = axes.get_legend_handles_labels()[1]
        if labels and labels != shown:  # the runs are named once
            axes.legend()
        shown = labels
    if log_x:
        ticks = sorted({x for _, lines in panels for line in lines for x, _ in line.points})
        rows[-1, 0].set_xscale("log")
        rows[-1, 0].set_xticks(ticks, [f"{x:g}" for x in ticks])
        rows[-1, 0].minorticks_off()
    rows[-1, 0].set_xlabel(x_label)
    rows[0, 0].set_title(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def write_comparison(
    folder: str | Path,
    title: str,
    metrics: dict[str, list[dict[str, float | None]]],
    curves: dict[str, Points],
    x_label: str,
    y_label: str,
    log_x: bool = False,
) -> str:
    """Write `table.md`, `metrics.json` and `curves.png` of variants.

    Args:
        folder (`str` or `Path`): Created if it does not exist.
        title (`str`): Title of the picture.
        metrics (`dict`): For each variant one `{metric: value}` per seed, all with the same metrics; None for a metric
            that a variant does not have.
        curves (`dict`): Points `(x, y)` of each line of the picture.
        x_label, y_label (`str`): Labels of the axes, with units.
        log_x (`bool`, *optional*, defaults to `False`): Logarithmic horizontal axis.

    Returns:
        `str`: The table.
    """
    table = as_table(metrics)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(table + "\n", encoding="utf-8")
    (folder / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")
    lines = [Line(points, "o-", label) for label, points in curves.items()]
    draw([(y_label, lines)], folder / "curves.png", title, x_label, log_x=log_x)
    return table


def as_table(metrics: dict[str, list[dict[str, float | None]]]) -> str:
    """A Markdown table with a row per variant; arguments as in `write_comparison`."""
    names = list(next(iter(metrics.values()))[0])
    rows = [[variant, *(_cell([one[name] for one in seeds]) for name in names)] for variant, seeds in metrics.items()]
    return markdown_table([["", *names], *rows])


def _cell(values: list[float | None]) -> str:
    if None in values:
        return "–"
    if all(isinstance(value, int) for value in values) and len(set(values)) == 1:
        return f"{values[0]:,}"
    return mean_and_deviation(values)


def logged_points(log_history: list[dict[str, Any]], name: str) -> Points:
    """`(optimizer step, value)` of a metric that `Trainer` logged."""
    return Curve("", log_history).points(name)
