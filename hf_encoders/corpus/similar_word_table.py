"""Words that may stand for each other, for masking without a mask token (MacBERT).

A word is a tuple of token ids, so the table serves any tokenizer and language. Similar words have the same number of
tokens: another length would move positions, labels and the ends of segments.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.flat_corpus import offsets_of
from hf_encoders.corpus.special_tokens import tokenizer_fingerprint


SIMILAR_WORDS_FILE = "similar_words.safetensors"  # next to the corpus
FILE_ARRAYS = ("tokens", "lengths", "similar", "counts")
REMEDY = "restore it, or make it again with `hf-encoders corpus --similar-words build`"

Word = tuple[int, ...]  # token ids


class SimilarWords:
    """Words, and the similar words of each.

    Args:
        words (`Sequence[Word]`): All words, such as the most frequent first; no word twice.
        table (`Mapping[Word, Sequence[Word]]`): Similar words of words that have some: other words, of as many tokens.
        tokenizer (`str`): `tokenizer_fingerprint` of the tokenizer.

    >>> words = SimilarWords.of({(10,): [(11,), (12,)], (20, 21): [(22, 23)]}, doctest_tokenizer())
    >>> words
    SimilarWords(5 words, 2 with similar ones, 1.5 on average)
    >>> [word.tolist() for word in words.similar([20, 21])], words.similar([30])
    ([[22, 23]], [])
    >>> words.random_word(2, np.random.default_rng(0)).tolist(), words.random_word(3, np.random.default_rng(0))
    ([22, 23], None)
    """

    def __init__(self, words: Sequence[Word], table: Mapping[Word, Sequence[Word]], tokenizer: str):
        self.words = list(words)
        self.table = {word: list(table[word]) for word in self.words if table.get(word)}
        self.tokenizer = tokenizer
        self._by_length: dict[int, list[Word]] = {}
        for word in self.words:
            self._by_length.setdefault(len(word), []).append(word)

    @classmethod
    def of(
        cls, table: Mapping[Sequence[int], Iterable[Sequence[int]]], tokenizer: PreTrainedTokenizerBase
    ) -> "SimilarWords":
        """Make the table of words, token ids, and the similar words of each.

        Raises:
            ValueError: for a word without a token, with a special token, or with one that the tokenizer does not have;
                and for a similar word with another number of tokens.
        """
        table = {tuple(word): [tuple(other) for other in similar] for word, similar in table.items()}
        words = list(dict.fromkeys([*table, *(other for similar in table.values() for other in similar)]))
        known = set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids)
        for word in words:
            if not word or not known.issuperset(word):
                raise ValueError(f"similar words: {word} is no word of this tokenizer: use ids of ordinary tokens.")
        for word, similar in table.items():
            for other in similar:
                if len(other) != len(word) or other == word:
                    raise ValueError(
                        f"similar words: {other} cannot stand for {word}: it must be another of as many tokens."
                    )
        return cls(words, table, tokenizer_fingerprint(tokenizer))

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        mean = sum(map(len, self.table.values())) / max(len(self.table), 1)
        return f"SimilarWords({len(self):,} words, {len(self.table):,} with similar ones, {mean:.1f} on average)"

    def similar(self, word: Sequence[int]) -> list[np.ndarray]:
        """Return the words that may stand for a word of L token ids, `int32` of shape `(L,)` each."""
        return [np.array(other, dtype=np.int32) for other in self.table.get(tuple(np.asarray(word).tolist()), ())]

    def random_word(self, length: int, generator: np.random.Generator) -> np.ndarray | None:
        """Draw any word of `length` tokens, each as likely, `int32`; `None` if there is none."""
        words = self._by_length.get(length)
        return np.array(words[generator.integers(len(words))], dtype=np.int32) if words else None

    @property
    def fingerprint(self) -> str:
        """Hash of the table and its tokenizer, 32 hexadecimal digits."""
        digest = hashlib.blake2b(self.tokenizer.encode(), digest_size=16)
        for name, values in self._arrays().items():
            digest.update(values.astype(np.int32 if name == "tokens" else np.int64).tobytes())
        return digest.hexdigest()

    def _arrays(self) -> dict[str, np.ndarray]:
        """Return all tokens, tokens of each word, numbers of its similar words, and how many these are; `int32`."""
        numbers = {word: number for number, word in enumerate(self.words)}
        similar = [self.table.get(word, ()) for word in self.words]
        values = (
            [token for word in self.words for token in word],
            [len(word) for word in self.words],
            [numbers[other] for alike in similar for other in alike],
            [len(alike) for alike in similar],
        )
        return {name: np.array(array, dtype=np.int32) for name, array in zip(FILE_ARRAYS, values, strict=True)}

    def save(self, folder: str | Path) -> Path:
        """Write `similar_words.safetensors` into a folder, atomically."""
        path = Path(folder) / SIMILAR_WORDS_FILE
        unfinished = path.with_name(f"_{path.name}")
        save_file(self._arrays(), unfinished, {"tokenizer": self.tokenizer})
        os.replace(unfinished, path)
        return path

    @classmethod
    def load(cls, folder: str | Path, tokenizer: PreTrainedTokenizerBase | None = None) -> "SimilarWords":
        """Read `similar_words.safetensors` from a folder.

        Raises:
            ValueError: if there is none, it is damaged, or it is of another tokenizer than the given one.
        """
        path = Path(folder) / SIMILAR_WORDS_FILE
        if not path.is_file():
            raise ValueError(
                f"{path} is missing: give the `hf-encoders corpus` command of this corpus again, with --similar-words "
                "build (or a FILE of your own), which adds it."
            )
        try:
            with safe_open(path, framework="numpy") as file:
                made_with = (file.metadata() or {})["tokenizer"]
                tokens, lengths, similar, counts = (file.get_tensor(name).tolist() for name in FILE_ARRAYS)
            words = [tuple(tokens[begin:end]) for begin, end in pairwise(offsets_of(lengths).tolist())]
            bounds = zip(words, pairwise(offsets_of(counts).tolist()), strict=True)
            table = {word: [words[number] for number in similar[begin:end]] for word, (begin, end) in bounds}
        except (SafetensorError, KeyError, IndexError, ValueError) as error:
            raise ValueError(f"{path} is damaged ({error}): {REMEDY}.") from error
        loaded = cls(words, table, made_with)
        if tokenizer is not None:
            loaded.check_tokenizer(tokenizer, str(path))
        return loaded

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase, name: str = "similar_words") -> None:
        """Raise ValueError if the table, called `name`, was made with another tokenizer."""
        if tokenizer_fingerprint(tokenizer) != self.tokenizer:
            raise ValueError(
                f"{name} was made with another tokenizer: give the one of its corpus, or make the table again with "
                "`hf-encoders corpus --similar-words build`."
            )


def join_similar_words(tables: Sequence[SimilarWords]) -> SimilarWords:
    """Join tables of one tokenizer; a word has the similar words of the first table where it has some.

    >>> first = SimilarWords.of({(10,): [(11,)]}, doctest_tokenizer())
    >>> second = SimilarWords.of({(10,): [(12,)], (12,): [(11,)]}, doctest_tokenizer())
    >>> joined = join_similar_words([first, second])
    >>> joined.words, joined.table
    ([(10,), (11,), (12,)], {(10,): [(11,)], (12,): [(11,)]})
    """
    if len({table.tokenizer for table in tables}) > 1:
        raise ValueError("similar words: tables of different tokenizers cannot be joined.")
    joined: dict[Word, list[Word]] = {}
    for table in reversed(tables):
        joined |= table.table
    words = dict.fromkeys(word for table in tables for word in table.words)
    return SimilarWords(list(words), joined, tables[0].tokenizer)
