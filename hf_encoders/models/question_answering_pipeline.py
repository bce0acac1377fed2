"""Extractive question answering: question and context to windows, scores of windows to answers, and a pipeline.

As in BERT's `run_squad.py` (Devlin et al. 2018, section 4.2 and 4.3): question first, a context that is too long in
overlapping windows, the best spans of all windows against the score of "no answer" at the first token. Differs from
that script in: the overlap is given, not the stride; the best spans are the best of all spans, not of the 20 best
starts and ends; an answer is the text between the characters of its first and last token.

transformers 5 has no pipeline `question-answering`. This file is saved next to question-answering heads only, and
named in their config.json: `pipeline("question-answering", repository, trust_remote_code=True)`. With the package
installed, the class is registered as `extractive-question-answering`, because transformers refuses the old name for
model instances. It differs from the pipeline of transformers 4 in: answers are ranked over all windows by the sum of
their two scores, whose softmax over the best candidates is `score`; a list of questions always gives a list.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.pipelines.base import ChunkPipeline


# Defaults of `run_squad.py`; with shorter windows, question and overlap take a third of the length each.
MAX_WINDOW_TOKENS = 384
MAX_QUESTION_TOKENS = 64
MAX_WINDOW_OVERLAP = 128
MAX_ANSWER_TOKENS = 30
N_BEST = 20


@dataclass
class AnswerWindow:
    """Special tokens, a question and a part of its context, as the head reads them; T tokens, not padded."""

    question: int  # its index
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
    """Return tokens of overlap and maximum tokens of a question, for windows of `max_length` tokens.

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
    """Cut questions, each with its context, into windows of at most `max_length` tokens, special tokens included.

    Args:
        doc_stride (`int`, *optional*): tokens of the context that neighbouring windows share.
        max_question_length (`int`, *optional*): a longer question is truncated. Defaults as in `window_lengths`.

    Raises:
        ValueError: for a tokenizer without character offsets or without `cls_token`, and for windows too short to
            advance next to their question.
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
            f"doc_stride={doc_stride}: a window of {max_length} tokens has room for {room} of the context next to a "
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
    """Truncate questions to `max_tokens` tokens, without surrounding spaces."""
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
    """Rank the candidates of one question over all its windows, best first.

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
    best_of_text: dict[str, Answer] = {}
    nulls = []
    for window, starts, ends in zip(windows, start_logits, end_logits, strict=True):
        starts, ends = starts.detach().cpu().double(), ends.detach().cpu().double()
        if starts.isnan().any() or ends.isnan().any():
            raise ValueError("start_logits or end_logits hold NaN: the model's weights or inputs are damaged.")
        nulls.append(Answer("", 0, 0, float(starts[window.null_column]), float(ends[window.null_column])))
        for first, last in _best_spans(starts, ends, window.offsets, n_best, max_answer_length):
            span = trimmed_span(context, window.offsets[first][0], window.offsets[last][1])
            answer = Answer(context[slice(*span)], *span, float(starts[first]), float(ends[last]))
            if answer.text:
                best_of_text[answer.text] = min(answer, best_of_text.get(answer.text, answer), key=_order)
    answers = sorted(best_of_text.values(), key=_order)[:n_best]
    if with_null:
        null = min(nulls, key=lambda null: null.score)
        goes_first = not answers or null.score - answers[0].score > null_threshold
        answers.insert(0 if goes_first else max(1, sum(answer.score >= null.score for answer in answers)), null)
    scores = torch.tensor([answer.score for answer in answers], dtype=torch.double)
    for answer, probability in zip(answers, scores.softmax(dim=0).tolist(), strict=True):
        answer.probability = probability
    return answers


def trimmed_span(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span without spaces at its ends; byte-level tokens may begin with the space before a word.

    >>> trimmed_span("a cat .", 1, 6)
    (2, 5)
    """
    span = text[start:end]
    return start + len(span) - len(span.lstrip()), end - len(span) + len(span.rstrip())


def _order(answer: Answer) -> tuple[float, int, int]:
    return -answer.score, answer.start, answer.end


def _best_spans(
    starts: torch.Tensor, ends: torch.Tensor, offsets: list[tuple[int, int] | None], n_best: int, max_length: int
) -> list[tuple[int, int]]:
    """Return first and last columns of a window's `n_best` best spans; equal ones by first column, then by length."""
    is_context = torch.tensor([offset is not None for offset in offsets])
    is_span = (is_context[:, None] & is_context).triu().tril(max_length - 1)  # row: first token, column: last
    scores = (starts[:, None] + ends).masked_fill(~is_span, -torch.inf)
    # `topk` may choose any of equal scores: it only gives the lowest score.
    lowest = scores.flatten().topk(min(n_best, scores.numel())).values[-1]
    firsts, lasts = ((scores >= lowest) & scores.isfinite()).nonzero(as_tuple=True)
    spans = sorted(zip((-scores[firsts, lasts]).tolist(), firsts.tolist(), lasts.tolist(), strict=True))
    return [(first, last) for _, first, last in spans[:n_best]]


class HfeQuestionAnsweringPipeline(ChunkPipeline):
    """Finds the answer to a question in a context.

        answerer = pipeline("question-answering", "user/model", trust_remote_code=True)
        answerer(question="Who sat?", context="The cat sat.")
        # {"score": 0.93, "start": 0, "end": 7, "answer": "The cat"}

    Options, of the constructor or of a call:
        top_k (`int`, *optional*, defaults to 1): answers per question.
        max_answer_len (`int`, *optional*, defaults to 30): longest answer in tokens.
        max_seq_len (`int`, *optional*): tokens of a window, default 384 or what tokenizer and model take.
        doc_stride (`int`, *optional*): tokens of the context that neighbouring windows share, default 128 or a third
            of `max_seq_len`.
        max_question_len (`int`, *optional*): a longer question is truncated, default 64 tokens or a third of
            `max_seq_len`.
        handle_impossible_answer (`bool`, *optional*, defaults to `False`): whether the empty answer is a candidate.
        null_threshold (`float`, *optional*, defaults to 0): how much more than the best answer it must score to win.
        batch_size (`int`, *optional*): windows per forward pass.
    """

    _load_tokenizer = True
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = False

    def __call__(self, inputs: Any = None, *, question: Any = None, context: Any = None, **options: Any) -> Any:
        """Answer questions.

        Args:
            inputs (*optional*): a `dict` with `question` and `context`, or a list, dataset or generator of them.
            question, context (`str` or lists of `str`, *optional*): instead of `inputs`; one context may serve all
                questions.
            options: see the class.

        Returns:
            `{"score", "start", "end", "answer"}` with `answer == context[start:end]` and `score` in [0, 1]; a list of
            them, best first, if `top_k` is not 1; for a list of questions, a list with one entry per question. If
            nothing can be an answer, the empty answer with score 0.
        """
        if (inputs is None) == (question is None and context is None):
            raise ValueError("pass question=... and context=..., or a dict with both, or a list of dicts.")
        if inputs is None:
            inputs = _examples(question, context)
        if isinstance(inputs, list | tuple):
            for example in inputs:
                _check_example(example)
            return super().__call__(list(inputs), **options) if inputs else []
        return super().__call__(inputs, **options)

    def _sanitize_parameters(self, **options: Any) -> tuple[dict, dict, dict]:
        """Sort the options by step; None is no option."""
        options = {name: value for name, value in options.items() if value is not None}
        for name in ("top_k", "max_answer_len", "max_seq_len"):
            if options.get(name, 1) < 1:
                raise ValueError(f"{name}={options[name]} must be at least 1.")
        names = {"max_seq_len", "doc_stride", "max_question_len"} & options.keys()
        return {name: options.pop(name) for name in names}, {}, options

    def preprocess(
        self,
        input_: Mapping[str, str],
        max_seq_len: int | None = None,
        doc_stride: int | None = None,
        max_question_len: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Cut a question and its context into windows."""
        _check_example(input_)
        longest_row = getattr(self.model.base_model, "longest_row", None)  # only models of this package have it
        longest = min([self.tokenizer.model_max_length, *([longest_row()] if longest_row else [])])
        max_seq_len = min(MAX_WINDOW_TOKENS, longest) if max_seq_len is None else max_seq_len
        if max_seq_len > longest:
            raise ValueError(f"max_seq_len={max_seq_len}: model and tokenizer take {longest} tokens; lower it.")
        question, context = input_["question"], input_["context"]
        windows = list(
            answer_windows(self.tokenizer, [question], [context], max_seq_len, doc_stride, max_question_len)
        )
        for window in windows:
            inputs = {"input_ids": window.input_ids, "attention_mask": [1] * len(window.input_ids)}
            if window.token_type_ids is not None and getattr(self.model.config, "type_vocab_size", 1) > 1:
                inputs["token_type_ids"] = window.token_type_ids
            tensors = {name: torch.tensor([values]) for name, values in inputs.items()}
            yield {**tensors, "window": window, "context": context, "is_last": window is windows[-1]}

    def get_iterator(self, *arguments: Any, **options: Any) -> Any:
        """As in transformers, but always padded on the right: positions are columns."""
        tokenizer = self.tokenizer
        self.tokenizer = copy.copy(tokenizer)
        self.tokenizer.padding_side = "right"
        try:
            return super().get_iterator(*arguments, **options)
        finally:
            self.tokenizer = tokenizer

    def _forward(self, model_inputs: dict[str, Any]) -> dict[str, Any]:
        """Score the tokens of each window."""
        kept = {name: model_inputs.pop(name) for name in ("window", "context", "is_last")}
        outputs = self.model(**model_inputs)
        if getattr(outputs, "start_logits", None) is None:
            raise ValueError(
                f"{type(self.model).__name__} does not score starts and ends of answers: load the checkpoint with "
                "AutoModelForQuestionAnswering."
            )
        mask = model_inputs["attention_mask"]
        return {"start": outputs.start_logits, "end": outputs.end_logits, "attention_mask": mask, **kept}

    def postprocess(
        self,
        model_outputs: list[dict[str, Any]],
        top_k: int = 1,
        max_answer_len: int = MAX_ANSWER_TOKENS,
        handle_impossible_answer: bool = False,
        null_threshold: float = 0.0,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Turn the scores of all windows of a question into its answers."""
        is_token = [output["attention_mask"][0].bool() for output in model_outputs]
        candidates = best_answers(
            model_outputs[0]["context"],
            [output["window"] for output in model_outputs],
            [output["start"][0][mask] for output, mask in zip(model_outputs, is_token, strict=True)],
            [output["end"][0][mask] for output, mask in zip(model_outputs, is_token, strict=True)],
            n_best=max(N_BEST, top_k),
            max_answer_length=max_answer_len,
            with_null=handle_impossible_answer,
            null_threshold=null_threshold,
        )
        answers = [
            {"score": answer.probability, "start": answer.start, "end": answer.end, "answer": answer.text}
            for answer in candidates[:top_k]
        ] or [{"score": 0.0, "start": 0, "end": 0, "answer": ""}]
        return answers[0] if top_k == 1 else answers


def _examples(question: Any, context: Any) -> dict[str, Any] | list[dict[str, Any]]:
    """Return `question=` and `context=` as examples."""
    for name, value in (("question", question), ("context", context)):
        if value is None:
            raise ValueError(f"{name} is missing: pass question=... and context=...")
    if isinstance(question, str) and isinstance(context, str):
        return {"question": question, "context": context}
    questions = [question] * len(context) if isinstance(question, str) else list(question)
    contexts = [context] * len(questions) if isinstance(context, str) else list(context)
    if len(questions) != len(contexts):
        raise ValueError(
            f"question has {len(questions)} entries, context {len(contexts)}: pass one context per question."
        )
    return [{"question": question, "context": context} for question, context in zip(questions, contexts, strict=True)]


def _check_example(example: Any) -> None:
    if not isinstance(example, Mapping):
        raise ValueError(f"{example!r} is not a dict with question and context: pass one, or a list of such.")
    for name in ("question", "context"):
        text = example.get(name)
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{name}={text!r}: pass text that is not empty.")
