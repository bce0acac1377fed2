"""Words to tokens, and tokens back to words: each word is labelled, and counted, exactly once.

A sentence is tokenized as text, its words joined by single spaces, and a token belongs to the word that contains its
first character (apart from spaces). This works for every kind of tokenizer: byte-level BPE sees the spaces that it saw
in pre-training, which it would not with `is_split_into_words` and without `add_prefix_space`.

A sentence longer than the encoder takes becomes overlapping windows. A word that begins in several of them counts in
the one where its nearest border is farthest away, as in BERT's `run_squad.py`; in the earlier one if equal.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, groupby

from transformers import PreTrainedTokenizerBase


CHUNK = 1000  # sentences tokenized at once


@dataclass
class WordWindow:
    """A sentence, or a segment of one, as the head reads it; T tokens.

    Args:
        sentence (`int`): Index of the sentence.
        input_ids (`list` of `int`): T token ids with special tokens.
        words (`dict`): Index of each word that counts in this window -> positions of its tokens, the first of which
            stands for the word.
    """

    sentence: int
    input_ids: list[int]
    words: dict[int, list[int]]


def word_windows(
    sentences: list[list[str]], tokenizer: PreTrainedTokenizerBase, max_length: int, overlap: int | None = None
) -> Iterator[WordWindow]:
    """Sentences to windows of at most `max_length` tokens; words without a token are in no window.

    Args:
        sentences (`list` of `list` of `str`): Words.
        tokenizer (`PreTrainedTokenizerBase`): Of the encoder.
        max_length (`int`): Tokens of a window, with special tokens.
        overlap (`int`, *optional*): Tokens shared by neighbouring windows, defaults to a third of `max_length`.

    >>> [window.words for window in word_windows([["w5", "w6", "w7", "w8"]], doctest_tokenizer(), 3, overlap=1)]
    [{0: [0], 1: [1], 2: [2]}, {3: [1]}]

    Raises:
        ValueError: For a slow tokenizer, and an overlap as long as a window.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} has no character offsets: use a fast tokenizer (of the library tokenizers)."
        )
    overlap = max_length // 3 if overlap is None else overlap
    room = max_length - tokenizer.num_special_tokens_to_add(pair=False)
    if not 0 <= overlap < room:
        raise ValueError(
            f"--window-overlap {overlap}: a window of {max_length} tokens has room for {room} of a sentence; the "
            f"overlap must be from 0 to {room - 1}."
        )
    numbered = [(number, words) for number, words in enumerate(sentences) if words]
    for start in range(0, len(numbered), CHUNK):
        part = numbered[start : start + CHUNK]
        encoded = tokenizer(
            [" ".join(words) for _, words in part],
            truncation=True,
            max_length=max_length,
            stride=overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        rows = range(len(encoded["input_ids"]))
        for index, group in groupby(rows, key=lambda row: encoded["overflow_to_sample_mapping"][row]):
            windows, (number, words) = list(group), part[index]
            text_words = _TextWords(words)
            columns = [text_words.columns(encoded["offset_mapping"][row]) for row in windows]
            chosen = _chosen_windows(columns)
            for row, found in zip(windows, columns, strict=True):
                kept = {word: found.of_word[word] for word in found.of_word if chosen.get(word) is found}
                yield WordWindow(number, encoded["input_ids"][row], kept)


@dataclass(eq=False)
class _Columns:
    """The words of a window: positions of their tokens, and the character where the first of these begins."""

    of_word: dict[int, list[int]]
    first_characters: dict[int, int]
    num_columns: int


class _TextWords:
    """Words joined by single spaces, and the word of each character."""

    def __init__(self, words: list[str]):
        self.text = " ".join(words)
        self.starts = list(accumulate((len(word) + 1 for word in words[:-1]), initial=0))

    def columns(self, offsets: list[tuple[int, int]]) -> _Columns:
        """The words of a window from the character offsets of its tokens; special tokens have empty ones."""
        found = _Columns({}, {}, len(offsets))
        for column, (start, end) in enumerate(offsets):
            start += len(self.text[start:end]) - len(self.text[start:end].lstrip())
            if start < end:
                word = bisect_right(self.starts, start) - 1
                found.of_word.setdefault(word, []).append(column)
                found.first_characters.setdefault(word, start)
        return found


def _chosen_windows(windows: list[_Columns]) -> dict[int, _Columns]:
    """The window that each word counts in: of those with its first token, the one with the most context."""
    begins: dict[int, int] = {}
    for window in windows:
        for word, character in window.first_characters.items():
            begins[word] = min(character, begins.get(word, character))
    chosen: dict[int, tuple[int, _Columns]] = {}
    for window in windows:
        for word, columns in window.of_word.items():
            if window.first_characters[word] == begins[word]:
                around = min(columns[0], window.num_columns - 1 - columns[0])
                if word not in chosen or around > chosen[word][0]:
                    chosen[word] = (around, window)
    return {word: window for word, (_, window) in chosen.items()}
