"""Curves of runs, read from what `Trainer` logged; reference curves of the shipped recipes; how the two compare."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_encoders.records.run_files import HEALTH_STATE, RECORD_FILE, RUN_FILE, WARNINGS_FIELD
from hf_encoders.records.training_record import NOT_RECORDED, TrainingRecord
from hf_encoders.writing import read_json


REFERENCES = Path(__file__).parents[1] / "recipes" / "curves"
# What a reference curve keeps of each log.
KEPT = (
    "step", "tokens_seen", "training_seconds", "loss", "mlm_loss", "mlm_accuracy", "pair_loss", "pair_accuracy",
    "tokens_per_second", "mfu", "mask_rate", "pair_label_1_share", "eval_loss", "eval_mlm_loss",
    "eval_mlm_accuracy", "eval_pair_loss", "eval_pair_accuracy",
)  # fmt: skip
MOST_ENTRIES = 100  # of a reference curve: a few kilobytes
DIGITS = 5  # significant ones
SMOOTHED = 5  # logs that a comparison takes the mean of
LIKE = 0.02  # relative difference of losses that is none: two seeds differ by as much
SAME_TEXT = 0.01  # relative difference of unigram cross-entropies up to which the text is taken to be the same
UNIGRAM = "unigram_cross_entropy"


@dataclass(frozen=True)
class Curve:
    """The log of one run.

    Args:
        name (`str`): what it is called in pictures and tables.
        entries (`list[dict]`): `log_history` of `Trainer`.
        about (`dict`): what is known of the run: of `hardware`, `software`, `recipe`, `seed`, `training` (what shapes
            the run, the command line's before the recipe's), `corpus` and `unigram_cross_entropy` (nats a token).
    """

    name: str
    entries: list[dict[str, Any]]
    about: dict[str, Any] = field(default_factory=dict)

    def points(self, figure: str, against: str = "steps") -> list[tuple[float, float]]:
        """The finite values of a figure, `(x, value)`, x rising.

        Args:
            figure (`str`): name in the log, such as `mlm_loss` or `eval_mlm_loss`.
            against (`str`): `"steps"` of the optimizer, `"tokens"` (real ones) or `"minutes"` of training.

        Raises:
            ValueError: if the run did not log them.
        """
        # One value a step: a resumed run may have logged a step again, and the later one counts.
        found = {entry["step"]: entry[figure] for entry in self.entries if is_number(entry.get(figure))}
        steps = sorted(found)
        if not steps:
            return []
        return list(zip(self._axis(steps, against), (found[step] for step in steps), strict=True))

    def last(self, figure: str) -> float | None:
        """The last finite value."""
        return next((entry[figure] for entry in reversed(self.entries) if is_number(entry.get(figure))), None)

    def has_tokens(self) -> bool:
        """Whether the run counted its tokens."""
        return self.last("tokens_seen") is not None

    def warnings(self) -> list[str]:
        """Names of the warnings that the run gave, in their order."""
        return [name for entry in self.entries for name in entry.get(WARNINGS_FIELD, ())]

    def _axis(self, steps: list[int], against: str) -> list[float]:
        if against == "steps":
            return [float(step) for step in steps]
        # Evaluations are logged with their step only, which lies on or between logs of training.
        name, unit = {"tokens": ("tokens_seen", 1.0), "minutes": ("training_seconds", 60.0)}[against]
        known = {entry["step"]: entry[name] / unit for entry in self.entries if is_number(entry.get(name))}
        if not known:
            raise ValueError(
                f"--against {against}: {self.name} has no {name} in its log, which HealthCallback writes: use "
                "--against steps."
            )
        at = sorted(known)
        return np.interp(steps, [0, *at], [0.0, *(known[step] for step in at)]).tolist()


def is_number(value: Any) -> bool:
    """Whether a logged value is there and finite."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def read_run(path: Path) -> Curve:
    """Read a run: its folder, one of its checkpoints, or a JSON file, `trainer_state.json` or a curve.

    Of several checkpoints the one with the most steps is taken.

    Args:
        path (`Path`): folder or file.

    Raises:
        ValueError: if nothing was logged there, or a file is damaged.
    """
    if not path.is_dir():
        entries, about = read_log(path)
        return Curve(str(path), entries, {**about_run(path.parent), **about})
    files = [path / TRAINER_STATE_NAME, *path.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{TRAINER_STATE_NAME}")]
    logs = [read_log(file) for file in files if file.is_file()]
    if not logs:
        raise ValueError(
            f"{path} holds no {TRAINER_STATE_NAME}, nor checkpoints with one: give the output folder of a run that "
            "saved (save_strategy), or a file with its log."
        )
    entries, about = max(logs, key=lambda log: log[0][-1]["step"])
    return Curve(str(path), entries, {**about_run(path), **about})


def about_run(folder: Path) -> dict[str, Any]:
    """What the output folder of a run, or of one of its checkpoints, tells of it: nothing, where nothing is noted."""
    if folder.name.startswith(f"{PREFIX_CHECKPOINT_DIR}-"):
        folder = folder.parent
    found = {}
    if (folder / RUN_FILE).is_file():
        noted = read_json(folder / RUN_FILE, "restore it, or give a trainer_state.json copied to another folder.")
        found = {name: noted[name] for name in ("recipe", "seed", "training") if name in noted}
    model = next((place for place in (folder, folder / "model") if (place / RECORD_FILE).is_file()), None)
    if model is not None:
        record = TrainingRecord.load(model)
        found.update(hardware=record.hardware, software=record.software)
        if record.corpus:
            found["corpus"] = {**record.corpus, "name": without_folders(str(record.corpus.get("name", NOT_RECORDED)))}
    return found


def without_folders(names: str) -> str:
    """Names of files and folders without those that they lie in, which are one machine's own.

    >>> without_folders("/data/en/wiki.txt, books"), without_folders("documentation of the installation")
    ('wiki.txt, books', 'documentation of the installation')
    """
    return ", ".join(Path(name).name for name in names.split(", "))


def read_log(file: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The entries of a file, and what it says about the run.

    Raises:
        ValueError: if there is no such file, it is no log, or the log is empty.
    """
    if not file.is_file():
        raise ValueError(f"{file} does not exist: give the folder of a run, or a file with its log.")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}): take an earlier checkpoint's.") from error
    entries = content.get("log_history", content.get("entries")) if isinstance(content, dict) else content
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{file} holds no log: give a {TRAINER_STATE_NAME}, or a list of what Trainer logged.")
    if not all(isinstance(entry, dict) and is_number(entry.get("step")) for entry in entries):
        raise ValueError(f"{file} has entries without a step: give a {TRAINER_STATE_NAME}.")
    return entries, about_log(content) if isinstance(content, dict) else {}


def about_log(content: dict[str, Any]) -> dict[str, Any]:
    """What a reference says of its run; of a `trainer_state.json`, the cross-entropy that the run was watched with."""
    if "about" in content:
        return content["about"]
    saved = (content.get("stateful_callbacks") or {}).get(HEALTH_STATE)
    unigram = saved["args"].get(UNIGRAM) if isinstance(saved, dict) else None
    return {} if unigram is None else {UNIGRAM: unigram}


def reference_names() -> list[str]:
    """Reference curves that come with the package."""
    return sorted(file.stem for file in REFERENCES.glob("*.json"))


def read_reference(name: str) -> Curve:
    """A shipped reference curve by its name, or one from a file by its path.

    Raises:
        ValueError: if there is none of that name.
    """
    file = reference_file(name)
    if not file.is_file():
        there = ", ".join(reference_names()) or "none yet"
        raise ValueError(f"--reference {name}: there is no such curve; those that are there: {there}.")
    return Curve(f"reference {file.stem}", *read_log(file))


def save_reference(curve: Curve, name: str) -> Path:
    """Write a finished run's curve, with what is known of the run, for others to be compared with.

    Args:
        curve (`Curve`): the run.
        name (`str`): of the reference; with a folder or `.json`, a path.

    Raises:
        ValueError: for a name that no file can have, or one that is taken.
    """
    file = reference_file(name)
    if not re.fullmatch(r"[\w.-]+", file.stem):
        raise ValueError(f"--save-reference {name}: use letters, digits, '-', '_' and '.' only.")
    if file.exists():
        raise ValueError(f"--save-reference {name}: {file} is there already: remove it, or take another name.")
    entries = [kept_figures(entry) for entry in with_fewer_logs(curve.entries)]
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'{{"about": {json.dumps(curve.about)},\n"entries": [\n{lines}\n]}}\n', encoding="utf-8")
    return file


def reference_file(name: str) -> Path:
    """Where a reference is."""
    return Path(name) if name.endswith(".json") else REFERENCES / f"{name}.json"


def kept_figures(entry: dict[str, Any]) -> dict[str, Any]:
    """The figures of an entry that a reference keeps, counts whole and others rounded."""
    found = {name: entry[name] for name in KEPT if is_number(entry.get(name))}
    return {name: value if isinstance(value, int) else float(f"{value:.{DIGITS}g}") for name, value in found.items()}


def with_fewer_logs(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most 100 entries of training, evenly spread with the first and the last, and all evaluations.

    >>> entries = [{"step": step, "loss": 1.0} for step in range(1, 1001)]
    >>> kept = with_fewer_logs([*entries, {"step": 1000, "eval_loss": 1.0}, {"step": 1000, "train_runtime": 5.0}])
    >>> len(kept), kept[0]["step"], kept[-2]["step"]
    (101, 1, 1000)
    """
    training = [i for i, entry in enumerate(entries) if "loss" in entry]
    places = np.linspace(0, len(training) - 1, min(len(training), MOST_ENTRIES)).round().astype(int)
    chosen = {training[place] for place in places} | {i for i, entry in enumerate(entries) if "eval_loss" in entry}
    return [entries[i] for i in sorted(chosen)]


def compare(run: Curve, reference: Curve) -> list[str]:
    """A sentence for each loss that both have: where the run is beside the reference at the same tokens.

    Means of the last five logs, beside the mean of five of the reference around the same place. Where one of them did
    not count its tokens, at the same steps; a run that went on longer than the reference, at the reference's end. The
    loss of masked tokens is taken less the unigram cross-entropy of each one's text, where both are known. A sentence
    more, and no verdict, where the run is of another recipe or text.
    """
    against = "tokens" if run.has_tokens() and reference.has_tokens() else "steps"
    others_are = other_things(run.about, reference.about)
    unigrams = [curve.about.get(UNIGRAM) for curve in (run, reference)]
    sentences = []
    for figure in ("mlm_loss", "pair_loss"):
        points, others = run.points(figure, against), smooth(reference.points(figure, against))
        if not points or not others:
            continue
        # The last mean that the reference has is that of its last five logs, which lies before its end.
        last = smooth([(x, y) for x, y in points if x <= reference.points(figure, against)[-1][0]])
        if not last or last[-1][0] < others[0][0]:
            sentences.append(f"{run.name}: {figure} cannot be compared yet: {reference.name} has no log so early.")
            continue
        at, value = last[-1]
        expected = float(np.interp(at, *zip(*others, strict=True)))
        subtracted = unigrams if figure == "mlm_loss" and None not in unigrams else (0.0, 0.0)
        less = " less unigram cross-entropy" if any(subtracted) else ""
        difference = (value - subtracted[0]) - (expected - subtracted[1])
        sentences.append(
            f"{run.name}: {figure}{less} {value - subtracted[0]:.3f} at {at:,.0f} {against}, {reference.name} "
            f"{expected - subtracted[1]:.3f}: {relation(difference, expected, has_verdict=not others_are)}"
        )
    if others_are:
        what = " and ".join(others_are)
        sentences.append(f"{run.name}: of another {what} than {reference.name}: only the shape can be compared.")
    return sentences


def other_things(about: dict[str, Any], reference: dict[str, Any]) -> list[str]:
    """What is known to differ between two runs, in words: their recipes, and how, and their texts.

    Texts differ if their unigram cross-entropies do by more than another split of one text makes.

    >>> other_things({"recipe": {"name": "a", "phases": [1]}}, {"recipe": {"name": "b", "phases": [2]}})
    ['recipe (phases)']
    >>> other_things({"unigram_cross_entropy": 6.9}, {"unigram_cross_entropy": 6.2})
    ['text or vocabulary (unigram cross-entropy 6.900, not 6.200)']
    >>> other_things({"recipe": {"name": "a"}, "unigram_cross_entropy": 6.9}, {"unigram_cross_entropy": 6.91})
    []
    """
    found = []
    own, other = settings_of(about), settings_of(reference)
    fields = [name for name in own if name in other and own[name] != other[name]]
    if fields:
        found.append(f"recipe ({', '.join(fields)})")
    unigrams = about.get(UNIGRAM), reference.get(UNIGRAM)
    if None not in unigrams and abs(unigrams[0] - unigrams[1]) > SAME_TEXT * unigrams[1]:
        found.append(f"text or vocabulary (unigram cross-entropy {unigrams[0]:.3f}, not {unigrams[1]:.3f})")
    return found


def settings_of(about: dict[str, Any]) -> dict[str, Any]:
    """The recipe of a run, as far as it is noted, but for its name; and what the command line gave before it."""
    found = {name: value for name, value in about.get("recipe", {}).items() if name != "name"}
    return {**found, "options": about["training"]} if "training" in about else found


def relation(difference: float, expected: float, has_verdict: bool = True) -> str:
    """How a loss lies to another one, by how much it differs from it.

    >>> relation(-1.0, 5.0), relation(0.05, 5.0)
    ('1.000 (20.0 %) below', '0.050 (1.0 %) above, which is level')
    """
    side = "below" if difference < 0 else "above"
    level = ", which is level" if has_verdict and abs(difference) < LIKE * expected else ""
    return f"{abs(difference):.3f} ({100 * abs(difference) / expected:.1f} %) {side}{level}"


def smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Means of five neighbours each, places and values alike; of all of them where there are fewer.

    >>> smooth([(1, 5.0), (2, 4.0), (3, 3.0)])
    [(2.0, 4.0)]
    """
    size = min(SMOOTHED, len(points))
    return [
        tuple(fmean(values) for values in zip(*points[i : i + size], strict=True))
        for i in range(len(points) - size + 1 if size else 0)
    ]
