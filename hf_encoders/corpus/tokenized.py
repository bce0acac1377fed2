"""Documents of sentences to token ids, batch by batch, in memory or in a dataset on disk.

A corpus is a `datasets.Dataset` with one row per document: `input_ids`, lists of sentences without special tokens.
Leaves out: filtering and shuffling, which `datasets` or a text-processing engine do before.
"""

import copy
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets.arrow_writer import ArrowWriter
from datasets.fingerprint import get_temporary_cache_files_directory
from datasets.utils import tqdm
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.documents import DocumentReader, split_sentences
from hf_encoders.corpus.flat_corpus import COLUMN, FlatCorpus, offsets_of
from hf_encoders.corpus.special_tokens import check_offsets, check_tokenizer, unknown_words_refused
from hf_encoders.corpus.units import Units, begin_units_at, mark_phrases
from hf_encoders.corpus.word_starts import word_starts_of_tokens
from hf_encoders.inputs import replace_lone_surrogates


# What the tokenizer returns takes 100 bytes and more per byte of text, so it gets few sentences at once.
SENTENCES_PER_CALL = 500
CHARACTERS_PER_PART = 2**18  # of a call, and of a longer sentence; a tokenizer takes 100 to 200 bytes for each
_SPACE = re.compile(r"\s")
CHARACTERS_PER_BATCH = 2**18
NO_TOKENS = (
    "the text has no sentence that gives a token: check that the files hold text, and that the tokenizer does not "
    "remove it all."
)


class DocumentTokenizer:
    """Turns batches of documents into columns of token ids, for `map(batched=True)` of any dataset.

    Sentences are encoded without special tokens, truncation, padding or warnings about length, and the name of a
    special token in the text (a literal `[SEP]`) is text. The tokenizer is not changed.

    `prepare_corpus` makes a corpus with it. For a stream:

    >>> stream = datasets.Dataset.from_dict({"text": ["w5 w6. w7", "", "w8"]}).to_iterable_dataset()
    >>> stream = stream.map(DocumentTokenizer(doctest_tokenizer()), batched=True, remove_columns=["text"])
    >>> [row["input_ids"] for row in stream]
    [[[5, 3], [7]], [[8]]]

    Args:
        tokenizer, sentence_splitter, text_column, sentences_column, turns_column: As in `prepare_corpus`.
        word_segmenter, lexicon, phrases, max_sentence_tokens: Likewise; phrases are given, not learned.

    Raises:
        ValueError: If an argument is wrong, or the tokenizer cannot be used so.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        sentence_splitter: Callable[[str], list[str]] = split_sentences,
        text_column: str = "text",
        sentences_column: str | None = None,
        turns_column: str | None = None,
        word_segmenter: Callable[[str], list[str]] | None = None,
        lexicon: Sequence[str] | None = None,
        phrases: Sequence[str] | bool = False,
        max_sentence_tokens: int | None = None,
    ):
        if max_sentence_tokens is not None and max_sentence_tokens < 1:
            raise ValueError(
                f"max_sentence_tokens={max_sentence_tokens} must be at least 1, or None to divide no sentence."
            )
        if turns_column and max_sentence_tokens is not None:
            raise ValueError(
                f"max_sentence_tokens={max_sentence_tokens} would divide turns (turns_column={turns_column!r}): leave "
                "it out; turns that do not fit an example are cut there."
            )
        check_tokenizer(tokenizer)
        self.tokenizer, self.word_segmenter = tokenizer, word_segmenter
        self.reader = DocumentReader(sentence_splitter, text_column, sentences_column, turns_column)
        self.max_sentence_tokens = max_sentence_tokens
        self.units = Units(tokenizer, word_segmenter is not None, lexicon, phrases)
        self._slow = None if tokenizer.is_fast else tokenizer
        if tokenizer.is_fast:
            # A copy, because the tokenizer keeps truncation and padding from its last call or its file.
            self._fast = copy.deepcopy(tokenizer.backend_tokenizer)
            self._fast.no_truncation()
            self._fast.no_padding()
            self._fast.encode_special_tokens = True
        elif word_segmenter is not None:
            check_offsets(tokenizer, "a word segmenter", "leave word_segmenter out")

    def __call__(self, batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """Return the columns `input_ids` and, with units, `word_starts` of the documents that have a token."""
        reader = self.reader
        documents = [reader.sentences(reader.parts_of_value(value)) for value in batch[reader.column]]
        return self.table(documents).to_pydict()

    def table(self, documents: Sequence[list[str]]) -> pa.Table:
        """Return `tokenize` as rows, without documents that have no token."""
        corpus = self.tokenize(documents)
        return corpus.to_table().filter(pa.array(corpus.document_tokens > 0))

    def tokenize(self, documents: Sequence[list[str]]) -> FlatCorpus:
        """Tokenize documents of sentences: a document for each, even if it is left without a sentence.

        Sentences without a token are left out, except in dialogues, whose turns keep their places.
        """
        sentences = [replace_lone_surrogates(sentence) for document in documents for sentence in document]
        tokens, lengths, starts = self._encode(sentences)
        parts = np.ones_like(lengths)
        if not self.reader.turns_column:
            lengths, parts = _divided(lengths, self.max_sentence_tokens)
        counts = np.array([len(document) for document in documents], np.int64)
        document_lengths = np.diff(offsets_of(parts)[offsets_of(counts)])
        if starts is not None and len(starts):
            starts = begin_units_at(starts, lengths)  # a divided sentence divides its units
        corpus = FlatCorpus.from_lengths(tokens, lengths, document_lengths, starts)
        if self.units.phrases is not None and len(tokens):
            corpus = mark_phrases(corpus, self.units.phrases)
        return corpus

    def _encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return the N tokens of all sentences, the length of each, and if marked, the bits of `UnitStart`."""
        tokens, lengths, starts = [np.empty(0, np.int32)], [np.empty(0, np.int64)], [np.empty(0, np.uint8)]
        parts = [_parts(sentence) for sentence in sentences]
        with unknown_words_refused():
            for call in _calls(chain.from_iterable(parts)):
                ids, starts_of_call = self._encode_call(call)
                lengths.append(np.fromiter(map(len, ids), np.int64, len(ids)))
                tokens.append(np.fromiter(chain.from_iterable(ids), np.int32, lengths[-1].sum()))
                if self.units.are_marked:
                    starts_of_call = self.units.mark(tokens[-1], lengths[-1], starts_of_call)
                starts.append(starts_of_call)
        are_marked = self.word_segmenter is not None or self.units.are_marked
        lengths = np.concatenate(lengths)
        if len(lengths) > len(sentences):  # the parts of a sentence together
            lengths = np.diff(offsets_of(lengths)[offsets_of(np.array(list(map(len, parts))))])
        return np.concatenate(tokens), lengths, np.concatenate(starts) if are_marked else None

    def _encode_call(self, sentences: list[str]) -> tuple[list[list[int]], np.ndarray | None]:
        """Return the tokens of each sentence, and with a segmenter where words begin."""
        if self._slow is not None:
            options = {"add_special_tokens": False, "split_special_tokens": True, "truncation": False}
            return self._slow(sentences, padding=False, verbose=False, **options)[COLUMN], None
        if self.word_segmenter is None:
            encodings = self._fast.encode_batch_fast(sentences, add_special_tokens=False)
            return [encoding.ids for encoding in encodings], None
        encodings = self._fast.encode_batch(sentences, add_special_tokens=False)
        starts = [
            word_starts_of_tokens(sentence, self._words(sentence), encoding.offsets)
            for sentence, encoding in zip(sentences, encodings, strict=True)
        ]
        return [encoding.ids for encoding in encodings], np.concatenate(starts)

    def _words(self, sentence: str) -> list[str]:
        words = self.word_segmenter(sentence)
        if isinstance(words, str):
            raise ValueError(
                f"word_segmenter gives {words!r:.80} for {sentence!r:.80}, a str: it has to return a list of str, for "
                "example with split()."
            )
        return words


def tokenize_documents(
    documents: Iterable[list[str]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_sentence_tokens: int | None = None,
    word_segmenter: Callable[[str], list[str]] | None = None,
    lexicon: Sequence[str] | None = None,
    cache_dir: str | Path | None = None,
) -> datasets.Dataset:
    """Tokenize documents of sentences into a corpus on disk, with memory for a few documents at a time.

    Sentences without a token and documents left without one are dropped. No special token is added, and the name of
    one in the text (a literal `[SEP]`) is tokenized as text; the tokenizer's truncation and padding do not apply.

    Args:
        documents (`Iterable[list[str]]`): Sentences of one document each; read once.
        tokenizer (`PreTrainedTokenizerBase`): Any tokenizer; a fast one uses all cores.
        max_sentence_tokens (`int`, *optional*): Longer sentences are divided into parts of that many tokens and a
            shorter last one; a word may be divided. `None` divides none.
        word_segmenter (`Callable[[str], list[str]]`, *optional*): Takes a sentence and returns its words, which joined
            are the sentence up to white space, for masking whole words in text without spaces; `jieba.lcut` is one for
            Chinese.
        lexicon (`Sequence[str]`, *optional*): Names and terms, as in `prepare_corpus`.
        cache_dir (`str` or `Path`, *optional*): Folder for the corpus, about 4 bytes per token. `None` takes a
            temporary folder that is removed with the process (`save_to_disk` keeps a copy).

    Returns:
        `datasets.Dataset`: Memory mapped; `input_ids` of type `list<list<int32>>`, one row per document. With a
            segmenter or a lexicon also `word_starts` of type `list<list<uint8>>` and the same shape, bits of
            `UnitStart`: 1 where a token begins a word, 0 where it continues one; with a lexicon, 4 more where it
            begins an entity or a word outside of all, and 8 more for an entity.

    >>> tokenize_documents([["w5 w6", "w7 w8 w9"], ["w6"]], doctest_tokenizer(), max_sentence_tokens=2)["input_ids"][:]
    [[[5, 6], [7, 8], [9]], [[6]]]
    """
    options = {"max_sentence_tokens": max_sentence_tokens, "word_segmenter": word_segmenter, "lexicon": lexicon}
    tokenize = DocumentTokenizer(tokenizer, **options).table
    folder = Path(cache_dir or get_temporary_cache_files_directory())
    folder.mkdir(parents=True, exist_ok=True)
    progress = tqdm(documents, desc="Tokenizing", unit=" documents")
    with tempfile.TemporaryDirectory(dir=folder, prefix="corpus-") as scratch:
        unfinished = Path(scratch, "corpus.arrow")
        with ArrowWriter(path=str(unfinished)) as writer:
            for batch in document_batches(progress):
                table = tokenize(batch)
                if len(table):
                    writer.write_table(table)
            if not writer.pa_writer:
                raise ValueError(NO_TOKENS)
            writer.finalize()
        path = Path(f"{scratch}.arrow")  # of this name there is no other
        os.replace(unfinished, path)
    return datasets.Dataset.from_file(str(path))


def document_batches(documents: Iterable[list[str]]) -> Iterator[list[list[str]]]:
    """Yield lists of documents, each ended as soon as it has `CHARACTERS_PER_BATCH` characters.

    Raises:
        ValueError: If a document is not a list of `str`.
    """
    batch, characters = [], 0
    for number, document in enumerate(documents):
        if isinstance(document, str) or not all(isinstance(sentence, str) for sentence in document):
            raise ValueError(
                f"documents: document {number} is {document!r:.80}, not a list of str: give the sentences of each "
                "document, for example from read_documents or split_sentences."
            )
        batch.append(document)
        characters += sum(map(len, document)) + 1  # also for empty ones
        if characters >= CHARACTERS_PER_BATCH:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _parts(sentence: str) -> list[str]:
    """Divide a sentence at the first space after every `CHARACTERS_PER_PART` characters, at the latest after twice."""
    parts, begin = [], 0
    while len(sentence) - begin > CHARACTERS_PER_PART:
        space = _SPACE.search(sentence, begin + CHARACTERS_PER_PART, begin + 2 * CHARACTERS_PER_PART)
        end = space.start() if space else begin + 2 * CHARACTERS_PER_PART
        parts.append(sentence[begin:end])
        begin = end
    return [*parts, sentence[begin:]] if begin < len(sentence) or not parts else parts


def _calls(sentences: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of at most `SENTENCES_PER_CALL` sentences, ended as soon as they have `CHARACTERS_PER_PART`."""
    call, characters = [], 0
    for sentence in sentences:
        call.append(sentence)
        characters += len(sentence)
        if len(call) == SENTENCES_PER_CALL or characters >= CHARACTERS_PER_PART:
            yield call
            call, characters = [], 0
    if call:
        yield call


def _divided(lengths: np.ndarray, most: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Divide sentences into parts of at most `most` tokens: lengths of the parts, and parts per sentence.

    >>> _divided(np.array([3, 0, 7, 4]), most=4)
    (array([3, 4, 3, 4]), array([1, 0, 2, 1]))
    """
    if most is None:
        return lengths[lengths > 0], (lengths > 0).astype(np.int64)
    parts = -(-lengths // most)
    part_lengths = np.full(parts.sum(), most)
    last_parts = np.cumsum(parts)[parts > 0] - 1
    part_lengths[last_parts] = (lengths - (parts - 1) * most)[parts > 0]
    return part_lengths, parts


def split_train_validation(
    dataset: datasets.Dataset, validation_share: float, seed: int
) -> tuple[datasets.Dataset, datasets.Dataset]:
    """Divide a corpus at random into training and validation documents; both parts keep the order.

    `validation_share` is a share of the documents in (0, 1); both parts get at least one. The same seed, share and
    number of documents give the same rows.
    """
    if not 0 < validation_share < 1:
        raise ValueError(f"validation_share={validation_share} must lie between 0 and 1, for example 0.01.")
    if len(dataset) < 2:
        raise ValueError(
            f"dataset has {len(dataset)} document(s), and a split needs two: separate documents by blank lines in "
            "the text."
        )
    num_validation = min(max(round(len(dataset) * validation_share), 1), len(dataset) - 1)
    order = np.random.default_rng(seed).permutation(len(dataset))
    validation, training = np.sort(order[:num_validation]), np.sort(order[num_validation:])
    return dataset.select(training), dataset.select(validation)
