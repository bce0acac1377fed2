"""Text to a tokenised corpus on disk: documents of sentences of token ids, and what can be told about them.

A corpus is a `datasets.Dataset` with one column, `input_ids`: a row is a document, a list in it a sentence, without
special tokens. The readers of `segmentation.py`, which can be imported from here too, give documents,
`tokenize_documents` makes the corpus of them, `SentenceStore` looks at it as flat arrays.

Leaves out: filtering, deduplication and shuffling, which `datasets` or an engine for text at scale do before.
"""

import contextlib
import copy
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import pyarrow as pa
from datasets.fingerprint import get_temporary_cache_files_directory
from datasets.utils import tqdm
from transformers import PreTrainedTokenizerBase

from hf_encoders.data.randomness import example_keys
from hf_encoders.data.segmentation import documents_from_dataset, read_documents, replace_lone_surrogates


__all__ = [
    "CorpusStatistics",
    "SentenceStore",
    "corpus_statistics",
    "documents_from_dataset",
    "read_documents",
    "split_train_validation",
    "tokenize_documents",
    "warnings_for",
]

COLUMN = "input_ids"
SENTENCES_A_CALL = 2000  # sentences a call of the tokenizer
CHARACTERS_A_BLOCK = 2**20  # characters collected before the tokenizer is called; a document is never divided
# Arrow counts the tokens of one list column in 32 bits, so that a longer corpus needs several record batches.
MOST_TOKENS_A_RECORD_BATCH = 2**31 - 1
TOKENS_A_STEP = 2**18  # tokens that statistics look at at once
ROWS_A_STEP = 1000  # documents that are put into another order at once

_COLUMN_TYPE = pa.list_(pa.list_(pa.int32()))
_SCHEMA = datasets.Features.from_arrow_schema(pa.schema({COLUMN: _COLUMN_TYPE})).arrow_schema


def tokenize_documents(
    documents: Iterable[list[str]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_sentence_tokens: int | None = None,
    cache_dir: str | Path | None = None,
) -> datasets.Dataset:
    """Tokenise documents of sentences into a corpus on disk, with memory for a few documents at a time.

    Sentences that give no token and documents left without one are dropped. No special token is added, and the name of
    one in the text (a literal `[SEP]`) is tokenised as the text it is; the tokenizer's own truncation and padding
    do not apply.

    The file is named by a hash of what it holds: other documents or another tokenizer never meet an old result, and
    the same ones do not fill the disk twice. Nothing is looked up before tokenising.

    Args:
        documents (`Iterable[list[str]]`): Sentences of one document each; read once.
        tokenizer (`PreTrainedTokenizerBase`): Any tokenizer; a fast one uses all cores.
        max_sentence_tokens (`int`, *optional*): Longer sentences are cut into pieces of that many tokens and a shorter
            last one; a word may be cut in two. `None` cuts nothing.
        cache_dir (`str` or `Path`, *optional*): Folder for the corpus, about 4 bytes a token, twice that while it is
            written. `None` takes a temporary folder that goes when the process ends (`save_to_disk` keeps a copy).

    Returns:
        `datasets.Dataset`: Memory mapped; `input_ids` of type `list<list<int32>>`, one row a document.

    Raises:
        ValueError: If nothing is left, a document is not a list of `str`, or `max_sentence_tokens` is below 1.

    >>> tokenize_documents([["w5 w6", "w7 w8 w9"], ["w6"]], doctest_tokenizer(), max_sentence_tokens=2)["input_ids"][:]
    [[[5, 6], [7, 8], [9]], [[6]]]
    """
    if max_sentence_tokens is not None and max_sentence_tokens < 1:
        raise ValueError(
            f"max_sentence_tokens={max_sentence_tokens} leaves nothing: use 1 or more, or None not to cut."
        )
    directory = Path(cache_dir or get_temporary_cache_files_directory())
    progress = tqdm(documents, desc="Tokenising", unit=" documents")
    return _write_corpus(_tokenized_blocks(progress, _encoder(tokenizer), max_sentence_tokens), directory)


def split_train_validation(
    dataset: datasets.Dataset, validation_share: float, seed: int
) -> tuple[datasets.Dataset, datasets.Dataset]:
    """Divide a corpus by document, at random; both parts keep the order.

    Args:
        dataset (`datasets.Dataset`): One row a document.
        validation_share (`float`): Share of the documents, in (0, 1); rounded to a number that leaves both parts one.
        seed (`int`): The same seed, share and number of documents give the same rows.

    Returns:
        `tuple[datasets.Dataset, datasets.Dataset]`: Training and validation documents.

    Raises:
        ValueError: If the share is not in (0, 1) or there are fewer than two documents.
    """
    if not 0 < validation_share < 1:
        raise ValueError(f"validation_share={validation_share} must lie between 0 and 1, for example 0.01.")
    if len(dataset) < 2:
        raise ValueError(
            f"dataset has {len(dataset)} document(s), and a split needs two: separate documents by blank lines in "
            "the text."
        )
    num_validation = min(max(round(len(dataset) * validation_share), 1), len(dataset) - 1)
    order = np.argsort(example_keys(seed, 0, np.arange(len(dataset))), kind="stable")
    validation, training = np.sort(order[:num_validation]), np.sort(order[num_validation:])
    return dataset.select(training), dataset.select(validation)


class SentenceStore:
    """A corpus as flat arrays, without a copy of the tokens where its Arrow table is in one piece.

    `tokenize_documents` writes such a table. Any other one (after `select`, `shuffle`, `concatenate_datasets`, a
    reload of `save_to_disk`, or with another integer type) is first written anew in one piece: next to its own file if
    that folder can be written to, otherwise into a temporary folder. Above 2**31 tokens there is no single piece, and
    the tokens are copied into memory.

    A pickled store holds the data set, which for one on disk is a path, not the arrays. Copy tokens before changing
    them: they may be a read-only file.

    Args:
        dataset (`datasets.Dataset`): A corpus.

    Attributes:
        tokens (`np.ndarray` of `int32`, shape `(N,)`): All token ids, in order.
        sentence_offsets (`np.ndarray` of `int64`, shape `(S + 1,)`): First token of every sentence, and N.
        document_offsets (`np.ndarray` of `int64`, shape `(D + 1,)`): First sentence of every document, and S.

    Raises:
        ValueError: If there is no column `input_ids` of lists of lists of integers, or a value in it is missing.

    >>> store = SentenceStore(datasets.Dataset.from_dict({"input_ids": [[[5, 6], [7]], [[8]]]}))
    >>> store.tokens.tolist(), store.sentence_offsets.tolist(), store.document_offsets.tolist()
    ([5, 6, 7, 8], [0, 2, 3, 4], [0, 2, 3])
    """

    def __init__(self, dataset: datasets.Dataset):
        self.dataset = _in_one_piece(dataset)
        blocks = [_block_of(chunk) for chunk in self.dataset.data.column(COLUMN).chunks]
        block = blocks[0] if len(blocks) == 1 else _Block(*map(np.concatenate, zip(*blocks, strict=True)))
        self.tokens = block.tokens
        self.sentence_offsets = _offsets(block.sentence_lengths)
        self.document_offsets = _offsets(block.document_lengths)

    @classmethod
    def from_dataset(cls, dataset: datasets.Dataset) -> "SentenceStore":
        """The store of a corpus."""
        return cls(dataset)

    @property
    def num_documents(self) -> int:
        """Number of documents, D."""
        return len(self.document_offsets) - 1

    @property
    def num_sentences(self) -> int:
        """Number of sentences, S."""
        return len(self.sentence_offsets) - 1

    @property
    def sentence_lengths(self) -> np.ndarray:
        """Tokens of every sentence, `int64` of shape `(S,)`."""
        return np.diff(self.sentence_offsets)

    def sentence(self, i: int) -> np.ndarray:
        """Token ids of sentence `i` in [0, S), `int32`; a view."""
        return self.tokens[self.sentence_offsets[i] : self.sentence_offsets[i + 1]]

    def document(self, d: int) -> list[np.ndarray]:
        """Token ids of every sentence of document `d` in [0, D); views."""
        return [self.sentence(i) for i in range(self.document_offsets[d], self.document_offsets[d + 1])]

    def tokens_between(self, first_sentence: int, end_sentence: int) -> np.ndarray:
        """Token ids from sentence `first_sentence` up to `end_sentence`, that one excluded; a view."""
        return self.tokens[self.sentence_offsets[first_sentence] : self.sentence_offsets[end_sentence]]

    def __getstate__(self) -> dict[str, datasets.Dataset]:
        return {"dataset": self.dataset}

    def __setstate__(self, state: dict[str, datasets.Dataset]) -> None:
        self.__init__(state["dataset"])


@dataclass(frozen=True)
class CorpusStatistics:
    """Counts of a corpus.

    Args:
        documents, sentences, tokens (`int`): How many there are.
        one_sentence_documents (`int`): Documents of a single sentence; no sentence pair comes out of them.
        longest_sentence_tokens (`int`): Length of the longest sentence in tokens.
        duplicate_documents (`int`): Documents with the tokens of an earlier one (64-bit hashes are compared).
        unknown_share (`float`, *optional*): Share of the tokens that are the unknown token, in [0, 1]; `None` where no
            tokenizer was given.
    """

    documents: int
    sentences: int
    tokens: int
    one_sentence_documents: int
    longest_sentence_tokens: int
    duplicate_documents: int
    unknown_share: float | None = None


def corpus_statistics(dataset: datasets.Dataset, tokenizer: PreTrainedTokenizerBase | None = None) -> CorpusStatistics:
    """Count what a corpus holds.

    Args:
        dataset (`datasets.Dataset`): A corpus.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): The one it was made with; knows the unknown token.

    Returns:
        `CorpusStatistics`: The counts; `warnings_for` reads them.

    Raises:
        ValueError: As `SentenceStore`.
    """
    store = SentenceStore.from_dataset(dataset)
    unknown_share = None
    if tokenizer is not None:
        # A tokenizer without an unknown token never gives one: no id equals -1.
        unknown_id = -1 if tokenizer.unk_token_id is None else tokenizer.unk_token_id
        steps = (store.tokens[i : i + TOKENS_A_STEP] for i in range(0, len(store.tokens), TOKENS_A_STEP))
        num_unknown = sum(int(np.count_nonzero(tokens == unknown_id)) for tokens in steps)
        unknown_share = num_unknown / max(len(store.tokens), 1)
    return CorpusStatistics(
        documents=store.num_documents,
        sentences=store.num_sentences,
        tokens=len(store.tokens),
        one_sentence_documents=int(np.count_nonzero(np.diff(store.document_offsets) == 1)),
        longest_sentence_tokens=int(store.sentence_lengths.max(initial=0)),
        duplicate_documents=store.num_documents - len(np.unique(_document_hashes(store))),
        unknown_share=unknown_share,
    )


def warnings_for(statistics: CorpusStatistics) -> list[str]:
    """What in a corpus predicts a failed pre-training, and the remedy; empty when nothing does.

    Warns of a single document, of more than half the documents with one sentence, of more than a tenth duplicates, and
    of more than 5 % unknown tokens.

    Args:
        statistics (`CorpusStatistics`): From `corpus_statistics`.

    Returns:
        `list[str]`: One message a finding.
    """
    warnings = []
    documents = max(statistics.documents, 1)
    if statistics.documents <= 1:
        warnings.append(
            f"The corpus has {statistics.documents} document(s): next-sentence prediction finds no other document "
            "to draw from. Put a blank line between documents, or one document a line into a .jsonl file."
        )
    if statistics.one_sentence_documents / documents > 0.5:
        warnings.append(
            f"{statistics.one_sentence_documents:,} of {statistics.documents:,} documents have a single sentence, "
            "which gives no sentence pair. If blank lines stand between the lines of one text, remove them; if "
            "paragraphs were not split, use split_sentences with the language of the text; otherwise train without "
            "a pair objective (mlm)."
        )
    if statistics.duplicate_documents / documents > 0.1:
        warnings.append(
            f"{statistics.duplicate_documents:,} of {statistics.documents:,} documents repeat an earlier one: a "
            "model learns them by heart, and validation measures what was trained on. Remove duplicates before "
            "tokenising."
        )
    if statistics.unknown_share is not None and statistics.unknown_share > 0.05:
        warnings.append(
            f"{statistics.unknown_share:.1%} of the tokens are unknown to the tokenizer: its vocabulary does not "
            "fit the text. Train a tokenizer on the text, or use a byte-level one."
        )
    return warnings


class _Block(NamedTuple):
    """Whole documents on their way to or from Arrow, each array one-dimensional and `int32`."""

    tokens: np.ndarray
    sentence_lengths: np.ndarray  # in tokens
    document_lengths: np.ndarray  # in sentences


def _encoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[str]], list[list[int]]]:
    """Sentences -> token ids of each, without special tokens, truncation, padding or warnings about length."""
    if tokenizer.is_fast:
        # A copy, because truncation and padding are state that the tokenizer keeps from its last call or its file.
        backend = copy.deepcopy(tokenizer.backend_tokenizer)
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        return lambda sentences: [e.ids for e in backend.encode_batch_fast(sentences, add_special_tokens=False)]
    options = {"add_special_tokens": False, "split_special_tokens": True, "truncation": False, "padding": False}
    return lambda sentences: tokenizer(sentences, verbose=False, **options)[COLUMN]


def _tokenized_blocks(
    documents: Iterable[list[str]], encode: Callable[[list[str]], list[list[int]]], max_sentence_tokens: int | None
) -> Iterator[_Block]:
    is_empty = True
    for batch in _batches(documents):
        sentences = [replace_lone_surrogates(sentence) for document in batch for sentence in document]
        tokens, lengths = [], []
        for i in range(0, len(sentences), SENTENCES_A_CALL):
            ids = encode(sentences[i : i + SENTENCES_A_CALL])
            tokens.append(np.fromiter(chain.from_iterable(ids), dtype=np.int32))
            lengths += map(len, ids)
        piece_lengths, num_pieces = _pieces(np.array(lengths, dtype=np.int64), max_sentence_tokens)
        pieces_before = _offsets(num_pieces)[_offsets(np.array([len(document) for document in batch]))]
        document_lengths = np.diff(pieces_before)
        block = _Block(np.concatenate(tokens), piece_lengths, document_lengths[document_lengths > 0])
        if len(block.tokens):
            is_empty = False
            yield _Block(*(array.astype(np.int32, copy=False) for array in block))
    if is_empty:
        raise ValueError(
            "documents holds no sentence that gives a token: check that the files hold text, and that the tokenizer "
            "does not remove it all."
        )


def _batches(documents: Iterable[list[str]]) -> Iterator[list[list[str]]]:
    """Documents in lists of at least `CHARACTERS_A_BLOCK` characters or `SENTENCES_A_CALL` sentences; the rest."""
    batch: list[list[str]] = []
    characters = num_sentences = 0
    for number, document in enumerate(documents):
        if isinstance(document, str) or not all(isinstance(sentence, str) for sentence in document):
            raise ValueError(
                f"documents: document {number} is {document!r:.80}, not a list of str: give the sentences of each "
                "document, for example from read_documents or split_sentences."
            )
        if document:
            batch.append(document)
            characters += sum(map(len, document))
            num_sentences += len(document)
        if characters >= CHARACTERS_A_BLOCK or num_sentences >= SENTENCES_A_CALL:
            yield batch
            batch, characters, num_sentences = [], 0, 0
    if batch:
        yield batch


def _pieces(lengths: np.ndarray, most: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Cut sentences into pieces of at most `most` tokens.

    >>> _pieces(np.array([3, 0, 7, 4]), most=4)
    (array([3, 4, 3, 4]), array([1, 0, 2, 1]))
    """
    if most is None:
        return lengths[lengths > 0], (lengths > 0).astype(np.int64)
    num_pieces = -(-lengths // most)
    piece_lengths = np.full(num_pieces.sum(), most)
    is_cut = num_pieces > 0
    last_pieces = np.cumsum(num_pieces)[is_cut] - 1
    piece_lengths[last_pieces] = (lengths - (num_pieces - 1) * most)[is_cut]
    return piece_lengths, num_pieces


def _write_corpus(blocks: Iterable[_Block], directory: Path) -> datasets.Dataset:
    """Write documents into one Arrow file, in one record batch where they fit, with memory for one block."""
    directory.mkdir(parents=True, exist_ok=True)
    digests = [hashlib.blake2b(digest_size=16) for _ in _Block._fields]
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        table = Path(scratch) / "table.arrow"
        with (
            contextlib.closing(_RecordBatchOnDisk(Path(scratch))) as record_batch,
            pa.OSFile(str(table), "wb") as sink,
            pa.ipc.new_stream(sink, _SCHEMA) as writer,
        ):
            for block in blocks:
                if len(block.tokens) > MOST_TOKENS_A_RECORD_BATCH:
                    raise ValueError(
                        f"documents: one document has about {len(block.tokens):,} tokens, and Arrow stores at most "
                        f"{MOST_TOKENS_A_RECORD_BATCH:,} in a row: separate documents by blank lines."
                    )
                if record_batch.num_tokens + len(block.tokens) > MOST_TOKENS_A_RECORD_BATCH:
                    record_batch.move_to(writer)
                record_batch.append(block)
                for digest, array in zip(digests, block, strict=True):
                    digest.update(array)
            record_batch.move_to(writer)
        name = hashlib.blake2b(b"".join(digest.digest() for digest in digests), digest_size=16).hexdigest()
        path = directory / f"corpus-{name}.arrow"
        # Files get this name only when they are complete, so one that is there already holds the same bytes.
        if not path.exists():
            os.replace(table, path)
    return datasets.Dataset.from_file(str(path))


class _RecordBatchOnDisk:
    """The buffers of one Arrow record batch, grown in files and handed to the writer as memory maps."""

    def __init__(self, directory: Path):
        self.paths = [directory / name for name in ("tokens", "sentence_offsets", "document_offsets")]
        self._start()

    def append(self, block: _Block) -> None:
        sentence_ends = self.num_tokens + np.cumsum(block.sentence_lengths)
        document_ends = self.num_sentences + np.cumsum(block.document_lengths)
        for file, array in zip(self.files, (block.tokens, sentence_ends, document_ends), strict=True):
            file.write(np.ascontiguousarray(array, dtype=np.int32))
        self.num_tokens += len(block.tokens)
        self.num_sentences += len(block.sentence_lengths)
        self.num_documents += len(block.document_lengths)

    def move_to(self, writer: pa.ipc.RecordBatchStreamWriter) -> None:
        self.close()
        writer.write_batch(pa.record_batch([self._column()], schema=_SCHEMA))
        self._start()

    def close(self) -> None:
        for file in self.files:
            file.close()

    def _start(self) -> None:
        self.num_tokens = self.num_sentences = self.num_documents = 0
        self.files = [open(path, "wb") for path in self.paths]  # noqa: SIM115 - closed by `close`
        for offsets in self.files[1:]:
            offsets.write(np.zeros(1, dtype=np.int32))

    def _column(self) -> pa.ListArray:
        # An empty file cannot be mapped, and the one of tokens is empty for a corpus without documents.
        tokens, *offsets = (
            pa.memory_map(str(path)).read_buffer() if path.stat().st_size else pa.py_buffer(b"") for path in self.paths
        )
        column = pa.Array.from_buffers(pa.int32(), self.num_tokens, [None, tokens])
        levels = ((_COLUMN_TYPE.value_type, self.num_sentences), (_COLUMN_TYPE, self.num_documents))
        for (kind, length), buffer in zip(levels, offsets, strict=True):
            column = pa.Array.from_buffers(kind, length, [None, buffer], children=[column])
        return column


def _in_one_piece(dataset: datasets.Dataset) -> datasets.Dataset:
    """The corpus itself if its table is one chunk of the right type, in the order of its rows; else a copy that is."""
    if COLUMN not in dataset.column_names:
        raise ValueError(f"dataset has {dataset.column_names}, no column {COLUMN!r}: make it with tokenize_documents.")
    dataset = dataset.select_columns([COLUMN])
    column = dataset.data.column(COLUMN)
    if not _holds_sentences(column.type):
        raise ValueError(
            f"dataset: column {COLUMN!r} holds {column.type}, not lists of sentences of token ids: make it with "
            "tokenize_documents."
        )
    # `select` and `shuffle` leave the table as it is and keep a list of rows beside it, which has no public name.
    if dataset._indices is not None:
        rows = dataset._indices.column(0).to_numpy()
        blocks = _chosen_documents(SentenceStore(datasets.Dataset(dataset.data)), rows)
    else:
        num_tokens = sum(len(_block_of(chunk).tokens) for chunk in column.chunks)
        if column.type == _COLUMN_TYPE and (column.num_chunks == 1 or num_tokens > MOST_TOKENS_A_RECORD_BATCH):
            return dataset
        blocks = (_block_of(chunk.cast(_COLUMN_TYPE)) for chunk in column.chunks)
    own_folders = [os.path.dirname(file["filename"]) for file in dataset.cache_files]
    writable = [folder for folder in own_folders if os.access(folder, os.W_OK)]
    return _write_corpus(blocks, Path(writable[0] if writable else get_temporary_cache_files_directory()))


def _chosen_documents(store: SentenceStore, rows: np.ndarray) -> Iterator[_Block]:
    """Documents `rows` of a corpus, in that order."""
    token_starts = store.sentence_offsets[store.document_offsets]
    for i in range(0, len(rows), ROWS_A_STEP):
        step = rows[i : i + ROWS_A_STEP]
        sentences = _ranges(store.document_offsets[step], store.document_offsets[step + 1])
        tokens = _ranges(token_starts[step], token_starts[step + 1])
        lengths = store.sentence_offsets[sentences + 1] - store.sentence_offsets[sentences]
        document_lengths = store.document_offsets[step + 1] - store.document_offsets[step]
        yield _Block(store.tokens[tokens], lengths.astype(np.int32), document_lengths.astype(np.int32))


def _ranges(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The numbers of several ranges, one range after the other.

    >>> _ranges(np.array([7, 3, 5]), np.array([9, 3, 8]))
    array([7, 8, 5, 6, 7])
    """
    before = _offsets(ends - starts)
    return np.arange(before[-1]) + np.repeat(starts - before[:-1], ends - starts)


def _holds_sentences(kind: pa.DataType) -> bool:
    """Whether values of this type are lists of lists of integers."""
    for _ in range(2):
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            return False
        kind = kind.value_type
    return pa.types.is_integer(kind)


def _block_of(documents: pa.ListArray) -> _Block:
    """The arrays of one chunk, without a copy of the tokens."""
    sentences = documents.flatten()
    tokens = sentences.flatten()
    if documents.null_count or sentences.null_count or tokens.null_count:
        raise ValueError(f"dataset: column {COLUMN!r} has missing values: remove those rows with dataset.filter.")
    return _Block(tokens.to_numpy(), sentences.value_lengths().to_numpy(), documents.value_lengths().to_numpy())


def _offsets(lengths: np.ndarray) -> np.ndarray:
    """Lengths `(n,)` -> where each begins and the last ends, `int64` of shape `(n + 1,)`."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _document_hashes(store: SentenceStore) -> np.ndarray:
    """One 64-bit hash of the tokens of each document, `uint64` of shape `(D,)`.

    The sum over a document of a hash of (token, place in the document): a sum can be taken with whole arrays, and
    where sentences end does not matter.
    """
    starts = store.sentence_offsets[store.document_offsets]
    hashes = np.diff(starts).astype(np.uint64)
    for begin in range(0, len(store.tokens), TOKENS_A_STEP):
        tokens = store.tokens[begin : begin + TOKENS_A_STEP]
        end = begin + len(tokens)
        first, last = np.searchsorted(starts, begin, "right") - 1, np.searchsorted(starts, end, "left")
        bounds = np.clip(starts[first : last + 1], begin, end) - begin
        places = np.arange(begin, end) - np.repeat(starts[first:last], np.diff(bounds))
        sums = np.zeros(len(tokens) + 1, dtype=np.uint64)
        np.cumsum(example_keys(0, 0, places << 32 | tokens), out=sums[1:])
        hashes[first:last] += sums[bounds[1:]] - sums[bounds[:-1]]
    return hashes
