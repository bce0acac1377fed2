"""Words of several sources, counted as in a text that has a given share of each.

Source of the rule: XLM (arXiv 1901.07291, section 3.1) learns its BPE on sentences sampled with shares of size ** 0.5.
Differs from it in: nothing is sampled. Vocabularies are learned from counts of words, so the counts of each source are
multiplied instead: all text counts, without the noise of a sample, and a source that should come more often than it is
long is not repeated.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.sampling import Sampling
from hf_encoders.corpus.sources import TextSource
from hf_encoders.corpus.text_selection import SelectedText
from hf_encoders.corpus.word_counts import count_words


@dataclass
class SourceText:
    """The text of one source for a tokenizer: what is trained on, and its words; `""` is one without a name."""

    text: SelectedText
    words: dict[str, int]

    @property
    def measured(self) -> list[str]:
        """Lines to measure the tokenizer on: held out, or of the training text if it is too short."""
        return self.text.held_out or self.text.sample


@dataclass
class CountedText:
    """The text of all sources for a tokenizer."""

    sources: dict[str, SourceText]
    shares: dict[str, float]  # what each source counts
    words: dict[str, int]  # of all, weighted by the shares


def count_selected_text(
    sources: Mapping[str, TextSource],
    documents_of: Callable[[TextSource], Iterable[list[str]]],
    tokenizer: PreTrainedTokenizerBase,
    held_out_share: float,
    limit_bytes: int | None,
    sampling: Sampling,
) -> CountedText:
    """Count the words of sources; each has its share of the bytes, of all text or of `limit_bytes`.

    Args:
        sources (`Mapping[str, TextSource]`): By name.
        documents_of (`Callable`): Reads a source.
        tokenizer, held_out_share, limit_bytes: As of `count_words` and `SelectedText`.
        sampling (`Sampling`): The shares.

    Raises:
        ValueError: for a source without text.
    """
    shares = dict.fromkeys(sources, 1.0) if len(sources) == 1 else None
    if limit_bytes is not None and shares is None:
        shares = sampling.shares({name: source.text_bytes for name, source in sources.items()})
    found = {}
    for name, source in sources.items():
        limit = None if limit_bytes is None else max(int(limit_bytes * shares[name]), 1)
        text = SelectedText(documents_of(source), held_out_share, limit, source.text_bytes)
        found[name] = SourceText(text, count_words_of(name, text, tokenizer))
    sizes = {name: one.text.trained_bytes for name, one in found.items()}
    shares = shares or sampling.shares(sizes)
    words = weighted_words({name: one.words for name, one in found.items()}, sizes, shares)
    return CountedText(found, shares, words)


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
    if len(words) == 1:
        return dict(next(iter(words.values())))
    factors = {name: shares[name] / sizes[name] for name in words}
    least = min(factors.values())
    total: Counter[str] = Counter()
    for name, counts in words.items():
        factor = factors[name] / least
        for word, count in counts.items():
            total[word] += round(count * factor)
    return dict(sorted(total.items()))
