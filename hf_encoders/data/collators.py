"""The data collators of the three objectives, for the stock `Trainer` in its default settings.

They take examples of this package's datasets, whose random choices are functions of (seed, epoch, example id); or rows
of any dataset with a column `input_ids`, with random numbers from torch's generator, as in transformers' collators.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_encoders.data.batches import (
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
from hf_encoders.data.chunk_examples import SPECIAL_TOKENS_OF_A_PAIR, ChunkExamples, check_pair_length, join_chunks
from hf_encoders.data.chunks import rows_as_chunks
from hf_encoders.data.collator_options import refuse_unknown_options, with_options_of
from hf_encoders.data.examples import TextExamples
from hf_encoders.data.masking import Masking, TokenMasker
from hf_encoders.data.sentence_pairs import (
    Pairs,
    next_sentence_pairs,
    rows_of_pairs,
    sentence_order_pairs,
    truncate_pairs,
    truncated_lengths,
)
from hf_encoders.data.special_tokens import mask_and_padding, sequence_ends


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

    >>> from hf_encoders.data.randomness import example_keys
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
        lang2id: Mapping[str, int] | None = None,
        **masking: Any,
    ):
        refuse_unknown_options(self, masking, (field.name for field in fields(Masking)))
        self.ends = sequence_ends(tokenizer)
        self.padding_id = mask_and_padding(tokenizer)[1]
        self.masker = TokenMasker(tokenizer, **masking)
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
        if lang2id is not None and not lang2id:
            raise ValueError("lang2id is empty: give the model's, config.lang2id, or leave it out.")
        self.lang2id = None if lang2id is None else dict(lang2id)
        self.pad_to_multiple_of, self.packed, self.first_position = pad_to_multiple_of, packed, first_position

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
        masked = self.masker(rows.ids, rows.lengths, rows.keys, rows.word_starts, _mask_rate_of(features))
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
        return {**batch, **labels}

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


def _mask_rate_of(features: Sequence[Feature]) -> float | None:
    """The mask rate that the examples of a batch bring along; None leaves it to the collator."""
    rates = {feature.mask_rate for feature in features if not isinstance(feature, Mapping)}
    if len(rates) > 1:
        raise ValueError(f"examples with mask rates {rates} in one batch: use per_device_train_batch_size=1.")
    return rates.pop() if rates else None


class SentencePairCollator(DataCollatorForMaskedLM):
    """Base of the pair collators: `[CLS] A [SEP] B [SEP]`, token types, masking, one label per pair.

    A subclass sets `make_pairs`, a function from chunks to `Pairs`, and `LABEL_NAME`.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Gives the special tokens and the vocabulary.
        max_length (`int`, *optional*): Longest example in tokens, special tokens included; longer pairs are truncated.
            `None` takes that of the dataset; rows of a plain dataset need it.
        label_name (`str`, *optional*, defaults to `LABEL_NAME`): Name of the pair label in the batch, an argument of
            the model's `forward`.
        options: `packed`, `mask_probability` and the other arguments of `DataCollatorForMaskedLM`.
    """

    LABEL_NAME: ClassVar[str]
    make_pairs: ClassVar[Callable[[ChunkExamples], Pairs]]

    @with_options_of(DataCollatorForMaskedLM)
    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int | None = None,
        label_name: str | None = None,
        **options: Any,
    ):
        super().__init__(tokenizer, **options)
        if max_length is not None:
            check_pair_length(max_length)
        self.max_length = max_length
        self.label_name = label_name or self.LABEL_NAME

    def make_rows(self, features: Sequence[Feature]) -> tuple[TokenRows, dict[str, torch.Tensor]]:
        """All pairs with their special tokens, and their labels."""
        rows, labels = [], []
        for chunks in self.as_chunks(features):
            pairs = truncate_pairs(self.make_pairs(chunks), chunks.max_length, chunks.keys)
            rows.append(rows_of_pairs(chunks.corpus, pairs, chunks.keys, self.ends))
            labels.append(pairs.labels)
        return join_rows(rows), {self.label_name: torch.from_numpy(np.concatenate(labels))}

    def example_lengths(self, examples: ChunkExamples) -> np.ndarray:
        """Length of each pair in a batch, special tokens included, `int64` of shape `(B,)`; reads no text."""
        (chunks,) = self.as_chunks([examples])
        pairs = self.make_pairs(chunks)
        lengths = truncated_lengths(pairs.end - pairs.begin, chunks.max_length)
        return lengths.sum(axis=1) + SPECIAL_TOKENS_OF_A_PAIR - (lengths[:, 1] == 0)

    def as_chunks(self, features: Sequence[Feature]) -> list[ChunkExamples]:
        """The examples, joined where they are of one corpus."""
        if all(isinstance(feature, ChunkExamples) for feature in features):
            for chunks in features:
                if self.max_length not in (None, chunks.max_length):
                    raise ValueError(
                        f"max_length={self.max_length} of the data collator is not the dataset's, "
                        f"{chunks.max_length}: leave it out of the collator."
                    )
            return join_chunks(features)
        if not all(isinstance(feature, Mapping) for feature in features):
            raise ValueError(
                f"features are {sorted({type(feature).__name__ for feature in features})}, and sentence pairs "
                "are made of examples of DocumentChunks or of rows of sentences: SentenceBlocks is for "
                "DataCollatorForMaskedLM."
            )
        if self.max_length is None:
            raise ValueError("max_length is needed for rows of a plain dataset: give it to the data collator.")
        for feature in features:
            if "input_ids" not in feature:
                raise ValueError(
                    f"input_ids is missing, a row of the batch has {list(feature)}: make a corpus of text with "
                    "prepare_corpus or tokenize_documents, and DocumentChunks of it."
                )
        rows = [
            [np.asarray(sentence, dtype=np.int64) for sentence in feature["input_ids"] if np.size(sentence)]
            for feature in features
        ]
        if any(not row or row[0].ndim != 1 for row in rows):
            raise ValueError(
                "input_ids must be a list of sentences, each a list of token ids without special tokens, for a pair "
                "objective: see hf_encoders.data.tokenize_documents."
            )
        keys = torch.randint(2**62, (len(rows),)).numpy().astype(np.uint64)
        return [rows_as_chunks(rows, keys, self.max_length)]


class DataCollatorForNextSentencePrediction(SentencePairCollator):
    """MLM and next-sentence prediction (BERT): half of the pairs follow each other, half are random.

    `next_sentence_label` is 0 where B follows A and 1 where B comes from another document; -100 for a chunk of a
    single sentence, which makes no pair. Negatives exchange their second segments, so every token of the text is in
    exactly one example of an epoch (`whole_sentence_chunks.py`).

    Args:
        tokenizer, max_length, label_name, options: As in `SentencePairCollator`.

    Input: examples of `DocumentChunks`; rows of a plain dataset have no other documents, and are refused.

    Output: as `DataCollatorForMaskedLM`, with `token_type_ids` and `next_sentence_label` `(B,)`.

    Example, with ids 1 = [CLS], 2 = [SEP], and nothing masked; document 0 is [[10, 11], [12]]:

    >>> from datasets import Dataset
    >>> from hf_encoders.data.chunks import DocumentChunks
    >>> documents = Dataset.from_dict({"input_ids": [[[10, 11], [12]], [[20, 21], [22, 23, 24]]]})
    >>> chunks = DocumentChunks(documents, max_length=16, seed=1)
    >>> collator = DataCollatorForNextSentencePrediction(
    ...     doctest_tokenizer(), max_length=16, mask_replace_probability=0.0, random_replace_probability=0.0
    ... )
    >>> for epoch in (0, 2):
    ...     chunks.set_epoch(epoch)
    ...     batch = collator([chunks[0]])
    ...     print(batch["input_ids"].tolist(), batch["token_type_ids"].tolist(), batch["next_sentence_label"].tolist())
    [[1, 10, 11, 2, 12, 2]] [[0, 0, 0, 0, 1, 1]] [0]
    [[1, 10, 11, 2, 22, 23, 24, 2]] [[0, 0, 0, 0, 1, 1, 1, 1]] [1]
    """

    LABEL_NAME = "next_sentence_label"
    make_pairs = staticmethod(next_sentence_pairs)


class DataCollatorForSentenceOrderPrediction(SentencePairCollator):
    """MLM and sentence-order prediction (ALBERT): half of the pairs are in order, half are swapped.

    `sentence_order_label` is 0 for pairs in order and 1 for swapped ones; -100 for a chunk of a single sentence or
    with a part of one, and where the lengths of the segments would predict the label (`whole_sentence_chunks.py`).

    Args:
        tokenizer, max_length, label_name, options: As in `SentencePairCollator`.

    Input: examples of `DocumentChunks`; or rows whose `input_ids` are the sentences of a document, of which as many as
        fit are taken from a random one on.

    Output: as `DataCollatorForMaskedLM`, with `token_type_ids` and `sentence_order_label` `(B,)`.

    Example: "I love you." (10, 11) and "Because you are wonderful." (12), in order and swapped, and nothing masked:

    >>> collator = DataCollatorForSentenceOrderPrediction(
    ...     doctest_tokenizer(), max_length=16, mask_replace_probability=0.0, random_replace_probability=0.0
    ... )
    >>> _ = torch.manual_seed(1)
    >>> batch = collator([{"input_ids": [[10, 11], [12]]}] * 2)
    >>> batch["input_ids"].tolist(), batch["sentence_order_label"].tolist()
    ([[1, 10, 11, 2, 12, 2], [1, 12, 2, 10, 11, 2]], [0, 1])
    """

    LABEL_NAME = "sentence_order_label"
    make_pairs = staticmethod(sentence_order_pairs)
