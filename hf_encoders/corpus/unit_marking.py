"""Units longer than words, as bits of the column `word_starts`: entities of a lexicon, and phrases.

Entities are marked where text is tokenized, in every process; phrases when shards are merged, since they may be
learned from them. A phrase is made of words outside of entities, so that it never cuts one; each entity is one phrase.
"""

from dataclasses import dataclass

import numpy as np

from hf_encoders.corpus.arrow_file import SentenceBatch
from hf_encoders.corpus.lexicon import Lexicon
from hf_encoders.corpus.ragged import offsets_of, ranges
from hf_encoders.corpus.word_starts import UnitStart, WordStarts


WORD, PHRASE, ENTITY, LISTED = map(np.uint8, UnitStart)


@dataclass(frozen=True)
class EntityMarker:
    """Marks words and entities in sentences of token ids.

    Args:
        words (`WordStarts` or `None`): Finds the tokenizer's words; `None` where a segmenter has found others.
        lexicon (`Lexicon` or `None`): Names and terms.
    """

    words: WordStarts | None
    lexicon: Lexicon | None

    def __call__(self, ids: np.ndarray, lengths: np.ndarray, word_starts: np.ndarray | None) -> np.ndarray:
        """Bits of `UnitStart`, `uint8` of shape `(N,)`.

        >>> marker = EntityMarker(WordStarts(doctest_tokenizer()), Lexicon(["w5 w6"], doctest_tokenizer()))
        >>> marker(np.array([9, 5, 6, 9, 5]), np.array([4, 1]), None).tolist()  # w9, w5 w6, w9; w5
        [5, 13, 1, 5, 5]
        """
        begins_sentence = begins_of(lengths, len(ids))
        if self.words is not None:
            word_starts = self.words(ids, begins_sentence)
        begins_word = (word_starts != 0) | begins_sentence
        bits = begins_word * WORD
        if self.lexicon is not None:
            bits[begins_word] |= ENTITY
            first, end = self.lexicon.find(ids, begins_word, begins_sentence)
            bits[ranges(first + 1, end)] &= ~ENTITY
            bits[first] |= LISTED
        return bits


def mark_phrases(block: SentenceBatch, phrases: Lexicon) -> SentenceBatch:
    """The documents with the bit `PHRASE`, which phrases, entities and other words begin with.

    >>> block = SentenceBatch(np.array([5, 6, 7, 8]), np.array([4]), np.array([1]), np.array([1, 1, 1, 1], np.uint8))
    >>> mark_phrases(block, Lexicon(["w6 w7"], doctest_tokenizer())).word_starts.tolist()
    [3, 3, 1, 3]
    """
    bits = block.word_starts & ~PHRASE
    begins_sentence = begins_of(block.sentence_lengths, len(bits))
    begins_word = (bits & WORD) != 0
    is_in_entity = in_entities(bits)
    begins_unit = begins_word & ~is_in_entity | ((bits & LISTED) != 0)
    first, end = phrases.find(block.tokens, begins_word, begins_sentence, ~is_in_entity)
    bits[begins_unit] |= PHRASE
    bits[ranges(first + 1, end)] &= ~PHRASE
    return block._replace(word_starts=bits)


def in_entities(bits: np.ndarray) -> np.ndarray:
    """Whether a token is in an entity of the lexicon, `bool` of shape `(N,)`, from bits that begin with a unit.

    >>> in_entities(np.array([5, 13, 1, 5], np.uint8)).tolist()
    [False, True, True, False]
    """
    begins = np.flatnonzero(bits & ENTITY)
    if not len(begins):
        return np.zeros(len(bits), dtype=bool)
    return np.repeat((bits[begins] & LISTED) != 0, np.diff(np.append(begins, len(bits))))


def begins_of(lengths: np.ndarray, total: int) -> np.ndarray:
    """True at the first token of each sentence, `bool` of shape `(total,)`; sentences may be empty.

    >>> begins_of(np.array([2, 0, 1]), 3).tolist()
    [True, False, True]
    """
    begins = np.zeros(total + 1, dtype=bool)
    begins[offsets_of(lengths)[:-1]] = True
    return begins[:-1]


def begin_units_at(bits: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The bits, with those of all levels at the first token of every sentence that has one.

    >>> begin_units_at(np.array([5, 13, 0, 1, 5], np.uint8), np.array([2, 3, 0])).tolist()
    [5, 13, 5, 1, 5]
    """
    bits = bits.copy()
    bits[offsets_of(lengths)[:-1][lengths > 0]] |= bits[0] & ~LISTED
    return bits
