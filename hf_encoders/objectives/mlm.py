"""Masked language modelling: the data collator that masks tokens of examples, and the objective."""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

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


if TYPE_CHECKING:
    from hf_encoders.corpus.similar_words import SimilarWords

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
        `position_ids` with `first_position`, `langs` with `lang2id`, `is_causal` with `next_token`. Packed, what
        `batch` returns.

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
    needs_whole_texts: ClassVar[bool] = False  # whether each token has to see those after it: no `next_token`

    @with_options_of(Masking)
    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        pad_to_multiple_of: int | None = None,
        packed: bool = False,
        first_position: int | None = None,
        token_counts: np.ndarray | None = None,
        similar_words: "SimilarWords | None" = None,
        phase_masking: Sequence[Mapping[str, Any]] = (),
        lang2id: Mapping[str, int] | None = None,
        **masking: Any,
    ):
        if not all(isinstance(changed, Mapping) for changed in phase_masking):
            raise ValueError(
                f"phase_masking={phase_masking!r} must be options of each phase: [{{}}, {{'unit': 'word'}}]."
            )
        refuse_unknown_options(type(self).__name__, masking, signature(DataCollatorForMaskedLM).parameters)
        for changed in phase_masking:
            refuse_unknown_options("phase_masking", changed, signature(Masking).parameters)
        begin, end = sequence_ends(tokenizer)
        self.begin, self.end = np.array([begin]), np.array([end])
        self.masker = Masker(tokenizer, token_counts, similar_words, **masking)
        self.phase_maskers = [
            Masker(tokenizer, token_counts, similar_words, **{**masking, **changed}) if changed else self.masker
            for changed in phase_masking
        ]
        used = [masker.masking for masker in (self.masker, *self.phase_maskers)]
        if self.needs_whole_texts and any(masking.next_token for masking in used):
            raise ValueError(f"next_token=True: {type(self).__name__} needs all tokens of a text: leave it out.")
        for name, data, option in (
            ("token_counts", token_counts, "frequency_power"),
            ("similar_words", similar_words, "similar_replace_probability"),
        ):
            if data is not None and not any(vars(masking)[option] for masking in used):
                raise ValueError(f"{name} is for {option}: set it, or leave {name} out.")
        for name, value, least in (
            ("pad_to_multiple_of", pad_to_multiple_of, 1),
            ("first_position", first_position, 0),  # or pad_token_id + 1, for RoBERTa's
        ):
            if value is not None and not (isinstance(value, int) and value >= least):
                raise ValueError(f"{name}={value} must be a whole number of at least {least}.")
        if packed and pad_to_multiple_of is not None:
            raise ValueError(f"pad_to_multiple_of={pad_to_multiple_of}: a packed batch has no padding; leave one out.")
        if lang2id is not None and not (isinstance(lang2id, Mapping) and lang2id):
            raise ValueError(f"lang2id={lang2id!r} must name each language's id: give the model's, config.lang2id.")
        self.lang2id = None if lang2id is None else dict(lang2id)
        self.pad_to_multiple_of, self.packed, self.first_position = pad_to_multiple_of, packed, first_position
        # RoBERTa's position of padding is the one before the first.
        self.padding = {
            "input_ids": mask_and_padding(tokenizer)[1],
            "labels": IGNORED,
            "position_ids": max((first_position or 0) - 1, 0),
        }

    def __repr__(self) -> str:
        masking = self.masker.masking
        names = ("max_length", "packed", "pad_to_multiple_of", "first_position")
        shown = {name: value for name in names if (value := vars(self).get(name))}
        shown |= {"mask_probability": masking.mask_probability, "unit": masking.unit, **masking.changed}
        shown |= {name: value.__name__ for name, value in shown.items() if hasattr(value, "__name__")}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __call__(self, features: Sequence[Feature], return_tensors: str = "pt") -> dict[str, torch.Tensor | int]:
        """Make a batch of all examples in `features`; `return_tensors` is there for callers of other collators."""
        if return_tensors != "pt":
            raise ValueError(f"return_tensors={return_tensors!r}: batches are torch tensors ('pt'); leave it out.")
        if len(kinds := {isinstance(feature, Mapping) for feature in features}) > 1:
            raise ValueError("features hold examples and rows of a plain dataset: make a batch of either.")
        if kinds == {True}:
            examples, rows = self.plain(features)
        else:
            examples = [self.prepare(example) for example in features]
            rows = [self.tokens(example) for example in examples]
        rows = [self.arguments(example, row) for example, row in zip(examples, rows, strict=True)]
        labels = {
            argument: torch.tensor([example.labels[name] for example in examples])
            for name, argument in self.label_arguments.items()
        }
        is_causal = {self.masker_of(example.phase).masking.next_token for example in examples}
        if len(is_causal) > 1:
            raise ValueError("examples of phases with and without next_token are in one batch: keep them apart.")
        flags = {"is_causal": True} if is_causal == {True} else {}
        return {**batch(rows, self.padding, self.packed, self.pad_to_multiple_of), **labels, **flags}

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
            if unknown := sorted({*example.languages} - {*self.lang2id}):
                raise ValueError(
                    f"language {unknown[0]!r} of the examples is not one of the model's, {', '.join(self.lang2id)}: "
                    "name it as there, or add it to lang2id."
                )
            row["langs"] = np.repeat([self.lang2id[name] for name in example.languages], sizes)
        if example.word_starts is not None:
            row["word_starts"] = np.ones(len(row["input_ids"]), dtype=np.uint8)
            ends = np.cumsum(sizes) - 1
            for starts, end in zip(example.word_starts, ends.tolist(), strict=True):
                row["word_starts"][end - len(starts) : end] = starts
        return row

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
                "Give the data collator first_position=0, or pad_token_id + 1 for RoBERTa's."
            )
        if self.lang2id is not None and "langs" not in row:
            raise ValueError(
                f"lang2id={self.lang2id}: the examples have no language. Give the dataset the languages of its text "
                "(MixedExamples, ParallelPairs), or rows a column langs."
            )
        return {**row, "input_ids": ids, "labels": labels}

    def masker_of(self, phase: int) -> Masker:
        """Return the masker of a phase of the run, from 1; 0 for examples outside of phases."""
        if phase > len(self.phase_maskers):
            raise ValueError(f"examples of phase {phase}, but phase_masking has {len(self.phase_maskers)}: give all.")
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
    row = {}
    for name in [name for name in COLUMNS if name in feature]:
        try:
            values = np.asarray(feature[name])
        except (TypeError, ValueError, OverflowError):
            values = np.array(None)
        if not (values.ndim == 1 and values.dtype.kind in "iub" and len(values)):
            raise ValueError(
                f"{name} must be a non-empty list of integers, one per token, and row {number} of the batch is "
                f"{' '.join(repr(feature[name]).split()):.80}; lists of sentences are for SentenceBlocks (MLM) or a "
                "pair collator."
            )
        row[name] = values.astype(np.int64, copy=False)
        if len(values) != len(row["input_ids"]):
            raise ValueError(
                f"{name} of row {number} of the batch has {len(values)} values, input_ids {len(row['input_ids'])}: "
                "it needs one per token; tokenize the row again, or remove the column."
            )
    is_real = row.pop("attention_mask", np.ones(1)).astype(bool)
    if not is_real.any():
        raise ValueError(f"attention_mask of row {number} of the batch is all zero: remove rows without text.")
    return row if is_real.all() else {name: values[is_real] for name, values in row.items()}


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
        """Describe how tokens were masked: in each phase with a masking of its own, and else or for evaluation."""
        of_phases = [
            f"phase {number + 1}: {describe_masking(masker.masking, mask_rates, None)}"
            for number, masker in enumerate(collator.phase_maskers)
            if masker is not collator.masker
        ]
        # The share that was logged is over all phases, so it is that of no masking where some have their own.
        logged_share = None if of_phases else logged.get("mask_rate")
        words = describe_masking(collator.masker.masking, mask_rates, logged_share)
        is_of_evaluation_only = 0 < len(of_phases) == len(collator.phase_maskers)
        words = [*of_phases, f"evaluation: {words}"] if is_of_evaluation_only else [words, *of_phases]
        return {"masked language modelling": ". ".join(words)}

    def describe_parallel(self, sources: Sequence[str]) -> dict[str, str]:
        """Describe translation language modelling."""
        words = f"the same in pairs of {', '.join(sources)}: both sides masked, positions begin again at the second"
        return {"translation language modelling": words}
