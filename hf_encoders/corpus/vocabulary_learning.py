"""Vocabularies learned from counted words: WordPiece, BPE and Unigram, with the trainers of `tokenizers`.

The same words and settings give the same vocabulary in every process, which the library alone does not guarantee: it
keeps words in hash maps with a random seed per process, and

- WordPiece numbers the pieces `##x` of one character in map order, and merges pairs of equal counts in the order of
  these numbers: here the pieces are numbered beforehand, by code point;
- BPE with a suffix does the same with the pieces `x</w>`; byte-level BPE has none, and its order is fixed;
- Unigram adds up expected counts as floating-point numbers in map order, so that scores differ in their last digits,
  and gives the characters that it restores after pruning rising scores in the order of another map: here these
  characters share one score, scores are rounded and pieces sorted. Two pieces whose losses are equal up to rounding,
  right where the vocabulary is cut, could still change places.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AddedToken, PreTrainedTokenizerBase

from hf_encoders.corpus.word_counts import repeated


CONTINUATION = "##"  # BERT's vocab.txt
# Decimals of a log-probability. Runs differ by at most 1e-12; a ten-thousandth matters only between two equally good
# segmentations of a word.
SCORE_DECIMALS = 4
RESTORED_STEP = 0.0001  # between the scores of restored characters in `finalize` of the library's Unigram trainer


def learn_vocabulary(
    words: dict[str, int],
    tokenizer: PreTrainedTokenizerBase,
    vocab_size: int,
    first: Sequence[str],
    last: Sequence[str] = (),
) -> dict[str, Any]:
    """Learn the kind of vocabulary that a tokenizer has.

    Args:
        words (`dict[str, int]`): From `count_words` with this tokenizer.
        tokenizer (`PreTrainedTokenizerBase`): Its model decides the kind of vocabulary.
        vocab_size (`int`): Largest number of entries, special tokens included.
        first, last (`Sequence[str]`): Roles of the special tokens before and after all other entries (`pad`, `unk`,
            `cls`, `sep`, `mask`), or the token itself in angle brackets.

    Returns:
        `dict`: Arguments of the tokenizer's class: `vocab`, and others by kind.

    Raises:
        ValueError: If `vocab_size` has no room for the special tokens and the characters of the words.
    """
    ends = ([special_token(tokenizer, role) for role in roles] for roles in (first, last))
    model = tokenizer.backend_tokenizer.model
    if isinstance(model, models.BPE) and model.end_of_word_suffix:
        return _suffix_bpe(words, tokenizer, vocab_size, *ends)
    for kind, learn in ((models.WordPiece, _wordpiece), (models.BPE, _byte_level_bpe), (models.Unigram, _unigram)):
        if isinstance(model, kind):
            return learn(words, tokenizer, vocab_size, *ends)
    raise ValueError(
        f"tokenizer has a model of type {type(model).__name__}: only WordPiece, BPE and Unigram vocabularies can be "
        "learned."
    )


def special_token(tokenizer: PreTrainedTokenizerBase, role: str) -> str:
    """Return the token that has a role, such as `mask`; a token in angle brackets is itself."""
    return role if role.startswith("<") else getattr(tokenizer, f"{role}_token")


def _wordpiece(
    words: dict[str, int], tokenizer: PreTrainedTokenizerBase, vocab_size: int, first: list[str], last: list[str]
) -> dict[str, Any]:
    """Order: special tokens, characters, `##` characters, then the longer pieces in the order of the merges."""
    alphabet = sorted(set().union(*words))
    continuations = [CONTINUATION + character for character in sorted(set().union(*(word[1:] for word in words)))]
    needed = f"{len(alphabet):,} characters, {len(continuations):,} of them inside words"
    _check_size(vocab_size, len(first) + len(alphabet) + len(continuations) + len(last), needed)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size - len(last),
        special_tokens=first + continuations,
        continuing_subword_prefix=CONTINUATION,
        show_progress=sys.stderr.isatty(),
    )
    trained = _trained(words, models.WordPiece({}, unk_token=tokenizer.unk_token), trainer)
    learned = sorted(trained["vocab"], key=trained["vocab"].get)
    fixed = dict.fromkeys(first + alphabet + continuations)
    pieces = [*fixed, *(piece for piece in learned if piece not in fixed), *last]
    return {"vocab": {piece: number for number, piece in enumerate(pieces)}}


def _byte_level_bpe(
    words: dict[str, int], tokenizer: PreTrainedTokenizerBase, vocab_size: int, first: list[str], last: list[str]
) -> dict[str, Any]:
    """Order: special tokens, the 256 bytes, the merges, and the last special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    _check_size(vocab_size, len(first) + len(alphabet) + len(last), "256 bytes")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(last),
        special_tokens=first,
        initial_alphabet=alphabet,
        show_progress=sys.stderr.isatty(),
    )
    trained = _trained(words, models.BPE(), trainer)
    learned = sorted(trained["vocab"], key=trained["vocab"].get)
    return {
        "vocab": {piece: number for number, piece in enumerate([*learned, *last])},
        "merges": [tuple(merge) for merge in trained["merges"]],
        "mask_token": mask_with_its_space(tokenizer.mask_token),
    }


def _suffix_bpe(
    words: dict[str, int], tokenizer: PreTrainedTokenizerBase, vocab_size: int, first: list[str], last: list[str]
) -> dict[str, Any]:
    """Order: special tokens, characters, characters that end words, the merges, and the last special tokens."""
    suffix = tokenizer.backend_tokenizer.model.end_of_word_suffix
    alphabet = sorted(set().union(*words))
    endings = [character + suffix for character in sorted({word[-1] for word in words})]
    needed = f"{len(alphabet):,} characters, {len(endings):,} of them at the end of words"
    _check_size(vocab_size, len(first) + len(alphabet) + len(endings) + len(last), needed)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(last),
        special_tokens=first + endings,
        end_of_word_suffix=suffix,
        show_progress=sys.stderr.isatty(),
    )
    trained = _trained(words, models.BPE(end_of_word_suffix=suffix), trainer)
    learned = sorted(trained["vocab"], key=trained["vocab"].get)
    fixed = dict.fromkeys(first + alphabet + endings)
    pieces = [*fixed, *(piece for piece in learned if piece not in fixed), *last]
    return {
        "vocab": {piece: number for number, piece in enumerate(pieces)},
        "merges": [tuple(merge) for merge in trained["merges"]],
    }


def _unigram(
    words: dict[str, int], tokenizer: PreTrainedTokenizerBase, vocab_size: int, first: list[str], last: list[str]
) -> dict[str, Any]:
    """Order: special tokens, then pieces by score, the most probable first, and the last special tokens."""
    special = first + last
    alphabet = set().union(*words)
    _check_size(vocab_size, len(special) + len(alphabet), f"{len(alphabet):,} characters")
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        unk_token=tokenizer.unk_token,
        show_progress=sys.stderr.isatty(),  # takes minutes for large text; in a log, bars would be thousands of lines
    )
    trained = _trained(words, models.Unigram(), trainer)
    scores = {piece: score for piece, score in trained["vocab"] if piece not in special}
    scored = [(piece, round(score, SCORE_DECIMALS)) for piece, score in _with_equal_restored(scores).items()]
    scored.sort(key=lambda entry: (-entry[1], entry[0]))
    return {
        "vocab": [(token, 0.0) for token in first] + scored + [(token, 0.0) for token in last],
        "mask_token": mask_with_its_space(tokenizer.mask_token),
    }


def _with_equal_restored(scores: dict[str, float]) -> dict[str, float]:
    """Give the lowest score to every character that the trainer restored.

    The trainer gives them the lowest score plus 0, 1, 2, ... steps, by which they are recognized.
    """
    lowest = min(scores.values())
    steps = {piece: (score - lowest) / RESTORED_STEP for piece, score in scores.items() if len(piece) == 1}
    restored = {piece for piece, step in steps.items() if step < len(steps) and abs(step - round(step)) < 1e-6}
    return {piece: lowest if piece in restored else score for piece, score in scores.items()}


def _trained(words: dict[str, int], model: models.Model, trainer: trainers.Trainer) -> dict[str, Any]:
    """The model that a trainer learns from words, as the library writes it to JSON."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")  # words have no space inside
    tokenizer.train_from_iterator(repeated(words), trainer=trainer, length=len(words))
    return json.loads(tokenizer.to_str())["model"]


def mask_with_its_space(mask: str) -> AddedToken:
    """A mask token that includes the space before it, as in roberta-base and albert-base-v2.

    Otherwise `is <mask>.` has a space token before the mask, which no pre-training example has.
    """
    return AddedToken(mask, lstrip=True, normalized=False, special=True)


def _check_size(vocab_size: int, least: int, needed: str) -> None:
    if vocab_size < least:
        raise ValueError(
            f"vocab_size={vocab_size} is too small for the text, which takes {least:,} entries without any longer "
            f"piece ({needed}, and the special tokens): raise it, or leave out rare characters with "
            "character_coverage=0.9995 (--character-coverage 0.9995)."
        )
