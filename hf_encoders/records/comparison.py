"""Writes what runs that differ in one thing came to: a table in Markdown, the same as JSON, and a picture."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


Points = Sequence[tuple[float, float]]


def write_comparison(
    folder: str | Path,
    title: str,
    figures: dict[str, list[dict[str, float | None]]],
    curves: dict[str, Points],
    x_label: str,
    y_label: str,
    log_x: bool = False,
) -> str:
    """Write `table.md`, `figures.json` and `curves.png`.

    Args:
        folder (`str` or `Path`): where to; made if it is not there.
        title (`str`): heading of the picture.
        figures: of each variant one `{name of a figure: value}` a repetition (seed), all with the same names; None
            for what a variant does not have.
        curves: points `(x, y)` of each line of the picture; none of a run that ended before it logged.
        x_label, y_label (`str`): what the axes show, with units.
        log_x (`bool`): whether the x axis is logarithmic.

    Returns:
        The table.

    Raises:
        ValueError: if a variant has no figures, or others than the first one.
    """
    table = as_table(figures)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(table + "\n", encoding="utf-8")
    (folder / "figures.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    draw_curves(curves, folder / "curves.png", title, x_label, y_label, log_x)
    return table


def as_table(figures: dict[str, list[dict[str, float | None]]]) -> str:
    """A row a variant in Markdown: the mean of each figure, and behind it the standard deviation of several seeds.

    Args:
        figures: as in `write_comparison`.

    Raises:
        ValueError: if a variant has no figures, or others than the first one.

    >>> rows = [{"loss": 2.0, "steps": 1200, "NSP": None}, {"loss": 3.0, "steps": 1200, "NSP": None}]
    >>> print(as_table({"RoBERTa": rows}))
    | | loss | steps | NSP |
    |---|---|---|---|
    | RoBERTa | 2.500 ± 0.707 | 1,200 | – |
    """
    names = list(next(iter(figures.values()), [{}])[0])
    for variant, repetitions in figures.items():
        if not repetitions or any(list(one) != names for one in repetitions):
            raise ValueError(f"figures[{variant!r}] must have, of each repetition, {names}: give the same of all.")
    rows = [["", *names]]
    for variant, repetitions in figures.items():
        rows.append([variant, *(_cell([one[name] for one in repetitions]) for name in names)])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines[0] = lines[0].replace("|  |", "| |", 1)
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _cell(values: list[float | None]) -> str:
    """Whole numbers as they are; of others the mean with three decimals, and the spread of several."""
    if None in values:
        return "–"
    if all(isinstance(value, int) for value in values) and len(set(values)) == 1:
        return f"{values[0]:,}"
    # Of a sample: divided by one less than the number of seeds.
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


def logged_points(log_history: list[dict[str, Any]], name: str) -> Points:
    """`(optimizer step, value)` of a figure that `Trainer` logged.

    >>> logged_points([{"step": 5, "loss": 7.0}, {"step": 5, "eval_loss": 6.5}, {"step": 9, "loss": 6.0}], "loss")
    [(5, 7.0), (9, 6.0)]
    """
    return [(entry["step"], entry[name]) for entry in log_history if name in entry]


def draw_curves(
    curves: dict[str, Points], path: Path, title: str, x_label: str, y_label: str, log_x: bool = False
) -> None:
    """Write a PNG of lines with a mark at each point; the arguments are those of `write_comparison`."""
    import matplotlib

    matplotlib.use("Agg")  # no window, also where there is no screen
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for label, points in curves.items():
        axes.plot(*zip(*points, strict=True), "o-", label=label, markersize=3, linewidth=1)
    if log_x:
        axes.set_xscale("log")
        ticks = sorted({x for points in curves.values() for x, _ in points})
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.minorticks_off()
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    axes.grid(alpha=0.3)
    if curves:
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
