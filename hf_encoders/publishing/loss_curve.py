"""Draws the losses of a run from what `Trainer` logged."""

from pathlib import Path
from typing import Any


def draw_loss_curve(log_history: list[dict[str, Any]], path: Path, title: str) -> Path:
    """Write a PNG of the losses over optimizer steps: training as lines, evaluation as points.

    Of a pre-training each objective's loss; of any other run the one that `Trainer` logs.

    Args:
        log_history: `trainer.state.log_history`.
        path (`Path`): file to write.
        title (`str`): heading of the picture.
    """
    import matplotlib

    matplotlib.use("Agg")  # no window, also where there is no screen
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    objectives = {"mlm_loss": "masked tokens", "pair_loss": "sentence pairs"}
    has_objectives = any(name in entry for entry in log_history for name in objectives)
    for name, label in (objectives if has_objectives else {"loss": "loss"}).items():
        for prefix, style in (("", "-"), ("eval_", "o")):
            points = [(entry["step"], entry[prefix + name]) for entry in log_history if prefix + name in entry]
            if points:
                kind = "held-out" if prefix else "training"
                axes.plot(*zip(*points, strict=True), style, label=f"{label}, {kind}", markersize=5)
    axes.set(xlabel="optimizer steps", ylabel="loss (nats an item)", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
