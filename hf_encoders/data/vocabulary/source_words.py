"""Words of several sources, counted as in a text that has a given share of each.

Source of the rule: XLM (arXiv 1901.07291, section 3.1) learns its BPE on sentences sampled with shares of size ** 0.5.
Differs from it in: nothing is sampled. Vocabularies are learned from counts of words, so the counts of each source are
multiplied instead: all text counts, without the noise of a sample, and a source that should come more often than it is
long is not repeated.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from transformers import PreTrainedTokenizerBase

from hf_encoders.data.mixture import Sampling
from hf_encoders.data.vocabulary.word_counts import count_words


class CountedLines:
    """Iterates over lines and counts their bytes in UTF-8, `num_bytes`."""

    def __init__(self, lines: Iterable[str]):
        self.lines = lines
        self.num_bytes = 0

    def __iter__(self) -> Iterator[str]:
        for line in self.lines:
            self.num_bytes += len(line.encode("utf-8", "replace"))
            yield line


def count_source_words(
    sources: Mapping[str, Iterable[str]], tokenizer: PreTrainedTokenizerBase, alpha: float
) -> dict[str, int]:
    """`count_words` of several sources, each with its share of the bytes to the power `alpha`.

    Raises:
        ValueError: for a source without text, and an alpha that is not in (0, 1].
    """
    words, sizes = {}, {}
    for name, lines in sources.items():
        counted = CountedLines(lines)
        words[name] = count_words_of(name, counted, tokenizer)
        sizes[name] = counted.num_bytes
    return weighted_words(words, sizes, Sampling(alpha).shares(sizes))


def count_words_of(name: str, lines: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """`count_words` of one source, whose name is in the message if it has no text; `""` for no name."""
    try:
        return count_words(lines, tokenizer)
    except ValueError as error:
        if not name:
            raise
        raise ValueError(f"source {name!r} has no text: check its files, or leave it out.") from error


def weighted_words(
    words: Mapping[str, Mapping[str, int]], sizes: Mapping[str, int], shares: Mapping[str, float]
) -> dict[str, int]:
    """Counts of the words of all sources, as in a text of these shares; sorted by code points.

    Args:
        words (`Mapping[str, Mapping[str, int]]`): Counts of each source.
        sizes (`Mapping[str, int]`): Text that was counted, in bytes.
        shares (`Mapping[str, float]`): Share of each source in the text; they need not add up to 1.

    Three times as much English as German, in equal shares; no count becomes smaller, so that no word is lost:

    >>> words = {"en": {"the": 9, "in": 3}, "de": {"das": 2, "in": 1}}
    >>> weighted_words(words, sizes={"en": 30, "de": 10}, shares={"en": 1, "de": 1})
    {'das': 6, 'in': 6, 'the': 9}
    """
    factors = {name: shares[name] / sizes[name] for name in words}
    least = min(factors.values())
    total: Counter[str] = Counter()
    for name, counts in words.items():
        factor = factors[name] / least
        for word, count in counts.items():
            total[word] += round(count * factor)
    return dict(sorted(total.items()))
