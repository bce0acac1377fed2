"""Blocks of a stream of documents, for masked language modelling of text that is not prepared first."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import datasets
import numpy as np
from torch.utils.data import IterableDataset

from hf_encoders.objectives.dataset import EpochDataset, Example
from hf_encoders.objectives.mlm import SPECIAL_TOKENS_OF_A_BLOCK, SentenceBlocks
from hf_encoders.objectives.randomness import Key


DOCUMENTS_TO_CUT = 100  # of a stream at a time


class StreamedBlocks(EpochDataset, IterableDataset):
    """Blocks of whole sentences of a stream of documents, for text that is not prepared first.

    They are those of `SentenceBlocks` with `cross_documents=False`: functions of their document alone, whatever the
    worker, shard or batch that reads it. The id of a block, from which its masks are drawn, is a hash of its tokens:
    equal blocks have equal masks within an epoch.

    Args:
        documents (`datasets.IterableDataset`): Tokenised documents (`DocumentTokenizer`); column `input_ids`, lists of
            sentences of token ids, and perhaps `word_starts`. Workers divide its shards among themselves.
        max_length (`int`): Longest block in tokens, special tokens included.
        seed, redraw, epochs_per_draw, dupe_factor: As in `SentenceBlocks`. The epoch also shuffles a shuffled stream.

    >>> documents = datasets.Dataset.from_dict({"input_ids": [[[10, 11], [12]], [[20, 21], [22, 23, 24]]]})
    >>> blocks = StreamedBlocks(documents.to_iterable_dataset(), max_length=5, redraw=False)
    >>> [example.segments[0].tolist() for example in blocks]
    [[10, 11, 12], [20, 21], [22, 23, 24]]
    """

    def __init__(
        self,
        documents: datasets.IterableDataset,
        max_length: int,
        seed: int = 0,
        redraw: bool = True,
        epochs_per_draw: int = 1,
        dupe_factor: int | None = None,
    ):
        super().__init__(seed, redraw, epochs_per_draw, dupe_factor)
        if not isinstance(documents, datasets.IterableDataset):
            raise ValueError(f"documents is a {type(documents).__name__}, not a stream: use SentenceBlocks.")
        if max_length <= SPECIAL_TOKENS_OF_A_BLOCK:
            raise ValueError(f"max_length={max_length} leaves no room for a token: use at least 3.")
        self.max_length = max_length
        self.stream = documents.map(
            _cut, batched=True, batch_size=DOCUMENTS_TO_CUT, fn_kwargs={"max_length": max_length}
        )

    def __iter__(self) -> Iterator[Example]:
        draw = self.draw
        for row in self.stream:
            tokens = np.array(row["input_ids"], dtype=np.int32)
            starts = [np.array(row["word_starts"], dtype=np.uint8)] if "word_starts" in row else None
            number = int.from_bytes(hashlib.blake2b(tokens.tobytes(), digest_size=7).digest())
            yield Example([tokens], Key(self.seed, draw, number), starts)

    def facts(self) -> list[str]:
        """Contents and options for `repr`."""
        return [f"{self.stream.num_shards} shards", f"max_length={self.max_length}"]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0, also of the stream, where it shuffles."""
        super().set_epoch(epoch)
        self.stream.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the stream, its epoch included."""
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a position."""
        self.set_epoch(state["epoch"])
        self.stream.load_state_dict(state)


def _cut(documents: Mapping[str, list[Any]], max_length: int) -> dict[str, list[Any]]:
    """Cut a batch of documents into blocks, a row each; columns that are not read become empty."""
    columns = {name: values for name, values in documents.items() if name in ("input_ids", "word_starts")}
    corpus = datasets.Dataset.from_dict(columns)
    blocks = SentenceBlocks(corpus, max_length, cross_documents=False, redraw=False)[:]
    rows = dict.fromkeys(documents, [None] * len(blocks)) | {"input_ids": [block.segments[0] for block in blocks]}
    return rows if len(columns) == 1 else rows | {"word_starts": [block.word_starts[0] for block in blocks]}
