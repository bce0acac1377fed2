"""Extractive question answering, as in SQuAD 1.1 and 2.0 (BERT, sections 4.2 and 4.3).

Rows have SQuAD's format: `id`, `question`, `context`, and `answers` with the lists `text` and `answer_start`
(characters from 0). A context too long for the encoder becomes several overlapping windows; the best spans of all
windows are compared. In a window without the whole answer, the first special token is the answer.
"""

from __future__ import annotations

import argparse
import json
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_encoders.source_literals import constant


if TYPE_CHECKING:
    import datasets
    from transformers import EvalPrediction, PreTrainedTokenizerBase

    from hf_encoders.finetuning.task import PreparedTask
    from hf_encoders.finetuning.windows import LabelledWindows, Question
    from hf_encoders.models.question_answering_pipeline import Answer


MAX_ANSWER_TOKENS = constant("models.question_answering_pipeline", "MAX_ANSWER_TOKENS")
N_BEST = constant("models.question_answering_pipeline", "N_BEST")


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
    from transformers import AutoModelForQuestionAnswering

    from hf_encoders.corpus.special_tokens import check_offsets
    from hf_encoders.finetuning.data import require_columns, right_padding
    from hf_encoders.finetuning.task import Baseline, PreparedTask
    from hf_encoders.finetuning.windows import WindowCollator, decode_answers, label_windows, read_questions
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
    questions, plan = {}, []
    for split, rows in data.items():
        questions[split], about_answers = read_questions(rows, split, columns, allow_no_answer, skip_invalid)
        plan += about_answers
    windows = {
        split: label_windows(rows, tokenizer, max_length, doc_stride, max_question_length)
        for split, rows in questions.items()
    }
    if windows["train"].with_answer == 0:
        raise ValueError(f"train data: no window of {max_length} tokens contains a whole answer: raise --max-length.")
    overlap, longest_question = window_lengths(max_length, doc_stride, max_question_length)
    objective = (
        f"answers of at most {max_answer_length} tokens, windows of {max_length} tokens with overlap {overlap}, "
        f"questions of at most {longest_question}"
    )
    if allow_no_answer:
        objective += f", or none if that scores more than {null_threshold:g} above the best"
    decoding = {"n_best": n_best, "max_answer_length": max_answer_length, "with_null": allow_no_answer}

    def decoded(split: str, predictions: Any) -> list[list[Answer]]:
        return decode_answers(
            questions[split], windows[split].rows, predictions[:2], **decoding, null_threshold=null_threshold
        )

    def metrics(split: str) -> Callable[[EvalPrediction], dict[str, float]]:
        return lambda prediction: answer_metrics(
            questions[split], decoded(split, prediction.predictions), allow_no_answer, null_threshold
        )

    return PreparedTask(
        auto_class=AutoModelForQuestionAnswering,
        config_fields={"num_labels": 2},  # start and end, also where the checkpoint had other classes
        train_set=windows["train"].rows,
        eval_sets={split: of_split.rows for split, of_split in windows.items() if split != "train"},
        data_collator=WindowCollator(right_padding(tokenizer)),
        compute_metrics=metrics,
        main_metric="f1",
        baseline=Baseline("never an answer", lambda split: unanswered(questions[split])) if allow_no_answer else None,
        input_columns=(question_column, context_column),
        write_predictions=lambda path, split, predictions: write_answers(
            path, questions[split], decoded(split, predictions), allow_no_answer
        ),
        plan=[
            *plan,
            *(describe_windows(split, questions[split], of_split) for split, of_split in windows.items()),
            objective,
        ],
    )


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
    files = {".json": {name: answers[0].text if answers else "" for name, answers in by_id.items()}}
    files["-nbest.json"] = {
        name: [
            {field: getattr(answer, field) for field in ("text", "probability", "start_logit", "end_logit")}
            for answer in sorted(answers, key=lambda answer: -answer.score)
        ]
        for name, answers in by_id.items()
    }
    if allow_no_answer:
        files["-null-odds.json"] = {name: null_odds(answers) for name, answers in by_id.items()}
    for suffix, content in files.items():
        text = json.dumps(content, indent=4, ensure_ascii=False) + "\n"
        path.with_name(path.name + suffix).write_text(text, encoding="utf-8")


def describe_windows(split: str, questions: list[Question], windows: LabelledWindows) -> str:
    """Return a line about a split, for the plan."""
    without = sum(not question.golds for question in questions)
    return (
        f"{split}: {len(questions):,} questions, {without:,} without answer, in {len(windows.rows):,} windows, "
        f"{windows.with_answer:,} of them with the whole answer; {windows.lost:,} answers are in no window"
    )
