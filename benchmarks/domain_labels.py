"""What adapting is worth when labels are few: passages of the documentation inside Python, labelled by library.

    OMP_NUM_THREADS=1 python -m benchmarks.domain_labels --model runs/encoder/model --output runs/labels

Half of the documents are text, to which `hf-encoders adapt` adapts the encoder; passages of the other half have a
label, one of the 8 largest libraries. Three encoders are fine-tuned with 100, 1,000 and all labels of the training
passages: the adapted one, the encoder as it is, and one of its configuration with random weights. A seed is that
of the labels drawn and of the training; accuracies are of the test passages after the last update.

What is in `--output` already is not made again: take another folder for other settings. All learn at a rate of 1e-3.
About half an hour on one core for 4 layers of width 128.
"""

import argparse
import json
from pathlib import Path

import datasets
import numpy as np
import transformers
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.linear_baselines import classification_baseline
from hf_encoders import encode
from hf_encoders.cli import main as hf_encoders
from hf_encoders.finetuning import sequence_classification
from hf_encoders.finetuning.runs import RunSettings, finetune, load_model
from hf_encoders.loading import load_config
from hf_encoders.runs.quickstart import hold_out, labelled_passages, load_documents
from hf_encoders.tokenizer_loading import load_tokenizer
from hf_encoders.writing import markdown_table, mean_and_deviation, replaced_folder, write_whole


LABELLED_SHARE, LENGTH = 0.5, 64
SEEDS = (0, 1, 2)
STEPS = {100: 200, 1000: 300, None: 400}  # by labels; `None` is all of them
TRAINING = {"per_device_train_batch_size": 32, "learning_rate": 1e-3, "dataloader_num_workers": 0}
ENCODERS = ("adapted", "not adapted", "from scratch")


def main() -> None:
    """Make what is missing, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="DIR", help="encoder of general text, with its tokenizer")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder of the runs")
    parser.add_argument("--adapt-steps", type=int, default=2000, metavar="N", help="default: 2000")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), metavar="N", help="default: 0 1 2")
    parser.add_argument(
        "--labels",
        nargs="+",
        type=int,
        metavar="N",
        choices=[n for n in STEPS if n],
        help="100, 1000 (default: and all)",
    )
    parser.add_argument("--most-steps", type=int, metavar="N", help="of fine-tuning, to try the script")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    data, output = arguments.output / "data", arguments.output
    if not data.exists():
        with replaced_folder(data) as unfinished:
            write_data(unfinished)
    if not (output / "adapted" / "model").exists():
        words = ["--corpus", data / "text.txt", "--recipe", "adapt-minutes", "--max-steps", arguments.adapt_steps]
        words += ["--use-cpu", "True", "--disable-tqdm", "True", "--output", output / "adapted"]
        if status := hf_encoders(["adapt", arguments.model, *map(str, words)]):
            raise SystemExit(status)
    rows = datasets.load_from_disk(str(data / "labelled"))
    print({name: len(part) for name, part in rows.items()}, sorted(set(rows["train"]["label"])))
    for seed in arguments.seeds:
        for labels in arguments.labels or STEPS:
            for encoder in ENCODERS:
                run(encoder, labels, seed, rows, arguments)
    print(table(output), frozen_table(rows, arguments), sep="\n\n")


def write_data(folder: Path) -> None:
    """`text.txt`, and labelled passages of other documents."""
    text, held_out = hold_out(load_documents([], "en"), LABELLED_SHARE, seed=0)
    documents = ("\n".join(map(" ".join, document.passages)) for document in text)
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    labelled_passages(held_out, 0).save_to_disk(folder / "labelled")


def run(
    encoder: str, labels: int | None, seed: int, rows: datasets.DatasetDict, arguments: argparse.Namespace
) -> None:
    """Fine-tune an encoder with some of the labels, if that is not done; its accuracy goes into a file."""
    path = arguments.output / f"{encoder.replace(' ', '_')}-{labels or 'all'}-{seed}.json"
    if path.exists():
        return
    model = path_of(encoder, arguments)
    tokenizer = load_tokenizer(model, "--model")
    data = datasets.DatasetDict(train=rows["train"].select(drawn(rows, labels, seed)), test=rows["test"])
    task = sequence_classification.prepare(data, tokenizer, max_length=LENGTH)
    steps = min(STEPS[labels], arguments.most_steps or STEPS[labels])
    training = {**TRAINING, "max_steps": steps, "disable_tqdm": True}
    settings = RunSettings(model, checkpoint="last", training=training, from_scratch=encoder == "from scratch")
    result = finetune(task, tokenizer, settings, seed, arguments.output / "run")
    figure = {"accuracy": result.metrics["test"]["accuracy"], "labels": len(data["train"]), "seconds": result.seconds}
    write_whole(path, json.dumps(figure))
    print(path.stem, figure, flush=True)


def path_of(encoder: str, arguments: argparse.Namespace) -> str:
    """The folder of an encoder's weights, or of its configuration."""
    return str(arguments.output / "adapted" / "model") if encoder == "adapted" else arguments.model


def drawn(rows: datasets.DatasetDict, labels: int | None, seed: int) -> np.ndarray:
    """Positions of the training passages whose labels a seed may use."""
    return np.random.default_rng(seed).permutation(len(rows["train"]))[:labels]


def frozen_table(rows: datasets.DatasetDict, arguments: argparse.Namespace) -> str:
    """Accuracies of a linear model on each encoder's embeddings, and on TF-IDF."""
    features = {encoder: embeddings(encoder, rows, arguments) for encoder in ENCODERS}
    targets = {part: np.array(rows[part]["label"]) for part in rows}
    lines = [["labels", *(f"{encoder}, frozen" for encoder in ENCODERS), "TF-IDF"]]
    for labels in STEPS:
        positions = [drawn(rows, labels, seed) for seed in arguments.seeds]
        accuracies = [
            [
                make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
                .fit(of_encoder["train"][some], targets["train"][some])
                .score(of_encoder["test"], targets["test"])
                for some in positions
            ]
            for of_encoder in features.values()
        ]
        accuracies.append([classification_baseline(rows["train"].select(some), rows["test"]) for some in positions])
        lines.append([f"{len(positions[0]):,}", *(mean_and_deviation(values, 3) for values in accuracies)])
    return markdown_table(lines)


def embeddings(encoder: str, rows: datasets.DatasetDict, arguments: argparse.Namespace) -> dict[str, np.ndarray]:
    """Mean of the last hidden states of each passage, `(rows, hidden_size)`."""
    path = path_of(encoder, arguments)
    transformers.set_seed(0)
    model = load_model(path, transformers.AutoModel, load_config(path), {}, encoder == "from scratch")
    tokenizer = load_tokenizer(path, "--model")
    return {part: encode(model, tokenizer, rows[part]["text"][:], max_length=LENGTH).numpy() for part in rows}


def table(output: Path) -> str:
    """Accuracies, mean and standard deviation over the seeds, for the numbers of labels with runs of every encoder."""
    rows = [["labels", *ENCODERS]]
    for labels in STEPS:
        runs = [
            [
                json.loads(path.read_text())
                for path in output.glob(f"{name.replace(' ', '_')}-{labels or 'all'}-*.json")
            ]
            for name in ENCODERS
        ]
        if not all(runs):
            continue
        accuracies = [mean_and_deviation([run["accuracy"] for run in of_encoder], 3) for of_encoder in runs]
        rows.append([f"{runs[0][0]['labels']:,}", *accuracies])
    return markdown_table(rows)


if __name__ == "__main__":
    main()
