"""Extractive question answering around the head: question and context to windows, scores of windows to answers.

As in BERT's `run_squad.py` (Devlin et al. 2018, section 4.2 and 4.3): question first, a context that is too long in
overlapping windows, the best spans of all windows against the score of "no answer" at the first token.

Differs from that script in: the overlap is given, not the stride, as in transformers; the best spans are the best of
all spans, not of the 20 best starts and 20 best ends; an answer is the text between the characters of its first and
last token, without an alignment of words.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase


# Defaults of `run_squad.py`; with shorter windows, question and overlap take a third of the length each.
MAX_QUESTION_TOKENS = 64
MAX_WINDOW_OVERLAP = 128
MAX_ANSWER_TOKENS = 30
N_BEST = 20


@dataclass
class AnswerWindow:
    """Special tokens, a question and a part of its context, as the head reads them; T tokens, not padded."""

    question: int  # index among the given questions
    input_ids: list[int]
    token_type_ids: list[int] | None  # 1 for the context; None for a tokenizer without a second type
    offsets: list[tuple[int, int] | None]  # start and end of each context token in the context's characters
    null_column: int  # of `[CLS]` or `<s>` (as in RoBERTa's SQuAD code too), the answer of a window without one


@dataclass
class Answer:
    """A candidate: `text == context[start:end]`, all of them empty for "no answer"."""

    text: str
    start: int
    end: int
    start_logit: float  # of its first token
    end_logit: float  # of its last token
    probability: float = 0.0  # softmax of the scores over all candidates of the question

    @property
    def score(self) -> float:
        """Sum of both logits, by which candidates are ranked."""
        return self.start_logit + self.end_logit


def window_lengths(
    max_length: int, doc_stride: int | None = None, max_question_length: int | None = None
) -> tuple[int, int]:
    """Tokens of overlap and maximum tokens of a question, for windows of `max_length` tokens.

    >>> window_lengths(384), window_lengths(128), window_lengths(128, doc_stride=0, max_question_length=20)
    ((128, 64), (42, 42), (0, 20))
    """
    third = max_length // 3
    if doc_stride is None:
        doc_stride = min(MAX_WINDOW_OVERLAP, third)
    return doc_stride, min(MAX_QUESTION_TOKENS, third) if max_question_length is None else max_question_length


def answer_windows(
    tokenizer: PreTrainedTokenizerBase,
    questions: list[str],
    contexts: list[str],
    max_length: int,
    doc_stride: int | None = None,
    max_question_length: int | None = None,
) -> Iterator[AnswerWindow]:
    """Questions, each with its context, to windows of at most `max_length` tokens, special tokens included.

    Args:
        doc_stride (`int`, *optional*): tokens of the context that neighbouring windows share; default 128, or a third
            of `max_length` if that is less.
        max_question_length (`int`, *optional*): a longer question is truncated; default 64 tokens, or a third of
            `max_length` if that is less.

    Raises:
        ValueError: for a tokenizer without character offsets or without `cls_token`, and for windows too short to
            advance beside their question.
    """
    doc_stride, max_question_length = window_lengths(max_length, doc_stride, max_question_length)
    name = type(tokenizer).__name__
    if not tokenizer.is_fast:
        raise ValueError(f"{name} has no character offsets: use a fast tokenizer (of the tokenizers library).")
    if tokenizer.cls_token_id is None:
        raise ValueError(f"{name} has no cls_token, which stands for 'no answer': set tokenizer.cls_token.")
    room = max_length - tokenizer.num_special_tokens_to_add(pair=True) - max_question_length
    if doc_stride < 0 or max_question_length < 1 or room <= doc_stride:
        raise ValueError(
            f"doc_stride={doc_stride}: a window of {max_length} tokens has room for {room} of the context beside a "
            f"question of {max_question_length}: the overlap must be from 0 to {max(room - 1, 0)}, a question at "
            "least 1. Raise the window's length, or lower one of the two."
        )
    # Asked of a pair that fits: of one that does not, tokenizers gives later windows a type 1 that no model has.
    has_types = any(tokenizer("a", "a", return_token_type_ids=True)["token_type_ids"])
    encoded = tokenizer(
        _cut_questions(tokenizer, questions, max_question_length),
        contexts,
        truncation="only_second",
        max_length=max_length,
        stride=doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_token_type_ids=True,
    )
    for row, input_ids in enumerate(encoded["input_ids"]):
        pairs = zip(encoded.sequence_ids(row), encoded["offset_mapping"][row], strict=True)
        yield AnswerWindow(
            question=encoded["overflow_to_sample_mapping"][row],
            input_ids=input_ids,
            token_type_ids=encoded["token_type_ids"][row] if has_types else None,
            offsets=[offset if sequence == 1 else None for sequence, offset in pairs],
            null_column=input_ids.index(tokenizer.cls_token_id),
        )


def _cut_questions(tokenizer: PreTrainedTokenizerBase, questions: list[str], max_tokens: int) -> list[str]:
    """Questions truncated to `max_tokens` tokens, without surrounding spaces."""
    questions = [question.strip() for question in questions]
    encoded = tokenizer(
        questions, add_special_tokens=False, truncation=True, max_length=max_tokens, return_offsets_mapping=True
    )
    return [
        question[: offsets[-1][1]] if encoding.overflowing else question
        for question, offsets, encoding in zip(questions, encoded["offset_mapping"], encoded.encodings, strict=True)
    ]


def best_answers(
    context: str,
    windows: list[AnswerWindow],
    start_logits: list[torch.Tensor],
    end_logits: list[torch.Tensor],
    n_best: int = N_BEST,
    max_answer_length: int = MAX_ANSWER_TOKENS,
    with_null: bool = False,
    null_threshold: float = 0.0,
) -> list[Answer]:
    """The best candidates of one question over all its windows, best first.

    A candidate starts and ends at context tokens, ends no earlier than it starts, and has at most
    `max_answer_length` tokens; of equal texts the best one stays. With equal scores the earlier start, then the
    shorter answer, comes first, and an answer before "no answer".

    Args:
        start_logits, end_logits (`list` of `torch.Tensor` of shape `(T,)`): scores of each window's tokens.
        n_best (`int`, *optional*, defaults to 20): candidates that the probabilities sum over, without "no answer".
        with_null (`bool`, *optional*, defaults to `False`): whether "no answer" is a candidate: the lowest score of
            any window's first special token, because one window with an answer is enough.
        null_threshold (`float`, *optional*, defaults to 0): "no answer" is ranked first if its score exceeds the best
            answer's by more than this.

    Returns:
        At most `n_best` answers, and "no answer" if asked for; an empty list if no window has a token of the context.
    """
    found: dict[str, Answer] = {}
    nulls = []
    for window, starts, ends in zip(windows, start_logits, end_logits, strict=True):
        starts, ends = starts.detach().cpu().double(), ends.detach().cpu().double()
        if starts.isnan().any() or ends.isnan().any():
            raise ValueError("start_logits or end_logits hold NaN: the model's weights or inputs are damaged.")
        nulls.append(Answer("", 0, 0, float(starts[window.null_column]), float(ends[window.null_column])))
        for first, last in _best_spans(starts, ends, window.offsets, n_best, max_answer_length):
            span = trimmed_span(context, window.offsets[first][0], window.offsets[last][1])
            answer = Answer(context[slice(*span)], *span, float(starts[first]), float(ends[last]))
            known = found.get(answer.text)
            if answer.text and (known is None or _order(answer) < _order(known)):
                found[answer.text] = answer
    answers = sorted(found.values(), key=_order)[:n_best]
    if with_null:
        null = min(nulls, key=lambda null: null.score)
        goes_first = not answers or null.score - answers[0].score > null_threshold
        answers.insert(0 if goes_first else max(1, sum(answer.score >= null.score for answer in answers)), null)
    _set_probabilities(answers)
    return answers


def trimmed_span(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without spaces at its ends; byte-level tokens may begin with the space before a word.

    >>> trimmed_span("a cat .", 1, 6)
    (2, 5)
    """
    blank = text[start:end]
    return start + len(blank) - len(blank.lstrip()), end - len(blank) + len(blank.rstrip())


def _order(answer: Answer) -> tuple[float, int, int]:
    return -answer.score, answer.start, answer.end


def _best_spans(
    starts: torch.Tensor, ends: torch.Tensor, offsets: list[tuple[int, int] | None], n_best: int, max_length: int
) -> list[tuple[int, int]]:
    """First and last columns of a window's `n_best` best spans; equal ones by first column, then by length."""
    is_context = torch.tensor([offset is not None for offset in offsets])
    starts, ends = (scores.masked_fill(~is_context, -torch.inf) for scores in (starts, ends))
    # Row i, column j: the span from token i to i + j.
    scores = starts[:, None] + torch.nn.functional.pad(ends, (0, max_length - 1), value=-torch.inf).unfold(
        0, max_length, 1
    )
    # `topk` may choose any of equal scores: it only gives the lowest score.
    lowest = scores.flatten().topk(min(n_best, scores.numel())).values[-1]
    rows, lengths = ((scores >= lowest) & scores.isfinite()).nonzero(as_tuple=True)
    found = sorted(zip((-scores[rows, lengths]).tolist(), rows.tolist(), lengths.tolist(), strict=True))
    return [(row, row + length) for _, row, length in found[:n_best]]


def _set_probabilities(answers: list[Answer]) -> None:
    if answers:
        highest = max(answer.score for answer in answers)
        weights = [math.exp(answer.score - highest) for answer in answers]
        for answer, weight in zip(answers, weights, strict=True):
            answer.probability = weight / sum(weights)
