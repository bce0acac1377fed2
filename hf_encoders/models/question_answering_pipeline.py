"""The pipeline `question-answering` for extractive heads, which transformers 5 no longer has.

It is saved beside question-answering heads only, and named in their config.json:
`pipeline("question-answering", repository, trust_remote_code=True)`. With the package installed, the same class is
registered as `extractive-question-answering`, because transformers refuses the old name for model instances.

Differs from the pipeline of transformers 4 in: answers are ranked over all windows by the sum of their two scores, and
`score` is a softmax over the best candidates, as in fine-tuning and in SQuAD's script, not a product of two softmaxes
of one window; a list of questions always gives a list; answers are not extended to whole words.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers.pipelines.base import ChunkPipeline

from .encoder_answers import MAX_ANSWER_TOKENS, N_BEST, answer_windows, best_answers


LONGEST_WINDOW = 384  # tokens, as in BERT's SQuAD runs


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
            inputs = _pairs(question, context)
        if isinstance(inputs, list | tuple):
            for example in inputs:
                _check_example(example)
            return super().__call__(list(inputs), **options) if inputs else []
        return super().__call__(inputs, **options)

    def _sanitize_parameters(
        self,
        top_k: int | None = None,
        max_answer_len: int | None = None,
        max_seq_len: int | None = None,
        doc_stride: int | None = None,
        max_question_len: int | None = None,
        handle_impossible_answer: bool | None = None,
        null_threshold: float | None = None,
    ) -> tuple[dict, dict, dict]:
        """The given options, by step."""
        for name, value in (("top_k", top_k), ("max_answer_len", max_answer_len), ("max_seq_len", max_seq_len)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1.")
        windows = {"max_seq_len": max_seq_len, "doc_stride": doc_stride, "max_question_len": max_question_len}
        answers = {
            "top_k": top_k,
            "max_answer_len": max_answer_len,
            "handle_impossible_answer": handle_impossible_answer,
            "null_threshold": null_threshold,
        }
        return _given(windows), {}, _given(answers)

    def preprocess(
        self,
        input_: Mapping[str, str],
        max_seq_len: int | None = None,
        doc_stride: int | None = None,
        max_question_len: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """A question to its windows."""
        _check_example(input_)
        longest = self._longest_window()
        if max_seq_len is None:
            max_seq_len = min(LONGEST_WINDOW, longest)
        if max_seq_len > longest:
            raise ValueError(f"max_seq_len={max_seq_len}: model and tokenizer take {longest} tokens; lower it.")
        windows = list(
            answer_windows(
                self.tokenizer, [input_["question"]], [input_["context"]], max_seq_len, doc_stride, max_question_len
            )
        )
        for number, window in enumerate(windows, 1):
            inputs = {"input_ids": window.input_ids, "attention_mask": [1] * len(window.input_ids)}
            if window.token_type_ids is not None and getattr(self.model.config, "type_vocab_size", 1) > 1:
                inputs["token_type_ids"] = window.token_type_ids
            tensors = {name: torch.tensor([values]) for name, values in inputs.items()}
            yield {**tensors, "window": window, "context": input_["context"], "is_last": number == len(windows)}

    def get_iterator(self, *arguments: Any, **options: Any) -> Any:
        """As in transformers, but always padded on the right: positions are columns."""
        given = self.tokenizer
        self.tokenizer = copy.copy(given)
        self.tokenizer.padding_side = "right"
        try:
            return super().get_iterator(*arguments, **options)
        finally:
            self.tokenizer = given

    def _longest_window(self) -> int:
        """Tokens that the tokenizer and the model's position table allow."""
        longest_row = getattr(self.model.base_model, "longest_row", None)  # only models of this package have it
        lengths = [self.tokenizer.model_max_length] + ([longest_row()] if longest_row is not None else [])
        return min(lengths)

    def _forward(self, model_inputs: dict[str, Any]) -> dict[str, Any]:
        """Scores of the tokens of each window."""
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
        """Scores of all windows of a question to its answers."""
        is_token = [output["attention_mask"][0].bool() for output in model_outputs]
        found = best_answers(
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
            for answer in found[:top_k]
        ] or [{"score": 0.0, "start": 0, "end": 0, "answer": ""}]
        return answers[0] if top_k == 1 else answers


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _pairs(question: Any, context: Any) -> dict[str, Any] | list[dict[str, Any]]:
    """`question=` and `context=` as examples."""
    if question is None or context is None:
        raise ValueError(
            f"{'question' if question is None else 'context'} is missing: pass question=... and context=..."
        )
    if isinstance(question, str) and isinstance(context, str):
        return {"question": question, "context": context}
    questions = [question] * len(context) if isinstance(question, str) else list(question)
    contexts = [context] * len(questions) if isinstance(context, str) else list(context)
    if len(questions) != len(contexts):
        raise ValueError(
            f"question has {len(questions)} entries, context {len(contexts)}: pass one context per question."
        )
    return [{"question": one, "context": other} for one, other in zip(questions, contexts, strict=True)]


def _check_example(example: Any) -> None:
    if not isinstance(example, Mapping):
        raise ValueError(f"{example!r} is not a dict with question and context: pass one, or a list of such.")
    for name in ("question", "context"):
        text = example.get(name)
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{name}={text!r}: pass text that is not empty.")
