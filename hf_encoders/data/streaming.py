"""Examples from a stream of documents that is never stored: for corpora that are too large or too new to prepare.

A stream is cut into windows of consecutive documents. A window is tokenised in memory, cut as a corpus would be, and
its examples come in random order; random segments of next-sentence prediction come from other documents of the window.
Every draw is keyed by (seed, epoch, place in the stream), so whoever handles a window makes the same examples of it.

Leaves out: a place to resume at. `Trainer` skips what it has seen by reading it again, at the cost that
`StreamedExamples` tells; a corpus from `prepare_corpus` has no such cost.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerBase

from hf_encoders.data.blocks import SPECIAL_TOKENS_OF_A_BLOCK, BlockLayout
from hf_encoders.data.chunk_examples import SPECIAL_TOKENS_OF_A_PAIR, ChunkExamples, ChunkRule
from hf_encoders.data.chunks import check_pair_length, cut_corpus
from hf_encoders.data.collator_options import refuse_unknown_options, with_options_of
from hf_encoders.data.corpus.segmentation import split_sentences
from hf_encoders.data.corpus.sentence_encoding import check_max_sentence_tokens
from hf_encoders.data.document_windows import Documents, StreamReader, WindowTokenizer, cut_windows
from hf_encoders.data.examples import EpochDataset, TextExamples
from hf_encoders.data.flat_corpus import FlatCorpus
from hf_encoders.data.ragged import offsets_of
from hf_encoders.data.randomness import RandomStream, example_keys, random_bits


# Places that a window has for documents, sentences and blocks: what they are numbered by does not depend on how many
# the windows before have, which other consumers tokenise.
PLACES_A_WINDOW = 2**32


class Window(NamedTuple):
    """Consecutive documents of one shard as they came, and the number of the window in the whole stream."""

    number: int
    documents: list[Any]


class StreamedExamples(IterableDataset, EpochDataset):
    """What the two streamed data sets share: reading, windows, and who takes which.

    Who takes which: every worker of a data loader takes its part. Where the number of shards of the stream is a
    multiple of the number of workers, it takes whole shards and reads nothing else. Otherwise all workers read all of
    the stream (or of one shard, where their number is a multiple of that of the shards), and each tokenises only its
    part of the windows.

    Several processes: under `PreTrainingTrainer`, and wherever `share` is called, the workers of all processes are
    counted together. The stock `Trainer` needs `accelerator_config={"dispatch_batches": False}`; then each process
    reads, tokenises and cuts everything and keeps its part of the examples. Do not divide the stream by process
    (`split_dataset_by_node`) before.

    Epochs: a stream for training repeats itself without end, each time as the next epoch. `Trainer` does not know how
    long a stream is and trains for `max_steps`, which is one epoch to it: so batches run on where the stream begins
    again, no process waits for another that has more examples, and a restart finds its place in any epoch. Each worker
    gives each example of its part once an epoch, then it goes on to the next epoch, also when others have more left.

    Restart: `Trainer` reads, tokenises, cuts and collates again what it skips, from the start of training. On one core
    of a busy cloud machine a worker gets through 1.5 MB of English text a second, 3,000 examples of 128 tokens (BERT's
    tokenizer, pairs and blocks alike), or 20,000 examples of documents of token ids. Nothing is skipped faster,
    because only a window that is tokenised tells how many examples it gives.

    Args:
        documents (`datasets.IterableDataset` or an iterable): One document an element or row: a `str`, the text; a
            list of `str`, its sentences; or a list of sentences of token ids without special tokens. An iterable must
            start anew whenever it is iterated over, with the same documents.
        tokenizer: As for `tokenize_documents`; `None` for documents of token ids.
        column (`str`): The column of a `datasets.IterableDataset` to read.
        sentence_splitter (`Callable[[str], list[str]]`): Gets the text of a document.
        word_segmenter, max_sentence_tokens: As for `tokenize_documents`; not for documents of token ids.
        window_documents (`int`): Documents of a window, at least 2: how far examples are shuffled and random segments
            fetched. What is left at the end of a shard joins the window before.
        window_length (`int`): Characters of text, or tokens, that a window ends at earlier if it has two documents.
            Memory for two windows is needed in each worker.
        seed (`int`): Seed of all draws.
        redraw (`bool`): As in `EpochDataset`; False draws every epoch what epoch 0 draws.
        repeat (`bool`, *optional*): Whether to go on with the next epoch where the stream ends. `None`: as `redraw`.

    Raises:
        ValueError: For a value out of range, an iterator, a column that is not there, text without a tokenizer. While
            reading, if a document is none of the above, the stream has no document, a window has tokens of fewer than
            two documents, or there are fewer windows than workers.
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
        """What the stream is of, for its `repr`."""
        documents = type(self.reader.documents).__name__
        return [f"{documents} of {self.reader.num_shards} shards", f"window_documents={self.window_documents}"]

    def examples_of(self, corpus: FlatCorpus, first_place: int, draw: int) -> Iterator[TextExamples | ChunkExamples]:
        """The examples of a window in random order, a batch of one each; its places begin at `first_place`."""
        raise NotImplementedError

    def share(self, process: int, num_processes: int) -> None:
        """Give the examples of one of several processes only, from 0; `PreTrainingTrainer` calls it."""
        self._process, self._num_processes = process, num_processes

    def __iter__(self) -> Iterator[TextExamples | ChunkExamples]:
        worker = get_worker_info()
        index, num_workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        consumer, num_consumers = self._process * num_workers + index, self._num_processes * num_workers
        tokenize = WindowTokenizer(*self.reading)
        first_epoch = self.epoch
        for epoch in count(first_epoch) if self.repeat else [first_epoch]:
            is_empty = True
            for example in self._examples(tokenize, epoch, consumer, num_consumers):
                is_empty = False
                yield example
            # In evaluation a worker may have nothing to do, if there is something for another one.
            if is_empty and (self.repeat or next(self._examples(tokenize, epoch, 0, 1), None) is None):
                raise ValueError(
                    f"documents gives no example to worker {consumer} of {num_consumers}: check that the stream holds "
                    "text, and set dataloader_num_workers or window_documents lower."
                )

    def _examples(
        self, tokenize: WindowTokenizer, epoch: int, consumer: int, num_consumers: int
    ) -> Iterator[TextExamples | ChunkExamples]:
        """The examples of an epoch that are this consumer's."""
        draw = epoch if self.redraw else 0
        for window in self._windows(epoch, consumer, num_consumers):
            yield from self.examples_of(tokenize(window.documents), window.number * PLACES_A_WINDOW, draw)

    def _windows(self, epoch: int, consumer: int, num_consumers: int) -> Iterator[Window]:
        """The windows of an epoch that are this consumer's."""
        num_shards = self.reader.num_shards
        if num_shards % num_consumers == 0:
            shards, turn, turns = range(consumer, num_shards, num_consumers), 0, 1
        elif num_consumers % num_shards == 0:
            shards, turn, turns = [consumer % num_shards], consumer // num_shards, num_consumers // num_shards
        else:
            shards, turn, turns = range(num_shards), consumer, num_consumers
        for shard in shards:
            values = self.reader.read(shard, epoch)
            for i, documents in enumerate(cut_windows(values, self.window_documents, self.window_length)):
                if i % turns == turn:
                    yield Window(i * num_shards + shard, documents)


class StreamedChunks(StreamedExamples):
    r"""`DocumentChunks` of a stream, for the pair collators.

    A stream that is one window gives the same examples as `DocumentChunks` does with the same seed.

    Args:
        documents, tokenizer: As in `StreamedExamples`.
        max_length (`int`): Longest example in tokens, special tokens included.
        options: The other arguments of `StreamedExamples`, and those of `ChunkRule`; `**paper_modes.BERT_CHUNKS` for
            the original code's.

    Raises:
        ValueError: As in `StreamedExamples` and `ChunkRule`; if `max_length` leaves no room for a pair; while reading,
            if a window has tokens of one document only, or no document of two sentences.

    >>> documents = ["w10 w11\nw12\nw13 w14 w15\nw16", "w20 w21\nw22"]
    >>> chunks = StreamedChunks(documents, doctest_tokenizer(), max_length=6, redraw=False)
    >>> [[sentence.tolist() for sentence in chunk.sentences(0)] for chunk in chunks]
    [[[16]], [[10, 11], [12]], [[13, 14, 15]], [[20, 21], [22]]]
    """

    @with_options_of(ChunkRule)
    @with_options_of(StreamedExamples)
    def __init__(
        self,
        documents: Documents,
        tokenizer: PreTrainedTokenizerBase | None,
        max_length: int,
        **options: Any,
    ):
        rule = {field.name: options.pop(field.name) for field in fields(ChunkRule) if field.name in options}
        refuse_unknown_options(self, options, inspect.signature(StreamedExamples).parameters)
        super().__init__(documents, tokenizer, **options)
        check_pair_length(max_length)
        self.rule = ChunkRule(**rule)
        self.max_tokens = max_length - SPECIAL_TOKENS_OF_A_PAIR

    def examples_of(self, corpus: FlatCorpus, first_place: int, draw: int) -> Iterator[ChunkExamples]:
        """References to the chunks of a window."""
        _check_pairs(corpus)
        chunks = cut_corpus(corpus, self.max_tokens, self.rule, self.seed, draw, first_place)
        for i in shuffled(chunks.keys):
            yield chunks.take(slice(i, i + 1))


class StreamedBlocks(StreamedExamples):
    """`SentenceBlocks` of a stream, for masked language modelling.

    A block ends with its window, so the last one of a window is shorter: about half a block of padding a window.

    Args:
        documents, tokenizer: As in `StreamedExamples`.
        max_length (`int`): Longest block in tokens, special tokens included.
        cross_documents, sentence_separators, cut_long_sentences: As in `SentenceBlocks`.
        options: The other arguments of `StreamedExamples`.

    Raises:
        ValueError: As in `StreamedExamples`; if `max_length` leaves no room for a token.

    >>> documents = [[[10, 11], [12]], [[20, 21], [22, 23, 24]]]
    >>> blocks = StreamedBlocks(documents, tokenizer=None, max_length=8, redraw=False)
    >>> [[piece.tolist() for piece in block.pieces(0)] for block in blocks]
    [[[10, 11, 12], [20, 21]], [[22, 23, 24]]]
    """

    @with_options_of(StreamedExamples)
    def __init__(
        self,
        documents: Documents,
        tokenizer: PreTrainedTokenizerBase | None,
        max_length: int,
        *,
        cross_documents: bool = True,
        sentence_separators: bool = False,
        cut_long_sentences: bool = True,
        **options: Any,
    ):
        refuse_unknown_options(self, options, inspect.signature(StreamedExamples).parameters)
        super().__init__(documents, tokenizer, **options)
        if max_length <= SPECIAL_TOKENS_OF_A_BLOCK:
            raise ValueError(f"max_length={max_length} leaves no room for a token: use at least 3.")
        self.layout = BlockLayout(
            max_length - SPECIAL_TOKENS_OF_A_BLOCK,
            cross_documents,
            sentence_separators,
            cut_long_sentences,
        )

    def examples_of(self, corpus: FlatCorpus, first_place: int, draw: int) -> Iterator[TextExamples]:
        """References to the blocks of a window."""
        if len(corpus.tokens) == 0:
            return
        blocks = self.layout.cut(corpus)
        keys = example_keys(self.seed, draw, np.arange(len(blocks)) + first_place)
        document_starts = corpus.sentence_offsets[corpus.document_offsets[:-1]]
        segments = self.layout.segments(corpus, document_starts, blocks)
        pieces = offsets_of(segments.counts)
        for i in shuffled(keys):
            begin, end = (bounds[pieces[i] : pieces[i + 1]] for bounds in (segments.begin, segments.end))
            block = segments._replace(begin=begin, end=end, counts=segments.counts[i : i + 1])
            yield TextExamples(block, keys[i : i + 1])


def shuffled(keys: np.ndarray) -> np.ndarray:
    """Examples in an order that their keys decide."""
    return np.argsort(random_bits(keys, RandomStream.WINDOW_SHUFFLE, 0), kind="stable")


def _check_pairs(corpus: FlatCorpus) -> None:
    """Refuse a window that sentence pairs cannot be made of."""
    sizes = np.diff(corpus.document_offsets)
    if len(sizes) < 2:
        raise ValueError(
            f"documents: a window of the stream has {len(sizes)} document(s) with tokens, and random segments come "
            "from another one: join small shards, or give one text a document and not all in one."
        )
    if sizes.max() < 2:
        raise ValueError(
            f"documents: none of the {len(sizes)} documents of a window has two sentences, and a sentence pair needs "
            "one: check the sentence_splitter, put several sentences into each document, or use StreamedBlocks (mlm)."
        )
