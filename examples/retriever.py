# /// script
# dependencies = ["hf_encoders", "sentence-transformers"]
# ///
"""Make a retriever of an encoder with sentence-transformers, and evaluate it before and after (nDCG at 10).

    hf-encoders adapt NAME --objective retromae --corpus text/ --output runs/retromae
    python examples/retriever.py --model runs/retromae/model --output_dir runs/retriever
    python examples/retriever.py --model NAME --train_file a.csv --test_file b.csv --output_dir out

A text is its [CLS] state, which RetroMAE trains. The files have columns `query` and `document`. Without them, the
first sentence of each docstring of the installed packages looks for the rest of it. `--max_steps 0` evaluates only.
"""

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path

from hf_encoders import split_sentences
from hf_encoders.corpus.python_docs import read_python_documents

import numpy as np
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.evaluation import InformationRetrievalEvaluator
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from transformers import HfArgumentParser, set_seed


@dataclass
class Arguments:
    """Options of this example, beside those of `SentenceTransformerTrainingArguments`."""

    model: str = field(metadata={"help": "path or Hub name of an encoder"})
    train_file: str | None = field(default=None, metadata={"help": "CSV with columns query, document"})
    test_file: str | None = field(default=None, metadata={"help": "the same, for evaluation"})
    max_length: int = field(default=128, metadata={"help": "maximum length of a text in tokens"})
    most_pairs: int = field(default=5000, metadata={"help": "of each part; others are left out, drawn by seed 0"})


def python_pairs() -> list[tuple[str, str]]:
    """First sentences of docstrings of two sentences and more, and the rest."""
    documents = read_python_documents(split_sentences, max_characters=200_000)
    passages = [passage for document in documents for passage in document.passages]
    return [(first, " ".join(rest)) for first, *rest in passages if rest]


def read_pairs(arguments: Arguments) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Queries and documents to train on and to evaluate on."""
    if (arguments.train_file is None) != (arguments.test_file is None):
        raise ValueError("--train_file and --test_file go together: give both, or neither.")
    if arguments.train_file is None:
        pairs = python_pairs()
        order = np.random.default_rng(0).permutation(len(pairs))
        test, train = np.split(order, [min(1000, len(pairs) // 4)])
        parts = [[pairs[i] for i in numbers[: arguments.most_pairs]] for numbers in (train, test)]
        return parts[0], parts[1]
    parts = []
    for name in (arguments.train_file, arguments.test_file):
        with Path(name).open(encoding="utf-8", newline="") as file:
            parts.append([(row["query"], row["document"]) for row in csv.DictReader(file)][: arguments.most_pairs])
    return parts[0], parts[1]


def evaluator(pairs: list[tuple[str, str]]) -> InformationRetrievalEvaluator:
    """Each query has one right document among all; equal documents are one."""
    numbers = {document: str(number) for number, document in enumerate(dict.fromkeys(text for _, text in pairs))}
    queries = {str(number): query for number, (query, _) in enumerate(pairs)}
    right = {str(number): {numbers[document]} for number, (_, document) in enumerate(pairs)}
    return InformationRetrievalEvaluator(queries, {number: text for text, number in numbers.items()}, right)


def main() -> None:
    """Evaluate, train, evaluate, save."""
    parser = HfArgumentParser((Arguments, SentenceTransformerTrainingArguments))
    arguments, training = parser.parse_args_into_dataclasses()
    set_seed(training.seed)
    train, test = read_pairs(arguments)
    encoder = Transformer(arguments.model, max_seq_length=arguments.max_length)
    model = SentenceTransformer(modules=[encoder, Pooling(encoder.get_word_embedding_dimension(), "cls")])
    evaluate = evaluator(test)
    figures = {"pairs": [len(train), len(test)], "nDCG@10 before": evaluate(model)["cosine_ndcg@10"]}
    if training.max_steps != 0:
        rows = Dataset.from_dict({"anchor": [query for query, _ in train], "positive": [text for _, text in train]})
        SentenceTransformerTrainer(model, training, rows, loss=MultipleNegativesRankingLoss(model)).train()
        figures["nDCG@10 after"] = evaluate(model)["cosine_ndcg@10"]
    model.save_pretrained(training.output_dir)
    Path(training.output_dir, "metrics.json").write_text(json.dumps(figures, indent=2))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
