"""Text to a tokenised corpus on disk: documents of sentences of token ids, and what can be told about them.

A corpus is a `datasets.Dataset` with one column, `input_ids`: a row is a document, a list in it a sentence, without
special tokens. The readers of `segmentation.py`, which can be imported from here too, give documents,
`tokenize_documents` makes the corpus of them, `SentenceStore` looks at it as flat arrays.

Leaves out: filtering, deduplication and shuffling, which `datasets` or an engine for text at scale do before.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import datasets
import numpy as np
from datasets.fingerprint import get_temporary_cache_files_directory
from datasets.utils import tqdm
from transformers import PreTrainedTokenizerBase

from hf_encoders.data.randomness import example_keys
from hf_encoders.data.segmentation import documents_from_dataset, read_documents, replace_lone_surrogates
from hf_encoders.data.sentence_store import COLUMN, SentenceBatch, SentenceStore, offsets_of, write_corpus


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

SENTENCES_A_CALL = 2000  # sentences a call of the tokenizer
CHARACTERS_A_BLOCK = 2**20  # characters collected before the tokenizer is called; a document is never divided
TOKENS_A_STEP = 2**18  # tokens that statistics look at at once


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
    return write_corpus(_tokenized_blocks(progress, _encoder(tokenizer), max_sentence_tokens), directory)


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
) -> Iterator[SentenceBatch]:
    is_empty = True
    for batch in _batches(documents):
        sentences = [replace_lone_surrogates(sentence) for document in batch for sentence in document]
        tokens, lengths = [], []
        for i in range(0, len(sentences), SENTENCES_A_CALL):
            ids = encode(sentences[i : i + SENTENCES_A_CALL])
            tokens.append(np.fromiter(chain.from_iterable(ids), dtype=np.int32))
            lengths += map(len, ids)
        piece_lengths, num_pieces = _pieces(np.array(lengths, dtype=np.int64), max_sentence_tokens)
        pieces_before = offsets_of(num_pieces)[offsets_of(np.array([len(document) for document in batch]))]
        document_lengths = np.diff(pieces_before)
        block = SentenceBatch(np.concatenate(tokens), piece_lengths, document_lengths[document_lengths > 0])
        if len(block.tokens):
            is_empty = False
            yield SentenceBatch(*(array.astype(np.int32, copy=False) for array in block))
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
