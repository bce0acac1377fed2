"""The data collator of masked language modelling, for the stock `Trainer` in its default settings.

It takes examples of this package's datasets, whose random choices are functions of (seed, epoch, example id); or rows
of any dataset with a column `input_ids`, with random numbers from torch's generator, as in transformers' collators.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.similar_words import SimilarWords
from hf_encoders.corpus.special_tokens import mask_and_padding, sequence_ends
from hf_encoders.objectives.batches import (
    IGNORED,
    PackedLayout,
    PaddedLayout,
    Segments,
    TokenRows,
    join_rows,
    row_lengths,
    rows_of_mappings,
    rows_of_segments,
)
from hf_encoders.objectives.chunk_examples import SPECIAL_TOKENS_OF_A_PAIR, ChunkExamples, join_chunks
from hf_encoders.objectives.collator_options import refuse_unknown_options, with_options_of
from hf_encoders.objectives.examples import TextExamples
from hf_encoders.objectives.masker import TokenMasker
from hf_encoders.objectives.masking import Masking


Feature = TextExamples | ChunkExamples | Mapping[str, Any]


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

    Input: examples of `SentenceBlocks`, which get `[CLS]` and `[SEP]` at their ends; of `DocumentChunks`, likewise, as
        one text; of `ParallelPairs`, at the ends of both sides; or rows whose `input_ids` have them already (and
        perhaps `token_type_ids`, `langs`, or `position_ids` counted from 0), as a tokenizer returns them.

    Output: `input_ids`, `attention_mask` and `labels`, each `(B, T)` `int64`; `token_type_ids` if rows have them,
        `position_ids` with `first_position`, `langs` with `lang2id`.
        Packed, for S examples of N tokens in total: `input_ids`, `labels` (and the others) of shape `(1, N)`, no
        `attention_mask`, and the arguments of transformers' variable-length attention: `cu_seq_lens_q` and
        `cu_seq_lens_k`, `(S + 1,)` `int32`, where each example begins, and N; `max_length_q` and `max_length_k`, the
        longest example, Python integers.

    Example, with ids 1 = [CLS], 2 = [SEP], 4 = [MASK] and half of the tokens predicted, one of them replaced by a
    random token:

    >>> from hf_encoders.corpus.randomness import example_keys
    >>> collator = DataCollatorForMaskedLM(doctest_tokenizer(), mask_probability=0.5)
    >>> keys = example_keys(seed=0, epoch=0, examples=[5])
    >>> text = Segments(np.array([10, 11, 12, 13]), None, begin=np.array([0]), end=np.array([4]), counts=np.array([1]))
    >>> batch = collator([TextExamples(text, keys)])
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[1, 4, 39, 12, 13, 2]], [[-100, 10, 11, -100, -100, -100]])

    The same text and [20] behind it, packed:

    >>> two = np.array([10, 11, 12, 13, 20]), None, np.array([0, 4]), np.array([4, 5]), np.array([1, 1])
    >>> collator = DataCollatorForMaskedLM(doctest_tokenizer(), packed=True, first_position=0, mask_probability=0.5)
    >>> batch = collator([TextExamples(Segments(*two), example_keys(seed=0, epoch=0, examples=[5, 6]))])
    >>> for name, value in batch.items():
    ...     print(name, value if isinstance(value, int) else value.tolist())
    input_ids [[1, 4, 39, 12, 13, 2, 1, 4, 2]]
    cu_seq_lens_q [0, 6, 9]
    cu_seq_lens_k [0, 6, 9]
    max_length_q 6
    max_length_k 6
    labels [[-100, 10, 11, -100, -100, -100, -100, 20, -100]]
    position_ids [[0, 1, 2, 3, 4, 5, 0, 1, 2]]
    """

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
        self.ends = sequence_ends(tokenizer)
        self.padding_id = mask_and_padding(tokenizer)[1]
        self.masker = TokenMasker(tokenizer, token_counts, similar_words, **masking)
        self.phase_maskers = [
            TokenMasker(tokenizer, token_counts, similar_words, **{**masking, **changed}) if changed else self.masker
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
        own = ("max_length", "packed", "pad_to_multiple_of", "first_position")
        shown = {name: value for name in own if (value := vars(self).get(name))}
        shown |= {"mask_probability": masking.mask_probability, "unit": masking.unit}
        shown |= {f.name: getattr(masking, f.name) for f in fields(masking) if getattr(masking, f.name) != f.default}
        options = (f"{name}={getattr(value, '__name__', None) or repr(value)}" for name, value in shown.items())
        return f"{type(self).__name__}({', '.join(options)})"

    def __call__(self, features: Sequence[Feature], return_tensors: str = "pt") -> dict[str, torch.Tensor | int]:
        """Make a batch of all examples in `features`; `return_tensors` is there for callers of other collators."""
        if return_tensors != "pt":
            raise ValueError(f"return_tensors={return_tensors!r}: batches are torch tensors ('pt'); leave it out.")
        rows, labels = self.make_rows(features)
        masker = self.masker_of(_common(features, "phase", 0))
        rate = _common(features, "mask_rate", None)
        masked = masker(rows.ids, rows.lengths, rows.keys, rows.word_starts, rate)
        layout = PackedLayout(rows.lengths) if self.packed else PaddedLayout(rows.lengths, self.pad_to_multiple_of)
        batch = {
            "input_ids": layout.fill(masked.ids, self.padding_id),
            **layout.structure(),
            "labels": layout.scatter(masked.rows, masked.positions, masked.originals, IGNORED),
        }
        if rows.token_type_ids is not None:
            batch["token_type_ids"] = layout.fill(rows.token_type_ids, 0)
        if self.first_position is not None:
            # RoBERTa's position of padding is the one before the first.
            positions = rows.positions() + self.first_position
            batch["position_ids"] = layout.fill(positions, max(self.first_position - 1, 0))
        elif rows.position_ids is not None:
            raise ValueError(
                "first_position is missing: positions restart inside an example, so the batch needs position_ids. "
                "Give the data collator first_position=0, or pad_token_id + 1 for RoBERTa's "
                "(model.base_model.embeddings.first_position)."
            )
        if rows.languages is not None:
            batch["langs"] = layout.fill(rows.languages, 0)
        elif self.lang2id is not None:
            raise ValueError(
                f"lang2id={self.lang2id}: the examples have no language. Give the dataset the languages of its text "
                "(MixedExamples, ParallelPairs), or rows a column langs."
            )
        return {**batch, **labels, **self.more_arguments(rows, layout)}

    def more_arguments(self, rows: TokenRows, layout: PaddedLayout | PackedLayout) -> dict[str, torch.Tensor]:
        """What the model of a subclass takes beside ids and labels, by name."""
        return {}

    def masker_of(self, phase: int) -> TokenMasker:
        """The masker of a run's phase, from 1; 0 for examples outside of phases."""
        if not 0 <= phase <= len(self.phase_maskers):
            raise ValueError(
                f"examples of phase {phase}, but phase_masking of the data collator has {len(self.phase_maskers)} "
                "phases: give it the masking of each phase of the run."
            )
        return self.phase_maskers[phase - 1] if phase else self.masker

    def example_lengths(self, examples: TextExamples | ChunkExamples) -> np.ndarray:
        """Length of each example in a batch, special tokens included, `int64` of shape `(B,)`; reads no text."""
        if isinstance(examples, ChunkExamples):
            return row_lengths(_text_of_chunks(examples))
        return row_lengths(examples.segments, examples.restarts)

    def make_rows(self, features: Sequence[Feature]) -> tuple[TokenRows, dict[str, torch.Tensor]]:
        """All examples with their special tokens, and the labels of examples, by name."""
        parts = []
        for kind, group in groupby(features, type):
            if issubclass(kind, TextExamples):
                parts += [self._rows_of_texts(texts) for texts in group]
            elif kind is ChunkExamples:
                joined = join_chunks(list(group))
                parts += [rows_of_segments(_text_of_chunks(chunks), chunks.keys, self.ends) for chunks in joined]
            else:
                parts.append(rows_of_mappings(list(group)))
        return join_rows(parts), {}

    def _rows_of_texts(self, texts: TextExamples) -> TokenRows:
        languages = None
        if self.lang2id is not None and texts.languages is not None:
            names, places = np.unique(texts.languages, return_inverse=True)
            unknown = [str(name) for name in names if str(name) not in self.lang2id]
            if unknown:
                raise ValueError(
                    f"language {unknown[0]!r} of the examples is not one of the model's, {', '.join(self.lang2id)}: "
                    "name it as there, or add it to lang2id."
                )
            languages = np.array([self.lang2id[str(name)] for name in names], dtype=np.int64)[places]
        return rows_of_segments(texts.segments, texts.keys, self.ends, texts.restarts, languages)


def _text_of_chunks(chunks: ChunkExamples) -> Segments:
    """Chunks as one text each; a text has one separator fewer than a pair, so one token more of it fits."""
    if chunks.rule.put_back:
        raise ValueError(
            "put_back=True cuts chunks for next-sentence prediction, and parts of them would be seen twice: leave "
            "it out of DocumentChunks for masked language modelling alone."
        )
    corpus = chunks.corpus
    end = np.minimum(chunks.end, chunks.begin + chunks.max_length - SPECIAL_TOKENS_OF_A_PAIR + 1)
    return Segments(corpus.tokens, corpus.word_starts, chunks.begin, end, np.ones(len(chunks), dtype=np.int64))


def _common(features: Sequence[Feature], name: str, default: Any) -> Any:
    """What the examples of a batch bring along for all of it: their mask rate or phase, or `default`."""
    found = {getattr(feature, name) for feature in features if not isinstance(feature, Mapping)}
    if len(found) > 1:
        raise ValueError(f"examples with {name} {found} in one batch: use per_device_train_batch_size=1.")
    return found.pop() if found else default
