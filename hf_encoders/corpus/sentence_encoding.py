"""Documents of sentences to blocks of token ids, with the words of a segmenter where one is given."""

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.arrow_file import COLUMN, SentenceBatch
from hf_encoders.corpus.ragged import offsets_of
from hf_encoders.corpus.segmentation import replace_lone_surrogates
from hf_encoders.corpus.special_tokens import check_offsets, check_tokenizer, unknown_words_refused
from hf_encoders.corpus.units import EntityMarker, begin_units_at
from hf_encoders.corpus.word_starts import word_starts_of_tokens


SENTENCES_PER_CALL = 2000  # sentences per call of the tokenizer
# Documents are collected until they have this many characters, and longer sentences are tokenized in parts of this
# many: what the tokenizer returns takes 100 bytes and more per byte of text.
CHARACTERS_PER_BLOCK = CHARACTERS_PER_PART = 2**18

_SPACE = re.compile(r"(?<=\S)\s")


class Encoded(NamedTuple):
    """Tokens of several sentences."""

    tokens: np.ndarray  # int32, (N,)
    lengths: np.ndarray  # int64, tokens of each sentence
    word_starts: np.ndarray | None  # uint8, (N,), bits of `UnitStart`


def make_encoder(
    tokenizer: PreTrainedTokenizerBase,
    word_segmenter: Callable[[str], list[str]] | None = None,
    marker: EntityMarker | None = None,
) -> Callable[[list[str]], Encoded]:
    """A function from sentences to ids, without special tokens, truncation, padding or warnings about length.

    The tokenizer is not changed. A word segmenter adds word starts, and so does a marker; with a slow tokenizer, a
    segmenter is a `ValueError`.
    """
    check_tokenizer(tokenizer)
    if marker is not None:
        encode_words = make_encoder(tokenizer, word_segmenter)

        def encode_units(sentences: list[str]) -> Encoded:
            encoded = encode_words(sentences)
            return encoded._replace(word_starts=marker(*encoded))

        return encode_units
    if tokenizer.is_fast:
        # A copy, because the tokenizer keeps truncation and padding from its last call or its file.
        backend = copy.deepcopy(tokenizer.backend_tokenizer)
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        if word_segmenter is None:
            return lambda sentences: _encoded(
                [encoding.ids for encoding in backend.encode_batch_fast(sentences, add_special_tokens=False)]
            )

        def encode(sentences: list[str]) -> Encoded:
            encodings = backend.encode_batch(sentences, add_special_tokens=False)
            starts = [
                word_starts_of_tokens(sentence, _words(sentence, word_segmenter), encoding.offsets)
                for sentence, encoding in zip(sentences, encodings, strict=True)
            ]
            return _encoded([encoding.ids for encoding in encodings], starts)

        return encode
    if word_segmenter is not None:
        check_offsets(tokenizer, "a word segmenter", "leave word_segmenter out")
    options = {"add_special_tokens": False, "split_special_tokens": True, "truncation": False, "padding": False}
    return lambda sentences: _encoded(tokenizer(sentences, verbose=False, **options)[COLUMN])


def _words(sentence: str, word_segmenter: Callable[[str], list[str]]) -> list[str]:
    words = word_segmenter(sentence)
    if isinstance(words, str):
        raise ValueError(
            f"word_segmenter gives {words!r:.80} for {sentence!r:.80}, a str: it has to return a list of str, for "
            "example with split()."
        )
    return words


def tokenized_blocks(
    documents: Iterable[list[str]],
    encode: Callable[[list[str]], Encoded],
    max_sentence_tokens: int | None,
    are_turns: bool = False,
) -> Iterator[SentenceBatch]:
    """Tokenize documents; sentences without a token are left out, except in dialogues, whose turns keep their places.

    Documents without a sentence are left out.
    """
    for batch in _batches(documents):
        sentences = [replace_lone_surrogates(sentence) for document in batch for sentence in document]
        with unknown_words_refused():
            encoded = _encode_in_calls(sentences, encode)
        lengths, parts = encoded.lengths, np.ones_like(encoded.lengths)
        if not are_turns:
            lengths, parts = _divided(lengths, max_sentence_tokens)
        document_lengths = np.diff(offsets_of(parts)[offsets_of(np.array([len(document) for document in batch]))])
        if len(encoded.tokens):
            # A divided sentence divides its units.
            starts = None if encoded.word_starts is None else begin_units_at(encoded.word_starts, lengths)
            yield SentenceBatch(encoded.tokens, lengths, document_lengths[document_lengths > 0], starts)


def check_max_sentence_tokens(max_sentence_tokens: int | None) -> None:
    """Refuse a limit below 1."""
    if max_sentence_tokens is not None and max_sentence_tokens < 1:
        raise ValueError(
            f"max_sentence_tokens={max_sentence_tokens} must be at least 1, or None to divide no sentence."
        )


def _encoded(ids: list[list[int]], word_starts: list[np.ndarray] | None = None) -> Encoded:
    lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
    tokens = np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=lengths.sum())
    starts = None if word_starts is None else np.concatenate([np.empty(0, np.uint8), *word_starts])
    return Encoded(tokens, lengths, starts)


def _encode_in_calls(sentences: list[str], encode: Callable[[list[str]], Encoded]) -> Encoded:
    """Encode in calls of limited size."""
    parts, num_parts = sentences, None
    if any(len(sentence) > CHARACTERS_PER_PART for sentence in sentences):
        divided = [_parts(sentence) for sentence in sentences]
        parts, num_parts = [part for one in divided for part in one], [len(one) for one in divided]
    calls = [encode(call) for call in _calls(parts)]
    lengths = np.concatenate([call.lengths for call in calls])
    if num_parts is not None:
        lengths = np.diff(offsets_of(lengths)[offsets_of(np.array(num_parts))])
    starts = None if calls[0].word_starts is None else np.concatenate([call.word_starts for call in calls])
    return Encoded(np.concatenate([call.tokens for call in calls]), lengths, starts)


def _parts(sentence: str) -> list[str]:
    """Divide a sentence at the first space after every `CHARACTERS_PER_PART` characters, at the latest after twice."""
    parts, begin = [], 0
    while len(sentence) - begin > CHARACTERS_PER_PART:
        space = _SPACE.search(sentence, begin + CHARACTERS_PER_PART, begin + 2 * CHARACTERS_PER_PART)
        end = space.start() if space else begin + 2 * CHARACTERS_PER_PART
        parts.append(sentence[begin:end])
        begin = end
    return [*parts, sentence[begin:]] if begin < len(sentence) else parts


def _calls(sentences: list[str]) -> Iterator[list[str]]:
    """Lists of at most `SENTENCES_PER_CALL` sentences, ended as soon as they have `CHARACTERS_PER_PART` characters."""
    call, characters = [], 0
    for sentence in sentences:
        call.append(sentence)
        characters += len(sentence)
        if len(call) == SENTENCES_PER_CALL or characters >= CHARACTERS_PER_PART:
            yield call
            call, characters = [], 0
    if call:
        yield call


def _batches(documents: Iterable[list[str]]) -> Iterator[list[list[str]]]:
    """Lists of documents, each of at least `CHARACTERS_PER_BLOCK` characters or `SENTENCES_PER_CALL` sentences."""
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
        if characters >= CHARACTERS_PER_BLOCK or num_sentences >= SENTENCES_PER_CALL:
            yield batch
            batch, characters, num_sentences = [], 0, 0
    if batch:
        yield batch


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
