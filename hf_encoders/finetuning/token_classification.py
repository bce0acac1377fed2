"""A tag for each word: named entities, parts of speech (BERT, section 5.3).

Rows have a list of words and a list of tags, as in CoNLL files. A word's first token is labelled with its tag; other
and special tokens are ignored in loss and metrics. Sentences longer than the encoder takes become overlapping windows,
in which every word counts once.

A sentence is tokenized as text, its words joined by single spaces, and a token belongs to the word that contains its
first character (apart from spaces). This works for every kind of tokenizer: byte-level BPE sees the spaces of
pre-training, which it would not with `is_split_into_words` and without `add_prefix_space`. A word that begins in
several windows counts in the one where its nearest border is farthest away, as in BERT's `run_squad.py`; in the
earlier one if equal.
"""

from __future__ import annotations

import argparse
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_encoders.writing import with_bar


if TYPE_CHECKING:
    import datasets
    import numpy as np
    from transformers import EvalPrediction, PreTrainedTokenizerBase

    from hf_encoders.finetuning.task import PredictedRow, PreparedTask


OUTSIDE = "O"
# Of IOB1, IOB2, IOE, IOBES, BILOU.
PREFIXED_TAG = re.compile("[BIESLUM]-.+", re.IGNORECASE)
ENTITY_TAG = re.compile(f"{OUTSIDE}|{PREFIXED_TAG.pattern}", re.IGNORECASE)
SENTENCES_AT_ONCE = 1000  # tokenized
WORDS_SHOWN, WORDS_BEFORE = 40, 10  # of a sentence in the report, and of them before its first mistake


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the task's options: the keyword parameters of `prepare`."""
    add = parser.add_argument
    add("--tokens-column", default="tokens", metavar="NAME", help="column with lists of words (default: tokens)")
    add("--tags-column", default="ner_tags", metavar="NAME", help="column with lists of tags (default: ner_tags)")
    text = "accuracy over words as the metric, whatever the tags (default: entity F1 if they are B-X, I-X and O)"
    add("--word-metrics", action="store_true", help=text)
    add("--label-all-tokens", action="store_true", help="label all tokens of a word, B-X as I-X after the first")
    text = "shared by windows of a long sentence (default: a third of the longest input)"
    add("--window-overlap", type=int, metavar="TOKENS", help=text)


def prepare(
    data: datasets.DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    tokens_column: str = "tokens",
    tags_column: str = "ner_tags",
    word_metrics: bool = False,
    label_all_tokens: bool = False,
    window_overlap: int | None = None,
) -> PreparedTask:
    """Tokenize sentences to windows with token labels.

    Metrics are those of entities if most of the different tags are `O` or have prefixes (`B-PER`, also `b-PER`), else
    accuracy and macro-averaged F1 over words; the plan says which, and why.
    A word without a token is predicted as `O`, or, if there is no such tag, as the most frequent one.

    Args:
        data, tokenizer, max_length: See `task.py`; the length is that of a window.
        tokens_column, tags_column (`str`, *optional*): Columns with lists of words and of tags (text, numbers or
            `ClassLabel`). The tags of all splits are the classes. A column `first_line`, of files, is for messages.
        word_metrics (`bool`, *optional*, defaults to `False`): Whether metrics are over words, whatever the tags.
        label_all_tokens (`bool`, *optional*, defaults to `False`): Whether to label all tokens of a word; after the
            first `B-X` becomes `I-X` if that tag exists.
        window_overlap (`int`, *optional*): Tokens shared by windows of a sentence, defaults to a third of the length.

    Raises:
        ValueError: For a word without a tag (`None`, NaN, no text, -100), and for a tag without a prefix if most have
            one or are `O`, unless `word_metrics` is true.
    """
    from scipy.special import softmax
    from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

    from hf_encoders.corpus.special_tokens import check_offsets
    from hf_encoders.finetuning.labels import class_fields, class_names, describe_names, names_of_column
    from hf_encoders.finetuning.task import PreparedTask, require_columns, right_padding
    from hf_encoders.objectives.batch import IGNORED

    check_offsets(tokenizer, "the label of a word", "classify whole texts")
    require_columns(data, tokens_column=tokens_column, tags_column=tags_column)
    splits = {split: read_sentences(rows, split, tokens_column, tags_column) for split, rows in data.items()}
    known = names_of_column(data["train"], tags_column) or []
    as_written = known or class_names(tag for rows in splits.values() for tags in rows.tags for tag in tags)
    has_entities = not word_metrics and are_entity_tags(as_written)
    if has_entities:
        for sentences in splits.values():
            read_as_entities(sentences, tags_column)
    spelled = map(capital_prefix, as_written) if has_entities else as_written
    names = list(dict.fromkeys(spelled)) if known else class_names(spelled)
    fields = class_fields(names, tags_column)
    rows, frequent, plan = {}, {}, []
    for split, sentences in splits.items():
        windows = list(word_windows(sentences.words, tokenizer, max_length, window_overlap))
        rows[split] = label_windows(windows, sentences.tags, names, label_all_tokens)
        frequent[split] = Counter(tag for tags in sentences.tags for tag in tags).most_common(1)[0][0]
        words, labelled = sum(map(len, sentences.words)), sum(len(window.words) for window in windows)
        plan.append(
            f"{split}: {len(sentences.words):,} sentences of {words:,} words in {len(windows):,} windows; "
            f"{words - labelled:,} words have no token"
        )
    default = OUTSIDE if OUTSIDE in names else frequent["train"]  # for words without a token
    compute = entity_metrics if has_entities else metrics_of_words

    def predicted(split: str, predictions: np.ndarray) -> list[list[str]]:
        ids = values_of_words(rows[split], predictions.argmax(axis=-1), splits[split].words, names.index(default))
        return [[names[number] for number in of_sentence] for of_sentence in ids]

    def predicted_rows(split: str, predictions: np.ndarray) -> Iterator[PredictedRow]:
        highest = softmax(predictions, axis=-1).max(axis=-1)
        probabilities = values_of_words(rows[split], highest, splits[split].words, None)
        tags = splits[split].tags, predicted(split, predictions)
        for of_words in zip(splits[split].words, *tags, probabilities, strict=True):
            yield predicted_row(tokens_column, *of_words)

    def metrics(split: str) -> Callable[[EvalPrediction], dict[str, float]]:
        return lambda prediction: compute(predicted(split, prediction.predictions), splits[split].tags, names)

    def baseline(split: str) -> dict[str, float]:
        gold = splits[split].tags
        return compute([[frequent[split]] * len(tags) for tags in gold], gold, names)

    eval_sets = {split: of_split for split, of_split in rows.items() if split != "train"}
    return PreparedTask(
        auto_class=AutoModelForTokenClassification,
        config_fields=fields,
        train_set=rows["train"],
        eval_sets=eval_sets,
        data_collator=DataCollatorForTokenClassification(right_padding(tokenizer), label_pad_token_id=IGNORED),
        compute_metrics=metrics,
        main_metric="overall_f1" if has_entities else "accuracy",
        label_names=names,
        baseline="most frequent tag",
        baseline_metrics={split: baseline(split) for split in eval_sets},
        input_columns=(tokens_column,),
        predicted_rows=predicted_rows,
        write_predictions=lambda path, split, predictions: write_tags(
            path, splits[split].words, splits[split].tags, predicted(split, predictions)
        ),
        plan=[*plan, *describe_names(names, "tags"), describe_metrics(as_written, has_entities, word_metrics)],
    )


class TaggedSentences(NamedTuple):
    """The words of each sentence, and a tag for each word."""

    split: str
    words: list[list[str]]
    tags: list[list[str]]
    first_lines: list[int] | None  # of each sentence in its file, if it is from one with a word per line

    def where(self, sentence: int, word: int) -> str:
        """Name the position of a word, for messages."""
        line = "" if self.first_lines is None else f" (line {self.first_lines[sentence] + word})"
        return f"{self.split} data, row {sentence}{line}"


def read_sentences(rows: datasets.Dataset, split: str, tokens_column: str, tags_column: str) -> TaggedSentences:
    """Return words and tags of a split, as text."""
    from hf_encoders.finetuning.labels import name_of, names_of_column

    known = names_of_column(rows, tags_column)
    first_lines = rows["first_line"][:] if "first_line" in rows.column_names else None
    sentences = TaggedSentences(split, rows[tokens_column][:], [], first_lines)
    for row, (words, tags) in enumerate(zip(sentences.words, rows[tags_column], strict=True)):
        where = f"{split} data, row {row}"
        if not isinstance(words, list) or not isinstance(tags, list):
            raise ValueError(f"{where}: {tokens_column} and {tags_column} must be lists, one entry per word.")
        if len(words) != len(tags):
            raise ValueError(
                f"{where}: {len(words)} {tokens_column}, but {len(tags)} {tags_column}: give each word one."
            )
        sentences.tags.append([name_of(tag, known) for tag in tags])
        for number, (word, name) in enumerate(zip(words, sentences.tags[-1], strict=True)):
            if not isinstance(word, str):
                raise ValueError(f"{where}: {tokens_column} has {word!r}, not text.")
            if name is None:
                raise ValueError(
                    f"{sentences.where(row, number)}: the word {word!r} has no tag in {tags_column} "
                    f"({tags[number]!r}): give it one, such as {OUTSIDE}, or leave the sentence out."
                )
    return sentences


def are_entity_tags(tags: list[str]) -> bool:
    """Return whether most of different tags are those of entities: with a prefix, or `O`.

    >>> are_entity_tags(["O", "B-PER", "0"]), are_entity_tags(["NN", "s-attr"]), are_entity_tags(["O"])
    (True, False, False)
    """
    return any(map(PREFIXED_TAG.fullmatch, tags)) and 2 * sum(map(bool, map(ENTITY_TAG.fullmatch, tags))) > len(tags)


def read_as_entities(sentences: TaggedSentences, tags_column: str) -> None:
    """Give all tags capital prefixes, in place; refuse a tag that is neither `O` nor has a prefix."""
    for row, tags in enumerate(sentences.tags):
        for word, tag in enumerate(tags):
            if not ENTITY_TAG.fullmatch(tag):
                raise ValueError(
                    f"{sentences.where(row, word)}: the word {sentences.words[row][word]!r} has {tag!r} in "
                    f"{tags_column}, which is no tag of entities (B-PER, I-PER, {OUTSIDE}), while others are: correct "
                    f"it, perhaps to {OUTSIDE}, or use --word-metrics for accuracy over words."
                )
        tags[:] = map(capital_prefix, tags)


def capital_prefix(tag: str) -> str:
    """Return an entity tag with a capital prefix: `b-per` as `B-per`."""
    return tag[0].upper() + tag[1:]


def describe_metrics(tags: list[str], has_entities: bool, word_metrics: bool) -> str:
    """Return a line for the plan: which metrics there are, and why; `tags` are as they are in the data."""
    if has_entities:
        lower = next((tag for tag in tags if tag != capital_prefix(tag)), None)
        read_as = "" if lower is None else f"; {lower!r} is read as {capital_prefix(lower)!r}"
        return f"metrics: precision, recall and F1 of entities, since the tags have prefixes{read_as}"
    why = "as --word-metrics says"
    if not word_metrics:
        prefixed = next(filter(PREFIXED_TAG.fullmatch, tags), None)
        has = "no tag has a prefix" if prefixed is None else f"few tags have a prefix, such as {prefixed!r}"
        why = f"since {has}; tags such as B-PER, I-PER and {OUTSIDE} would give F1 of entities"
    return f"metrics: accuracy over words and macro-averaged F1 over tags, {why}"


class WordWindow(NamedTuple):
    """A sentence, or a segment of one, as the head reads it; T tokens."""

    sentence: int  # its index
    input_ids: list[int]  # with special tokens
    words: dict[int, list[int]]  # index of each word that counts here -> positions of its tokens, the first labelled
    token_type_ids: list[int] | None = None  # where one is above 0: XLNet's <cls> has one of its own


def word_windows(
    sentences: list[list[str]], tokenizer: PreTrainedTokenizerBase, max_length: int, overlap: int | None = None
) -> Iterator[WordWindow]:
    """Cut sentences into windows of at most `max_length` tokens; words without a token are in no window.

    `overlap` is the number of tokens shared by neighbouring windows, by default a third of `max_length`.

    >>> [window.words for window in word_windows([["w5", "w6", "w7", "w8"]], doctest_tokenizer(), 3, overlap=1)]
    [{0: [0], 1: [1], 2: [2]}, {3: [1]}]
    """
    overlap = max_length // 3 if overlap is None else overlap
    room = max_length - tokenizer.num_special_tokens_to_add(pair=False)
    if not 0 <= overlap < room:
        raise ValueError(
            f"--window-overlap {overlap}: must be from 0 to {room - 1} for windows of {max_length} tokens."
        )
    numbered = [(number, words) for number, words in enumerate(sentences) if words]
    for start in with_bar(range(0, len(numbered), SENTENCES_AT_ONCE), "Tokenizing"):
        chunk = numbered[start : start + SENTENCES_AT_ONCE]
        encoded = tokenizer(
            [" ".join(words) for _, words in chunk],
            truncation=True,
            max_length=max_length,
            stride=overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_token_type_ids=True,
        )
        rows = range(len(encoded["input_ids"]))
        for index, group in groupby(rows, key=lambda row: encoded["overflow_to_sample_mapping"][row]):
            windows, (number, words) = list(group), chunk[index]
            words_here = words_of_windows(words, [encoded["offset_mapping"][row] for row in windows])
            for row, positions in zip(windows, words_here, strict=True):
                types = encoded["token_type_ids"][row]
                yield WordWindow(number, encoded["input_ids"][row], positions, types if any(types) else None)


def words_of_windows(words: list[str], windows: list[list[tuple[int, int]]]) -> list[dict[int, list[int]]]:
    """Return `WordWindow.words` of each window of a sentence, from the character offsets of its tokens."""
    text = " ".join(words)
    starts = list(accumulate((len(word) + 1 for word in words[:-1]), initial=0))
    positions: list[dict[int, list[int]]] = []
    # Word -> first character, negative context, window: the least one counts.
    best: dict[int, tuple[int, int, int]] = {}
    for number, offsets in enumerate(windows):
        positions.append({})
        for position, (start, end) in enumerate(offsets):
            start += len(text[start:end]) - len(text[start:end].lstrip())
            if start == end:  # special tokens, and tokens of spaces
                continue
            word = bisect_right(starts, start) - 1
            if word not in positions[-1]:
                rank = (start, -min(position, len(offsets) - 1 - position), number)
                best[word] = min(rank, best.get(word, rank))
            positions[-1].setdefault(word, []).append(position)
    return [
        {word: columns for word, columns in of_words.items() if best[word][2] == number}
        for number, of_words in enumerate(positions)
    ]


def label_windows(
    windows: list[WordWindow], tags: list[list[str]], names: list[str], label_all_tokens: bool
) -> datasets.Dataset:
    """Label windows, to train on and to read predictions from; `tags` are those of each sentence.

    Returns:
        A row per window: `input_ids`, `attention_mask`, `token_type_ids` if the model has them, and `labels` of its T
        tokens; `sentence`, its index; `words` and `word_columns`, the indices of its words in the sentence and of
        their first tokens in the window.
    """
    import datasets

    from hf_encoders.objectives.batch import IGNORED

    ids = {name: number for number, name in enumerate(names)}
    rows = []
    for window in windows:
        labels = [IGNORED] * len(window.input_ids)
        for word, (first, *later) in window.words.items():
            tag = tags[window.sentence][word]
            labels[first] = ids[tag]
            for column in later if label_all_tokens else ():
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
    """Return the tag of a word's tokens after the first: `I-X` after `B-X`, if that is known."""
    inside = f"I-{tag.removeprefix('B-')}"
    return inside if tag.startswith("B-") and inside in known else tag


def values_of_words(
    rows: datasets.Dataset, values: np.ndarray, sentences: list[list[str]], default: Any
) -> list[list[Any]]:
    """Return the value at the first token of each word of each sentence; `default` for words without a token.

    `values` are those of tokens, `(windows, longest)`, for `rows`.
    """
    of_words = [[default] * len(words) for words in sentences]
    positions = rows.select_columns(["sentence", "words", "word_columns"])
    for row, of_tokens in zip(positions, values.tolist(), strict=True):
        for word, column in zip(row["words"], row["word_columns"], strict=True):
            of_words[row["sentence"]][word] = of_tokens[column]
    return of_words


def predicted_row(
    column: str, words: list[str], tags: list[str], predicted: list[str], probabilities: list[float | None]
) -> PredictedRow:
    """Return a sentence, or what is around its first mistake in a long one, with the words whose tag is not `O`."""
    from hf_encoders.finetuning.task import PredictedRow

    mistake = next((word for word, pair in enumerate(zip(tags, predicted, strict=True)) if pair[0] != pair[1]), None)
    start = max(0, min((mistake or 0) - WORDS_BEFORE, len(words) - WORDS_SHOWN))
    shown = range(start, min(start + WORDS_SHOWN, len(words)))
    return PredictedRow(
        inputs={column: " ".join(words[word] for word in shown)},
        labels=[f"{words[word]} {tags[word]}" for word in shown if tags[word] != OUTSIDE],
        predictions=[
            (f"{words[word]} {predicted[word]}", probabilities[word]) for word in shown if predicted[word] != OUTSIDE
        ],
        is_right=mistake is None,
    )


def entity_metrics(predicted: list[list[str]], gold: list[list[str]], names: Iterable[str]) -> dict[str, float]:
    """Compute entity precision, recall and F1 with `Seqeval`, for every type among the tags `names`.

    `Seqeval` leaves out types that are neither predicted nor true; here they are 0, so that all runs have the same
    metrics.
    """
    from hf_encoders.evaluation.metrics.seqeval import Seqeval, name_in_metrics

    # A class that no word has, such as `_` of a `ClassLabel`, may be predicted all the same.
    predicted = [[tag if ENTITY_TAG.fullmatch(tag) else OUTSIDE for tag in tags] for tags in predicted]
    metrics = Seqeval(keep_in_memory=True).compute(predictions=predicted, references=gold)
    for kind in sorted({name[2:] for name in names if PREFIXED_TAG.fullmatch(name)}):
        for name, nothing in (("precision", 0.0), ("recall", 0.0), ("f1", 0.0), ("number", 0)):
            metrics.setdefault(f"{name_in_metrics(kind)}_{name}", nothing)
    return metrics


def metrics_of_words(predicted: list[list[str]], gold: list[list[str]], names: Iterable[str]) -> dict[str, float]:
    """Compute the share of words with the right tag, and F1 averaged over tags."""
    from hf_encoders.evaluation.metrics.accuracy import Accuracy
    from hf_encoders.evaluation.metrics.f1 import F1

    ids = {name: number for number, name in enumerate(names)}
    sides = (("predictions", predicted), ("references", gold))
    tags = {side: [ids[tag] for sentence in sentences for tag in sentence] for side, sentences in sides}
    return {
        **Accuracy(keep_in_memory=True).compute(**tags),
        "f1_macro": F1(keep_in_memory=True).compute(**tags, average="macro")["f1"],
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
