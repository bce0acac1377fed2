"""What pre-training is worth: fine-tuning on eight labelled sets, beside the same model without it and a linear one.

    python -m benchmarks.finetuning_table --data FOLDER --model DIR --output runs/table [--sets banking77 snips]

Every row is a set, every column a model: the encoder, the same adapted to the set's training texts before (without
their labels, by `hf-encoders adapt`), its configuration with random weights, transformers' own classes from the
same checkpoint, and TF-IDF with a linear model (`linear_baselines.py`). Figures are of the sets' test rows
after the last update; no checkpoint is chosen. Mean and standard deviation are those of three seeds; seconds are of
one training. Adapting has one seed, reads all training texts, also those of rows that are left out, and is not in the
seconds; the learning rate is the unadapted encoder's. A run that is there already is not repeated, so a killed table
goes on where it was.

`--data` has a folder a set, as its publisher made it: banking77 (77 intents), snips (7 intents), movie_reviews (2),
med_nli (2, pairs), wnut17 (entities), policyqa (answers), codah (4 endings), and jglue JSTS (similarity, Japanese),
which is left out unless it is named.
Training rows above `most_rows` are left out, drawn by seed 0, but no label, to keep the whole table below an hour on
one core for an encoder of 2 layers of width 128 and 128 tokens. Each set has epochs of its own, 100 to 500 steps;
`--steps` gives all as many. `--train-rows` shows what few labels allow.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import numpy as np
import transformers

from benchmarks.linear_baselines import (
    choice_baseline,
    classification_baseline,
    question_baseline,
    regression_baseline,
    token_baseline,
)
from hf_encoders.cli import main as hf_encoders
from hf_encoders.corpus.labelled_files import read_file
from hf_encoders.finetuning import (
    multiple_choice,
    question_answering,
    sequence_classification,
    sequence_regression,
    token_classification,
)
from hf_encoders.finetuning.runs import RunSettings, finetune
from hf_encoders.loading import load_config
from hf_encoders.tokenizer_loading import load_tokenizer, longest_input
from hf_encoders.writing import mean_and_deviation, write_whole


SEEDS = (0, 1, 2)
MOST_TOKENS = 128
LEARNING_RATES = (1e-3, 3e-3)
ROWS_TO_CHOOSE_ON = 2000
TRAINING = {"per_device_train_batch_size": 32, "dataloader_num_workers": 0}


@dataclass(frozen=True)
class LabelledSet:
    """A row of the table.

    Args:
        load: folder of all sets -> `train` and `test`.
        module: the task.
        metric (`str`): the figure that is shown.
        baseline: `train`, `test` -> the same figure of a linear model.
        epochs (`int`), most_rows (`int`): of training; most_test_rows (`int`): of the test.
        options (`dict`): of `module.prepare`.
        texts (`tuple`): Columns with text to adapt to.
        most_tokens (`int`): of an example, where the encoder takes as many.
    """

    load: Callable[[Path], datasets.DatasetDict]
    module: ModuleType
    metric: str
    baseline: Callable[..., float]
    epochs: int
    most_rows: int
    most_test_rows: int = 3000
    options: dict[str, Any] = field(default_factory=dict)
    texts: tuple[str, ...] = ("text",)
    most_tokens: int = MOST_TOKENS


def split(rows: datasets.Dataset, test_share: float = 0.2) -> datasets.DatasetDict:
    """For sets without an official test: a fifth of the rows, drawn by seed 0."""
    return rows.train_test_split(test_share, seed=0)


def files(train: str, test: str, **options: Any) -> Callable[[Path], datasets.DatasetDict]:
    """A loader of two files."""
    return lambda data: datasets.DatasetDict(
        {"train": read_file(data / train, **options), "test": read_file(data / test, **options)}
    )


def load_reviews(data: Path) -> datasets.DatasetDict:
    """One review a file, a folder a label."""
    paths = sorted((data / "movie_reviews/raw/movie_reviews").glob("*/*.txt"))
    texts = [" ".join(path.read_text(encoding="utf-8", errors="replace").split()) for path in paths]
    return split(datasets.Dataset.from_dict({"text": texts, "label": [path.parent.name for path in paths]}))


ENDINGS = ["a", "b", "c", "d"]
PAIR = {"text_column": "sentence1", "text_pair_column": "sentence2"}
SETS = {
    "banking77": LabelledSet(
        files("banking77/raw/train.csv", "banking77/raw/test.csv"),
        sequence_classification, "accuracy", classification_baseline, epochs=4, most_rows=4000, most_test_rows=3080,
        options={"label_column": "category"},
    ),
    "snips": LabelledSet(
        files("snips/train.tsv", "snips/validate.tsv", columns=["label", "text"]),
        sequence_classification, "accuracy", classification_baseline, epochs=3, most_rows=5000,
    ),
    "movie_reviews": LabelledSet(
        load_reviews, sequence_classification, "accuracy", classification_baseline, epochs=3, most_rows=1600,
        most_tokens=256,
    ),
    "med_nli": LabelledSet(
        lambda data: split(read_file(data / "med_nli/raw/MED.tsv")),
        sequence_classification, "accuracy", classification_baseline, epochs=4, most_rows=5000,
        options={**PAIR, "label_column": "gold_label"}, texts=tuple(PAIR.values()),
    ),
    "jglue JSTS": LabelledSet(
        files("jglue/raw/jsts-v1.3/train-v1.3.json", "jglue/raw/jsts-v1.3/valid-v1.3.json"),
        sequence_regression, "pearsonr", regression_baseline, epochs=3, most_rows=5000, options=PAIR,
        texts=tuple(PAIR.values()),
    ),
    "wnut17": LabelledSet(
        files("wnut17/raw/wnut17train.conll", "wnut17/raw/emerging.test.annotated", form="conll"),
        token_classification, "overall_f1", token_baseline, epochs=5, most_rows=3394, texts=("tokens",),
    ),
    "policyqa": LabelledSet(
        files("policyqa/raw/dev.json", "policyqa/raw/test.json"),
        question_answering, "f1", question_baseline, epochs=2, most_rows=1500, most_test_rows=1000,
        texts=("context", "question"),
    ),
    "codah": LabelledSet(
        files(
            "codah/raw/cv_split/fold_0/train.tsv", "codah/raw/cv_split/fold_0/test.tsv",
            columns=["category", "prompt", *ENDINGS, "label"],
        ),
        multiple_choice, "accuracy", choice_baseline, epochs=4, most_rows=1665, options={"ending_columns": ENDINGS},
        texts=("prompt", *ENDINGS),
    ),
}  # fmt: skip
ADAPTED = "adapted"
CONTENDERS = {
    "pre-trained": {},
    ADAPTED: {},
    "from scratch": {"from_scratch": True},
    "transformers' classes": {"classes": "transformers"},
}
BASELINE = "TF-IDF + linear"
ENGLISH = [name for name in SETS if name != "jglue JSTS"]


def main() -> None:
    """Make the runs that are missing, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="folder of the labelled sets")
    parser.add_argument("--model", required=True, metavar="DIR", help="encoder with its tokenizer")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder of the runs and the table")
    parser.add_argument(
        "--sets", nargs="+", choices=SETS, default=ENGLISH, help="rows to make (default: all English ones)"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help="default: 0 1 2")
    columns = [*CONTENDERS, BASELINE]
    parser.add_argument("--columns", nargs="+", choices=columns, default=columns, help="default: all")
    parser.add_argument(
        "--adapt-steps", type=int, default=500, metavar="N", help="of adapting to a set (default: 500)"
    )
    parser.add_argument(
        "--rates", nargs="+", type=float, default=list(LEARNING_RATES), metavar="X", help="to choose from: %(default)s"
    )
    parser.add_argument("--steps", type=int, metavar="N", help="of each fine-tuning (default: the set's own epochs)")
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16 (default: float32)")
    parser.add_argument("--train-rows", type=int, metavar="N", help="of each set (default: the set's own limit)")
    parser.add_argument("--most-rows", type=int, metavar="N", help="train and test on less, to try the script")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    arguments.output.mkdir(parents=True, exist_ok=True)
    require_same_settings(arguments)
    for name in arguments.sets:
        make_row(name, arguments)
    write_table(arguments.output)


def require_same_settings(arguments: argparse.Namespace) -> None:
    """Refuse to mix runs of two encoders in one table."""
    names = ("model", "train_rows", "most_rows", "adapt_steps", "steps", "rates", "bf16")
    settings = {**{name: getattr(arguments, name) for name in names}, **TRAINING}
    settings = json.loads(json.dumps(settings))
    path = arguments.output / "settings.json"
    if path.exists() and json.loads(path.read_text()) != settings:
        raise SystemExit(f"{path} is of another table: take another --output.")
    path.write_text(json.dumps(settings, indent=2))


def make_row(name: str, arguments: argparse.Namespace) -> None:
    """All runs of one set, each written when it is done."""
    row = SETS[name]
    data = row.load(arguments.data)
    texts = data["train"].select_columns(list(row.texts))
    most = {"train": arguments.train_rows or row.most_rows, "test": row.most_test_rows}
    for part, rows in data.items():
        count = min(most[part], arguments.most_rows or most[part], len(rows))
        order = np.random.default_rng(0).permutation(len(rows))
        label = row.options.get("label_column", "label")
        data[part] = rows.select(with_every_label(order, rows[label] if label in rows.column_names else [], count))
    folder = arguments.output / name.replace(" ", "_")
    folder.mkdir(exist_ok=True)
    tokenizer = load_tokenizer(arguments.model, "--model")
    length = min(row.most_tokens, longest_input(load_config(arguments.model), tokenizer))
    task = row.module.prepare(data, tokenizer, max_length=length, **row.options)
    print(name, *task.plan, sep="\n  ", flush=True)
    path = folder / "baseline.json"
    if BASELINE in arguments.columns and not path.exists():
        figure = row.baseline(data["train"], data["test"], **row.options)
        constant = task.baseline_metrics.get("test", {}).get(row.metric)
        write_run(path, {"contender": BASELINE, "figure": figure, "constant": constant})
    for contender, fields in CONTENDERS.items():
        if contender not in arguments.columns:
            continue
        for seed in arguments.seeds:
            path = folder / f"{contender.replace(' ', '_')}-{seed}.json"
            if path.exists():
                continue
            training = {**TRAINING, "bf16": arguments.bf16}
            training |= {"num_train_epochs": row.epochs} if arguments.steps is None else {"max_steps": arguments.steps}
            training["learning_rate"] = chosen_rate(
                folder, row, data["train"], tokenizer, length, training, "from_scratch" in fields, arguments
            )
            model = adapted_model(texts, folder, arguments) if contender == ADAPTED else arguments.model
            settings = RunSettings(model, checkpoint="last", training=training, **fields)
            result = finetune(task, tokenizer, settings, seed, folder)
            run = {"contender": contender, "figure": result.metrics["test"][row.metric], "seconds": result.seconds}
            write_run(path, {**run, "seed": seed, "figures": result.metrics, "steps": result.steps})


def with_every_label(order: np.ndarray, labels: Sequence[str], count: int) -> np.ndarray:
    """Return the first `count` rows of an order, which begins with one of each label where some would be missing."""
    if len(labels) == 0 or len({labels[i] for i in order[:count]}) == len(set(labels)):
        return order[:count]
    firsts = {labels[i]: i for i in reversed(order)}.values()
    return np.array([*firsts, *(i for i in order if i not in firsts)])[:count]


def adapted_model(texts: datasets.Dataset, folder: Path, arguments: argparse.Namespace) -> str:
    """The encoder adapted to texts, a document per distinct text; made once for all seeds."""
    output, file = folder / ADAPTED, folder / "text.txt"
    if not file.exists():
        values = (value for row in texts for value in row.values())
        lines = (value if isinstance(value, str) else " ".join(value) for value in values)
        write_whole(file, "\n\n".join(dict.fromkeys(" ".join(line.split()) for line in lines)) + "\n")
    if not (output / "model").exists():
        words = [
            "--corpus",
            file,
            "--recipe",
            "adapt-minutes",
            "--max-steps",
            arguments.adapt_steps,
            "--use-cpu",
            "True",
        ]
        words += ["--disable-tqdm", "True", "--output", output]
        if status := hf_encoders(["adapt", arguments.model, *map(str, words)]):
            raise SystemExit(status)
    return str(output / "model")


def chosen_rate(
    folder: Path,
    row: LabelledSet,
    rows: datasets.Dataset,
    tokenizer: transformers.PreTrainedTokenizerBase,
    length: int,
    training: dict[str, Any],
    from_scratch: bool,
    arguments: argparse.Namespace,
) -> float:
    """The learning rate that is best on training rows kept apart; found once and kept in a file."""
    if len(arguments.rates) == 1:
        return arguments.rates[0]
    path = folder / f"rate-{'from_scratch' if from_scratch else 'pre-trained'}.txt"
    if not path.exists():
        parts = rows.select(range(min(ROWS_TO_CHOOSE_ON, len(rows)))).train_test_split(0.2, shuffle=False)
        parts = datasets.DatasetDict({"train": parts["train"], "validation": parts["test"]})
        task = row.module.prepare(parts, tokenizer, max_length=length, **row.options)
        figures = {}
        for rate in arguments.rates:
            of_rate = {**training, "learning_rate": rate}
            settings = RunSettings(arguments.model, checkpoint="last", training=of_rate, from_scratch=from_scratch)
            figures[rate] = finetune(task, tokenizer, settings, 0, folder).metrics["validation"][row.metric]
        path.write_text(str(max(figures, key=figures.get)))
        print(f"  {path.stem}: {figures}", flush=True)
    return float(path.read_text())


def write_run(path: Path, run: dict[str, Any]) -> None:
    """Write a run's figures whole or not at all."""
    path.with_suffix(".part").write_text(json.dumps(run, indent=2))
    path.with_suffix(".part").rename(path)
    print(f"  {run['contender']}: {run['figure']:.4f}", flush=True)


def write_table(output: Path) -> None:
    """`table.json` and `table.md` of all runs in the folder."""
    table, lines = {}, []
    columns = [*CONTENDERS, BASELINE]
    lines.append(f"| set | figure | {' | '.join(columns)} | most frequent label | seconds |")
    lines.append("|---|---|" + "---|" * (len(columns) + 2))
    for name, row in SETS.items():
        runs = [json.loads(path.read_text()) for path in sorted((output / name.replace(" ", "_")).glob("*.json"))]
        if not runs:
            continue
        by_contender = {column: [run for run in runs if run["contender"] == column] for column in columns}
        cells = [shown([run["figure"] for run in runs], row) for runs in by_contender.values()]
        seconds = [
            f"{np.mean([run['seconds'] for run in runs]):.0f}" for runs in list(by_contender.values())[:-1] if runs
        ]
        constant = next((run["constant"] for run in runs if run.get("constant") is not None), None)
        last = "" if constant is None else f"{constant:.3f}"
        lines.append(f"| {name} | {row.metric} | {' | '.join(cells)} | {last} | {' / '.join(seconds)} |")
        table[name] = {"metric": row.metric, "runs": runs}
    (output / "table.md").write_text("\n".join(lines) + "\n")
    (output / "table.json").write_text(json.dumps(table, indent=2))
    print("\n".join(lines))


def shown(values: list[float], row: LabelledSet) -> str:
    """Mean and standard deviation, in percent for SQuAD's figures as the official script gives them."""
    return mean_and_deviation(values, 1 if row.module is question_answering else 3) if values else ""


if __name__ == "__main__":
    main()
