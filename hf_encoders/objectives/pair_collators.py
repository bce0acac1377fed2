"""The data collators of sentence pairs: masked tokens, and one label per pair."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_encoders.objectives.batches import TokenRows, join_rows
from hf_encoders.objectives.chunk_arrays import rows_as_chunks
from hf_encoders.objectives.chunk_examples import (
    SPECIAL_TOKENS_OF_A_PAIR,
    ChunkExamples,
    check_pair_length,
    join_chunks,
)
from hf_encoders.objectives.collator_options import with_options_of
from hf_encoders.objectives.collators import DataCollatorForMaskedLM, Feature
from hf_encoders.objectives.pair_arrays import (
    Pairs,
    next_sentence_pairs,
    rows_of_pairs,
    sentence_order_pairs,
    truncate_pairs,
    truncated_lengths,
)


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
    >>> from hf_encoders.objectives.chunk_arrays import DocumentChunks
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
