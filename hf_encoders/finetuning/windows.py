"""Texts that are too long for the encoder, as overlapping windows: of words with tags, and of questions with answers.

Words: a sentence is tokenized as text, its words joined by single spaces, and a token belongs to the word that
contains its first character (apart from spaces). This works for every kind of tokenizer: byte-level BPE sees the
spaces of pre-training, which it would not with `is_split_into_words` and without `add_prefix_space`. A word that
begins in several windows counts in the one where its nearest border is farthest away, as in BERT's `run_squad.py`; in
the earlier one if equal.

Answers: windows and best spans are those of `models/question_answering_pipeline.py`.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import datasets
import numpy as np
import torch
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from hf_encoders.corpus.special_tokens import check_offsets
from hf_encoders.models.question_answering_pipeline import (
    Answer,
    AnswerWindow,
    answer_windows,
    best_answers,
    trimmed_span,
)


SENTENCES_AT_ONCE = 1000  # tokenized
QUESTIONS_AT_ONCE = 500  # whose windows are held as Python objects
NEAR = 20  # characters from an answer's stated position


@dataclass
class WordWindow:
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
    check_offsets(tokenizer, "the label of a word", "classify whole texts")
    overlap = max_length // 3 if overlap is None else overlap
    room = max_length - tokenizer.num_special_tokens_to_add(pair=False)
    if not 0 <= overlap < room:
        raise ValueError(
            f"--window-overlap {overlap}: must be from 0 to {room - 1} for windows of {max_length} tokens."
        )
    numbered = [(number, words) for number, words in enumerate(sentences) if words]
    for start in range(0, len(numbered), SENTENCES_AT_ONCE):
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


@dataclass
class Question:
    """A row in SQuAD's format."""

    id: str
    question: str
    context: str
    golds: list[str]  # all gold answers; empty if there is no answer
    span: tuple[int, int] | None  # characters of the first gold answer, without surrounding white space


@dataclass
class LabelledWindows:
    """Windows of a split.

    Args:
        rows (`datasets.Dataset`): `input_ids`, `attention_mask`, `token_type_ids` if the model has them,
            `start_positions` and `end_positions` (of the answer's first and last token, or of the first special token
            in a window without the whole answer), and the columns that `windows_of` reads.
        with_answer (`int`): Windows with the whole answer.
        lost (`int`): Questions whose answer no window contains as a whole.
    """

    rows: datasets.Dataset
    with_answer: int
    lost: int


class AnswerNotFoundError(Exception):
    """An answer is not in its context, or at several places of which none is near its position."""


def read_questions(
    rows: datasets.Dataset,
    split: str,
    columns: tuple[str, str, str, str],
    allow_no_answer: bool,
    skip_invalid: bool = False,
) -> tuple[list[Question], list[str]]:
    """Return the rows of a split, validated, and lines for the plan; rows are numbered without a column of ids.

    An answer that is not at its position, but elsewhere in the context, is moved there (see `position_of`).

    Args:
        rows (`datasets.Dataset`), split (`str`): In SQuAD's format, and its name for messages.
        columns (`tuple` of `str`): Names of the columns of id, question, context and answers.
        allow_no_answer (`bool`): Whether questions may have no answer.
        skip_invalid (`bool`, *optional*, defaults to `False`): Whether to leave out questions with an answer that is
            not found, instead of raising an error.
    """
    id_column, question_column, context_column, answers_column = columns
    ids = rows[id_column][:] if id_column in rows.column_names else range(len(rows))
    ids = list(map(str, ids))
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise ValueError(f"{split} data: the id {twice!r} occurs twice: give each question its own {id_column}.")
    questions, moved, skipped = [], [], []
    for texts in zip(ids, rows[question_column], rows[context_column], rows[answers_column], strict=True):
        try:
            question, moves = _question(*texts, split)
        except AnswerNotFoundError as error:
            if not skip_invalid:
                remedy = "correct it, or leave out such questions with --skip-invalid."
                raise ValueError(f"{error}: {remedy}") from None
            skipped.append(str(error))
            continue
        questions.append(question)
        moved += moves
    if not questions:
        raise ValueError(f"{split} data: no question is left; the first: {skipped[0]}.")
    without = [question.id for question in questions if not question.golds]
    if without and not allow_no_answer:
        raise ValueError(
            f"{split} data: {len(without)} of {len(questions)} questions have no answer, the first is {without[0]!r}: "
            "if that is intended (SQuAD 2.0), use --allow-no-answer."
        )
    plan = []
    if moved:
        plan.append(
            f"{split}: {len(moved):,} answer(s) moved from answer_start to where they are in the context; the first: "
            f"{moved[0]}"
        )
    if skipped:
        plan.append(f"{split}: {len(skipped):,} question(s) left out (--skip-invalid); the first: {skipped[0]}")
    return questions, plan


def _question(name: str, question: str, context: str, answers: Any, split: str) -> tuple[Question, list[str]]:
    """Return a row, and a sentence about each answer that was moved."""
    where = f"{split} data, question {name!r}"
    for field, text in (("question", question), ("context", context)):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{where}: its {field} is {text!r}: give text, or leave the question out.")
    golds, starts = _golds(answers, where)
    positions, moves = [], []
    for gold, start in zip(golds, starts, strict=True):
        if not gold.strip():
            raise ValueError(f"{where}: its answer is {gold!r}: give text, or no answer at all.")
        position = position_of(gold, start, context)
        if position is None:
            count = context.count(gold)
            fault = f"which occurs {count} times in the context, none near it" if count else "nor in its context"
            raise AnswerNotFoundError(f"{where}: its answer {gold!r} is not at answer_start={start}, {fault}")
        if position != start:
            moves.append(f"question {name!r}: {gold!r} from {start} to {position}")
        positions.append(position)
    span = trimmed_span(context, positions[0], positions[0] + len(golds[0])) if golds else None
    return Question(name, question, context, golds, span), moves


def _golds(answers: Any, where: str) -> tuple[list[str], list[int]]:
    """Return texts and starts of gold answers; also from a list of answers, the format of SQuAD's own files."""
    if isinstance(answers, list) and all(isinstance(answer, dict) for answer in answers):
        answers = {field: [answer.get(field) for answer in answers] for field in ("text", "answer_start")}
    golds, starts = (answers.get(field) if isinstance(answers, dict) else None for field in ("text", "answer_start"))
    if (
        not (isinstance(golds, list) and isinstance(starts, list) and len(golds) == len(starts))
        or not all(isinstance(gold, str) for gold in golds)
        or not all(type(start) is int for start in starts)
    ):
        raise ValueError(
            f"{where}: its answers are {answers!r}: give {{'text': [...], 'answer_start': [...]}}, of equal length."
        )
    return golds, starts


def position_of(answer: str, start: int, context: str) -> int | None:
    """Return the position of an answer in its context, `start` if it is there; None if it is ambiguous or absent.

    Elsewhere it is its only place, or the nearest one if that is at most `NEAR` characters away.

    >>> context = "a cat and a dog" + " and so on" * 9 + " and a cat"
    >>> position_of("cat", 1, context), position_of("dog", 80, context), position_of("cat", 60, context)
    (2, 12, None)
    """
    if start >= 0 and context.startswith(answer, start):
        return start
    positions = [match.start() for match in re.finditer(f"(?={re.escape(answer)})", context)]
    nearest = min(positions, key=lambda position: abs(position - start), default=None)
    return nearest if len(positions) == 1 or (positions and abs(nearest - start) <= NEAR) else None


def label_windows(
    questions: list[Question],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    doc_stride: int | None = None,
    max_question_length: int | None = None,
) -> LabelledWindows:
    """Cut windows with `answer_windows`, and label them."""
    chunks, lost, with_answer = [], 0, 0
    for start in range(0, len(questions), QUESTIONS_AT_ONCE):
        chunk = questions[start : start + QUESTIONS_AT_ONCE]
        texts, contexts = [question.question for question in chunk], [question.context for question in chunk]
        cut = answer_windows(tokenizer, texts, contexts, max_length, doc_stride, max_question_length)
        rows = []
        for number, group in groupby(cut, key=lambda window: window.question):
            windows = list(group)
            labels = answer_columns(windows, chunk[number].span)
            held = sum(label is not None for label in labels)
            with_answer += held
            lost += chunk[number].span is not None and held == 0
            rows += [_row(window, label, start + number) for window, label in zip(windows, labels, strict=True)]
        chunks.append(datasets.Dataset.from_list(rows))
    return LabelledWindows(datasets.concatenate_datasets(chunks), with_answer, lost)


def answer_columns(windows: list[AnswerWindow], span: tuple[int, int] | None) -> list[tuple[int, int] | None]:
    """Return positions of the first and last token of an answer in each window, None without the whole answer.

    The answer's tokens are all that share a character with it. A character that the tokenizer drops has no token.

    >>> offsets = [None, (0, 2), (3, 5), (6, 8), None]
    >>> window = AnswerWindow(0, [0] * 5, None, offsets, 0)
    >>> shifted = AnswerWindow(0, [0] * 4, None, [None, (6, 8), (9, 11), None], 0)
    >>> answer_columns([window, shifted], (3, 7)), answer_columns([window, shifted], (6, 8))
    ([(2, 3), None], [(3, 3), (1, 1)])
    """
    start, end = span or (0, 0)
    offsets = {offset for window in windows for offset in window.offsets if offset is not None}
    tokens = {offset for offset in offsets if offset[1] > start and offset[0] < end}
    first, last = min(tokens, default=None), max(tokens, default=None)
    columns: list[tuple[int, int] | None] = []
    for window in windows:
        if first is not None and first in window.offsets and last in window.offsets:
            # Byte-level tokens may share a character: the first of the first, the last of the last.
            from_end = window.offsets[::-1].index(last)
            columns.append((window.offsets.index(first), len(window.offsets) - 1 - from_end))
        else:
            columns.append(None)
    return columns


def _row(window: AnswerWindow, label: tuple[int, int] | None, question: int) -> dict[str, Any]:
    types = {} if window.token_type_ids is None else {"token_type_ids": window.token_type_ids}
    first, last = label or (window.null_column, window.null_column)
    return {
        "input_ids": window.input_ids,
        "attention_mask": [1] * len(window.input_ids),
        **types,
        "start_positions": first,
        "end_positions": last,
        "question": question,
        "null_column": window.null_column,
        "token_starts": [-1 if offset is None else offset[0] for offset in window.offsets],
        "token_ends": [-1 if offset is None else offset[1] for offset in window.offsets],
    }


def windows_of(rows: datasets.Dataset) -> Iterator[AnswerWindow]:
    """Yield the windows of `LabelledWindows.rows`, without token ids."""
    columns = ("question", "null_column", "token_starts", "token_ends")
    for question, null_column, starts, ends in zip(*(rows[name] for name in columns), strict=True):
        offsets = [None if start < 0 else (start, end) for start, end in zip(starts, ends, strict=True)]
        yield AnswerWindow(question, [], None, offsets, null_column)


def decode_answers(
    questions: list[Question], rows: datasets.Dataset, predictions: tuple[np.ndarray, np.ndarray], **options: Any
) -> list[list[Answer]]:
    """Return the candidates of each question, best first.

    Args:
        questions (`list` of `Question`), rows (`datasets.Dataset`): Of the split, and `LabelledWindows.rows`.
        predictions (`tuple` of `np.ndarray` of shape `(windows, longest)`): Start and end scores from
            `Trainer.predict`, padded on the right.
        options: Of `best_answers`.
    """
    starts, ends = map(torch.from_numpy, predictions)
    if len(starts) != len(rows):
        raise ValueError(f"predictions has {len(starts)} rows for {len(rows)} windows: predict on this split.")
    decoded = []
    scored = zip(windows_of(rows), starts, ends, strict=True)
    for number, group in groupby(scored, key=lambda item: item[0].question):
        of_question = [
            (window, start[: len(window.offsets)], end[: len(window.offsets)]) for window, start, end in group
        ]
        windows, start_logits, end_logits = map(list, zip(*of_question, strict=True))
        decoded.append(best_answers(questions[number].context, windows, start_logits, end_logits, **options))
    return decoded


class WindowCollator(DataCollatorWithPadding):
    """Pads windows to a batch whose loss excludes padding, so that it does not depend on the batch's composition.

    transformers' own heads ignore `span_loss_over_padding`: their softmax includes padding.
    """

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Collate rows to `(B, T)` and `(B,)`."""
        return {**super().__call__(features), "span_loss_over_padding": False}
