"""Curves of runs from what `Trainer` logged: read, keep as references, compare, and draw them."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_encoders.inputs import is_number
from hf_encoders.publishing.files import HEALTH_STATE, RECORD_FILE, RUN_FILE, WARNINGS_FIELD
from hf_encoders.publishing.record import NOT_RECORDED, TrainingRecord
from hf_encoders.writing import check_file, markdown_table, mean_and_deviation, read_json


Points = Sequence[tuple[float, float]]
REFERENCES = Path(__file__).parents[1] / "runs" / "curves"
# Logged values that a reference curve keeps, besides losses and accuracies.
KEPT = ("step", "tokens_seen", "training_seconds", "tokens_per_second", "mfu", "mask_rate", "pair_label_1_share")
MAX_ENTRIES = 100  # of a reference curve: a few kilobytes
DIGITS = 5  # significant ones
SMOOTHED = 5  # logs that a comparison averages
SAME_LOSS = 0.02  # relative difference between the losses of two seeds
SAME_TEXT = 0.01  # relative difference of unigram cross-entropies up to which two texts count as the same
UNIGRAM = "unigram_cross_entropy"
UNIGRAM_LOSSES = ("mlm_loss", "plm_loss")  # the loss terms whose baseline it is
AXES = {"steps": "optimizer steps", "tokens": "real tokens", "minutes": "minutes of training"}
BASELINE_COLOUR = "0.45"
SOURCE_MARKERS = "v^<>sPXdp*"  # of the sources of a run, which have its colour


@dataclass(frozen=True)
class Curve:
    """Hold the log of a run: its name, `log_history` of `Trainer`, and known facts.

    These are `hardware`, `software`, `recipe`, `seed`, `training` (options that override the recipe), `corpus` and
    `unigram_cross_entropy` (nats per token).
    """

    name: str
    entries: list[dict[str, Any]]
    about: dict[str, Any] = field(default_factory=dict)

    def losses(self) -> list[str]:
        """Return the names of the logged loss terms, such as `mlm_loss`; `["loss"]` for a run with none.

        >>> Curve("", [{"step": 1, "loss": 7.5, "mlm_loss": 7.0}, {"step": 1, "eval_pair_loss": 0.5}]).losses()
        ['mlm_loss', 'pair_loss']
        """
        names, sources = self._logged_losses(), self.sources()
        of_sources = {f"{source}_{name}" for source in sources for name in ("loss", *names)}
        return [name for name in names if name not in of_sources] or ["loss"]

    def sources(self) -> list[str]:
        """Return the names of the sources of text that were evaluated each by itself; training logs only terms.

        >>> log = [{"step": 1, "mlm_loss": 2.0}, {"step": 1, "eval_mlm_loss": 2.5, "eval_de_mlm_loss": 3.0}]
        >>> Curve("", log).sources()
        ['de']
        """
        names = self._logged_losses()
        terms = [name for name in names if any(name in entry for entry in self.entries)]
        endings = [(name, f"_{term}") for term in terms for name in names]
        return list(dict.fromkeys(name.removesuffix(ending) for name, ending in endings if name.endswith(ending)))

    def _logged_losses(self) -> list[str]:
        names = [name.removeprefix("eval_") for entry in self.entries for name in entry if is_number(entry[name])]
        return list(dict.fromkeys(name for name in names if name.endswith("_loss") and name != "train_loss"))

    def points(self, metric: str, against: str = "steps") -> list[tuple[float, float]]:
        """Return the finite values of a metric, `(x, value)` in the order of x, a step or one of `AXES`.

        ValueError if the run did not log tokens or minutes.
        """
        values = self._by_step(metric)
        if against == "steps" or not values:
            return [(float(step), value) for step, value in values.items()]
        # Evaluations are logged with their step only.
        name, unit = {"tokens": ("tokens_seen", 1.0), "minutes": ("training_seconds", 60.0)}[against]
        known = self._by_step(name)
        if not known:
            raise ValueError(f"--against {against}: {self.name} has no {name} in its log: use --against steps.")
        axis = np.interp(list(values), [0, *known], [0.0, *(value / unit for value in known.values())])
        return list(zip(axis.tolist(), values.values(), strict=True))

    def _by_step(self, metric: str) -> dict[int, float]:
        # A resumed run may have logged a step twice; the later value counts.
        values = {entry["step"]: entry[metric] for entry in self.entries if is_number(entry.get(metric))}
        return dict(sorted(values.items()))

    def last(self, metric: str) -> float | None:
        """Return the last logged value of a metric."""
        return next((entry[metric] for entry in reversed(self.entries) if is_number(entry.get(metric))), None)

    def warnings(self) -> list[str]:
        """Return the names of the run's health warnings in their order."""
        return [name for entry in self.entries for name in entry.get(WARNINGS_FIELD, ())]


def read_run(path: Path) -> Curve:
    """Read the log of a run: its output folder (the checkpoint with the most steps), a checkpoint, or a file."""
    files = [path]
    if path.is_dir():
        files = [path / TRAINER_STATE_NAME, *path.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{TRAINER_STATE_NAME}")]
        files = [file for file in files if file.is_file()]
    if not files:
        raise ValueError(f"{path} holds no {TRAINER_STATE_NAME}: give the output of a run that saved (save_strategy).")
    entries, about = max(map(read_log, files), key=lambda log: log[0][-1]["step"])
    return Curve(str(path), entries, {**about_run(path if path.is_dir() else path.parent), **about})


def about_run(folder: Path) -> dict[str, Any]:
    """Return the recorded facts in the output folder of a run, or in the parent folder of a checkpoint."""
    if folder.name.startswith(f"{PREFIX_CHECKPOINT_DIR}-"):
        folder = folder.parent
    about: dict[str, Any] = {}
    if (folder / RUN_FILE).is_file():
        run = read_json(folder / RUN_FILE, "restore it, or give a trainer_state.json copied to another folder.")
        about = {name: run[name] for name in ("recipe", "seed", "training") if name in run}
    for model in (folder / "model", folder):
        if (model / RECORD_FILE).is_file():
            record = TrainingRecord.load(model)
            about |= {"hardware": record.hardware, "software": record.software}
            if record.corpus:
                # Names of files, without their folders.
                names = str(record.corpus.get("name", NOT_RECORDED)).split(", ")
                about["corpus"] = {**record.corpus, "name": ", ".join(Path(name).name for name in names)}
    return about


def read_log(file: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the entries and facts in a reference, or in a `trainer_state.json`; ValueError where there are none."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist: give the folder of a run, or a file with its log.")
    content = read_json(file, "use an earlier checkpoint's.")
    entries = content.get("log_history", content.get("entries"))
    if not entries or not all(is_number(entry.get("step")) for entry in entries):
        raise ValueError(f"{file} holds no log, or entries without a step: give a {TRAINER_STATE_NAME}.")
    health = (content.get("stateful_callbacks") or {}).get(HEALTH_STATE)
    unigram = health["args"].get(UNIGRAM) if isinstance(health, dict) else None
    return entries, content.get("about", {} if unigram is None else {UNIGRAM: unigram})


def reference_names() -> list[str]:
    """Return the names of the shipped reference curves."""
    return sorted(file.stem for file in REFERENCES.glob("*.json"))


def reference_file(name: str) -> Path:
    """Return the path of a reference: of a shipped one by its name, or a path that ends in `.json`."""
    return Path(name) if name.endswith(".json") else REFERENCES / f"{name}.json"


def read_reference(name: str) -> Curve:
    """Read a reference curve, see `reference_file`; ValueError if it does not exist."""
    file = reference_file(name)
    if not file.is_file():
        names = ", ".join(reference_names()) or "none yet"
        raise ValueError(f"--reference {name}: does not exist; choose one of {names}, or give a .json file.")
    return Curve(f"reference {file.stem}", *read_log(file))


def save_reference(curve: Curve, name: str) -> Path:
    """Write at most 100 evenly spaced logs, all evaluations and the known facts of a run as a new reference."""
    file = reference_file(name)
    if not re.fullmatch(r"[\w.-]+", file.stem):
        raise ValueError(f"--save-reference {name}: use letters, digits, '-', '_' and '.' only.")
    if file.exists():
        raise ValueError(f"--save-reference {name}: {file} exists: remove it, or choose another name.")

    training = [i for i, entry in enumerate(curve.entries) if "loss" in entry]
    spaced = np.linspace(0, len(training) - 1, min(len(training), MAX_ENTRIES)).round().astype(int)
    evaluations = [i for i, entry in enumerate(curve.entries) if "eval_loss" in entry]
    lines = []
    for i in sorted({training[k] for k in spaced} | set(evaluations)):
        kept = {}
        for name, value in curve.entries[i].items():
            if (name in KEPT or name.endswith(("loss", "_accuracy"))) and is_number(value):
                kept[name] = value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")
        lines.append(json.dumps(kept))
    file.parent.mkdir(parents=True, exist_ok=True)
    entries = ",\n".join(lines)
    file.write_text(f'{{"about": {json.dumps(curve.about)},\n"entries": [\n{entries}\n]}}\n', encoding="utf-8")
    return file


def compare(run: Curve, reference: Curve) -> list[str]:
    """Compare each loss that both logged at the same number of tokens, in means of five logs; a sentence for each.

    Runs that did not count tokens are compared at the same step, and longer runs at the reference's end. The unigram
    cross-entropy of its text is subtracted where both are known; no verdict is given where recipe or text differ.
    """
    is_counted = None not in (run.last("tokens_seen"), reference.last("tokens_seen"))
    against = "tokens" if is_counted else "steps"
    differences = setup_differences(run.about, reference.about)
    unigrams = [curve.about.get(UNIGRAM) for curve in (run, reference)]
    sentences = []
    for name in run.losses():
        points, reference_points = run.points(name, against), reference.points(name, against)
        if name == "loss" or not points or not reference_points:
            continue
        means = smooth(reference_points)
        # The reference's last mean is at the middle of its last five logs.
        last = smooth([(x, y) for x, y in points if x <= reference_points[-1][0]])
        if not last or last[-1][0] < means[0][0]:
            sentences.append(f"{run.name}: {name} cannot be compared yet: {reference.name} has no log so early.")
            continue
        x, value = last[-1]
        expected = float(np.interp(x, *zip(*means, strict=True)))
        is_relative = name in UNIGRAM_LOSSES and None not in unigrams
        values = [y - u for y, u in zip((value, expected), unigrams if is_relative else (0.0, 0.0), strict=True)]
        difference = values[0] - values[1]
        verdict = ", about equal" if not differences and abs(difference) < SAME_LOSS * expected else ""
        sentences.append(
            f"{run.name}: {name}{' less unigram cross-entropy' * is_relative} {values[0]:.3f} at {x:,.0f} {against}, "
            f"{reference.name} {values[1]:.3f}: {abs(difference):.3f} ({100 * abs(difference) / expected:.1f} %) "
            f"{'below' if difference < 0 else 'above'}{verdict}"
        )
    if differences:
        setup = " and ".join(differences)
        sentences.append(f"{run.name}: different {setup} from {reference.name}: only the shape can be compared.")
    return sentences


def setup_differences(about: dict[str, Any], reference: dict[str, Any]) -> list[str]:
    """Return the known differences between two runs in words: recipe fields that differ, and texts.

    Texts count as different if their unigram cross-entropies differ by more than those of two splits of one text.
    """

    def settings(facts: dict[str, Any]) -> dict[str, Any]:
        fields = {name: value for name, value in facts.get("recipe", {}).items() if name != "name"}
        return {**fields, "options": facts["training"]} if "training" in facts else fields

    differences = []
    of_run, of_reference = settings(about), settings(reference)
    if fields := [name for name in of_run if name in of_reference and of_run[name] != of_reference[name]]:
        differences.append(f"recipe ({', '.join(fields)})")
    unigrams = about.get(UNIGRAM), reference.get(UNIGRAM)
    if None not in unigrams and abs(unigrams[0] - unigrams[1]) > SAME_TEXT * unigrams[1]:
        differences.append(f"text or vocabulary (unigram cross-entropy {unigrams[0]:.3f}, not {unigrams[1]:.3f})")
    return differences


def smooth(points: Points) -> list[tuple[float, float]]:
    """Return the moving average over five points, of x and of y; over all points if there are fewer."""
    size = min(SMOOTHED, len(points))
    return [tuple(np.mean(points[i : i + size], axis=0)) for i in range(len(points) - size + 1 if size else 0)]


@dataclass(frozen=True)
class Line:
    """Hold a line, or row of points, in matplotlib's style and colour; None takes the next colour."""

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

    Training is drawn as lines, evaluation as points, `reference` dashed and black. `against` is of `AXES`; `baselines`
    are name and value by loss term; of several `phases`, steps and name, the beginnings are marked; `evaluated` says
    what all evaluations are of, where phases differ. ValueError if no loss, or not the horizontal axis, was logged.
    """
    styles = [(run, f"C{i % 10}", "-", "o") for i, run in enumerate(runs)]
    styles += [(reference, "black", "--", "x")] if reference is not None else []
    names = dict.fromkeys(name for run, *_ in styles for name in run.losses())
    if len(names) > 1:
        names.pop("loss", None)
    panels = []
    for name in names:
        lines = []
        for run, colour, line, point in styles:
            held_out = "held-out" if len(styles) == 1 else f"{run.name}, held-out"
            held_out += f" ({evaluated})" * bool(evaluated)
            lines.append(Line(run.points(name, against), line, run.name, colour))
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
    panels = [(label, lines) for label, lines in panels if any(line.points for line in lines)]
    if not panels:
        raise ValueError(f"{', '.join(run.name for run in runs)}: no loss was logged: set logging_steps in the run.")
    beginnings = [0, *accumulate(steps for steps, _ in phases)]
    changes = list(zip(beginnings, (name for _, name in phases), strict=False)) if len(phases) > 1 else []
    return draw(panels, path, title, AXES[against], changes)


def check_picture(path: str | Path) -> None:
    """Raise ValueError for a picture, `--output`, of unknown format or that cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    formats = FigureCanvasAgg.get_supported_filetypes()
    if Path(path).suffix[1:].lower() not in formats:
        raise ValueError(f"--output {path}: must end in one of {', '.join(f'.{name}' for name in sorted(formats))}.")
    check_file(path, "--output")


def draw(
    panels: Sequence[tuple[str, list[Line]]],
    path: Path,
    title: str,
    x_label: str,
    changes: Sequence[tuple[float, str]] = (),
    log_x: bool = False,
) -> Path:
    """Write a picture of panels one below the other, each with the label of its vertical axis.

    `changes` are marked in all panels, with what begins there; `log_x` has a tick at each point.
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
                axes.plot(
                    *zip(*line.points, strict=True), line.style, label=line.label, color=line.colour, markersize=5
                )
        axes.set(ylabel=label)
        axes.grid(alpha=0.3)
        for x, name in changes:
            axes.axvline(x, color=BASELINE_COLOUR, linestyle=":")
            style = {"xycoords": ("data", "axes fraction"), "color": BASELINE_COLOUR, "fontsize": "small"}
            axes.annotate(f" {name}", (x, 0.02), **style)
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

    def cell(values: list[float | None]) -> str:
        if None in values:
            return "–"
        is_count = all(isinstance(value, int) for value in values) and len(set(values)) == 1
        return f"{values[0]:,}" if is_count else mean_and_deviation(values)

    names = list(next(iter(metrics.values()))[0])
    rows = [[variant, *(cell([seed[name] for seed in seeds]) for name in names)] for variant, seeds in metrics.items()]
    table = markdown_table([["", *names], *rows])
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(table + "\n", encoding="utf-8")
    (folder / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")
    lines = [Line(points, "o-", label) for label, points in curves.items()]
    draw([(y_label, lines)], folder / "curves.png", title, x_label, log_x=log_x)
    return table


def logged_points(log_history: list[dict[str, Any]], name: str) -> Points:
    """Return `(optimizer step, value)` of a metric that `Trainer` logged."""
    return Curve("", log_history).points(name)
