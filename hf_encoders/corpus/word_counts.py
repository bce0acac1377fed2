"""Counts of the distinct words of a text, as a tokenizer's normalizer and pre-tokenizer find them.

Vocabularies are learned from these alone. Counting, done by `tokenizers`, takes by far the longest on large text, and
is done once for any number of vocabularies.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.segmentation import replace_lone_surrogates


LINES_PER_BATCH = 1000  # normalized and pre-tokenized at once


def count_words(lines: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Count normalized words, as the tokenizer's normalizer and pre-tokenizer define them; its vocabulary is unused.

    Of a word around a token that was added (`tokenizer.add_tokens`) only the rest counts: text is cut there first.
    Memory is needed for distinct words only. They are sorted by code points: the library's order is random.
    """
    counting = Tokenizer(models.WordLevel({}, unk_token=""))
    if tokenizer.backend_tokenizer.normalizer is not None:
        counting.normalizer = tokenizer.backend_tokenizer.normalizer
    steps = [_without_added_tokens(tokenizer), tokenizer.backend_tokenizer.pre_tokenizer]
    counting.pre_tokenizer = pre_tokenizers.Sequence([step for step in steps if step is not None])
    trainer = trainers.WordLevelTrainer(vocab_size=1, show_progress=False)
    counting.train_from_iterator(_batches(lines), trainer=trainer)
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
    """A step that removes added tokens from normalized text; None if there are none.

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
    counts = Counter()
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
    """Lines with every word as often as it was counted: the library's trainers take text, not counts."""
    for word, count in words.items():
        whole, rest = divmod(count, words_per_line)
        for size in [words_per_line] * whole + [rest] * (rest > 0):
            yield " ".join([word] * size)


def _batches(lines: Iterable[str]) -> Iterator[list[str]]:
    lines = map(replace_lone_surrogates, lines)
    while batch := list(islice(lines, LINES_PER_BATCH)):
        yield batch
