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

from hf_encoders.corpus.special_tokens import check_offsets


CHUNK = 1000  # sentences tokenized at once


@dataclass
class WordWindow:
    """A sentence, or a segment of one, as the head reads it; T tokens."""

    sentence: int  # its index
    input_ids: list[int]  # with special tokens
    words: dict[int, list[int]]  # index of each word that counts here -> positions of its tokens, the first labelled
    token_type_ids: list[int] | None = None  # where one is above 0: XLNet's <cls> has one of its own


def word_windows(
    sentences: list[list[str]], tokenizer: PreTrainedTokenizerBase, max_length: int, overlap: int | None = None
) -> Iterator[WordWindow]:
    """Sentences to windows of at most `max_length` tokens; words without a token are in no window.

    `overlap` is the number of tokens shared by neighbouring windows, by default a third of `max_length`.

    >>> [window.words for window in word_windows([["w5", "w6", "w7", "w8"]], doctest_tokenizer(), 3, overlap=1)]
    [{0: [0], 1: [1], 2: [2]}, {3: [1]}]
    """
    check_offsets(tokenizer, "the label of a word", "classify whole texts")
    overlap = max_length // 3 if overlap is None else overlap
    room = max_length - tokenizer.num_special_tokens_to_add(pair=False)
    if not 0 <= overlap < room:
        raise ValueError(
            f"--window-overlap {overlap}: must be from 0 to {room - 1} for windows of {max_length} tokens."
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
            return_token_type_ids=True,
        )
        rows = range(len(encoded["input_ids"]))
        for index, group in groupby(rows, key=lambda row: encoded["overflow_to_sample_mapping"][row]):
            windows, (number, words) = list(group), part[index]
            kept = words_of_windows(words, [encoded["offset_mapping"][row] for row in windows])
            for row, found in zip(windows, kept, strict=True):
                types = encoded["token_type_ids"][row]
                yield WordWindow(number, encoded["input_ids"][row], found, types if any(types) else None)


def words_of_windows(words: list[str], windows: list[list[tuple[int, int]]]) -> list[dict[int, list[int]]]:
    """`WordWindow.words` of each window of a sentence, from the character offsets of its tokens."""
    text = " ".join(words)
    starts = list(accumulate((len(word) + 1 for word in words[:-1]), initial=0))
    positions: list[dict[int, list[int]]] = []
    # Word -> first character, negative context, window: the least one counts.
    best: dict[int, tuple[int, int, int]] = {}
    for number, offsets in enumerate(windows):
        positions.append({})
        for position, (start, end) in enumerate(offsets):
            start += len(text[start:end]) - len(text[start:end].lstrip())
            if start == end:  # special tokens, and tokens of spaces
                continue
            word = bisect_right(starts, start) - 1
            if word not in positions[-1]:
                found = (start, -min(position, len(offsets) - 1 - position), number)
                best[word] = min(found, best.get(word, found))
            positions[-1].setdefault(word, []).append(position)
    return [
        {word: places for word, places in found.items() if best[word][2] == number}
        for number, found in enumerate(positions)
    ]
