"""The data collators of the three objectives, for the stock `Trainer` in its default settings.

They take examples from the data sets of this package, whose every draw is a function of (seed, epoch, example id); or
rows of any data set with a column `input_ids`, whose draws come from torch's generator, as in transformers' collators.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_encoders.data.batches import Grid, Segments, TokenRows, join_rows, rows_of_mappings, rows_of_segments
from hf_encoders.data.chunks import (
    SPECIAL_TOKENS_OF_A_PAIR,
    ChunkExamples,
    check_pair_length,
    join_chunks,
    rows_as_chunks,
)
from hf_encoders.data.examples import TextExamples
from hf_encoders.data.masking import IGNORED, MASK_RATES, TokenMasker
from hf_encoders.data.sentence_pairs import (
    Pairs,
    next_sentence_pairs,
    rows_of_pairs,
    sentence_order_pairs,
    truncate_pairs,
)
from hf_encoders.data.special_tokens import mask_and_padding, sequence_ends


Feature = TextExamples | ChunkExamples | Mapping[str, Any]


class DataCollatorForMaskedLM:
    """Masks tokens anew every time an example is drawn, and pads the batch to its longest row.

    Args:
        tokenizer: gives the special tokens and the vocabulary.
        pad_to_multiple_of (`int`, *optional*): pad rows to a multiple of that many tokens.
        masking: arguments of `Masking`: `mask_probability` (0.15), `unit` ("token", "word", "ngram", "span"), and so
            on; `**paper_modes.ROBERTA_MASKING` for the original code's.

    Input: examples of `SentenceBlocks`, which get `[CLS]` and `[SEP]` at their ends; of `DocumentChunks`, likewise, as
        one text; or rows whose `input_ids` hold them already (and perhaps `token_type_ids`), as a tokenizer returns
        them.

    Output: `input_ids`, `attention_mask` and `labels`, each `(B, T)` `int64`; `token_type_ids` where rows have them.

    Raises:
        ValueError: for a tokenizer without the tokens needed, and as `Masking`.

    Example, with ids 1 = [CLS], 2 = [SEP], 4 = [MASK] and half of the tokens predicted, one of them
    replaced by a random token:

    >>> from hf_encoders.data.randomness import example_keys
    >>> collator = DataCollatorForMaskedLM(doctest_tokenizer(), mask_probability=0.5)
    >>> keys = example_keys(seed=0, epoch=0, examples=[5])
    >>> text = Segments(np.array([10, 11, 12, 13]), None, begin=np.array([0]), end=np.array([4]), counts=np.array([1]))
    >>> batch = collator([TextExamples(text, keys)])
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[1, 4, 39, 12, 13, 2]], [[-100, 10, 11, -100, -100, -100]])
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, pad_to_multiple_of: int | None = None, **masking: Any):
        self.ends = sequence_ends(tokenizer)
        self.padding_id = mask_and_padding(tokenizer)[1]
        self.masker = TokenMasker(tokenizer, **masking)
        if pad_to_multiple_of is not None and not (isinstance(pad_to_multiple_of, int) and pad_to_multiple_of >= 1):
            raise ValueError(f"pad_to_multiple_of={pad_to_multiple_of} must be a whole number of at least 1.")
        self.pad_to_multiple_of = pad_to_multiple_of

    def __call__(self, features: Sequence[Feature]) -> dict[str, torch.Tensor]:
        """Make a batch of all examples in `features`."""
        rows = [self.build_rows(kind, list(group)) for kind, group in groupby(features, type)]
        return self.mask_and_pad(join_rows(rows))

    def build_rows(self, kind: type, features: list[Feature]) -> TokenRows:
        """Examples of one kind with their special tokens."""
        if kind is TextExamples:
            return join_rows([rows_of_segments(texts.segments, texts.keys, self.ends) for texts in features])
        if kind is ChunkExamples:
            return join_rows([self._rows_of_chunks(chunks) for chunks in join_chunks(features)])
        return rows_of_mappings(features)

    def mask_and_pad(self, rows: TokenRows) -> dict[str, torch.Tensor]:
        """Rows -> a batch of `(B, T)` tensors."""
        masked = self.masker(rows.ids, rows.lengths, rows.keys, rows.word_starts)
        grid = Grid(rows.lengths, self.pad_to_multiple_of)
        batch = {
            "input_ids": grid.fill(masked.ids, self.padding_id),
            "attention_mask": grid.mask(),
            "labels": grid.fill_some(masked.rows, masked.places, masked.originals, IGNORED),
        }
        if rows.token_type_ids is not None:
            batch["token_type_ids"] = grid.fill(rows.token_type_ids, 0)
        if rows.second_segments is not None:
            batch["token_type_ids"] = grid.from_columns(rows.second_segments)
        if masked.rates is not None:
            batch[MASK_RATES] = grid.fill_some(masked.rows, masked.places, masked.rates, np.inf)
        return batch

    def _rows_of_chunks(self, chunks: ChunkExamples) -> TokenRows:
        """Chunks as one text each; a text has one separator fewer than a pair, so one token more of it fits."""
        if chunks.rule.put_back:
            raise ValueError(
                "put_back=True cuts chunks for next-sentence prediction, and parts of them would be seen twice: leave "
                "it out of DocumentChunks for masked language modelling alone."
            )
        corpus = chunks.corpus
        begin, end = corpus.sentence_offsets[chunks.first], corpus.sentence_offsets[chunks.end]
        end = np.minimum(end, begin + chunks.max_tokens + 1)
        segments = Segments(corpus.tokens, corpus.word_starts, begin, end, np.ones(len(begin), dtype=np.int64))
        return rows_of_segments(segments, chunks.keys, self.ends)


class SentencePairCollator(DataCollatorForMaskedLM):
    """What the two pair collators share: `[CLS] A [SEP] B [SEP]`, segments, masking, one label a pair.

    Args:
        tokenizer, pad_to_multiple_of, masking: as in `DataCollatorForMaskedLM`.
        max_length (`int`, *optional*): longest example in tokens, special tokens included; longer pairs are
            truncated. `None` takes that of the data set; rows of a plain data set need it.
        label_name (`str`): name of the pair label in the batch, as the model's `forward` calls it.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int | None,
        label_name: str,
        pad_to_multiple_of: int | None = None,
        **masking: Any,
    ):
        super().__init__(tokenizer, pad_to_multiple_of, **masking)
        if max_length is not None:
            check_pair_length(max_length)
        self.max_length = max_length
        self.label_name = label_name

    def draw_pairs(self, chunks: ChunkExamples) -> Pairs:
        """The objective."""
        raise NotImplementedError

    def __call__(self, features: Sequence[Feature]) -> dict[str, torch.Tensor]:
        """Make a batch of all examples in `features`, a pair of each."""
        rows, labels = [], []
        for chunks in self.as_chunks(features):
            pairs = truncate_pairs(self.draw_pairs(chunks), chunks.max_tokens, chunks.keys)
            rows.append(rows_of_pairs(chunks.corpus, pairs, chunks.keys, self.ends))
            labels.append(pairs.labels)
        batch = self.mask_and_pad(join_rows(rows))
        return {**batch, self.label_name: torch.from_numpy(np.concatenate(labels))}

    def as_chunks(self, features: Sequence[Feature]) -> list[ChunkExamples]:
        """The examples, together where they are of one corpus."""
        if all(isinstance(feature, ChunkExamples) for feature in features):
            for chunks in features:
                if self.max_length is not None and chunks.max_tokens + SPECIAL_TOKENS_OF_A_PAIR != self.max_length:
                    raise ValueError(
                        f"max_length={self.max_length} of the data collator is not the data set's, "
                        f"{chunks.max_tokens + SPECIAL_TOKENS_OF_A_PAIR}: leave it out of the collator."
                    )
            return join_chunks(features)
        if not all(isinstance(feature, Mapping) for feature in features):
            raise ValueError(
                f"features are {sorted({type(feature).__name__ for feature in features})}, and sentence pairs "
                "are made of examples of DocumentChunks or of rows of sentences: SentenceBlocks is for "
                "DataCollatorForMaskedLM."
            )
        if self.max_length is None:
            raise ValueError("max_length is needed for rows of a plain data set: give it to the data collator.")
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
        return [rows_as_chunks(rows, keys, self.max_length - SPECIAL_TOKENS_OF_A_PAIR)]


class DataCollatorForNextSentencePrediction(SentencePairCollator):
    """MLM and next-sentence prediction (BERT): half of the pairs follow each other, half are random.

    `next_sentence_label` is 0 where B follows A and 1 where B comes from another document; -100 for a chunk of a
    single sentence, of which no pair can be made.

    Args:
        tokenizer: gives the special tokens and the vocabulary.
        max_length (`int`, *optional*): longest example in tokens, special tokens included; `None` takes that of the
            data set.
        label_name (`str`): name of the label in the batch.
        masking: `pad_to_multiple_of`, `mask_probability` and the other arguments of `DataCollatorForMaskedLM`.

    Input: examples of `DocumentChunks`, which bring along the corpus that random segments come from. A row of a plain
    data set does not say which document of which corpus it is, so it is refused.

    Output: `input_ids`, `token_type_ids`, `attention_mask`, `labels`, each `(B, T)`, and `next_sentence_label` `(B,)`.

    Raises:
        ValueError: as in `DataCollatorForMaskedLM`, for plain rows, and if there are no two documents to draw from.

    Example, with ids 1 = [CLS], 2 = [SEP], and nothing masked; document 0 is [[10, 11], [12]]:

    >>> from datasets import Dataset
    >>> from hf_encoders.data.chunks import DocumentChunks
    >>> documents = Dataset.from_dict({"input_ids": [[[10, 11], [12]], [[20, 21], [22, 23, 24]]]})
    >>> chunks = DocumentChunks(documents, max_length=16, seed=1)
    >>> collator = DataCollatorForNextSentencePrediction(
    ...     doctest_tokenizer(), max_length=16, mask_replace_probability=0.0, random_replace_probability=0.0
    ... )
    >>> for epoch in (0, 1):
    ...     chunks.set_epoch(epoch)
    ...     batch = collator([chunks[0]])
    ...     print(batch["input_ids"].tolist(), batch["token_type_ids"].tolist(), batch["next_sentence_label"].tolist())
    [[1, 10, 11, 2, 12, 2]] [[0, 0, 0, 0, 1, 1]] [0]
    [[1, 10, 11, 2, 20, 21, 2]] [[0, 0, 0, 0, 1, 1, 1]] [1]
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int | None = None,
        label_name: str = "next_sentence_label",
        **masking: Any,
    ):
        super().__init__(tokenizer, max_length, label_name, **masking)

    def draw_pairs(self, chunks: ChunkExamples) -> Pairs:
        """A segment with what follows it or with a random segment."""
        return next_sentence_pairs(chunks)


class DataCollatorForSentenceOrderPrediction(SentencePairCollator):
    """MLM and sentence-order prediction (ALBERT): half of the pairs stand in order, half are swapped.

    `sentence_order_label` is 0 for pairs in order and 1 for swapped ones; -100 for a chunk of a single sentence.

    Args:
        tokenizer: gives the special tokens and the vocabulary.
        max_length (`int`, *optional*): longest example in tokens, special tokens included; `None` takes that of the
            data set.
        label_name (`str`): name of the label in the batch.
        masking: `pad_to_multiple_of`, `mask_probability` and the other arguments of `DataCollatorForMaskedLM`.

    Input: examples of `DocumentChunks`; or rows whose `input_ids` are the sentences of a document, of which a run
    about as long as an example is taken, from a random place.

    Output: `input_ids`, `token_type_ids`, `attention_mask`, `labels`, each `(B, T)`, and `sentence_order_label`
        `(B,)`.

    Example: "I love you." (10, 11) and "Because you are wonderful." (12), in order and swapped, and nothing masked:

    >>> collator = DataCollatorForSentenceOrderPrediction(
    ...     doctest_tokenizer(), max_length=16, mask_replace_probability=0.0, random_replace_probability=0.0
    ... )
    >>> _ = torch.manual_seed(1)
    >>> batch = collator([{"input_ids": [[10, 11], [12]]}] * 2)
    >>> batch["input_ids"].tolist(), batch["sentence_order_label"].tolist()
    ([[1, 10, 11, 2, 12, 2], [1, 12, 2, 10, 11, 2]], [0, 1])
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int | None = None,
        label_name: str = "sentence_order_label",
        **masking: Any,
    ):
        super().__init__(tokenizer, max_length, label_name, **masking)

    def draw_pairs(self, chunks: ChunkExamples) -> Pairs:
        """Two consecutive segments in either order."""
        return sentence_order_pairs(chunks)
