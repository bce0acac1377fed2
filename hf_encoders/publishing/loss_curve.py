"""Draws the losses of runs from what `Trainer` logged: one run for its model card, or several over each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_encoders.training.curves import Curve
from hf_encoders.writing import check_file


OBJECTIVES = {"mlm_loss": "masked tokens", "pair_loss": "sentence pairs"}
LOSS_UNIT = "loss (nats an item)"
AXES = {"steps": "optimizer steps", "tokens": "real tokens", "minutes": "minutes of training"}


@dataclass(frozen=True)
class Line:
    """One line, or row of points, of a picture.

    Args:
        points: `(x, y)`.
        style (`str`): matplotlib's: `"-"`, `"o"` ...
        label (`str`, *optional*): in the legend.
        colour (`str`, *optional*): matplotlib's; None takes the next one.
    """

    points: Sequence[tuple[float, float]]
    style: str
    label: str | None
    colour: str | None = None


def draw_loss_curve(log_history: list[dict[str, Any]], path: Path, title: str) -> Path:
    """Write a PNG of the losses over optimizer steps: training as lines, evaluation as points.

    Of a pre-training each objective's loss; of any other run the one that `Trainer` logs.

    Args:
        log_history: `trainer.state.log_history`.
        path (`Path`): file to write.
        title (`str`): heading of the picture.
    """
    run = Curve("", log_history)
    has_objectives = any(run.points(prefix + name) for name in OBJECTIVES for prefix in ("", "eval_"))
    lines = []
    for name, label in (OBJECTIVES if has_objectives else {"loss": "loss"}).items():
        lines.append(Line(run.points(name), "-", f"{label}, training"))
        lines.append(Line(run.points(f"eval_{name}"), "o", f"{label}, held-out"))
    return draw([(LOSS_UNIT, lines)], path, title, AXES["steps"])


def draw_runs(
    runs: Sequence[Curve], reference: Curve | None, path: Path, title: str = "", against: str = "steps"
) -> Path:
    """Write a PNG with a panel for each objective's loss and one for the speed, all runs in each.

    Args:
        runs (`Sequence[Curve]`): drawn in colours; training as lines, evaluation as points.
        reference (`Curve`, *optional*): drawn black and broken.
        path (`Path`): file to write.
        title (`str`): heading of the picture.
        against (`str`): `"steps"`, `"tokens"` or `"minutes"`.

    Raises:
        ValueError: if a run did not log what it is to be drawn against, or none logged a loss.
    """
    styles = [(run, f"C{i % 10}", "-", "o") for i, run in enumerate(runs)]
    if reference is not None:
        styles.append((reference, "black", "--", "x"))
    has_objectives = any(run.points(name) for run, *_ in styles for name in OBJECTIVES)
    figures = OBJECTIVES if has_objectives else {"loss": "loss"}
    panels = []
    for name, label in figures.items():
        lines = []
        for run, colour, line, point in styles:
            lines.append(Line(run.points(name, against), line, run.name, colour))
            lines.append(Line(run.points(f"eval_{name}", against), point, f"{run.name}, held-out", colour))
        panels.append((f"{label}: {LOSS_UNIT}" if has_objectives else LOSS_UNIT, lines))
    speeds = [Line(run.points("tokens_per_second", against), line, run.name, c) for run, c, line, _ in styles]
    panels.append(("real tokens a second", speeds))
    drawn = [(unit, lines) for unit, lines in panels if any(line.points for line in lines)]
    if not drawn:
        raise ValueError(f"{', '.join(run.name for run in runs)}: no loss was logged: set logging_steps in the run.")
    return draw(drawn, path, title, AXES[against])


def check_picture(path: str | Path, option: str) -> None:
    """Refuse a picture of a form that is not drawn, or in a place that cannot be written.

    Args:
        path: file to write; its suffix says the form.
        option (`str`): what named it, for the error.

    Raises:
        ValueError: names the option, the file and the remedy.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    forms = FigureCanvasAgg.get_supported_filetypes()
    if Path(path).suffix[1:].lower() not in forms:
        raise ValueError(f"{option} {path}: must end in one of {', '.join(f'.{form}' for form in sorted(forms))}.")
    check_file(path, option)


def draw(panels: Sequence[tuple[str, list[Line]]], path: Path, title: str, x_label: str) -> Path:
    """Write a PNG of panels below each other: what is up its side, and its lines; empty lines are left out."""
    import matplotlib

    matplotlib.use("Agg")  # no window, also where there is no screen
    from matplotlib import pyplot

    height = 4 if len(panels) == 1 else 3 * len(panels)
    figure, rows = pyplot.subplots(len(panels), figsize=(7, height), layout="constrained", squeeze=False)
    for (unit, lines), axes in zip(panels, rows[:, 0], strict=True):
        for line in lines:
            if line.points:
                places, values = zip(*line.points, strict=True)
                axes.plot(places, values, line.style, label=line.label, color=line.colour, markersize=5)
        axes.set(xlabel=x_label, ylabel=unit)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    rows[0, 0].set_title(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
