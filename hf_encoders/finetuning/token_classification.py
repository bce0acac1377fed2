"""A tag for each word: named entities, parts of speech (BERT, section 5.3).

Rows have a list of words and a list of tags, as in CoNLL files. A word's first token is labelled with its tag; other
and special tokens are ignored in loss and metrics. Sentences longer than the encoder takes become overlapping windows,
in which every word counts once.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import sklearn.metrics
from transformers import (
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    EvalPrediction,
    PreTrainedTokenizerBase,
)

from hf_encoders.data.batches import IGNORED
from hf_encoders.finetuning.baselines import Baseline
from hf_encoders.finetuning.data_files import require_columns
from hf_encoders.finetuning.label_values import class_fields, class_name, class_names, names_of_column
from hf_encoders.finetuning.sequence_inputs import right_padding
from hf_encoders.finetuning.task import PreparedTask
from hf_encoders.finetuning.word_windows import WordWindow, word_windows
from hf_encoders.metrics import Seqeval
from hf_encoders.metrics.seqeval import name_in_metrics


OUTSIDE = "O"
ENTITY_TAG = re.compile(r"O|[BIESLUM]-.+")  # of IOB1, IOB2, IOE, IOBES, BILOU


def prepare(
    data: datasets.DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    tokens_column: str = "tokens",
    tags_column: str = "ner_tags",
    label_all_tokens: bool = False,
    window_overlap: int | None = None,
) -> PreparedTask:
    """Tokenize sentences to windows with token labels.

    Metrics are those of entities if all tags follow an entity scheme, else accuracy and macro-averaged F1 over words.
    A word without a token is predicted as `O`, or, if there is no such tag, as the most frequent one.

    Args:
        data, tokenizer, max_length: See `task.py`; the length is that of a window.
        tokens_column, tags_column (`str`, *optional*): Columns with lists of words and of tags (text, numbers or
            `ClassLabel`). The tags of all splits are the classes.
        label_all_tokens (`bool`, *optional*, defaults to `False`): Whether to label all tokens of a word; after the
            first `B-X` becomes `I-X` if that tag exists.
        window_overlap (`int`, *optional*): Tokens shared by windows of a sentence, defaults to a third of the length.
    """
    require_columns(data, tokens_column=tokens_column, tags_column=tags_column)
    known = names_of_column(data["train"], tags_column)
    splits = {split: read_sentences(rows, split, tokens_column, tags_column, known) for split, rows in data.items()}
    names = known or class_names(tag for rows in splits.values() for tags in rows.tags for tag in tags)
    fields = class_fields(names, tags_column)
    windows = {
        split: list(word_windows(rows.words, tokenizer, max_length, window_overlap)) for split, rows in splits.items()
    }
    if not any(window.words for window in windows["train"]):
        raise ValueError(f"train data: no word has a token in {type(tokenizer).__name__}: use another encoder.")
    rows = {
        split: label_windows(found, splits[split].tags, names, label_all_tokens) for split, found in windows.items()
    }

    def frequent(split: str) -> str:
        return Counter(tag for tags in splits[split].tags for tag in tags).most_common(1)[0][0]

    default = OUTSIDE if OUTSIDE in names else frequent("train")  # for words without a token
    has_entities = all(ENTITY_TAG.fullmatch(name) for name in names)

    def predicted(split: str, predictions: np.ndarray) -> list[list[str]]:
        return predicted_tags(rows[split], predictions, splits[split].words, names, default)

    compute = entity_metrics if has_entities else word_metrics

    def metrics(split: str) -> Callable[[EvalPrediction], dict[str, float]]:
        return lambda prediction: compute(predicted(split, prediction.predictions), splits[split].tags, names)

    def baseline(split: str) -> dict[str, float]:
        gold, tag = splits[split].tags, frequent(split)
        return compute([[tag] * len(tags) for tags in gold], gold, names)

    return PreparedTask(
        auto_class=AutoModelForTokenClassification,
        config_fields=fields,
        train_set=rows["train"],
        eval_sets={split: found for split, found in rows.items() if split != "train"},
        data_collator=DataCollatorForTokenClassification(right_padding(tokenizer), label_pad_token_id=IGNORED),
        compute_metrics=metrics,
        main_metric="overall_f1" if has_entities else "accuracy",
        label_names=names,
        baseline=Baseline("most frequent tag", baseline),
        input_columns=(tokens_column,),
        write_predictions=lambda path, split, predictions: write_tags(
            path, *splits[split], predicted(split, predictions)
        ),
        plan=[
            *(describe_windows(split, splits[split].words, found, default) for split, found in windows.items()),
            f"{len(names)} tags: {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}",
        ],
    )


class TaggedSentences(NamedTuple):
    """The words of each sentence, and a tag for each word."""

    words: list[list[str]]
    tags: list[list[str]]


def read_sentences(
    rows: datasets.Dataset, split: str, tokens_column: str, tags_column: str, known: list[str] | None
) -> TaggedSentences:
    """Words and tags of a split, as text; `known` are the names of the classes of a `ClassLabel` column."""
    sentences, all_tags = rows[tokens_column][:], rows[tags_column][:]
    for row, (words, tags) in enumerate(zip(sentences, all_tags, strict=True)):
        where = f"{split} data, row {row}"
        if not isinstance(words, list) or not isinstance(tags, list):
            raise ValueError(f"{where}: {tokens_column} and {tags_column} must be lists, one entry per word.")
        if len(words) != len(tags):
            raise ValueError(
                f"{where}: {len(words)} {tokens_column}, but {len(tags)} {tags_column}: give each word one."
            )
        for word, tag in zip(words, tags, strict=True):
            if not isinstance(word, str):
                raise ValueError(f"{where}: {tokens_column} has {word!r}, not text.")
            if tag is None or tag == "" or (known and tag == -1):
                raise ValueError(f"{where}: the word {word!r} has no tag in {tags_column}.")
    name = known.__getitem__ if known else class_name
    return TaggedSentences(sentences, [list(map(name, tags)) for tags in all_tags])


def label_windows(
    windows: list[WordWindow], tags: list[list[str]], names: list[str], label_all_tokens: bool
) -> datasets.Dataset:
    """Windows with labels, to train on and to read predictions from; `tags` are those of each sentence.

    Returns:
        A row per window: `input_ids`, `attention_mask`, `token_type_ids` if the model has them, and `labels` of its T
        tokens; `sentence`, its index; `words`
        and `word_columns`, the indices of its words in the sentence and of their first tokens in the window.
    """
    ids = {name: number for number, name in enumerate(names)}
    rows = []
    for window in windows:
        labels = [IGNORED] * len(window.input_ids)
        for word, (first, *others) in window.words.items():
            tag = tags[window.sentence][word]
            labels[first] = ids[tag]
            for column in others if label_all_tokens else ():
                labels[column] = ids[continued(tag, ids)]
        types = {} if window.token_type_ids is None else {"token_type_ids": window.token_type_ids}
        rows.append(
            {
                "input_ids": window.input_ids,
                "attention_mask": [1] * len(window.input_ids),
                **types,
                "labels": labels,
                "sentence": window.sentence,
                "words": list(window.words),
                "word_columns": [columns[0] for columns in window.words.values()],
            }
        )
    return datasets.Dataset.from_list(rows)


def continued(tag: str, known: Any) -> str:
    """The tag of a word's tokens after the first.

    >>> tags = ["B-PER", "I-PER", "B-LOC", "O"]
    >>> [continued(tag, tags) for tag in tags]
    ['I-PER', 'I-PER', 'B-LOC', 'O']
    """
    inside = f"I-{tag.removeprefix('B-')}"
    return inside if tag.startswith("B-") and inside in known else tag


def predicted_tags(
    rows: datasets.Dataset, predictions: np.ndarray, sentences: list[list[str]], names: list[str], default: str
) -> list[list[str]]:
    """A tag for each word of each sentence; `default` for words without a token.

    `predictions` are the scores `(windows, longest, tags)` of `Trainer.predict` for `rows`.
    """
    if len(predictions) != len(rows):
        raise ValueError(f"predictions has {len(predictions)} rows for {len(rows)} windows: predict on this split.")
    tags = [[default] * len(words) for words in sentences]
    best = np.asarray(predictions).argmax(axis=-1)
    columns = (rows[name] for name in ("sentence", "words", "word_columns"))
    for found, sentence, words, word_columns in zip(best, *columns, strict=True):
        for word, column in zip(words, word_columns, strict=True):
            tags[sentence][word] = names[found[column]]
    return tags


def entity_metrics(predicted: list[list[str]], gold: list[list[str]], names: Iterable[str]) -> dict[str, float]:
    """Entity precision, recall and F1 of `Seqeval`, for every type among the tags `names`.

    `Seqeval` leaves out types that are neither predicted nor true; here they are 0, so that all runs have the same
    metrics.
    """
    metrics = Seqeval(keep_in_memory=True).compute(predictions=predicted, references=gold)
    for kind in sorted({name[2:] for name in names if name != OUTSIDE}):
        for name, nothing in (("precision", 0.0), ("recall", 0.0), ("f1", 0.0), ("number", 0)):
            metrics.setdefault(f"{name_in_metrics(kind)}_{name}", nothing)
    return metrics


def word_metrics(predicted: list[list[str]], gold: list[list[str]], names: Iterable[str]) -> dict[str, float]:
    """Share of words with the right tag, and F1 averaged over tags."""
    pairs = [[tag for tags in rows for tag in tags] for rows in (gold, predicted)]
    return {
        "accuracy": float(sklearn.metrics.accuracy_score(*pairs)),
        "f1_macro": float(sklearn.metrics.f1_score(*pairs, average="macro", zero_division=0.0)),
    }


def write_tags(path: Path, sentences: list[list[str]], gold: list[list[str]], predicted: list[list[str]]) -> None:
    """Write `PATH.conll` in the format of `conlleval`: word, tag and predicted tag, separated by tabs.

    An empty line ends a sentence. White space in words becomes underscores.
    """
    lines = []
    for rows in zip(sentences, gold, predicted, strict=True):
        lines += ["\t".join((re.sub(r"\s", "_", word) or "_", *tags)) for word, *tags in zip(*rows, strict=True)]
        lines.append("")
    path.with_name(f"{path.name}.conll").write_text("\n".join(lines) + "\n", encoding="utf-8")


def describe_windows(split: str, sentences: list[list[str]], windows: list[WordWindow], default: str) -> str:
    """A line about a split, for the plan."""
    words = sum(map(len, sentences))
    lost = words - sum(len(window.words) for window in windows)
    return (
        f"{split}: {len(sentences):,} sentences of {words:,} words in {len(windows):,} windows; {lost:,} words have "
        f"no token and are {default}"
    )
