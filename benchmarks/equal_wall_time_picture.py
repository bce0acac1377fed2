"""Draws what `equal_wall_time.py` found, a panel a run, and prints it as a table.

python -m benchmarks.equal_wall_time_picture runs/*/equal_wall_time.json --output beside.png
"""

import argparse
import json
import math
from pathlib import Path

import matplotlib


COLOURS = ("C0", "C3", "C1", "C2")


def main() -> None:
    """Read, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="+", type=Path)
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in arguments.figures]
    print("| recipe | seed | run | steps | minutes | nats per masked token | perplexity | accuracy | unigram |")
    print("|---|---|---|---|---|---|---|---|---|")
    for figures in runs:
        for name, curve in figures["curves"].items():
            last = curve[-1]
            print(
                f"| {figures['recipe']} | {figures['seed']} | {name} | {last['step']:,} "
                f"| {last['seconds'] / 60:.1f} | {last['loss']:.3f} | {math.exp(last['loss']):.0f} "
                f"| {last['accuracy']:.1%} | {math.exp(figures['unigram']):.0f} |"
            )
    draw(runs, arguments.output)


def draw(runs: list[dict], output: Path) -> None:
    """A panel a run: nats over minutes, and the unigram's."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(runs), figsize=(3.6 * len(runs), 3.6), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, figures in zip(panels[0], runs, strict=True):
        for (name, curve), colour in zip(figures["curves"].items(), COLOURS, strict=True):
            minutes = [point["seconds"] / 60 for point in curve]
            axes.plot(minutes, [point["loss"] for point in curve], color=colour, label=name)
        axes.axhline(figures["unigram"], color="grey", linestyle=":", label="token frequencies")
        axes.set(title=f"{figures['recipe']}, seed {figures['seed']}", xlabel="minutes of one core")
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("nats per masked token, held-out")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(output, dpi=100)


if __name__ == "__main__":
    main()
