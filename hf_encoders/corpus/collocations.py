"""Collocations of a corpus, as phrases: words that occur together more often than by chance.

Normalised pointwise mutual information, of Bouma 2009 ("Normalized (pointwise) mutual information in collocation
extraction"), joins neighbours in two rounds, as word2phrase of word2vec does. PMI-Masking (Levine et al. 2021, arXiv
2010.01825) is the published use for masking, with PMI of longer runs.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.arrow_file import SentenceBatch
from hf_encoders.corpus.lexicon import spellings
from hf_encoders.corpus.ragged import hashes_of_rows
from hf_encoders.corpus.unit_marking import WORD, begins_of, in_entities
from hf_encoders.writing import write_whole


PHRASES_FILE = "phrases.tsv"  # beside the corpus
_HEADER = "# phrase, tab, occurrences in the sample, tab, normalised PMI; can be edited and given as --phrases\n"


class Phrase(NamedTuple):
    """A learned phrase."""

    text: str
    count: int  # occurrences in the sample
    score: float  # normalised PMI of its two parts, in [-1, 1]


class _Atoms(NamedTuple):
    """Words, or words joined to phrases, in the order of a text of N tokens."""

    types: np.ndarray  # int64, (W,): which word; equal words have equal numbers
    first: np.ndarray  # int64, (W,): first token
    end: np.ndarray  # int64, (W,): token behind the last one
    is_joinable: np.ndarray  # bool, (W,): with the next one


@dataclass(frozen=True)
class Collocations:
    """How phrases are learned.

    Args:
        least_count (`int`, *optional*, defaults to 10): Occurrences in the sample (PMI-Masking's number, of
            its whole corpus).
        least_score (`float`, *optional*, defaults to 0.5): Normalised PMI, in [-1, 1]: 0 is chance, 1
            words that only occur together. This package's choice: below, function words join ("of the").
        rounds (`int`, *optional*, defaults to 2): Two give phrases of up to 4 words.
        most_tokens (`int`, *optional*, defaults to `2**24`): Size of the sample, whole shards evenly over the corpus;
            learning takes about 100 bytes of memory a token.
    """

    least_count: int = 10
    least_score: float = 0.5
    rounds: int = 2
    most_tokens: int = 2**24

    def settings(self) -> dict[str, Any]:
        """What decides about the phrases, for JSON."""
        return asdict(self)

    def sample(self, blocks_of: Callable[[int], Iterable[SentenceBatch]], numbers: range) -> SentenceBatch:
        """Documents of some shards, evenly over `numbers`; at least of one."""
        taken: list[SentenceBatch] = []
        size = 0
        for number in _spread(numbers):
            for block in blocks_of(number):
                taken.append(block)
                size += len(block.tokens)
                if size >= self.most_tokens:
                    break
            if size >= self.most_tokens:
                break
        return SentenceBatch(*map(np.concatenate, zip(*taken, strict=True)))

    def learn(self, text: SentenceBatch, tokenizer: PreTrainedTokenizerBase) -> list[Phrase]:
        """The phrases of a text with word starts, most frequent first; none may be in an entity.

        A phrase is of words with a letter, and its text is one that the tokenizer spells alike: given as entries, the
        phrases are found where these words are.

        >>> sentences = np.array([5, 6, 7, 5, 6, 8, 5, 6, 9, 8])  # w5 w6 are always together
        >>> text = SentenceBatch(sentences, np.array([10]), np.array([1]), np.ones(10, np.uint8))
        >>> [phrase.text for phrase in Collocations(least_count=3).learn(text, doctest_tokenizer())]
        ['w5 w6']
        """
        atoms = self._words(text, tokenizer)
        found = []
        for _ in range(self.rounds):
            atoms, pairs = self._join(atoms)
            found += pairs
        return _with_texts(found, text.tokens, tokenizer)

    def _words(self, text: SentenceBatch, tokenizer: PreTrainedTokenizerBase) -> _Atoms:
        """The words of a text; joinable where both are frequent, with a letter and outside of entities."""
        bits = text.word_starts
        begins_sentence = begins_of(text.sentence_lengths, len(bits))
        first = np.flatnonzero(((bits & WORD) != 0) | begins_sentence)
        end = np.append(first[1:], len(bits))
        _, example, types, counts = np.unique(
            hashes_of_rows(text.tokens, end - first), return_index=True, return_inverse=True, return_counts=True
        )
        frequent = np.flatnonzero(counts >= self.least_count)
        ids = [text.tokens[first[word] : end[word]].tolist() for word in example[frequent]]
        texts = tokenizer.backend_tokenizer.decode_batch(ids, skip_special_tokens=True)
        has_letter = np.zeros(len(counts), dtype=bool)
        has_letter[frequent] = [any(map(str.isalpha, text)) for text in texts]
        may_join = np.append(has_letter[types] & ~in_entities(bits)[first], False)
        is_joinable = may_join[:-1] & may_join[1:] & ~np.append(begins_sentence[first[1:]], True)
        return _Atoms(types, first, end, is_joinable)

    def _join(self, atoms: _Atoms) -> tuple[_Atoms, list[tuple[int, int, int, float]]]:
        """Join pairs that score high; and the pairs: first token and end of one occurrence, count, score."""
        total, counts = len(atoms.types), np.bincount(atoms.types)
        left = np.flatnonzero(atoms.is_joinable)
        keys, example, inverse, together = np.unique(
            atoms.types[left] * len(counts) + atoms.types[left + 1],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        parts = counts[keys // len(counts)].astype(np.float64) * counts[keys % len(counts)]
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = np.log(together * (total / parts)) / -np.log(together / total)
        is_phrase = (together >= self.least_count) & (scores >= self.least_score)
        pairs = [
            (int(atoms.first[left[one]]), int(atoms.end[left[one] + 1]), int(count), float(score))
            for one, count, score in zip(example[is_phrase], together[is_phrase], scores[is_phrase], strict=True)
        ]
        is_joined = is_phrase[inverse]
        left, inverse = left[is_joined], inverse[is_joined]
        # Of neighbouring pairs, from left to right, every other one.
        run = np.cumsum(np.diff(left, prepend=-2) != 1) - 1
        starts_of_run = np.flatnonzero(np.diff(left, prepend=-2) != 1)
        chosen = (np.arange(len(left)) - starts_of_run[run]) % 2 == 0 if len(left) else np.zeros(0, dtype=bool)
        left, inverse = left[chosen], inverse[chosen]
        types, end, is_joinable = atoms.types.copy(), atoms.end.copy(), atoms.is_joinable.copy()
        types[left], end[left] = len(counts) + inverse, end[left + 1]
        is_joinable[left] = is_joinable[left + 1]
        rest = np.delete(np.arange(total), left + 1)
        types = np.unique(types[rest], return_inverse=True)[1]
        return _Atoms(types, atoms.first[rest], end[rest], is_joinable[rest]), pairs


def write_phrases(phrases: list[Phrase], path: Path) -> None:
    """Write a file that `read_entries` reads."""
    lines = [f"{phrase.text}\t{phrase.count}\t{phrase.score:.3f}\n" for phrase in phrases]
    write_whole(path, _HEADER + "".join(lines))


def _spread(numbers: range) -> Iterator[int]:
    """All numbers, so that the first few of them are spread evenly: halves, then quarters, and so on.

    >>> list(_spread(range(5)))
    [0, 4, 2, 1, 3]
    """
    seen, parts = set(), 1
    while len(seen) < len(numbers):
        for part in range(parts + 1):
            number = numbers[min(round(part * len(numbers) / parts), len(numbers) - 1)]
            if number not in seen:
                seen.add(number)
                yield number
        parts *= 2


def _with_texts(
    found: list[tuple[int, int, int, float]], tokens: np.ndarray, tokenizer: PreTrainedTokenizerBase
) -> list[Phrase]:
    """Phrases as text that is spelled alike, without white space if it can be; others are left out."""
    ids = [tuple(tokens[first:end].tolist()) for first, end, _, _ in found]
    spaced = [text.strip() for text in tokenizer.backend_tokenizer.decode_batch([*map(list, ids)])]
    closed = ["".join(text.split()) for text in spaced]
    phrases: dict[str, Phrase] = {}
    for own, texts, spelled, (_, _, count, score) in zip(
        ids,
        zip(closed, spaced, strict=True),
        zip(spellings(closed, tokenizer), spellings(spaced, tokenizer), strict=True),
        found,
        strict=True,
    ):
        text = next((text for text, as_ids in zip(texts, spelled, strict=True) if own in as_ids), None)
        if text and (text not in phrases or phrases[text].count < count):
            phrases[text] = Phrase(text, count, score)
    return sorted(phrases.values(), key=lambda phrase: (-phrase.count, phrase.text))
