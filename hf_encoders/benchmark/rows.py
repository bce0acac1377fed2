"""The rows of the benchmark in batches.

All implementations process the same pool of rows with the same masks, in batches of rows as they come or sorted by
length.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from hf_encoders.benchmark.settings import Setting
from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.randomness import example_keys
from hf_encoders.objectives.batches import IGNORED, Segments
from hf_encoders.objectives.collators import DataCollatorForMaskedLM
from hf_encoders.objectives.examples import TextExamples
from hf_encoders.registration import config_class_of


# Rows are sorted by length within this many batches, as in transformers' LengthGroupedSampler.
POOL_BATCHES = 50
# Four sentences of the Python documentation fill 55-60 % of 128 tokens.
SENTENCES_PER_PARAGRAPH = 4
SPECIAL_TOKENS = 2  # [CLS] ... [SEP]


# One masked row: a collator's tensors without padding, `(L,)` each, and the label of a pair, a scalar.
Row = dict[str, torch.Tensor]


def original_ids(row: Row) -> torch.Tensor:
    """Ids before masking, `(L,)`."""
    return torch.where(row["labels"] == IGNORED, row["input_ids"], row["labels"])


@dataclass(frozen=True)
class Batch:
    """Arguments of `forward` (`(B, T)` each, and a pair label `(B,)`), the rows, and a collator's inputs for them."""

    tensors: dict[str, torch.Tensor]
    rows: list[Row]
    features: list[Any]

    @property
    def lengths(self) -> list[int]:
        """Real tokens of each row, including special tokens."""
        return [len(row["input_ids"]) for row in self.rows]

    @property
    def tokens(self) -> int:
        """Real tokens."""
        return sum(self.lengths)

    @property
    def positions(self) -> int:
        """Positions including padding, B * T."""
        return self.tensors["input_ids"].numel()

    @property
    def predicted(self) -> int:
        """Tokens to predict."""
        return sum(int((row["labels"] != IGNORED).sum()) for row in self.rows)


@dataclass(frozen=True)
class Pool:
    """Rows as they come, the same rows sorted by length (the longest first), and the collator that masked them."""

    plain: list[Batch]
    grouped: list[Batch]
    collator: DataCollatorForMaskedLM


def make_pool(corpus: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, setting: Setting) -> Pool:
    """Sample rows of a tokenized corpus, mask them once, and make both kinds of batches.

    Raises:
        ValueError: If the text does not fill one batch.
    """
    model_class = setting.training_objective.model_class(config_class_of(setting.family))
    collator = setting.training_objective.make_collator(tokenizer, model_class)
    batches = make_examples(corpus, setting)
    rows = [rows_of(collator(examples)) for examples in batches]
    finish = {"padding_id": tokenizer.pad_token_id, "trains": setting.trains}
    plain = [make_batch(part, features=examples, **finish) for part, examples in zip(rows, batches, strict=True)]
    longest_first = sorted((row for part in rows for row in part), key=lambda row: -len(row["input_ids"]))
    size = setting.batch_size
    grouped = [make_batch(longest_first[i : i + size], **finish) for i in range(0, len(longest_first), size)]
    return Pool(plain, grouped, collator)


def make_examples(corpus: datasets.Dataset, setting: Setting) -> list[list[Any]]:
    """Up to `POOL_BATCHES` batches of this package's examples, sampled without replacement."""
    random = np.random.default_rng(setting.seed)
    has_pairs = setting.training_objective.has_example_labels
    if has_pairs:
        chunks = setting.training_objective.make_examples(corpus, setting.length, seed=setting.seed, redraw=False)
        count = len(chunks)
    else:
        store = FlatCorpus.of(corpus)
        begin, end = spans(store, setting.examples, setting.length)
        count = len(begin)
    if count < setting.batch_size:
        raise ValueError(
            f"the text gives {count} rows ({setting.examples} of at most {setting.length} tokens), too few for a "
            f"batch of {setting.batch_size}: give more --text, or lower --batch-size."
        )
    num_batches = min(POOL_BATCHES, count // setting.batch_size)
    chosen = random.permutation(count)[: num_batches * setting.batch_size].reshape(num_batches, -1)
    if has_pairs:
        return [chunks.__getitems__(picks) for picks in chosen]
    return [
        [
            TextExamples(
                Segments(store.tokens, None, begin[picks], end[picks], np.ones_like(picks)),
                example_keys(setting.seed, 0, picks),
            )
        ]
        for picks in chosen
    ]


def spans(store: FlatCorpus, examples: str, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of the rows in a corpus, `int64` of shape `(rows,)` each, ends excluded.

    `paragraphs` are four consecutive sentences of a document, and `full` is the text as one stream. Rows are truncated
    to `length` tokens, including two special tokens.
    """
    inner = length - SPECIAL_TOKENS
    if examples == "full":
        begin = np.arange(0, len(store.tokens) - inner + 1, inner)
        return begin, begin + inner
    if examples == "sentences":
        first, last = store.sentence_offsets[:-1], store.sentence_offsets[1:]
    elif examples == "documents":
        bounds = store.sentence_offsets[store.document_offsets]
        first, last = bounds[:-1], bounds[1:]
    else:
        paragraphs = [
            (start, min(start + SENTENCES_PER_PARAGRAPH, document_end))
            for document_start, document_end in itertools.pairwise(store.document_offsets.tolist())
            for start in range(document_start, document_end, SENTENCES_PER_PARAGRAPH)
        ]
        first, last = store.sentence_offsets[np.array(paragraphs)].T
    return first, np.minimum(last, first + inner)


def rows_of(batch: dict[str, torch.Tensor]) -> list[Row]:
    """Split a collator's batch into rows."""
    return [
        {name: value[i, :length] if value.ndim > 1 else value[i] for name, value in batch.items()}
        for i, length in enumerate(batch["attention_mask"].sum(dim=1).tolist())
    ]


def make_batch(rows: Sequence[Row], padding_id: int, trains: bool = True, features: Sequence[Any] = ()) -> Batch:
    """Pad rows to the longest one; for inference, without labels and masks."""
    inputs = rows
    if not trains:
        kept = ("attention_mask", "token_type_ids")
        inputs = [
            {"input_ids": original_ids(row), **{name: row[name] for name in kept if name in row}} for row in rows
        ]
    padding = {"input_ids": padding_id, "labels": IGNORED}
    tensors = {}
    for name, first in inputs[0].items():
        values = [row[name] for row in inputs]
        is_sequence = first.ndim > 0
        tensors[name] = pad_sequence(values, True, padding.get(name, 0)) if is_sequence else torch.stack(values)
    return Batch(tensors, list(rows), list(features))
