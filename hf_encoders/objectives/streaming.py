"""Examples from a stream of documents that is never stored: for corpora that are too large or too new to prepare.

A stream is cut into windows of consecutive documents. A window is tokenised in memory, cut as a corpus would be, and
its examples come in random order; random segments of next-sentence prediction come from other documents of the window.
Random numbers are keyed by (seed, epoch, position in the stream), so a window gives the same examples in any worker.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import count
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.ragged import offsets_of
from hf_encoders.corpus.randomness import RandomStream, example_keys, random_bits
from hf_encoders.corpus.segmentation import split_sentences
from hf_encoders.corpus.sentence_encoding import check_max_sentence_tokens
from hf_encoders.objectives.blocks import BlockLayout
from hf_encoders.objectives.chunk_examples import ChunkExamples, ChunkRule, check_pair_length
from hf_encoders.objectives.chunks import cut_corpus
from hf_encoders.objectives.collator_options import refuse_unknown_options, with_options_of
from hf_encoders.objectives.document_windows import Documents, StreamReader, WindowTokenizer, cut_windows
from hf_encoders.objectives.examples import EpochDataset, TextExamples


logger = logging.get_logger(__name__)


# Positions that are reserved for each window, so that numbering does not depend on windows that other workers read.
POSITIONS_PER_WINDOW = 2**32


Examples = TextExamples | ChunkExamples


class StreamedExamples(IterableDataset, EpochDataset):
    """Reading, windows, and their division among workers; the base of the two streamed datasets.

    If the number of shards is a multiple of the number of data loader workers, each worker takes whole shards and
    reads nothing else. Otherwise all workers read the whole stream (or one shard, if their number is a multiple of the
    number of shards), and each tokenises its part of the windows only. `PreTrainingTrainer` counts the workers of all
    processes together; the stock `Trainer` needs `accelerator_config={"dispatch_batches": False}`. Do not divide the
    stream by process (`split_dataset_by_node`) before.

    A training stream repeats without end, each time as the next epoch, so that no process waits for another that has
    more examples; to `Trainer` all `max_steps` are one epoch. A restart reads and collates again what it skips.

    Args:
        documents (`datasets.IterableDataset` or an iterable): One document per row or element: a `str`, the text; a
            list of `str`, its sentences; or a list of sentences of token ids without special tokens. An iterable must
            give the same documents whenever it is iterated over.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): As for `tokenize_documents`; `None` for token ids.
        column (`str`, *optional*, defaults to `"text"`): Column of a `datasets.IterableDataset` to read.
        sentence_splitter (`Callable[[str], list[str]]`, *optional*): Splits the text of a document into sentences.
        word_segmenter, max_sentence_tokens: As for `tokenize_documents`; not for token ids.
        window_documents (`int`, *optional*, defaults to 1000): Documents per window, at least 2: how far examples are
            shuffled and random segments fetched. The remainder of a shard joins the window before.
        window_length (`int`, *optional*, defaults to 2**24): Characters of text, or tokens, after which a window ends
            if it has two documents. Each worker needs memory for two windows.
        seed (`int`, *optional*, defaults to 0): Seed of all random choices.
        redraw (`bool`, *optional*, defaults to `True`): As in `EpochDataset`.
        repeat (`bool`, *optional*): Whether the next epoch follows where the stream ends; `None`: as `redraw`.
    """

    def __init__(
        self,
        documents: Documents,
        tokenizer: PreTrainedTokenizerBase | None,
        *,
        column: str = "text",
        sentence_splitter: Callable[[str], list[str]] = split_sentences,
        word_segmenter: Callable[[str], list[str]] | None = None,
        max_sentence_tokens: int | None = None,
        window_documents: int = 1000,
        window_length: int = 2**24,
        seed: int = 0,
        redraw: bool = True,
        repeat: bool | None = None,
    ):
        super().__init__(seed, redraw)
        check_max_sentence_tokens(max_sentence_tokens)
        for name, value, least in (("window_documents", window_documents, 2), ("window_length", window_length, 1)):
            if value < least:
                raise ValueError(f"{name}={value} must be at least {least}; leave it out for the default.")
        self.reader = StreamReader(documents, column)
        self.reading = (tokenizer, sentence_splitter, word_segmenter, max_sentence_tokens)
        self.window_documents, self.window_length = window_documents, window_length
        self.repeat = redraw if repeat is None else repeat
        self._process, self._num_processes = 0, 1

    def facts(self) -> list[str]:
        """Contents and options for `repr`."""
        documents = type(self.reader.documents).__name__
        return [f"{documents} of {self.reader.num_shards} shards", f"window_documents={self.window_documents}"]

    def examples_of(self, corpus: FlatCorpus, first_position: int, draw: int) -> Iterator[Examples]:
        """The examples of a window in random order, one at a time; its positions begin at `first_position`."""
        raise NotImplementedError

    def share(self, process: int, num_processes: int) -> None:
        """Give only the examples of one of several processes, from 0; `PreTrainingTrainer` calls it."""
        self._process, self._num_processes = process, num_processes

    def __iter__(self) -> Iterator[Examples]:
        info = get_worker_info()
        index, per_process = (0, 1) if info is None else (info.id, info.num_workers)
        worker, num_workers = self._process * per_process + index, self._num_processes * per_process
        tokenize = WindowTokenizer(*self.reading)
        first_epoch = self.epoch
        for epoch in count(first_epoch) if self.repeat else [first_epoch]:
            is_empty = True
            for example in self._examples(tokenize, epoch, worker, num_workers):
                is_empty = False
                yield example
            # In evaluation a worker may be idle if another one has examples.
            if is_empty and (self.repeat or next(self._examples(tokenize, epoch, 0, 1), None) is None):
                raise ValueError(
                    f"documents gives no example to worker {worker} of {num_workers}: check that the stream holds "
                    "text (for pairs, documents of two sentences, and two in a window), and set "
                    "dataloader_num_workers or window_documents lower."
                )

    def _examples(self, tokenize: WindowTokenizer, epoch: int, worker: int, num_workers: int) -> Iterator[Examples]:
        """This worker's examples of an epoch."""
        draw = epoch if self.redraw else 0
        for number, documents in self._windows(epoch, worker, num_workers):
            yield from self.examples_of(tokenize(documents), number * POSITIONS_PER_WINDOW, draw)

    def _windows(self, epoch: int, worker: int, num_workers: int) -> Iterator[tuple[int, list[Any]]]:
        """This worker's windows of an epoch, every `turns`-th of some shards: number in the stream, and documents."""
        num_shards = self.reader.num_shards
        if num_shards % num_workers == 0:
            shards, turn, turns = range(worker, num_shards, num_workers), 0, 1
        elif num_workers % num_shards == 0:
            shards, turn, turns = [worker % num_shards], worker // num_shards, num_workers // num_shards
        else:
            shards, turn, turns = range(num_shards), worker, num_workers
        for shard in shards:
            values = self.reader.read(shard, epoch)
            for i, documents in enumerate(cut_windows(values, self.window_documents, self.window_length)):
                if i % turns == turn:
                    yield i * num_shards + shard, documents


class StreamedChunks(StreamedExamples):
    r"""`DocumentChunks` of a stream, for the pair collators.

    A stream that is one window gives the examples of `DocumentChunks` with the same seed.

    Args:
        documents, tokenizer: As in `StreamedExamples`.
        max_length (`int`): Longest example in tokens, special tokens included.
        options: The other arguments of `StreamedExamples`, and those of `ChunkRule`.

    >>> documents = ["w10 w11\nw12\nw13 w14 w15\nw16", "w20 w21\nw22"]
    >>> chunks = StreamedChunks(documents, doctest_tokenizer(), max_length=6, redraw=False)
    >>> [[sentence.tolist() for sentence in chunk.sentences(0)] for chunk in chunks]
    [[[16]], [[10, 11], [12]], [[13, 14, 15]], [[20, 21], [22]]]
    """

    @with_options_of(ChunkRule)
    @with_options_of(StreamedExamples)
    def __init__(
        self, documents: Documents, tokenizer: PreTrainedTokenizerBase | None, max_length: int, **options: Any
    ):
        rule = {field.name: options.pop(field.name) for field in fields(ChunkRule) if field.name in options}
        refuse_unknown_options(self, options, inspect.signature(StreamedExamples).parameters)
        super().__init__(documents, tokenizer, **options)
        check_pair_length(max_length)
        self.rule = ChunkRule(**rule)
        self.max_length = max_length

    def examples_of(self, corpus: FlatCorpus, first_position: int, draw: int) -> Iterator[ChunkExamples]:
        """References to the chunks of a window; none, with one warning, of a window without pairs."""
        sizes = np.diff(corpus.document_offsets)
        if len(sizes) < 2:
            logger.warning_once(
                "Windows of the stream with fewer than two documents are left out: random segments come from another "
                "document. Join small shards, or split the text into documents."
            )
            return
        if sizes.max() < 2:
            logger.warning_once(
                "Windows of the stream without a document of two sentences are left out: a sentence pair needs one. "
                "Check the sentence_splitter, put several sentences into each document, or use StreamedBlocks (mlm)."
            )
            return
        chunks = cut_corpus(corpus, self.max_length, self.rule, self.seed, draw, first_position)
        for i in shuffled(chunks.keys):
            yield chunks.take(slice(i, i + 1))


class StreamedBlocks(StreamedExamples):
    """`SentenceBlocks` of a stream, for masked language modelling.

    A block ends with its window, so the last one of a window is shorter.

    Args:
        documents, tokenizer: As in `StreamedExamples`.
        max_length (`int`): Longest block in tokens, special tokens included.
        options: The other arguments of `StreamedExamples`, and those of `BlockLayout`.

    >>> documents = [[[10, 11], [12]], [[20, 21], [22, 23, 24]]]
    >>> blocks = StreamedBlocks(documents, tokenizer=None, max_length=8, redraw=False)
    >>> [[segment.tolist() for segment in block.token_ids(0)] for block in blocks]
    [[[10, 11, 12], [20, 21]], [[22, 23, 24]]]
    """

    @with_options_of(BlockLayout)
    @with_options_of(StreamedExamples)
    def __init__(
        self, documents: Documents, tokenizer: PreTrainedTokenizerBase | None, max_length: int, **options: Any
    ):
        layout = {field.name: options.pop(field.name) for field in fields(BlockLayout) if field.name in options}
        refuse_unknown_options(self, options, inspect.signature(StreamedExamples).parameters)
        super().__init__(documents, tokenizer, **options)
        self.layout = BlockLayout(max_length, **layout)

    def examples_of(self, corpus: FlatCorpus, first_position: int, draw: int) -> Iterator[TextExamples]:
        """References to the blocks of a window."""
        if len(corpus.tokens) == 0:
            return
        blocks = self.layout.cut(corpus)
        keys = example_keys(self.seed, draw, np.arange(len(blocks)) + first_position)
        segments = self.layout.segments(corpus, blocks)
        offsets = offsets_of(segments.counts)
        for i in shuffled(keys):
            begin, end = (bounds[offsets[i] : offsets[i + 1]] for bounds in (segments.begin, segments.end))
            block = segments._replace(begin=begin, end=end, counts=segments.counts[i : i + 1])
            yield TextExamples(block, keys[i : i + 1])


def shuffled(keys: np.ndarray) -> np.ndarray:
    """Indices of examples in an order that their keys decide."""
    return np.argsort(random_bits(keys, RandomStream.WINDOW_SHUFFLE, 0), kind="stable")
