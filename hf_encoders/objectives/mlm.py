"""Masked language modelling: the data collator that masks tokens of examples, and the objective."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.similar_words import SimilarWords
from hf_encoders.corpus.special_tokens import mask_and_padding, sequence_ends
from hf_encoders.objectives.batch import IGNORED, Row, batch
from hf_encoders.objectives.blocks import ParallelPairs, SentenceBlocks
from hf_encoders.objectives.dataset import (
    Example,
    refuse_unknown_options,
    with_options_of,
)
from hf_encoders.objectives.masking import Masker, Masking, describe_masking
from hf_encoders.objectives.objective import LossTerm, Objective
from hf_encoders.objectives.randomness import Key


Feature = Example | Mapping[str, Any]

# The columns of a plain row that are read.
COLUMNS = ("input_ids", "attention_mask", "token_type_ids", "word_starts", "position_ids", "langs")


class DataCollatorForMaskedLM:
    """Masks tokens dynamically, and pads the batch to its longest row, or packs it into one row.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Gives the special tokens and the vocabulary.
        pad_to_multiple_of (`int`, *optional*): Pad rows to a multiple of this length; not for packed batches.
        packed (`bool`, *optional*, defaults to `False`): Whether all examples come back to back in one row, without
            padding. The models of this package keep them apart exactly.
        first_position (`int`, *optional*): Position of each example's first token, to write `position_ids`: 0, or
            `pad_token_id + 1` for RoBERTa's. Needed for packed batches by the models of transformers, and where
            positions restart inside an example (`ParallelPairs`) by all models.
        token_counts (`np.ndarray` of integers, shape `(V,)`, *optional*): Of each token in the corpus, for
            `frequency_power`.
        similar_words (`SimilarWords`, *optional*): Of the corpus, for `similar_replace_probability`.
        phase_masking (`Sequence[Mapping[str, Any]]`, *optional*): Options that differ from `masking` in each phase of
            a run; for examples that name their phase (`RunExamples`).
        lang2id (`Mapping[str, int]`, *optional*): The model's id of each language, `config.lang2id`, to write `langs`
            for a model with language embeddings (XLM). All examples then need a language.
        masking: Arguments of `Masking`: `mask_probability` (0.15), `unit` ("token", "word", "ngram", "span"), and so
            on; `**presets.ROBERTA_MASKING` for those of the original code.

    Input: `Example`s of this package's datasets, which get their special tokens here; or rows whose `input_ids` have
        them already (and perhaps `token_type_ids`, `langs`, or `position_ids` counted from 0), as a tokenizer returns
        them, with random numbers from torch's generator.

    Output: `input_ids`, `attention_mask` and `labels`, each `(B, T)` `int64`; `token_type_ids` if rows have them,
        `position_ids` with `first_position`, `langs` with `lang2id`. Packed, what `batch` returns.

    A subclass overrides `prepare` (which segments of an example are read, and its labels), `arguments` (what the model
    takes of each example), and names its `label_arguments`.

    Example, with ids 1 = [CLS], 2 = [SEP], 4 = [MASK] and half of the tokens predicted:

    >>> collator = DataCollatorForMaskedLM(doctest_tokenizer(), mask_probability=0.5)
    >>> text = Example([np.array([10, 11, 12, 13])], key=Key(seed=0, epoch=0, example=5))
    >>> batch = collator([text])
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[1, 4, 11, 4, 13, 2]], [[-100, 10, -100, 12, -100, -100]])
    """

    label_arguments: ClassVar[Mapping[str, str]] = {}  # name of a label of examples -> argument of the model

    @with_options_of(Masking)
    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        pad_to_multiple_of: int | None = None,
        packed: bool = False,
        first_position: int | None = None,
        token_counts: np.ndarray | None = None,
        similar_words: SimilarWords | None = None,
        phase_masking: Sequence[Mapping[str, Any]] = (),
        lang2id: Mapping[str, int] | None = None,
        **masking: Any,
    ):
        if not all(isinstance(changed, Mapping) for changed in phase_masking):
            raise ValueError(
                f"phase_masking={phase_masking!r} must be the options of each phase, such as "
                "[{}, {'unit': 'word'}]."
            )
        for options in (masking, *phase_masking):
            refuse_unknown_options(self, dict(options), (field.name for field in fields(Masking)))
        begin, end = sequence_ends(tokenizer)
        self.begin, self.end = np.array([begin]), np.array([end])
        self.masker = Masker(tokenizer, token_counts, similar_words, **masking)
        self.phase_maskers = [
            Masker(tokenizer, token_counts, similar_words, **{**masking, **changed}) if changed else self.masker
            for changed in phase_masking
        ]
        self._check_data(token_counts, similar_words)
        if pad_to_multiple_of is not None and not (isinstance(pad_to_multiple_of, int) and pad_to_multiple_of >= 1):
            raise ValueError(f"pad_to_multiple_of={pad_to_multiple_of} must be a whole number of at least 1.")
        if packed and pad_to_multiple_of is not None:
            raise ValueError(
                f"pad_to_multiple_of={pad_to_multiple_of}: a packed batch has no padding; leave out one of them."
            )
        if first_position is not None and not (isinstance(first_position, int) and first_position >= 0):
            raise ValueError(
                f"first_position={first_position} must be a whole number of at least 0: 0, or pad_token_id + 1 for "
                "RoBERTa's."
            )
        if lang2id is not None and not (isinstance(lang2id, Mapping) and lang2id):
            raise ValueError(
                f"lang2id={lang2id!r} must name each language's id: give the model's, config.lang2id, or leave it out."
            )
        self.lang2id = None if lang2id is None else dict(lang2id)
        self.pad_to_multiple_of, self.packed, self.first_position = pad_to_multiple_of, packed, first_position
        # RoBERTa's position of padding is the one before the first.
        self.padding = {
            "input_ids": mask_and_padding(tokenizer)[1],
            "labels": IGNORED,
            "position_ids": max((first_position or 0) - 1, 0),
        }

    def _check_data(self, token_counts: np.ndarray | None, similar_words: SimilarWords | None) -> None:
        """Refuse data that no masking uses: its option was forgotten."""
        used = [masker.masking for masker in (self.masker, *self.phase_maskers)]
        if token_counts is not None and all(masking.frequency_power is None for masking in used):
            raise ValueError("token_counts is for frequency_power: set it, such as 0.7, or leave token_counts out.")
        if similar_words is not None and not any(masking.similar_replace_probability for masking in used):
            raise ValueError(
                "similar_words is for similar_replace_probability: set it, as presets.MACBERT_MASKING does, or leave "
                "similar_words out."
            )

    def __repr__(self) -> str:
        masking = self.masker.masking
        names = ("max_length", "packed", "pad_to_multiple_of", "first_position")
        shown = {name: value for name in names if (value := vars(self).get(name))}
        shown |= {"mask_probability": masking.mask_probability, "unit": masking.unit}
        shown |= {f.name: getattr(masking, f.name) for f in fields(masking) if getattr(masking, f.name) != f.default}
        options = (f"{name}={getattr(value, '__name__', None) or repr(value)}" for name, value in shown.items())
        return f"{type(self).__name__}({', '.join(options)})"

    def __call__(self, features: Sequence[Feature], return_tensors: str = "pt") -> dict[str, torch.Tensor | int]:
        """Make a batch of all examples in `features`; `return_tensors` is there for callers of other collators."""
        if return_tensors != "pt":
            raise ValueError(f"return_tensors={return_tensors!r}: batches are torch tensors ('pt'); leave it out.")
        examples, rows = [], []
        for is_plain, group in groupby(features, lambda feature: isinstance(feature, Mapping)):
            if is_plain:
                made, tokens = self.plain(list(group))
            else:
                made = [self.prepare(example) for example in group]
                tokens = [self.tokens(example) for example in made]
            examples, rows = examples + made, rows + tokens
        rows = [self.arguments(example, row) for example, row in zip(examples, rows, strict=True)]
        labels = {
            argument: torch.tensor([example.labels[name] for example in examples])
            for name, argument in self.label_arguments.items()
        }
        return {**batch(rows, self.padding, self.packed, self.pad_to_multiple_of), **labels}

    def prepare(self, example: Example) -> Example:
        """Return the example as the objective reads it: here as one text."""
        return example.as_text()

    def tokens(self, example: Example) -> Row:
        """Return the tokens of an example with the special ones: `[CLS] A [SEP]`, `[CLS] A [SEP] B [SEP]`, and so on.

        Returns:
            `Row`: `input_ids`; `token_type_ids`, `langs` and `word_starts` if the example has them; `position_ids`,
            counted from 0, if they restart inside the example.
        """
        sizes, pieces = [], []
        for i, segment in enumerate(example.segments):
            begins = i == 0 or example.restarts
            pieces += [self.begin, segment, self.end] if begins else [segment, self.end]
            sizes.append(len(segment) + 1 + begins)
        row = {"input_ids": np.concatenate(pieces)}
        if example.token_types is not None:
            row["token_type_ids"] = np.repeat(example.token_types, sizes)
        if example.restarts:
            row["position_ids"] = np.concatenate([np.arange(size) for size in sizes])
        if self.lang2id is not None and example.languages is not None:
            row["langs"] = np.repeat([self._language_id(name) for name in example.languages], sizes)
        if example.word_starts is not None:
            row["word_starts"] = np.ones(len(row["input_ids"]), dtype=np.uint8)
            ends = np.cumsum(sizes) - 1
            for starts, end in zip(example.word_starts, ends.tolist(), strict=True):
                row["word_starts"][end - len(starts) : end] = starts
        return row

    def _language_id(self, name: str) -> int:
        if name not in self.lang2id:
            raise ValueError(
                f"language {name!r} of the examples is not one of the model's, {', '.join(self.lang2id)}: name it as "
                "there, or add it to lang2id."
            )
        return self.lang2id[name]

    def arguments(self, example: Example, row: Row) -> Row:
        """Return the arguments of the model for one example, from its tokens: masked, with labels and positions."""
        word_starts = row.pop("word_starts", None)
        masker = self.masker_of(example.phase)
        ids, labels = masker(row["input_ids"], example.key, word_starts, example.mask_rate)
        if self.first_position is not None:
            positions = row.get("position_ids", np.arange(len(ids)))
            row["position_ids"] = positions + self.first_position
        elif "position_ids" in row:
            raise ValueError(
                "first_position is missing: positions restart inside an example, so the batch needs position_ids. "
                "Give the data collator first_position=0, or pad_token_id + 1 for RoBERTa's "
                "(model.base_model.embeddings.first_position)."
            )
        if self.lang2id is not None and "langs" not in row:
            raise ValueError(
                f"lang2id={self.lang2id}: the examples have no language. Give the dataset the languages of its text "
                "(MixedExamples, ParallelPairs), or rows a column langs."
            )
        return {**row, "input_ids": ids, "labels": labels}

    def masker_of(self, phase: int) -> Masker:
        """The masker of a run's phase, from 1; 0 for examples outside of phases."""
        if not 0 <= phase <= len(self.phase_maskers):
            raise ValueError(
                f"examples of phase {phase}, but phase_masking of the data collator has {len(self.phase_maskers)} "
                "phases: give it the masking of each phase of the run."
            )
        return self.phase_maskers[phase - 1] if phase else self.masker

    def plain(self, features: Sequence[Mapping[str, Any]]) -> tuple[list[Example], list[Row]]:
        """Return what stands for the examples of plain rows, with keys from torch's generator, and their tokens."""
        if differing := {name for name in COLUMNS[1:] if len({name in feature for feature in features}) > 1}:
            raise ValueError(f"{', '.join(sorted(differing))} is in some rows only: train on datasets prepared alike.")
        ids = torch.randint(2**56, (len(features),)).tolist()
        examples = [Example([], Key(seed=0, epoch=0, example=number)) for number in ids]
        return examples, [plain_row(number, feature) for number, feature in enumerate(features)]


def plain_row(number: int, feature: Mapping[str, Any]) -> Row:
    """Return the tokens of a row of a plain dataset, special tokens included, without the tokenizer's padding.

    Raises:
        ValueError: for a row without a token, columns of different lengths, or values that are not integers; `number`
            is the row's in the batch.
    """
    if "input_ids" not in feature:
        raise ValueError(
            f"input_ids is missing, row {number} of the batch has {list(feature)}: tokenize the dataset first, and "
            "keep the column (remove_unused_columns drops those that the model does not take)."
        )
    row = {name: _integers(name, feature[name], number) for name in COLUMNS if name in feature}
    for name, values in row.items():
        if len(values) != len(row["input_ids"]):
            raise ValueError(
                f"{name} of row {number} of the batch has {len(values)} values, input_ids {len(row['input_ids'])}: "
                "it needs one per token; tokenize the row again, or remove the column."
            )
    is_real = row.pop("attention_mask", np.ones(1)).astype(bool)
    if is_real.all():
        return row
    if not is_real.any():
        raise ValueError(
            f"attention_mask of row {number} of the batch is all zero, which leaves no token: remove rows without "
            "text from the dataset."
        )
    return {name: values[is_real] for name, values in row.items()}


def _integers(name: str, values: Any, number: int) -> np.ndarray:
    """A column of a plain row, `int64`."""
    try:
        integers = np.asarray(values)
        if integers.ndim == 1 and integers.dtype.kind in "iub" and len(integers):
            return integers.astype(np.int64, copy=False)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(
        f"{name} must be a non-empty list of integers, one per token, for this collator, and row {number} of the "
        f"batch is {' '.join(repr(values).split()):.80}; for lists of sentences wrap the dataset in "
        "SentenceBlocks (MLM) or use a pair collator."
    )


MASKED_TOKENS = LossTerm("mlm", "masked tokens")


class MaskedLanguageModelling(Objective):
    """Predict masked tokens of blocks of sentences; of parallel text, also from the translation (XLM, section 3.4)."""

    name = "mlm"
    terms = (MASKED_TOKENS,)
    token_term = MASKED_TOKENS  # whose baseline is the unigram distribution
    auto_class = "AutoModelForMaskedLM"
    dataset_class = SentenceBlocks
    collator_class = DataCollatorForMaskedLM
    parallel_class = ParallelPairs

    def describe(
        self, collator: Any, mask_rates: Sequence[float], examples: Mapping[str, Any], logged: Mapping[str, float]
    ) -> dict[str, str]:
        """How tokens were masked."""
        own = {i + 1: masker for i, masker in enumerate(collator.phase_maskers) if masker is not collator.masker}
        # The share that was logged is over all phases, so it is that of no masking where some have their own.
        described = describe_masking(collator.masker.masking, mask_rates, None if own else logged.get("mask_rate"))
        of_phases = [f"phase {i}: {describe_masking(masker.masking, mask_rates, None)}" for i, masker in own.items()]
        is_of_evaluation_only = len(own) == len(collator.phase_maskers) > 0
        described = [*of_phases, f"evaluation: {described}"] if is_of_evaluation_only else [described, *of_phases]
        return {"masked language modelling": "; ".join(described)}

    def describe_parallel(self, sources: Sequence[str]) -> dict[str, str]:
        """Translation language modelling."""
        words = f"the same in pairs of {', '.join(sources)}: both sides masked, positions begin again at the second"
        return {"translation language modelling": words}
