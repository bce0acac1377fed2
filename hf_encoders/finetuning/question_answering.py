"""Extractive question answering, as in SQuAD 1.1 and 2.0 (BERT, sections 4.2 and 4.3).

Rows have SQuAD's format: `id`, `question`, `context`, and `answers` with the lists `text` and `answer_start`
(characters from 0). A context too long for the encoder becomes several overlapping windows; the best spans of all
windows are compared. In a window without the whole answer, the first special token is the answer.

Windows and best spans are those of `models/question_answering_pipeline.py`.
"""

from __future__ import annotations

import argparse
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_encoders.source_literals import constant
from hf_encoders.writing import with_bar


if TYPE_CHECKING:
    import datasets
    import numpy as np
    from transformers import EvalPrediction, PreTrainedTokenizerBase

    from hf_encoders.finetuning.task import PredictedRow, PreparedTask
    from hf_encoders.models.question_answering_pipeline import Answer, AnswerWindow


MAX_ANSWER_TOKENS = constant("models.question_answering_pipeline", "MAX_ANSWER_TOKENS")
N_BEST = constant("models.question_answering_pipeline", "N_BEST")
QUESTIONS_AT_ONCE = 500  # whose windows are held as Python objects
NEAR = 20  # characters from an answer's stated position
CONTEXT_BEFORE = 100  # characters of the context before the answer in the report
NO_ANSWER = "no answer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the task's options: the keyword parameters of `prepare`."""
    add = parser.add_argument
    for name in ("id", "question", "context", "answers"):
        add(f"--{name}-column", default=name, metavar="NAME", help=f"column of the {name} (default: {name})")
    default = "or a third of the longest input if that is less"
    add("--doc-stride", type=int, metavar="TOKENS", help=f"shared by neighbouring windows (default: 128, {default})")
    add("--max-question-length", type=int, metavar="TOKENS", help=f"the rest is cut off (default: 64, {default})")
    text = "longest predicted answer (default: %(default)s)"
    add("--max-answer-length", type=int, default=MAX_ANSWER_TOKENS, metavar="TOKENS", help=text)
    add("--n-best", type=int, default=N_BEST, metavar="N", help="candidates per question (default: %(default)s)")
    text = "leave out questions whose answer is not found in the context (default: an error)"
    add("--skip-invalid", action="store_true", help=text)
    add("--allow-no-answer", action="store_true", help="questions may have no answer, as in SQuAD 2.0")
    text = "predict 'no answer' if it scores this much more than the best answer (default: %(default)s)"
    add("--null-threshold", type=float, default=0.0, metavar="X", help=text)


def collate(pad: Callable[..., Any], features: list[dict[str, Any]]) -> dict[str, Any]:
    """Pad a batch whose loss does not depend on its composition; transformers' own heads ignore the flag."""
    return {**pad(features), "span_loss_over_padding": False}


def prepare(
    data: datasets.DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    id_column: str = "id",
    question_column: str = "question",
    context_column: str = "context",
    answers_column: str = "answers",
    doc_stride: int | None = None,
    max_question_length: int | None = None,
    max_answer_length: int = MAX_ANSWER_TOKENS,
    n_best: int = N_BEST,
    skip_invalid: bool = False,
    allow_no_answer: bool = False,
    null_threshold: float = 0.0,
) -> PreparedTask:
    """Cut contexts into labelled windows.

    Of several gold answers the first is learned; metrics take the best, as the official scripts do. An answer that is
    not at its `answer_start` is moved to where it is, which the plan says.

    Args:
        data, tokenizer, max_length: See `task.py`; the length is that of a window.
        id_column, question_column, context_column, answers_column (`str`, *optional*): Columns; rows are numbered if
            there is no column of ids.
        doc_stride, max_question_length (`int`, *optional*): Tokens of the context shared by neighbouring windows (in
            BERT's `run_squad.py` it is the step from window to window), and those that a longer question is cut to.
        max_answer_length, n_best (`int`, *optional*): Longest predicted answer in tokens; candidates per question.
        skip_invalid (`bool`, *optional*): Whether to leave out questions with an answer that is not in the context, or
            not near its `answer_start` if it is there several times. Otherwise it is an error.
        allow_no_answer, null_threshold (*optional*): Whether questions may have no answer, with SQuAD 2.0's metrics;
            "no answer" is predicted if it scores this much more than the best answer.
    """
    from transformers import AutoModelForQuestionAnswering, DataCollatorWithPadding

    from hf_encoders.corpus.special_tokens import check_offsets
    from hf_encoders.evaluation.metrics.squad import question_scores
    from hf_encoders.finetuning.task import PredictedRow, PreparedTask, require_columns, right_padding
    from hf_encoders.models.question_answering_pipeline import window_lengths

    for option, value in (("--max-answer-length", max_answer_length), ("--n-best", n_best)):
        if value < 1:
            raise ValueError(f"{option} {value} must be at least 1.")
    if null_threshold and not allow_no_answer:
        raise ValueError(f"--null-threshold {null_threshold:g} is for --allow-no-answer: add it, or leave it out.")
    check_offsets(tokenizer, "an answer", "classify whole texts")
    require_columns(
        data, question_column=question_column, context_column=context_column, answers_column=answers_column
    )
    columns = (id_column, question_column, context_column, answers_column)
    questions, rows, plan = {}, {}, []
    for split, raw_rows in data.items():
        questions[split], about_answers = read_questions(raw_rows, split, columns, allow_no_answer, skip_invalid)
        plan += about_answers
    overlap, longest_question = window_lengths(max_length, doc_stride, max_question_length)
    for split, of_split in questions.items():
        rows[split] = label_windows(of_split, tokenizer, max_length, overlap, longest_question)
        plan.append(describe_windows(split, of_split, rows[split]))
    if not questions_held(rows["train"]):
        raise ValueError(f"train data: no window of {max_length} tokens contains a whole answer: raise --max-length.")
    decoding = (
        f"answers of at most {max_answer_length} tokens, windows of {max_length} tokens with overlap {overlap}, "
        f"questions of at most {longest_question}"
    )
    if allow_no_answer:
        decoding += f", or none if that scores more than {null_threshold:g} above the best"

    options = {"n_best": n_best, "max_answer_length": max_answer_length, "null_threshold": null_threshold}
    options["with_null"] = allow_no_answer
    last: dict[str, tuple[Any, list[list[Answer]]]] = {}

    def decoded(split: str, predictions: Any) -> list[list[Answer]]:
        if split not in last or last[split][0] is not predictions:  # once for metrics, files and report
            last[split] = predictions, decode_answers(questions[split], rows[split], predictions[:2], **options)
        return last[split][1]

    def metrics(split: str) -> Callable[[EvalPrediction], dict[str, float]]:
        return lambda prediction: answer_metrics(
            questions[split], decoded(split, prediction.predictions), allow_no_answer, null_threshold
        )

    def predicted_rows(split: str, predictions: Any) -> Iterator[PredictedRow]:
        for question, answers in zip(questions[split], decoded(split, predictions), strict=True):
            text, probability = (answers[0].text, answers[0].probability) if answers else ("", None)
            exact = question_scores([text], [question.golds or [""]], empty_f1=1.0)["exact"][0]
            start = max(0, question.span[0] - CONTEXT_BEFORE) if question.span else 0
            context = "…" * (start > 0) + question.context[start:]
            labels = list(dict.fromkeys(question.golds)) or [NO_ANSWER]
            inputs = {question_column: question.question, context_column: context}
            yield PredictedRow(inputs, labels, [(text or NO_ANSWER, probability)], exact == 1)

    eval_sets = {split: of_split for split, of_split in rows.items() if split != "train"}
    return PreparedTask(
        auto_class=AutoModelForQuestionAnswering,
        config_fields={"num_labels": 2},  # start and end, also where the checkpoint had other classes
        train_set=rows["train"],
        eval_sets=eval_sets,
        data_collator=partial(collate, DataCollatorWithPadding(right_padding(tokenizer))),
        compute_metrics=metrics,
        main_metric="f1",
        baseline="never an answer" if allow_no_answer else "",
        baseline_metrics={split: unanswered(questions[split]) for split in eval_sets} if allow_no_answer else {},
        input_columns=(question_column, context_column),
        predicted_rows=predicted_rows,
        write_predictions=lambda path, split, predictions: write_answers(
            path, questions[split], decoded(split, predictions), allow_no_answer
        ),
        plan=[*plan, decoding],
    )


class Question(NamedTuple):
    """A row in SQuAD's format."""

    id: str
    question: str
    context: str
    golds: list[str]  # all gold answers; empty if there is no answer
    span: tuple[int, int] | None  # characters of the first gold answer, without surrounding white space


def read_questions(
    rows: datasets.Dataset,
    split: str,
    columns: tuple[str, str, str, str],
    allow_no_answer: bool,
    skip_invalid: bool = False,
) -> tuple[list[Question], list[str]]:
    """Return the rows of a split, validated, and lines for the plan; `columns` are id, question, context, answers.

    Rows are numbered without a column of ids. An answer that is not at its position, but elsewhere in the context, is
    moved there (see `position_of`); if it is not found, the question is an error, or left out with `skip_invalid`.
    """
    id_column, question_column, context_column, answers_column = columns
    ids = rows[id_column][:] if id_column in rows.column_names else range(len(rows))
    ids = list(map(str, ids))
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise ValueError(f"{split} data: the id {twice!r} occurs twice: give each question its own {id_column}.")
    questions, moved, skipped = [], [], []
    for texts in zip(ids, rows[question_column], rows[context_column], rows[answers_column], strict=True):
        question, notes = _question(*texts, split)
        if question is not None:
            questions.append(question)
            moved += notes
        elif skip_invalid:
            skipped += notes
        else:
            raise ValueError(f"{notes[0]}: correct it, or leave out such questions with --skip-invalid.")
    if not questions:
        raise ValueError(f"{split} data: no question is left; the first: {skipped[0]}.")
    without = [question.id for question in questions if not question.golds]
    if without and not allow_no_answer:
        raise ValueError(
            f"{split} data: {len(without)} of {len(questions)} questions have no answer, the first is {without[0]!r}: "
            "if that is intended (SQuAD 2.0), use --allow-no-answer."
        )
    plan = []
    for notes, what in (
        (moved, "answer(s) moved from answer_start to where they are in the context"),
        (skipped, "question(s) left out (--skip-invalid)"),
    ):
        if notes:
            plan.append(f"{split}: {len(notes):,} {what}; the first: {notes[0]}")
    return questions, plan


def _question(name: str, question: str, context: str, answers: Any, split: str) -> tuple[Question | None, list[str]]:
    """Return a row, and a sentence about each answer that was moved; or None, and that an answer is not found."""
    from hf_encoders.models.question_answering_pipeline import trimmed_span

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
            return None, [f"{where}: its answer {gold!r} is not at answer_start={start}, {fault}"]
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
) -> datasets.Dataset:
    """Cut windows with `answer_windows`, and label them.

    Returns:
        A row per window: `input_ids`, `attention_mask`, `token_type_ids` if the model has them; `start_positions` and
        `end_positions` of the answer's first and last token, or `null_column`, the first special token, in a window
        without the whole answer; and what `decode_answers` reads.
    """
    import datasets

    from hf_encoders.models.question_answering_pipeline import answer_windows

    chunks = []
    for start in with_bar(range(0, len(questions), QUESTIONS_AT_ONCE), "Tokenizing"):
        chunk = questions[start : start + QUESTIONS_AT_ONCE]
        texts, contexts = [question.question for question in chunk], [question.context for question in chunk]
        cut = answer_windows(tokenizer, texts, contexts, max_length, doc_stride, max_question_length)
        rows = []
        for number, group in groupby(cut, key=lambda window: window.question):
            windows = list(group)
            for window, columns in zip(windows, answer_columns(windows, chunk[number].span), strict=True):
                first, last = columns or (window.null_column, window.null_column)
                types = {} if window.token_type_ids is None else {"token_type_ids": window.token_type_ids}
                row = {"input_ids": window.input_ids, "attention_mask": [1] * len(window.input_ids), **types}
                row |= {"start_positions": first, "end_positions": last, "null_column": window.null_column}
                row["question"] = start + number
                row["token_starts"] = [-1 if offset is None else offset[0] for offset in window.offsets]
                row["token_ends"] = [-1 if offset is None else offset[1] for offset in window.offsets]
                rows.append(row)
        chunks.append(datasets.Dataset.from_list(rows))
    return datasets.concatenate_datasets(chunks)


def answer_columns(windows: list[AnswerWindow], span: tuple[int, int] | None) -> list[tuple[int, int] | None]:
    """Return positions of the first and last token of an answer in each window, None without the whole answer.

    The answer's tokens are all that share a character with it. A character that the tokenizer drops has no token.

    >>> from hf_encoders.models.question_answering_pipeline import AnswerWindow
    >>> window = AnswerWindow(0, [0] * 5, None, [None, (0, 2), (3, 5), (6, 8), None], 0)
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


def questions_held(rows: datasets.Dataset) -> list[int]:
    """Return the question of each window that has the whole answer."""
    columns = (rows[name] for name in ("question", "start_positions", "null_column"))
    return [question for question, start, null_column in zip(*columns, strict=True) if start != null_column]


def describe_windows(split: str, questions: list[Question], rows: datasets.Dataset) -> str:
    """Return a line about a split, for the plan."""
    without, held = sum(not question.golds for question in questions), questions_held(rows)
    lost = len(questions) - without - len(set(held))
    return (
        f"{split}: {len(questions):,} questions, {without:,} without answer, in {len(rows):,} windows, "
        f"{len(held):,} of them with the whole answer; {lost:,} answers are in no window"
    )


def decode_answers(
    questions: list[Question], rows: datasets.Dataset, predictions: tuple[np.ndarray, np.ndarray], **options: Any
) -> list[list[Answer]]:
    """Return the candidates of each question, best first.

    Args:
        questions (`list` of `Question`), rows (`datasets.Dataset`): Of the split, and its `label_windows`.
        predictions (`tuple` of `np.ndarray` of shape `(windows, longest)`): Start and end scores from
            `Trainer.predict`, padded on the right.
        options: Of `best_answers`.
    """
    import torch

    from hf_encoders.models.question_answering_pipeline import AnswerWindow, best_answers

    names = ("question", "null_column", "token_starts", "token_ends")
    scored = zip(*(rows[name] for name in names), *map(torch.from_numpy, predictions), strict=True)
    decoded = []
    by_question = groupby(scored, key=lambda row: row[0])
    for number, group in with_bar(by_question, "Reading answers from scores", len(questions)):
        windows, start_logits, end_logits = [], [], []
        for question, null_column, starts, ends, of_starts, of_ends in group:
            offsets = [None if start < 0 else (start, end) for start, end in zip(starts, ends, strict=True)]
            windows.append(AnswerWindow(question, [], None, offsets, null_column))
            start_logits.append(of_starts[: len(offsets)])
            end_logits.append(of_ends[: len(offsets)])
        decoded.append(best_answers(questions[number].context, windows, start_logits, end_logits, **options))
    return decoded


def null_odds(answers: list[Answer]) -> float:
    """Return the score of "no answer" minus that of the best answer, or its own score without another candidate."""
    null = next(answer for answer in answers if not answer.text)
    return null.score - max((answer.score for answer in answers if answer.text), default=0.0)


def answer_metrics(
    questions: list[Question], decoded: list[list[Answer]], allow_no_answer: bool, null_threshold: float
) -> dict[str, float]:
    """Compute SQuAD's metrics in percent; the thresholds of `Squad("v2")` become values for `null_threshold`.

    A threshold is below all of these if it is best never to answer.
    """
    from hf_encoders.evaluation.metrics.squad import Squad

    predictions, references = [], []
    for question, answers in zip(questions, decoded, strict=True):
        best = next((answer.text for answer in answers if answer.text), "")
        predictions.append({"id": question.id, "prediction_text": best})
        golds = {"text": question.golds, "answer_start": [0] * len(question.golds)}
        references.append({"id": question.id, "answers": golds})
    if not allow_no_answer:
        return Squad(keep_in_memory=True).compute(predictions=predictions, references=references)
    # The official script searches thresholds from 0, as for probabilities. Ranks, from 1, are above 0 for odds of any
    # sign and, unlike a sigmoid's values, distinct.
    odds = [null_odds(answers) for answers in decoded]
    ranked = sorted(set(odds))
    for prediction, odd in zip(predictions, odds, strict=True):
        prediction["no_answer_probability"] = bisect_right(ranked, odd)
    metrics = Squad("v2", keep_in_memory=True).compute(
        predictions=predictions, references=references, no_answer_threshold=bisect_right(ranked, null_threshold)
    )
    for name in ("best_exact_thresh", "best_f1_thresh"):
        metrics[name] = [ranked[0] - 1, *ranked][int(metrics[name])]
    return metrics


def unanswered(questions: list[Question]) -> dict[str, float]:
    """Return SQuAD 2.0's metrics of no answer at all, in percent: the share of questions without one."""
    share = 100 * sum(not question.golds for question in questions) / len(questions)
    return {"exact": share, "f1": share}


def write_answers(path: Path, questions: list[Question], decoded: list[list[Answer]], allow_no_answer: bool) -> None:
    """Write the files of the official scripts: `PATH.json`, `PATH-nbest.json` and, for v2.0, `PATH-null-odds.json`.

    The first has the answer to each question by id, empty for none; the second the candidates by score with `text`,
    `probability`, `start_logit` and `end_logit`; the third `null_odds`.
    """
    by_id = {question.id: answers for question, answers in zip(questions, decoded, strict=True)}
    fields = ("text", "probability", "start_logit", "end_logit")
    files = {".json": {name: answers[0].text if answers else "" for name, answers in by_id.items()}}
    files["-nbest.json"] = {
        name: [
            {field: getattr(answer, field) for field in fields}
            for answer in sorted(answers, key=lambda answer: -answer.score)
        ]
        for name, answers in by_id.items()
    }
    if allow_no_answer:
        files["-null-odds.json"] = {name: null_odds(answers) for name, answers in by_id.items()}
    for suffix, content in files.items():
        text = json.dumps(content, indent=4, ensure_ascii=False) + "\n"
        path.with_name(path.name + suffix).write_text(text, encoding="utf-8")
