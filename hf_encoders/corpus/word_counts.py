"""Count the distinct words of a text, from which alone vocabularies are learned.

Counting, done by `tokenizers`, takes longest by far, and is done once for any number of vocabularies.
The words of several sources are counted as in a text that has a given share of each. XLM (arXiv 1901.07291, section
3.1) samples sentences with shares of size ** 0.5; here the counts of each source are multiplied instead, so that all
text counts, without the noise of a sample.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.documents import Reading
from hf_encoders.corpus.text_files import Sampling
from hf_encoders.inputs import replace_lone_surrogates


LINES_PER_BATCH = 1000  # normalized and pre-tokenized at once
LINES_PER_PASSAGE = 100
FIRST_HELD_OUT = 10  # passages; fewer are all trained on, and measured too
HELD_OUT_BYTES = 10_000_000  # at most: they are kept in memory
SAMPLE_BYTES = 1_000_000


def count_words(lines: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Count normalized words, as the tokenizer's normalizer and pre-tokenizer define them; its vocabulary is unused.

    Of a word around a token that was added (`tokenizer.add_tokens`) only the rest counts: text is cut there first.
    Memory is for distinct words only. They are sorted by code points: the library's order is random.

    Raises:
        ValueError: If there is no word.
    """
    counting = Tokenizer(models.WordLevel({}, unk_token=""))
    if tokenizer.backend_tokenizer.normalizer is not None:
        counting.normalizer = tokenizer.backend_tokenizer.normalizer
    steps = [_without_added_tokens(tokenizer), tokenizer.backend_tokenizer.pre_tokenizer]
    counting.pre_tokenizer = pre_tokenizers.Sequence([step for step in steps if step is not None])
    trainer = trainers.WordLevelTrainer(vocab_size=1, show_progress=False)
    lines = map(replace_lone_surrogates, lines)
    counting.train_from_iterator(iter(lambda: list(islice(lines, LINES_PER_BATCH)), []), trainer=trainer)
    # Only the serialized state of a trainer shows its counts.
    words = json.loads(trainer.__getstate__())["WordLevelTrainer"]["words"]
    words.pop("", None)
    if not words:
        raise ValueError(
            "the text is empty: a tokenizer needs words to be trained on. Check the files of --input or --corpus, or "
            "the sentences that were given."
        )
    return dict(sorted(words.items()))


def _without_added_tokens(tokenizer: PreTrainedTokenizerBase) -> pre_tokenizers.PreTokenizer | None:
    """Return a step that removes added tokens from normalized text; None if there are none.

    Special ones are left: text hardly has them, and tokenizers in training have them too.
    """
    normalizer, patterns = tokenizer.backend_tokenizer.normalizer, []
    for token in tokenizer.added_tokens_decoder.values():
        if not token.special:
            content = normalizer.normalize_str(token.content) if normalizer and token.normalized else token.content
            patterns.append(rf"(?<!\w){re.escape(content)}(?!\w)" if token.single_word else re.escape(content))
    if not patterns:
        return None
    return pre_tokenizers.Split(Regex("|".join(sorted(patterns, key=len, reverse=True))), "removed")


def check_coverage(coverage: float) -> None:
    """Refuse a character coverage that is out of range."""
    if not 0 < coverage <= 1:
        raise ValueError(
            f"character_coverage={coverage} must be in (0, 1]: 1 keeps every character, 0.9995 drops the rarest."
        )


def covered_words(words: dict[str, int], coverage: float) -> dict[str, int]:
    """Leave out the words with rare characters.

    The most frequent characters are kept until they make up the share `coverage`, in (0, 1], of all (ties by code
    point), like SentencePiece's `character_coverage` (0.9995 by default).

    >>> covered_words({"aab": 3, "ab": 2, "aß": 1}, 0.9)
    {'aab': 3, 'ab': 2}
    """
    check_coverage(coverage)
    if coverage == 1:
        return words
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    wanted, kept, covered = coverage * counts.total(), set(), 0
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered >= wanted:
            break
        kept.add(character)
        covered += count
    return {word: count for word, count in words.items() if kept.issuperset(word)}


def repeated(words: dict[str, int], words_per_line: int = 10_000) -> Iterator[list[str]]:
    """Yield lines with every word as often as it was counted: the library's trainers take text, not counts."""
    for word, count in words.items():
        whole, rest = divmod(count, words_per_line)
        for size in [words_per_line] * whole + [rest] * (rest > 0):
            yield " ".join([word] * size)


class SelectedText:
    """Iterates over the lines to train on, and collects lines held out to measure the tokenizer.

    Passages (documents, or `LINES_PER_PASSAGE` lines of longer ones) are taken evenly from the text, which may be
    sorted; none is held out of fewer than `FIRST_HELD_OUT`.

    Args:
        documents (`Iterable[list[str]]`): The text.
        held_out_share (`float`): Share of the passages held out, in [0, 0.5].
        limit_bytes (`int`, *optional*): UTF-8 text to train on at most; `None` takes all.
        total_bytes (`int`, *optional*): Size of the whole text, over which the limit is spread; `None`, unknown, takes
            the beginning of the text.
    """

    def __init__(
        self,
        documents: Iterable[list[str]],
        held_out_share: float,
        limit_bytes: int | None = None,
        total_bytes: int | None = None,
    ):
        if not 0 <= held_out_share <= 0.5:
            raise ValueError(f"held_out_share={held_out_share} must be in [0, 0.5]; 0.01 holds out 1 %.")
        self.documents = documents
        self.limit_bytes = limit_bytes
        self.kept_share = min(limit_bytes / total_bytes, 1.0) if limit_bytes and total_bytes else 1.0
        if total_bytes:
            held_out_share = min(held_out_share, HELD_OUT_BYTES / total_bytes)
        self.period = max(round(1 / held_out_share), 2) if held_out_share else 0
        self.held_out: list[str] = []
        self._sample: list[str] = []  # the first lines to train on
        self.trained_bytes = self.held_out_bytes = 0
        self.reading = Reading()

    @property
    def measured(self) -> list[str]:
        """Lines to measure the tokenizer on: held out, or of the training text if it is too short."""
        return self.held_out or self._sample

    def __iter__(self) -> Iterator[str]:
        seen = 0
        for number, passage in enumerate(self._passages()):
            size = sum(len(line.encode()) for line in passage)
            # Not among the first nine, so that a short text stays whole, but early enough for a text of few passages.
            is_turn = self.period > 0 and number % self.period == min(self.period, FIRST_HELD_OUT) - 1
            if is_turn and number >= FIRST_HELD_OUT - 1 and self.held_out_bytes + size <= HELD_OUT_BYTES:
                self.held_out += passage
                self.held_out_bytes += size
                continue
            seen += size
            if self.trained_bytes + size <= self.kept_share * seen:
                if self.limit_bytes and self.trained_bytes and self.trained_bytes + size > self.limit_bytes:
                    return
                if self.trained_bytes < SAMPLE_BYTES:
                    self._sample += passage
                self.trained_bytes += size
                yield from passage

    def _passages(self) -> Iterator[list[str]]:
        for document in self.documents:
            self.reading = self.reading.with_document(document)
            for begin in range(0, len(document), LINES_PER_PASSAGE):
                yield [replace_lone_surrogates(line) for line in document[begin : begin + LINES_PER_PASSAGE]]


@dataclass
class CountedText:
    """The text of all sources for a tokenizer; `""` is a source without a name."""

    texts: Mapping[str, SelectedText]
    words_of: Mapping[str, dict[str, int]]  # of each source
    shares: Mapping[str, float]  # of each source in the text that is counted
    words: dict[str, int]  # of all, weighted by the shares

    @property
    def measured(self) -> list[str]:
        """Lines of all sources to measure the tokenizer on."""
        return [line for text in self.texts.values() for line in text.measured]

    @property
    def is_held_out(self) -> bool:
        """Return whether all measured lines are held out."""
        return all(text.held_out for text in self.texts.values())


def count_texts(
    texts: Mapping[str, SelectedText],
    tokenizer: PreTrainedTokenizerBase,
    sampling: Sampling,
    shares: Mapping[str, float] | None = None,
) -> CountedText:
    """Count the words of sources, each of which counts as its share, that of `sampling` by bytes unless it is given.

    Raises:
        ValueError: for a source without text.
    """
    words_of = {}
    for name, text in texts.items():
        try:
            words_of[name] = count_words(text, tokenizer)
        except ValueError as error:
            if not name:
                raise
            raise ValueError(f"source {name!r} has no text: check its files, or leave it out.") from error
    sizes = {name: text.trained_bytes for name, text in texts.items()}
    shares = shares or sampling.shares(sizes)
    return CountedText(texts, words_of, shares, weighted_words(words_of, sizes, shares))


def weighted_words(
    words: Mapping[str, Mapping[str, int]], sizes: Mapping[str, int], shares: Mapping[str, float]
) -> dict[str, int]:
    """Return the counts of all words as in a text that has a share of each source; sorted by code points.

    `words` are counts of each source, of text of `sizes` bytes; shares need not add up to 1. Three times as much
    English as German, in equal shares; no count becomes smaller, so that no word is lost:

    >>> words = {"en": {"the": 9, "in": 3}, "de": {"das": 2, "in": 1}}
    >>> weighted_words(words, sizes={"en": 30, "de": 10}, shares={"en": 1, "de": 1})
    {'das': 6, 'in': 6, 'the': 9}
    """
    factors = {name: shares[name] / sizes[name] for name in words}
    least = min(factors.values())
    total: Counter[str] = Counter()
    for name, counts in words.items():
        for word, count in counts.items():
            total[word] += round(count * (factors[name] / least))
    return dict(sorted(total.items()))
