"""Counts of the entities and phrases of a corpus, for its report."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.arrow_file import SentenceBatch
from hf_encoders.corpus.lexicon import text_of
from hf_encoders.corpus.ragged import hashes_of_rows, offsets_of, ranges
from hf_encoders.corpus.unit_marking import ENTITY, LISTED, PHRASE, WORD


TOKENS_PER_STEP = 2**18  # counted at once
LONGEST = 6  # tokens; longer units are counted together
MOST_FREQUENT = 10
LEAST_SHARE = 0.001  # of the tokens in entities; below, the list hardly fits the text (this package's choice)


class UnitCounter:
    """Counts entities and phrases block by block; memory for each distinct one, about 150 bytes."""

    def __init__(self) -> None:
        self.tokens = 0
        self.in_units: Counter[str] = Counter()
        self.by_length: dict[str, Counter[int]] = {}
        self.by_hash: dict[str, Counter[int]] = {}
        self.ids: dict[int, list[int]] = {}  # of a hash

    def add(self, block: SentenceBatch) -> None:
        """Count one block, of any size."""
        self.tokens += len(block.tokens)
        if block.word_starts is None or not len(block.tokens):
            return
        # In steps of whole sentences, which no unit goes beyond.
        offsets = offsets_of(block.sentence_lengths)
        cuts = offsets[np.searchsorted(offsets, np.arange(0, len(block.tokens), TOKENS_PER_STEP))]
        for begin, end in pairwise([*np.unique(cuts).tolist(), len(block.tokens)]):
            self._add(block.tokens[begin:end], block.word_starts[begin:end])

    def _add(self, tokens: np.ndarray, bits: np.ndarray) -> None:
        for level, (first, end) in _units(bits):
            lengths = end - first
            self.in_units[level] += int(lengths.sum())
            self.by_length.setdefault(level, Counter()).update(np.minimum(lengths, LONGEST).tolist())
            hashes, example, counts = np.unique(
                hashes_of_rows(tokens[ranges(first, end)], lengths), return_index=True, return_counts=True
            )
            found = dict(zip(hashes.tolist(), counts.tolist(), strict=True))
            self.by_hash.setdefault(level, Counter()).update(found)
            for number, place in zip(found, example.tolist(), strict=True):
                if number not in self.ids:
                    self.ids[number] = tokens[first[place] : end[place]].tolist()

    def statistics(self, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
        """`CorpusStatistics.units`: a level, `entities` or `phrases`, to its counts."""
        found = {}
        for level, by_length in self.by_length.items():
            frequent = sorted(self.by_hash[level].items(), key=lambda one: (-one[1], self.ids[one[0]]))[:MOST_FREQUENT]
            found[level] = {
                "number": by_length.total(),
                "distinct": len(self.by_hash[level]),
                "token_share": self.in_units[level] / max(self.tokens, 1),
                "by_tokens": {str(length): by_length[length] for length in sorted(by_length)},
                "most_frequent": [[_text(self.ids[number], tokenizer), count] for number, count in frequent],
            }
        return found


def _units(bits: np.ndarray) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray]]]:
    """Bounds of the entities, and of the phrases, which have several words and are no entities."""
    for level, bit in (("entities", ENTITY), ("phrases", PHRASE)):
        begins = np.flatnonzero(bits & bit)
        if not len(begins):
            continue
        ends = np.append(begins[1:], len(bits))
        is_listed = (bits[begins] & LISTED) != 0
        if level == "phrases":
            is_listed = ~is_listed & (np.add.reduceat((bits & WORD).astype(np.int64), begins) > 1)
        yield level, (begins[is_listed], ends[is_listed])


def _text(ids: list[int], tokenizer: PreTrainedTokenizerBase | None) -> str:
    return str(ids) if tokenizer is None else text_of(ids, tokenizer)


def unit_rows(units: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Table rows for the entities and phrases of a corpus."""
    rows = []
    for level, counts in units.items():
        frequent = ", ".join(f"{text} {count:,}" for text, count in counts["most_frequent"][:3])
        lengths = [
            f"{length}{'+' if length == str(LONGEST) else ''}: {number / counts['number']:.0%}"
            for length, number in counts["by_tokens"].items()
        ]
        share = f"{counts['token_share']:.1%} of the tokens"
        rows.append((level, f"{counts['number']:,}, {counts['distinct']:,} different, {share}"))
        if counts["number"]:
            rows.append((f"{level}, tokens each", ", ".join(lengths)))
            rows.append((f"{level}, most frequent", frequent))
    return rows


def unit_warnings(units: Mapping[str, Any], unspelled: Mapping[str, Any]) -> list[str]:
    """Warnings of a list that does not fit the text; `unspelled` is of `Units`."""
    warnings = []
    for level, name in (("entities", "lexicon"), ("phrases", "phrases")):
        if level in units and units[level]["number"] == 0:
            warnings.append(
                f"No entry of the {name} is in the text: masking {level} is masking words. Check that the list is in "
                "the language of the text, and written as the text is; without spaces, a word segmenter has to know "
                "the entries."
            )
        elif level in units and units[level]["token_share"] < LEAST_SHARE:
            warnings.append(
                f"Only {units[level]['token_share']:.2%} of the tokens are in {level}: masking them differs little "
                "from masking words. Give a list that fits the text."
            )
    for name, found in unspelled.items():
        more = ", ..." if found["entries"] > len(found["first"]) else ""
        warnings.append(
            f"{found['entries']:,} entries of the {name} have a character that is unknown to the tokenizer, and are "
            f"never found: {', '.join(map(repr, found['first']))}{more}. Remove them, or train the tokenizer on text "
            "that has these characters."
        )
    return warnings
