"""Words that may stand for each other, for masking without a mask token (MacBERT).

A word is a tuple of token ids, so the table serves any tokenizer and language. Similar words have the same number of
tokens: another length would move positions, labels and the ends of segments.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.ragged import hashes_of_rows, offsets_of, ranges
from hf_encoders.corpus.settings import tokenizer_fingerprint


SIMILAR_WORDS_FILE = "similar_words.safetensors"  # beside the corpus
REMEDY = "restore it, or make it again with `hf-encoders corpus --similar-words build`"


@dataclass(frozen=True, eq=False, repr=False)
class SimilarWords:
    """W words, and for each of them similar ones.

    Args:
        tokens (`np.ndarray` of `int32`, shape `(M,)`): Token ids of all words, concatenated; no word twice.
        lengths (`np.ndarray` of integers, shape `(W,)`): Tokens of each word, at least 1.
        similar (`np.ndarray` of integers, shape `(S,)`): Similar words of each word, as numbers of words in [0, W),
            concatenated. They have as many tokens as the word, and are others.
        counts (`np.ndarray` of integers, shape `(W,)`): Similar words of each word; 0 for a word that only stands for
            others.
        tokenizer (`str`): `tokenizer_fingerprint` of the tokenizer.

    Raises:
        ValueError: if the arrays do not fit together.

    >>> table = SimilarWords.of({(10,): [(11,), (12,)], (20, 21): [(22, 23)]}, doctest_tokenizer())
    >>> table
    SimilarWords(5 words, 2 with similar ones, 1.5 on average)
    >>> ids = np.array([1, 20, 21, 10, 30, 2])  # [CLS], two tokens of a word, two words of one token, [SEP]
    >>> words = table.find(ids, begin=np.array([1, 3, 4]), end=np.array([3, 4, 5]))
    >>> table.has_similar(words).tolist()
    [True, True, False]
    >>> table.tokens_of(table.choose_similar(words[:2], np.array([0.0, 0.9]))).tolist()
    [22, 23, 12]
    """

    tokens: np.ndarray
    lengths: np.ndarray
    similar: np.ndarray
    counts: np.ndarray
    tokenizer: str
    # Made of them: first token and first similar word of each word; hashes in ascending order, and of which words.
    offsets: np.ndarray = field(init=False)
    similar_offsets: np.ndarray = field(init=False)
    hashes: np.ndarray = field(init=False)
    by_hash: np.ndarray = field(init=False)
    by_length: np.ndarray = field(init=False)  # words in order of their lengths

    def __post_init__(self):
        kinds = {"tokens": np.int32, "lengths": np.int64, "similar": np.int64, "counts": np.int64}
        for name, kind in kinds.items():
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=kind))
        if len(self.lengths) != len(self.counts) or self.lengths.min(initial=1) < 1 or self.counts.min(initial=0) < 0:
            raise ValueError("similar words: lengths must be at least 1, counts at least 0, and one per word.")
        made = {"offsets": offsets_of(self.lengths), "similar_offsets": offsets_of(self.counts)}
        for name, of, values in (
            ("tokens", "lengths", made["offsets"]),
            ("similar", "counts", made["similar_offsets"]),
        ):
            if len(getattr(self, name)) != values[-1]:
                raise ValueError(f"similar words: {len(getattr(self, name))} {name}, but {of} sum to {values[-1]}.")
        words = np.repeat(np.arange(len(self)), self.counts)
        if self.similar.min(initial=0) < 0 or self.similar.max(initial=-1) >= len(self):
            raise ValueError(f"similar words: numbers of words must be in [0, {len(self)}).")
        if (self.lengths[words] != self.lengths[self.similar]).any() or (words == self.similar).any():
            raise ValueError("similar words: a similar word is another word of the same number of tokens.")
        hashes = hashes_of_rows(self.tokens, self.lengths)
        made["by_hash"] = np.argsort(hashes, kind="stable")
        made["hashes"] = hashes[made["by_hash"]]
        if (made["hashes"][1:] == made["hashes"][:-1]).any():
            raise ValueError("similar words: a word is there twice: join its entries.")
        made["by_length"] = np.argsort(self.lengths, kind="stable")
        for name, values in made.items():
            object.__setattr__(self, name, values)

    @classmethod
    def of(
        cls, table: Mapping[Sequence[int], Iterable[Sequence[int]]], tokenizer: PreTrainedTokenizerBase
    ) -> "SimilarWords":
        """The table of words given as token ids, and of the similar words of each.

        Raises:
            ValueError: for a word without a token, with a special token, or with one that the tokenizer does not have;
                and for a similar word with another number of tokens.
        """
        table = {tuple(word): [tuple(one) for one in similar] for word, similar in table.items()}
        words = list(dict.fromkeys([*table, *(one for similar in table.values() for one in similar)]))
        known = set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids)
        for word in words:
            if not word or not known.issuperset(word):
                raise ValueError(f"similar words: {word} is no word of this tokenizer: use ids of ordinary tokens.")
        for word, similar in table.items():
            if other := next((one for one in similar if len(one) != len(word) or one == word), None):
                raise ValueError(
                    f"similar words: {other} cannot stand for {word}: it must be another of as many tokens."
                )
        numbers = {word: number for number, word in enumerate(words)}
        return cls(
            np.array([token for word in words for token in word], dtype=np.int32),
            np.array([len(word) for word in words], dtype=np.int64),
            np.array([numbers[one] for similar in table.values() for one in similar], dtype=np.int64),
            np.array([len(table.get(word, ())) for word in words], dtype=np.int64),
            tokenizer_fingerprint(tokenizer),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        having = int((self.counts > 0).sum())
        mean = len(self.similar) / max(having, 1)
        return f"{type(self).__name__}({len(self):,} words, {having:,} with similar ones, {mean:.1f} on average)"

    @property
    def fingerprint(self) -> str:
        """Hash of the table and its tokenizer, 32 hexadecimal digits."""
        digest = hashlib.blake2b(self.tokenizer.encode(), digest_size=16)
        for values in (self.tokens, self.lengths, self.similar, self.counts):
            digest.update(values.tobytes())
        return digest.hexdigest()

    def find(self, ids: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Numbers of words in a text, -1 for those that are not in the table; `int64` of shape `(R,)`.

        Args:
            ids (`np.ndarray` of integers, shape `(N,)`): Token ids.
            begin, end (`np.ndarray` of `int64`, shape `(R,)`): Bounds of each word in it, of at least one token.
        """
        found = np.full(len(begin), -1, dtype=np.int64)
        possible = np.flatnonzero(end - begin <= self.lengths.max(initial=0))
        if not len(possible):
            return found
        begin, end = begin[possible], end[possible]
        tokens = ids[ranges(begin, end)]
        hashes = hashes_of_rows(tokens, end - begin)
        place = np.minimum(np.searchsorted(self.hashes, hashes), len(self) - 1)
        words = self.by_hash[place]
        is_same = (self.hashes[place] == hashes) & (self.lengths[words] == end - begin)
        # Hash collisions are excluded by comparing the tokens.
        compared = np.repeat(is_same, end - begin)
        differs = tokens[compared] != self.tokens_of(words[is_same])
        bounds = offsets_of((end - begin)[is_same])
        is_same[is_same] = np.diff(offsets_of(differs)[bounds]) == 0
        found[possible[is_same]] = words[is_same]
        return found

    def has_similar(self, words: np.ndarray) -> np.ndarray:
        """Whether words, numbers from `find`, have a similar one; `bool` of the shape of `words`."""
        return (words >= 0) & np.append(self.counts > 0, False)[words]

    def choose_similar(self, words: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """One of the similar words of each word that has some, each as likely, by a number in [0, 1)."""
        return self.similar[self.similar_offsets[words] + (uniforms * self.counts[words]).astype(np.int64)]

    def choose_of_length(self, lengths: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """Any word with the given number of tokens, each as likely, by a number in [0, 1); -1 if there is none."""
        first, end = (np.searchsorted(self.lengths[self.by_length], lengths, side) for side in ("left", "right"))
        place = first + (uniforms * (end - first)).astype(np.int64)
        return np.where(end > first, np.append(self.by_length, -1)[place], -1)

    def tokens_of(self, words: np.ndarray) -> np.ndarray:
        """Token ids of words, concatenated; `int32`."""
        return self.tokens[ranges(self.offsets[words], self.offsets[words + 1])]

    def missing_share(self, ids: np.ndarray, word_starts: np.ndarray) -> float:
        """Share of the words of a text without a similar word, which become random words.

        Args:
            ids (`np.ndarray` of integers, shape `(N,)`): Token ids, without special tokens.
            word_starts (`np.ndarray` of `bool`, shape `(N,)`): True where a token begins a word.

        >>> table = SimilarWords.of({(10,): [(11,)]}, doctest_tokenizer())
        >>> table.missing_share(np.array([10, 20, 21, 10, 11]), np.array([True, True, False, True, True]))
        0.5
        """
        begin = np.flatnonzero(word_starts)
        words = self.find(ids, begin, np.append(begin[1:], len(ids)))
        return float(1 - self.has_similar(words).mean()) if len(words) else 0.0

    def save(self, folder: str | Path) -> Path:
        """Write `similar_words.safetensors` into a folder, atomically."""
        path = Path(folder) / SIMILAR_WORDS_FILE
        unfinished = path.with_name(f"_{path.name}")
        names = ("tokens", "lengths", "similar", "counts")
        save_file(
            {name: getattr(self, name).astype(np.int32) for name in names}, unfinished, {"tokenizer": self.tokenizer}
        )
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
                arrays = {name: file.get_tensor(name) for name in ("tokens", "lengths", "similar", "counts")}
            table = cls(**arrays, tokenizer=made_with)
        except (SafetensorError, KeyError, ValueError) as error:
            raise ValueError(f"{path} is damaged ({error}): {REMEDY}.") from error
        if tokenizer is not None:
            table.check_tokenizer(tokenizer, str(path))
        return table

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase, name: str = "similar_words") -> None:
        """Raise ValueError if the table, called `name`, was made with another tokenizer."""
        if tokenizer_fingerprint(tokenizer) != self.tokenizer:
            raise ValueError(
                f"{name} was made with another tokenizer: give the one of its corpus, or make the table again with "
                "`hf-encoders corpus --similar-words build`."
            )


def join_similar_words(tables: Sequence[SimilarWords]) -> SimilarWords:
    """Several tables of one tokenizer as one; a word of several tables has the similar words of the first.

    >>> first = SimilarWords.of({(10,): [(11,)]}, doctest_tokenizer())
    >>> second = SimilarWords.of({(10,): [(12,)], (12,): [(11,)]}, doctest_tokenizer())
    >>> joined = join_similar_words([first, second])
    >>> joined, joined.tokens.tolist(), joined.similar.tolist(), joined.counts.tolist()
    (SimilarWords(3 words, 2 with similar ones, 1.0 on average), [10, 11, 12], [1, 1], [1, 0, 1])
    """
    joined, *others = tables
    for table in others:
        if table.tokenizer != joined.tokenizer:
            raise ValueError("similar words: tables of different tokenizers cannot be joined.")
        numbers = joined.find(table.tokens, table.offsets[:-1], table.offsets[1:])
        new = np.flatnonzero(numbers < 0)
        numbers[new] = len(joined) + np.arange(len(new))
        similar = ranges(table.similar_offsets[new], table.similar_offsets[new + 1])
        joined = SimilarWords(
            np.concatenate([joined.tokens, table.tokens_of(new)]),
            np.concatenate([joined.lengths, table.lengths[new]]),
            np.concatenate([joined.similar, numbers[table.similar[similar]]]),
            np.concatenate([joined.counts, table.counts[new]]),
            joined.tokenizer,
        )
    return joined
