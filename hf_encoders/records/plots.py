"""Draws the losses of runs from what `Trainer` logged: one run for its model card, or several over each other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from hf_encoders.records.curves import Curve
from hf_encoders.writing import check_file


OBJECTIVES = {"mlm_loss": "masked tokens", "pair_loss": "sentence pairs"}
LOSS_UNIT = "loss (nats an item)"
BASELINE_COLOUR = "0.45"
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


def draw_loss_curve(
    log_history: list[dict[str, Any]],
    path: Path,
    title: str,
    unigram: float | None = None,
    phases: Sequence[tuple[int, str]] = (),
) -> Path:
    """Write a PNG of the losses over optimizer steps: training as lines, evaluation as points.

    Of a pre-training a panel for each objective's loss, with what a model that knows nothing would have; of any other
    run the loss that `Trainer` logs.

    Args:
        log_history: `trainer.state.log_history`.
        path (`Path`): file to write.
        title (`str`): heading of the picture.
        unigram (`float`, *optional*): cross-entropy of the tokens' frequencies, in nats a token.
        phases: steps and name of each phase of the run; where one ends and the next begins is marked.
    """
    run = Curve("", log_history)
    baselines = {
        "mlm_loss": (unigram, "unigram cross-entropy"),
        "pair_loss": (math.log(2), "chance"),
    }
    has_objectives = any(run.points(prefix + name) for name in OBJECTIVES for prefix in ("", "eval_"))
    panels = []
    for name, label in (OBJECTIVES if has_objectives else {"loss": "loss"}).items():
        training, held_out = run.points(name), run.points(f"eval_{name}")
        if not training and not held_out:
            continue
        lines = [Line(training, "-", "training"), Line(held_out, "o", "held-out")]
        value, known = baselines.get(name, (None, ""))
        if value is not None:
            steps = [step for step, _ in (*training, *held_out)]
            ends = [(0, value), (max(steps), value)]
            lines.append(Line(ends, "--", f"{known}: {value:.2f}", BASELINE_COLOUR))
        panels.append((f"{label}: {LOSS_UNIT}" if has_objectives else LOSS_UNIT, lines))
    last_steps = list(accumulate(steps for steps, _ in phases))
    changes = list(zip(last_steps, (name for _, name in phases[1:]), strict=False))
    return draw(panels, path, title, AXES["steps"], changes)


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


def draw(
    panels: Sequence[tuple[str, list[Line]]],
    path: Path,
    title: str,
    x_label: str,
    changes: Sequence[tuple[float, str]] = (),
) -> Path:
    """Write a PNG of panels below each other: what is up its side, and its lines; empty lines are left out.

    Args:
        panels, path, title, x_label: what to draw, where, the heading, and what is along the bottom.
        changes: places along the bottom, and what begins there; a dotted line through all panels.
    """
    import matplotlib

    matplotlib.use("Agg")  # no window, also where there is no screen
    from matplotlib import pyplot

    height = 4 if len(panels) == 1 else 3 * len(panels)
    figure, rows = pyplot.subplots(
        max(len(panels), 1), figsize=(7, height), layout="constrained", squeeze=False, sharex=True
    )
    shown: list[str] = []
    for (unit, lines), axes in zip(panels, rows[:, 0], strict=False):
        for line in lines:
            if line.points:
                places, values = zip(*line.points, strict=True)
                axes.plot(places, values, line.style, label=line.label, color=line.colour, markersize=5)
        axes.set(ylabel=unit)
        axes.grid(alpha=0.3)
        for place, name in changes:
            axes.axvline(place, color=BASELINE_COLOUR, linestyle=":")
            axes.annotate(
                f" {name}", (place, 0.02), xycoords=("data", "axes fraction"), color=BASELINE_COLOUR, fontsize="small"
            )
        labels = axes.get_legend_handles_labels()[1]
        if labels != shown:  # the same runs in each panel are named once
            axes.legend()
        shown = labels
    rows[-1, 0].set_xlabel(x_label)
    rows[0, 0].set_title(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
