"""Similar words, for masking without a mask token (MacBERT): a table learned from a corpus, or read from a file.

A word is a tuple of token ids, so the table serves any tokenizer and language. Similar words have the same number of
tokens: another length would move positions, labels and the ends of segments.

Words are alike that stand between the same words: a matrix counts, for each word, the words one and two positions to
its left and to its right, each position in separate columns. One bag for all positions would make words alike that
are of one topic. Positive PMI, a truncated SVD and cosines are as in Levy, Goldberg and Dagan 2015 ("Improving
distributional similarity with lessons learned from word embeddings"). MacBERT took word2vec's neighbours of a toolkit
instead.
"""

import hashlib
import os
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path

import datasets
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from scipy.sparse import csr_matrix, hstack
from scipy.sparse.linalg import svds
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.flat_corpus import FlatCorpus, offsets_of
from hf_encoders.corpus.special_tokens import tokenizer_fingerprint
from hf_encoders.corpus.units import WORD, Word, numbered_lines, spellings, text_of, words_of
from hf_encoders.corpus.word_starts import WordStarts
from hf_encoders.writing import with_bar


SIMILAR_WORDS_FILE = "similar_words.safetensors"  # next to the corpus
FILE_ARRAYS = ("tokens", "lengths", "similar", "counts")
REMEDY = "restore it, or make it again with `hf-encoders corpus --similar-words build`"
BUILD = "build"  # in place of a file: learn the table from the corpus
MOST_TOKENS = 2**24  # of the corpus that are read
LEAST_COUNT = 5  # occurrences of a word
MOST_WORDS = 50_000  # the most frequent ones
DISTANCES = (1, 2)
CONTEXT_POWER = 0.75  # of counts of contexts, so that rare ones do not dominate; word2vec's number
DIMENSIONS = 64
ROWS_PER_STEP = 1024  # words compared with all others at once
MOST_FALL_BACKS = 0.1  # of the masked words; the limit of MacBERT's journal version


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

    def __repr__(self) -> str:
        mean = sum(map(len, self.table.values())) / max(len(self.table), 1)
        return f"SimilarWords({len(self.words):,} words, {len(self.table):,} with similar ones, {mean:.1f} on average)"

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
    >>> join_similar_words([first, second]).table
    {(10,): [(11,)], (12,): [(11,)]}
    """
    words = dict.fromkeys(word for table in tables for word in table.words)
    joined = ChainMap(*(table.table for table in tables))
    return SimilarWords(list(words), joined, tables[0].tokenizer)


def build_similar_words(
    documents: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    words_per_entry: int = 5,
    least_similarity: float = 0.4,
) -> SimilarWords:
    """Learn which words may stand for each other from a corpus.

    Words are those of the column `word_starts` or, without it, the tokenizer's: the 50,000 most frequent ones that
    occur 5 times in every n-th sentence, of 16.8 million tokens at most. That takes about a minute and 2 GB of memory;
    a corpus of a million tokens takes seconds.

    Args:
        documents (`datasets.Dataset`): A corpus, from `prepare_corpus` or `tokenize_documents`.
        tokenizer (`PreTrainedTokenizerBase`): The one it was made with.
        words_per_entry (`int`, *optional*, defaults to 5): Most similar words of a word.
        least_similarity (`float`, *optional*, defaults to 0.4): Least cosine, in (0, 1]. Higher ones leave more words
            without a similar one: on half a million Chinese characters 6 % of the occurrences with 0.4, 34 % with 0.5.

    Returns:
        `SimilarWords`: To be saved next to the corpus.

    Raises:
        ValueError: If an argument is out of its range, or no two words of the corpus are similar.
    """
    if not isinstance(words_per_entry, int) or words_per_entry < 1:
        raise ValueError(f"words_per_entry={words_per_entry!r}: use a whole number, 1 or more.")
    if not 0 < least_similarity <= 1:
        raise ValueError(f"least_similarity={least_similarity} is a cosine: use a number in (0, 1], such as 0.4.")
    words, text = _frequent_words(documents, tokenizer)
    pairs = np.empty((0, 2), dtype=np.int64)
    if len(words) > 2:
        lengths = np.array([len(word) for word in words])
        # A comma stands where particles do: marks and words are never similar.
        is_mark = np.array([not any(map(str.isalnum, text_of(word, tokenizer))) for word in words])
        vectors = _vectors(text, len(words))
        pairs = _neighbours(vectors, 2 * lengths + is_mark, words_per_entry, least_similarity)
    if not len(pairs):
        raise ValueError(
            f"documents: no two words that occur {LEAST_COUNT} times are similar (least_similarity="
            f"{least_similarity}): give more text, or a file of similar words."
        )
    table: dict[Word, list[Word]] = {}
    for word, similar in pairs.tolist():
        table.setdefault(words[word], []).append(words[similar])
    return SimilarWords(words, table, tokenizer_fingerprint(tokenizer))


def _sentences(documents: datasets.Dataset, tokenizer: PreTrainedTokenizerBase) -> Iterator[list[Word]]:
    """Yield the words of sentences, evenly over the corpus, of about `MOST_TOKENS` at most."""
    corpus = FlatCorpus.of(documents)
    find_words = WordStarts(tokenizer) if corpus.word_starts is None else None
    step = max(-(-len(corpus.tokens) // MOST_TOKENS), 1)
    bounds = corpus.sentence_offsets
    begins, ends = bounds[:-1:step].tolist(), bounds[1::step].tolist()
    for begin, end in with_bar(zip(begins, ends, strict=True), "Reading words", len(begins)):
        ids = corpus.tokens[begin:end]
        starts = find_words(ids, np.arange(len(ids)) == 0) if find_words else corpus.word_starts[begin:end] & WORD
        yield words_of(ids, starts)


def _frequent_words(documents: datasets.Dataset, tokenizer: PreTrainedTokenizerBase) -> tuple[list[Word], np.ndarray]:
    """Return the V frequent words of a corpus, the most frequent first, and its text, `int64` of shape `(W,)`.

    The text is the number of each word, in [0, V); -1 for rare words and those with a special or unknown token, and
    between sentences, as often as the neighbours of a word reach.
    """
    as_met: dict[Word, int] = {}
    sentences = _sentences(documents, tokenizer)
    met = ([as_met.setdefault(word, len(as_met)) for word in words] + [-1] * max(DISTANCES) for words in sentences)
    in_order = np.fromiter(chain.from_iterable(met), dtype=np.int64)
    counts, special = np.bincount(in_order[in_order >= 0], minlength=1), set(tokenizer.all_special_ids)
    by_count = sorted(as_met, key=lambda word: -counts[as_met[word]])
    frequent = [word for word in by_count if counts[as_met[word]] >= LEAST_COUNT and special.isdisjoint(word)]
    frequent = frequent[:MOST_WORDS]
    renumbered = np.full(len(as_met) + 1, -1, dtype=np.int64)  # the last one is that of -1
    renumbered[[as_met[word] for word in frequent]] = np.arange(len(frequent))
    return frequent, renumbered[in_order]


def _vectors(text: np.ndarray, size: int) -> np.ndarray:
    """Return a vector of length 1 for each of V words of a text, `float32` of shape `(V, at most 64)`."""
    blocks = []
    for distance in DISTANCES:
        left, right = text[:-distance], text[distance:]
        is_pair = (left >= 0) & (right >= 0)
        ones = np.ones(np.count_nonzero(is_pair))
        followers = csr_matrix((ones, (left[is_pair], right[is_pair])), shape=(size, size))  # adds up equal pairs
        blocks += [followers, followers.T]
    matrix = hstack(blocks, format="csr")
    of_words = np.maximum(matrix.sum(axis=1).A1, 1)
    of_contexts = np.maximum(matrix.sum(axis=0).A1, 1) ** CONTEXT_POWER
    by_chance = np.repeat(of_words, np.diff(matrix.indptr)) * of_contexts[matrix.indices] / of_contexts.sum()
    matrix.data = np.maximum(np.log(matrix.data / by_chance), 0)
    matrix.eliminate_zeros()
    if not matrix.nnz:  # no word stands next to another more often than by chance
        return np.zeros((size, 1), dtype=np.float32)
    # A fixed start vector: scipy's would be another one each time.
    left, values, _ = svds(matrix, k=min(DIMENSIONS, size - 1), v0=np.ones(size))
    vectors = left * np.sqrt(np.maximum(values, 0))
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)


def _neighbours(vectors: np.ndarray, kinds: np.ndarray, most: int, least_similarity: float) -> np.ndarray:
    """Return pairs of a word and one of the same of `kinds`, by word, then from the most similar on; `(P, 2)`.

    >>> vectors = np.array([[1, 0], [0.8, 0.6], [0.6, 0.8], [1, 0]], dtype=np.float32)
    >>> _neighbours(vectors, np.array([1, 1, 1, 2]), most=1, least_similarity=0.7).tolist()
    [[0, 1], [1, 2], [2, 1]]
    """
    pairs = [np.empty((0, 2), dtype=np.int64)]
    for kind in np.unique(kinds):
        group = np.flatnonzero(kinds == kind)
        among = min(most, len(group) - 1)
        for begin in with_bar(range(0, len(group) if among else 0, ROWS_PER_STEP), "Comparing words"):
            rows = np.arange(begin, min(begin + ROWS_PER_STEP, len(group)))
            cosines = vectors[group[rows]] @ vectors[group].T
            cosines[np.arange(len(rows)), rows] = -2  # not itself
            nearest = np.argpartition(-cosines, among - 1, axis=1)[:, :among]
            order = np.argsort(-np.take_along_axis(cosines, nearest, axis=1), axis=1, kind="stable")
            nearest = np.take_along_axis(nearest, order, axis=1)
            is_near = np.take_along_axis(cosines, nearest, axis=1) >= least_similarity
            pairs.append(np.stack([np.repeat(group[rows], is_near.sum(axis=1)), group[nearest[is_near]]], axis=1))
    joined = np.concatenate(pairs)
    return joined[np.argsort(joined[:, 0], kind="stable")]


def read_similar_words(
    path: str | Path, tokenizer: PreTrainedTokenizerBase, option: str = "similar_words: "
) -> SimilarWords:
    """Read a file: on each line a word, a tab, and words that may stand for it, separated by spaces.

    Words are spelled as at the beginning, after a space and after a mark, where the tokenizer tells these apart.
    Similar words with another number of tokens than their word are left out.

    Raises:
        ValueError: If the file cannot be read, a line has no tab, or no word has a similar one with as many tokens.
    """
    lines: dict[str, list[str]] = {}
    for number, line in numbered_lines(path, option):
        word, _, similar = line.partition("\t")
        if not word.strip() or not similar.split():
            raise ValueError(f"{option}'{path}', line {number}: {line!r:.60} is not a word, a tab and similar words.")
        lines.setdefault(word.strip(), []).extend(similar.split())
    texts = list(dict.fromkeys([*lines, *(other for similar in lines.values() for other in similar)]))
    spelled = dict(zip(texts, spellings(texts, tokenizer), strict=True)) if texts else {}
    table: dict[Word, dict[Word, None]] = {}
    for word, similar in lines.items():
        for other in similar:
            for ids, other_ids in zip(spelled[word], spelled[other], strict=True):
                if ids and len(ids) == len(other_ids) and ids != other_ids:
                    table.setdefault(ids, {})[other_ids] = None
    if not table:
        raise ValueError(
            f"{option}'{path}' has no word with a similar one of as many tokens: give other words, in the language of "
            "the tokenizer."
        )
    return SimilarWords.of(table, tokenizer)


def share_without_similar(
    similar_words: SimilarWords, documents: datasets.Dataset, tokenizer: PreTrainedTokenizerBase
) -> float:
    """Return the share of a corpus's words without a similar one, of as many tokens as `build_similar_words` reads."""
    total = missing = 0
    for words in _sentences(documents, tokenizer):
        total += len(words)
        missing += sum(word not in similar_words.table for word in words)
    return missing / max(total, 1)


def describe_similar_words(
    similar_words: SimilarWords, documents: datasets.Dataset, tokenizer: PreTrainedTokenizerBase
) -> str:
    """Describe the coverage of a table on a corpus: examples, and a warning if it covers too little."""
    share = share_without_similar(similar_words, documents, tokenizer)
    lines = [f"{similar_words!r}", f"words of the corpus without a similar one: {share:.1%}"]
    for word in list(similar_words.table)[:200:20]:  # words are in order of their frequency
        similar = ", ".join(text_of(other, tokenizer) for other in similar_words.table[word])
        lines.append(f"  {text_of(word, tokenizer)}: {similar}")
    if share > MOST_FALL_BACKS:
        lines.append(
            f"warning: {share:.0%} of the words have no similar one and are replaced by random words; MacBERT had at "
            "most 10 %. Give more text, or a file with more words."
        )
    return "\n".join(lines)
