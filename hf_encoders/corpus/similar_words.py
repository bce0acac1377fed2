"""Words that may stand for each other, for masking without a mask token (MacBERT).

A word is a tuple of token ids, so the table serves any tokenizer and language. Similar words have the same number of
tokens: another length would move positions, labels and the ends of segments.

Similar words: learned from a corpus, by what stands beside them, or read from a user's file.

Words are alike that stand between the same words: a matrix counts, for each word, the words one and two places to its
left and to its right, each place in columns of its own. One bag for all places would make words alike that are of one
topic. Positive PMI, a truncated SVD and cosines are as in Levy, Goldberg and Dagan 2015 ("Improving distributional
similarity with lessons learned from word embeddings"). MacBERT took word2vec's neighbours of a toolkit instead.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from scipy.sparse import csr_matrix, hstack
from scipy.sparse.linalg import svds
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.ragged import hashes_of_rows, offsets_of, ranges
from hf_encoders.corpus.settings import tokenizer_fingerprint
from hf_encoders.corpus.text_files import check_is_text
from hf_encoders.corpus.units import WORD, begins_of, spellings, text_of
from hf_encoders.corpus.word_starts import WordStarts


SIMILAR_WORDS_FILE = "similar_words.safetensors"  # beside the corpus
FILE_ARRAYS = ("tokens", "lengths", "similar", "counts")
REMEDY = "restore it, or make it again with `hf-encoders corpus --similar-words build`"


@dataclass(frozen=True, eq=False, repr=False)
class SimilarWords:
    """W words, and for each of them similar ones.

    Args:
        tokens (`np.ndarray` of `int32`, shape `(M,)`): Token ids of all words, concatenated; no word twice.
        lengths (`np.ndarray` of integers, shape `(W,)`): Tokens of each word, at least 1.
        similar_numbers (`np.ndarray` of integers, shape `(S,)`): Similar words of each word, as numbers of words, in
            [0, W), concatenated. They have as many tokens as the word, and are others.
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
    similar_numbers: np.ndarray
    counts: np.ndarray
    tokenizer: str
    # Made of them: first token and first similar word of each word; hashes in ascending order, and of which words.
    offsets: np.ndarray = field(init=False)
    similar_offsets: np.ndarray = field(init=False)
    hashes: np.ndarray = field(init=False)
    by_hash: np.ndarray = field(init=False)
    by_length: np.ndarray = field(init=False)  # words in order of their lengths

    def __post_init__(self):
        kinds = {"tokens": np.int32, "lengths": np.int64, "similar_numbers": np.int64, "counts": np.int64}
        for name, kind in kinds.items():
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=kind))
        if len(self.lengths) != len(self.counts) or self.lengths.min(initial=1) < 1 or self.counts.min(initial=0) < 0:
            raise ValueError("similar words: lengths must be at least 1, counts at least 0, and one per word.")
        made = {"offsets": offsets_of(self.lengths), "similar_offsets": offsets_of(self.counts)}
        for name, of, values in (
            ("tokens", "lengths", made["offsets"]),
            ("similar_numbers", "counts", made["similar_offsets"]),
        ):
            if len(getattr(self, name)) != values[-1]:
                raise ValueError(f"similar words: {len(getattr(self, name))} {name}, but {of} sum to {values[-1]}.")
        words = np.repeat(np.arange(len(self)), self.counts)
        if self.similar_numbers.min(initial=0) < 0 or self.similar_numbers.max(initial=-1) >= len(self):
            raise ValueError(f"similar words: numbers of words must be in [0, {len(self)}).")
        if (self.lengths[words] != self.lengths[self.similar_numbers]).any() or (words == self.similar_numbers).any():
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
        mean = len(self.similar_numbers) / max(having, 1)
        return f"{type(self).__name__}({len(self):,} words, {having:,} with similar ones, {mean:.1f} on average)"

    @property
    def fingerprint(self) -> str:
        """Hash of the table and its tokenizer, 32 hexadecimal digits."""
        digest = hashlib.blake2b(self.tokenizer.encode(), digest_size=16)
        for values in (self.tokens, self.lengths, self.similar_numbers, self.counts):
            digest.update(values.tobytes())
        return digest.hexdigest()

    def similar(self, word: Sequence[int]) -> list[np.ndarray]:
        """Return the words that may stand for a word of L token ids, `int32` of shape `(L,)` each."""
        ids = np.asarray(word)
        number = int(self.find(ids, np.array([0]), np.array([len(ids)]))[0])
        if number < 0:
            return []
        numbers = self.similar_numbers[self.similar_offsets[number] : self.similar_offsets[number + 1]]
        return [self.tokens_of(np.array([similar])) for similar in numbers]

    def random_word(self, length: int, generator: np.random.Generator) -> np.ndarray | None:
        """Draw any word of `length` tokens, each as likely, `int32`; `None` if there is none."""
        first, end = (int(np.searchsorted(self.lengths[self.by_length], length, side)) for side in ("left", "right"))
        return self.tokens_of(self.by_length[[generator.integers(first, end)]]) if end > first else None

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
        return self.similar_numbers[self.similar_offsets[words] + (uniforms * self.counts[words]).astype(np.int64)]

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
        arrays = (self.tokens, self.lengths, self.similar_numbers, self.counts)
        file = {name: array.astype(np.int32) for name, array in zip(FILE_ARRAYS, arrays, strict=True)}
        save_file(file, unfinished, {"tokenizer": self.tokenizer})
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
                arrays = [file.get_tensor(name) for name in FILE_ARRAYS]
            table = cls(*arrays, tokenizer=made_with)
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
    >>> joined, joined.tokens.tolist(), joined.similar_numbers.tolist(), joined.counts.tolist()
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
            np.concatenate([joined.similar_numbers, numbers[table.similar_numbers[similar]]]),
            np.concatenate([joined.counts, table.counts[new]]),
            joined.tokenizer,
        )
    return joined


BUILD = "build"  # in place of a file: learn the table from the corpus
MOST_TOKENS = 2**24  # of the corpus that are read
STRETCHES = 64  # of the corpus, evenly over it, that they are of
LEAST_COUNT = 5  # occurrences of a word
MOST_WORDS = 50_000  # the most frequent ones
DISTANCES = (1, 2)
CONTEXT_POWER = 0.75  # of counts of contexts, so that rare ones do not dominate; word2vec's number
DIMENSIONS = 64
ROWS_PER_STEP = 1024  # words compared with all others at once
MOST_FALL_BACKS = 0.1  # of the masked words; the limit of MacBERT's journal version


class _Words(NamedTuple):
    """The words of a text, and V kinds of them."""

    kinds: np.ndarray  # int64, (W,): of each word in order, in [0, V); -1 for words of no kind, too rare ones
    sentences: np.ndarray  # int64, (W,): number of its sentence
    ids: list[np.ndarray]  # of each kind, its token ids


def build_similar_words(
    documents: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    words_per_entry: int = 5,
    least_similarity: float = 0.4,
) -> SimilarWords:
    """Learn which words may stand for each other from a corpus.

    Words are those of the column `word_starts` or, without it, the tokenizer's. At most 16.8 million tokens are read,
    evenly over the corpus; of them the 50,000 most frequent words that occur 5 times. That takes about a minute and
    2 GB of memory; a corpus of a million tokens takes seconds.

    Args:
        documents (`datasets.Dataset`): A corpus, from `prepare_corpus` or `tokenize_documents`.
        tokenizer (`PreTrainedTokenizerBase`): The one it was made with.
        words_per_entry (`int`, *optional*, defaults to 5): Most similar words of a word.
        least_similarity (`float`, *optional*, defaults to 0.4): Least cosine, in (0, 1]. Higher ones leave more words
            without a similar one: on half a million Chinese characters 6 % of the occurrences with 0.4, 34 % with 0.5.

    Returns:
        `SimilarWords`: To be saved beside the corpus.

    Raises:
        ValueError: If an argument is out of its range, or no two words of the corpus are similar.
    """
    if not isinstance(words_per_entry, int) or words_per_entry < 1:
        raise ValueError(f"words_per_entry={words_per_entry!r}: use a whole number, 1 or more.")
    if not 0 < least_similarity <= 1:
        raise ValueError(f"least_similarity={least_similarity} is a cosine: use a number in (0, 1], such as 0.4.")
    words = _words_of(documents, tokenizer)
    entries = np.empty((0, 2), dtype=np.int64)
    if len(words.ids) > 2:
        lengths = np.array([len(ids) for ids in words.ids])
        # A comma stands where particles do: marks and words are never similar.
        is_mark = np.array([not any(map(str.isalnum, text_of(ids.tolist(), tokenizer))) for ids in words.ids])
        entries = _neighbours(_vectors(words), 2 * lengths + is_mark, words_per_entry, least_similarity)
    if not len(entries):
        raise ValueError(
            f"documents: no two words that occur {LEAST_COUNT} times are similar (least_similarity="
            f"{least_similarity}): give more text, or a file of similar words."
        )
    return SimilarWords(
        np.concatenate(words.ids),
        lengths,
        entries[:, 1],
        np.bincount(entries[:, 0], minlength=len(lengths)),
        tokenizer_fingerprint(tokenizer),
    )


def _stretches(
    documents: datasets.Dataset, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Token ids, and whether each begins a word and a sentence, of whole sentences evenly over the corpus."""
    store = FlatCorpus.of(documents)
    words = WordStarts(tokenizer) if store.word_starts is None else None
    offsets, total = store.sentence_offsets, len(store.tokens)
    share = min(MOST_TOKENS / max(total, 1), 1)
    for stretch in range(STRETCHES):
        begin, end = total * stretch // STRETCHES, int(total * (stretch + share) / STRETCHES)
        # A sentence belongs to the stretch that it begins in.
        first, last = np.searchsorted(offsets[:-1], [begin, end])
        tokens = slice(offsets[first], offsets[last])
        ids = np.asarray(store.tokens[tokens])
        begins_sentence = begins_of(np.diff(offsets[first : last + 1]), len(ids))
        starts = words(ids, begins_sentence) if words else (store.word_starts[tokens] & WORD) != 0
        if len(ids):
            yield ids, starts | begins_sentence, begins_sentence


def _words_of(documents: datasets.Dataset, tokenizer: PreTrainedTokenizerBase) -> _Words:
    """The words of the corpus; those with a special or unknown token are of no kind."""
    hashes, sentences, ids_of, num_sentences = [], [], {}, 0
    for ids, starts, begins_sentence in _stretches(documents, tokenizer):
        first = np.flatnonzero(starts)
        lengths = np.diff(np.append(first, len(ids)))
        hashes.append(hashes_of_rows(ids, lengths))
        sentences.append(num_sentences + np.cumsum(begins_sentence)[first])
        num_sentences = int(sentences[-1][-1])
        found, example = np.unique(hashes[-1], return_index=True)
        for one, place in zip(found.tolist(), example.tolist(), strict=True):
            if one not in ids_of:
                ids_of[one] = ids[first[place] : first[place] + lengths[place]].copy()
    found, kinds, counts = np.unique(np.concatenate(hashes), return_inverse=True, return_counts=True)
    special = np.array(tokenizer.all_special_ids)
    order = np.argsort(-counts, kind="stable")
    kept = [
        kind
        for kind in order[counts[order] >= LEAST_COUNT].tolist()
        if not np.isin(ids_of[int(found[kind])], special).any()
    ][:MOST_WORDS]
    numbers = np.full(len(found), -1, dtype=np.int64)
    numbers[kept] = np.arange(len(kept))
    return _Words(numbers[kinds], np.concatenate(sentences), [ids_of[int(found[kind])] for kind in kept])


def _vectors(words: _Words) -> np.ndarray:
    """A vector of length 1 for each kind, `float32` of shape `(V, at most 64)`."""
    size = len(words.ids)
    blocks = []
    for distance in DISTANCES:
        left, right = words.kinds[:-distance], words.kinds[distance:]
        is_pair = (words.sentences[:-distance] == words.sentences[distance:]) & (left >= 0) & (right >= 0)
        pairs, counts = np.unique(left[is_pair] * size + right[is_pair], return_counts=True)
        followers = csr_matrix((counts.astype(np.float64), np.divmod(pairs, size)), shape=(size, size))
        blocks += [followers, followers.T]
    matrix = hstack(blocks, format="csr")
    of_words = np.maximum(matrix.sum(axis=1).A1, 1)
    of_contexts = np.maximum(matrix.sum(axis=0).A1, 1) ** CONTEXT_POWER
    of_entries = np.repeat(of_words, np.diff(matrix.indptr)) * of_contexts[matrix.indices] / of_contexts.sum()
    matrix.data = np.maximum(np.log(matrix.data / of_entries), 0)
    matrix.eliminate_zeros()
    if not matrix.nnz:  # no word stands beside another more often than by chance
        return np.zeros((size, 1), dtype=np.float32)
    # A start vector of our own: scipy's would be another one each time.
    left, values, _ = svds(matrix, k=min(DIMENSIONS, size - 1), v0=np.ones(size))
    vectors = left * np.sqrt(np.maximum(values, 0))
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)


def _neighbours(vectors: np.ndarray, kinds: np.ndarray, most: int, least_similarity: float) -> np.ndarray:
    """Pairs of a word and one of the same of `kinds`, by word, then from the most similar on; `int64`, `(P, 2)`.

    >>> vectors = np.array([[1, 0], [0.8, 0.6], [0.6, 0.8], [1, 0]], dtype=np.float32)
    >>> _neighbours(vectors, np.array([1, 1, 1, 2]), most=1, least_similarity=0.7).tolist()
    [[0, 1], [1, 2], [2, 1]]
    """
    found = [np.empty((0, 2), dtype=np.int64)]
    for kind in np.unique(kinds):
        group = np.flatnonzero(kinds == kind)
        among = min(most, len(group) - 1)
        for begin in range(0, len(group) if among else 0, ROWS_PER_STEP):
            rows = np.arange(begin, min(begin + ROWS_PER_STEP, len(group)))
            cosines = vectors[group[rows]] @ vectors[group].T
            cosines[np.arange(len(rows)), rows] = -2  # not itself
            nearest = np.argpartition(-cosines, among - 1, axis=1)[:, :among]
            values = np.take_along_axis(cosines, nearest, axis=1)
            order = np.argsort(-values, axis=1, kind="stable")
            nearest, values = (np.take_along_axis(array, order, axis=1) for array in (nearest, values))
            is_near = values >= least_similarity
            found.append(np.stack([np.repeat(group[rows], is_near.sum(axis=1)), group[nearest[is_near]]], axis=1))
    pairs = np.concatenate(found)
    return pairs[np.argsort(pairs[:, 0], kind="stable")]


def read_similar_words(
    path: str | Path, tokenizer: PreTrainedTokenizerBase, option: str = "similar_words: "
) -> SimilarWords:
    """The table of a file: on each line a word, a tab, and words that may stand for it, separated by spaces.

    Words are spelled as at the beginning, after a space and behind a mark, where the tokenizer tells these apart.
    Similar words with another number of tokens than their word are left out.

    Raises:
        ValueError: If the file cannot be read, a line has no tab, or no word has a similar one with as many tokens.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{option}'{path}' is not a file: name one, or build the table.")
    check_is_text(path, option)
    similar: dict[str, list[str]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8-sig", errors="replace").splitlines(), start=1):
        if not line.strip() or line.startswith("# "):
            continue
        word, tab, others = line.partition("\t")
        if not tab or not word.strip() or not others.split():
            raise ValueError(f"{option}'{path}', line {number}: {line!r:.60} is not a word, a tab and similar words.")
        similar.setdefault(word.strip(), []).extend(others.split())
    words = list(dict.fromkeys([*similar, *(other for others in similar.values() for other in others)]))
    ids = dict(zip(words, spellings(words, tokenizer), strict=True)) if words else {}
    table: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}
    for word, others in similar.items():
        for other in others:
            for own, alike in zip(ids[word], ids[other], strict=True):
                if own and len(own) == len(alike) and own != alike:
                    table.setdefault(own, {})[alike] = None
    if not table:
        raise ValueError(
            f"{option}'{path}' has no word with a similar one of as many tokens: give other words, in the language of "
            "the tokenizer."
        )
    return SimilarWords.of(table, tokenizer)


def share_without_similar(
    table: SimilarWords, documents: datasets.Dataset, tokenizer: PreTrainedTokenizerBase
) -> float:
    """Share of the words of a corpus without a similar one, of as many tokens as `build_similar_words` reads."""
    words = missing = 0
    for ids, starts, _ in _stretches(documents, tokenizer):
        words += int(starts.sum())
        missing += table.missing_share(ids, starts) * int(starts.sum())
    return missing / max(words, 1)


def describe_similar_words(
    table: SimilarWords, documents: datasets.Dataset, tokenizer: PreTrainedTokenizerBase
) -> str:
    """How far a table goes on a corpus, examples, and a warning if it does not go far enough."""
    share = share_without_similar(table, documents, tokenizer)
    lines = [f"{table!r}", f"words of the corpus without a similar one: {share:.1%}"]
    frequent = np.flatnonzero(table.counts)[:200:20]  # words are in order of their frequency
    for word in frequent.tolist():
        bounds = ranges(table.similar_offsets[[word]], table.similar_offsets[[word + 1]])
        texts = [
            text_of(table.tokens_of(np.array([one])), tokenizer) for one in (word, *table.similar_numbers[bounds])
        ]
        lines.append(f"  {texts[0]}: {', '.join(texts[1:])}")
    if share > MOST_FALL_BACKS:
        lines.append(
            f"warning: {share:.0%} of the words have no similar one and are replaced by random words; MacBERT had at "
            "most 10 %. Give more text, or a file with more words."
        )
    return "\n".join(lines)
