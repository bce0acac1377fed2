"""Similar words: learned from a corpus, by what stands beside them, or read from a user's file.

Words are alike that stand between the same words: a matrix counts, for each word, the words one and two places to its
left and to its right, each place in columns of its own. One bag for all places would make words alike that are of one
topic. Positive PMI, a truncated SVD and cosines are as in Levy, Goldberg and Dagan 2015 ("Improving distributional
similarity with lessons learned from word embeddings"). MacBERT took word2vec's neighbours of a toolkit instead.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
from scipy.sparse import csr_matrix, hstack
from scipy.sparse.linalg import svds
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.lexicon import spellings, text_of
from hf_encoders.corpus.ragged import hashes_of_rows, ranges
from hf_encoders.corpus.sentence_store import SentenceStore
from hf_encoders.corpus.settings import tokenizer_fingerprint
from hf_encoders.corpus.similar_word_table import SimilarWords
from hf_encoders.corpus.text_files import check_is_text
from hf_encoders.corpus.unit_marking import WORD, begins_of
from hf_encoders.corpus.word_starts import WordStarts


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
    store = SentenceStore(documents)
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
        texts = [text_of(table.tokens_of(np.array([one])), tokenizer) for one in (word, *table.similar[bounds])]
        lines.append(f"  {texts[0]}: {', '.join(texts[1:])}")
    if share > MOST_FALL_BACKS:
        lines.append(
            f"warning: {share:.0%} of the words have no similar one and are replaced by random words; MacBERT had at "
            "most 10 %. Give more text, or a file with more words."
        )
    return "\n".join(lines)
