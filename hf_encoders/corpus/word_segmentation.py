"""Word beginnings in text without spaces, from a word segmenter.

A segmenter is a `Callable[[str], list[str]]`: it takes one sentence and returns its words in order. Joined, they are
the sentence, with or without its white space.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np


def jieba_segmenter(entries: Sequence[str] = ()) -> Callable[[str], list[str]]:
    """The Chinese segmenter of the package `jieba`, with its dictionary loaded; a `ValueError` if not installed.

    `entries` are words or names that are added to its dictionary, so that it does not cut them.
    """
    try:
        import jieba
    except ImportError as error:
        raise ValueError(
            "word_segmenter='jieba': the package jieba is not installed: pip install 'hf_encoders[chinese]', or pass "
            "your own function as word_segmenter."
        ) from error
    jieba.setLogLevel(logging.WARNING)
    if entries := tuple(entry for entry in entries if not any(map(str.isspace, entry))):
        return JiebaWithEntries(entries)
    jieba.initialize()
    return jieba.lcut


class JiebaWithEntries:
    """`jieba.lcut` with entries added to a dictionary of its own; pickled and compared by the entries."""

    def __init__(self, entries: tuple[str, ...]):
        import jieba

        self.entries = entries
        words = jieba.Tokenizer()
        words.initialize()
        for entry in entries:
            words.add_word(entry)
        self.lcut = words.lcut

    def __call__(self, sentence: str) -> list[str]:
        """The words of a sentence."""
        return self.lcut(sentence)

    def __reduce__(self) -> tuple[type["JiebaWithEntries"], tuple[tuple[str, ...]]]:
        return JiebaWithEntries, (self.entries,)


def words_of_characters(sentence: str, words: list[str]) -> np.ndarray:
    """Index of the word that each of the C characters belongs to; white space belongs to the next word.

    Ascending from 0, `int64` of shape `(C,)`. Words that are not the sentence are a `ValueError`.

    >>> words_of_characters("中国 人民a", ["中国", "人民", "a"])
    array([0, 0, 1, 1, 1, 2])
    """
    solid = ["".join(word.split()) for word in words]
    if "".join(solid) != "".join(sentence.split()):
        raise ValueError(
            f"word_segmenter gives {words!r:.80} for {sentence!r:.80}: joined, its words must be the sentence (white "
            "space is ignored)."
        )
    numbers = np.repeat(np.arange(len(solid)), [len(word) for word in solid])
    if len(numbers) == len(sentence):
        return numbers
    if len(numbers) == 0:
        return np.zeros(len(sentence), dtype=np.int64)
    is_solid = np.fromiter((not character.isspace() for character in sentence), dtype=bool, count=len(sentence))
    return numbers[np.minimum(np.cumsum(is_solid) - is_solid, len(numbers) - 1)]


def word_starts_of_tokens(sentence: str, words: list[str], offsets: list[tuple[int, int]]) -> np.ndarray:
    """1 where a token begins a word, 0 where it continues the word of the token before.

    A token belongs to the word of its first character that is not white space: a character divided into several tokens
    begins one word, and after a token that crosses a word boundary, the rest of the second word begins a word.

    `offsets` are the first character in the sentence (not normalized), and the one after the last, of T tokens. The
    result is `uint8` of shape `(T,)`.

    >>> word_starts_of_tokens("我们学习", ["我们", "学习"], [(0, 1), (1, 2), (2, 3), (3, 4)])
    array([1, 0, 1, 0], dtype=uint8)
    """
    if not offsets:
        return np.empty(0, dtype=np.uint8)
    characters = words_of_characters(sentence, words)
    begins = np.fromiter(chain.from_iterable(offsets), dtype=np.int64, count=2 * len(offsets))[::2]
    words_of_tokens = characters[np.minimum(begins, len(characters) - 1)]
    return (np.diff(words_of_tokens, prepend=-1) != 0).astype(np.uint8)
