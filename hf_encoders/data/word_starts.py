"""Which tokens begin a word, from token ids alone: for masking whole words.

A word is what the tokenizer's own pre-tokenizer makes, as far as ids tell. Whether a token begins one depends on it
and on the token before it, so it is looked up: a table says of each piece what it ends in (a letter, a digit, ...) and
after which endings it begins a word. Finds no words in scripts without spaces: there each piece is one.
"""

import codecs
import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from hf_encoders.data.special_tokens import unknown_ids


# What a piece ends in, one bit each. After a boundary every piece begins a word. A piece that is only a part of a
# character has no bit: it ends in whatever the piece before it does.
BOUNDARY, LETTER, DIGIT, OTHER, APOSTROPHE, UNSPACED, SPACE, BLANK = (1 << bit for bit in range(8))
ANYTHING, NOTHING = 255, 0
PART_OF_CHARACTER = 0

# The first alternatives in the GPT-2 pre-tokenizer's regular expression (`encoder.py` of openai/gpt-2).
CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
# Scripts that are written without spaces, by how Unicode names their letters.
UNSPACED_NAMES = (
    "CJK ",
    "IDEOGRAPHIC ",
    "HIRAGANA ",
    "KATAKANA",
    "HALFWIDTH KATAKANA",
    "THAI ",
    "LAO ",
    "KHMER ",
    "MYANMAR ",
)
JOINERS = "\u200c\u200d"
# First bytes that say little, and how the characters in use that have them go on: emoji, and full-width punctuation.
MOST_USED = {b"\xf0": b"\xf0\x9f", b"\xef": b"\xef\xbc"}
# `special_pieces` in `create_pretraining_data.py` of google-research/albert: no apostrophe, no `<`, `=` and `>`.
ALBERT_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
ALBERT_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")


class Joint(NamedTuple):
    """How a piece joins its neighbours: after which endings it begins a word (a set of bits), and its own ending."""

    begins_after: int
    ends_in: int


WORD = Joint(ANYTHING, BOUNDARY)


class _TabledStarts(ABC):
    """The look-up that all rules share; a rule says how each piece of the vocabulary joins its neighbours.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): whose ids are looked at.

    Raises:
        ValueError: if the rule cannot be applied to this kind of tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        model, steps = _description(tokenizer)
        self.table = _table(tokenizer, model, self._rule(model, steps))
        self.has_parts_of_characters = bool(np.any(self.table & ANYTHING == 0))

    @abstractmethod
    def _rule(self, model: dict, steps: dict[str, dict]) -> Callable[[str], Joint]:
        """How a piece joins its neighbours, for the tokenizer described."""

    def __call__(self, ids: np.ndarray, begins_text: np.ndarray) -> np.ndarray:
        """Find the words' first tokens.

        Args:
            ids (`np.ndarray` of shape `(N,)`): token ids of several texts, one after the other.
            begins_text (`np.ndarray` of shape `(N,)`): True at the first token of each text.

        Returns:
            `np.ndarray` of shape `(N,)`, True where a token begins a word. A word never goes on across the begin of a
            text; nor, unless a rule says so, across a special token.
        """
        joints = self.table.take(ids)
        if self.has_parts_of_characters:
            _complete_endings(joints, begins_text)
        begins = np.array(begins_text, dtype=bool)
        begins[:1] = True
        begins[1:] |= ((joints[1:] >> 8) & joints[:-1]) != 0
        return begins


class WordStarts(_TabledStarts):
    """The tokenizer's own words.

    A piece begins a word, by kind of tokenizer:
        - WordPiece (`##`): without the prefix.
        - Byte-level BPE (`Ġ`): with the marker, or where letters, digits and other characters change; an English
          contraction (`'s`) is a word.
        - Unigram or BPE with `▁`: with the marker, or where word characters (letters, digits) and others change.
        - BPE with a suffix (`</w>`): after a piece with the suffix.
        - WordLevel: always.

    In all of them the first piece of a text begins a word, special and added tokens are words of their own, and an
    unknown token begins a word, which pieces may continue. A space marker that stands alone begins the word after it.

    These are the words of the pre-tokenizer (`word_ids()`), but:
        - `▁`: punctuation is apart from words, "dog." is two; `word_ids()` only parts at spaces.
        - Chinese, Japanese, Thai, Lao, Khmer, Burmese: each piece is a word, and what follows them is another.
        - Combining marks and joiners belong to the character before them (rule WB4 of Unicode's annex 29); the GPT-2
          pattern parts words at them, in Hindi at most vowels.
        - A character that is split over pieces is classed by its bytes in the first of them.
        - Each of several spaces in a row is a word, if it is a piece.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): whose ids are looked at; one of the kinds above.

    Raises:
        ValueError: if the tokenizer is of another kind, or slow.

    Example:
        >>> from transformers import BertTokenizer
        >>> pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing"]
        >>> word_starts = WordStarts(BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}))
        >>> ids = np.array([2, 5, 6, 3, 6, 5, 6])  # [CLS] play ##ing [SEP] ##ing, play ##ing
        >>> word_starts(ids, np.array([True, False, False, False, False, True, False])).astype(int)
        array([1, 1, 0, 1, 1, 1, 0])
    """

    def _rule(self, model: dict, steps: dict[str, dict]) -> Callable[[str], Joint]:
        if model["type"] == "WordLevel":
            return lambda piece: WORD
        prefix, suffix = model.get("continuing_subword_prefix"), model.get("end_of_word_suffix")
        # Before the space markers: CLIP's tokenizer is byte-level and has a suffix in place of the marker.
        if suffix:
            return lambda piece: _with_suffix(piece, suffix)
        if prefix:
            return lambda piece: _with_prefix(piece, prefix)
        text_of = _text_of_marked_pieces(model, steps)
        if text_of is None:
            raise _not_understood(model, steps, "which tokens begin a word")
        joint = _of_gpt2_pattern if "ByteLevel" in steps else _of_word_characters
        return lambda piece: joint(*text_of(piece))


class ContinuationStarts(_TabledStarts):
    """The words of the original BERT code: a piece that continues a word joins whatever stands before it.

    A piece begins a word if it lacks the prefix `##` (`create_masked_lm_predictions` in `create_pretraining_data.py`
    of google-research/bert). So a run of kana or of Thai is one word of many pieces to a multilingual WordPiece
    tokenizer. A piece with the prefix joins special tokens too, and a word goes on behind them where a text is given
    without them; only the first token of a text begins a word whatever it is.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): one whose pieces that continue a word have a prefix.

    Raises:
        ValueError: if they have none.

    Example:
        >>> from transformers import BertTokenizer
        >>> pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ひ", "##ら", "##がな"]
        >>> starts = ContinuationStarts(BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}))
        >>> starts(np.array([5, 6, 7, 1, 7, 6]), np.array([True, False, False, False, False, True])).astype(int)
        array([1, 0, 0, 1, 0, 1])
    """

    def _rule(self, model: dict, steps: dict[str, dict]) -> Callable[[str], Joint]:
        prefix = model.get("continuing_subword_prefix")
        if not prefix:
            raise _not_understood(model, steps, "which pieces continue a word (by a prefix)")
        return lambda piece: Joint(NOTHING if piece.startswith(prefix) else ANYTHING, LETTER)


class SentencePieceStarts(_TabledStarts):
    """The words of the original ALBERT code, for comparison with it.

    A piece begins a word if it begins with `▁` or `<`, is a punctuation mark, or has a character other than English
    letters and that punctuation (`_is_start_piece_sp` in `create_pretraining_data.py` of google-research/albert). A
    known artefact: every piece with another letter is a word, so words of most languages are never masked whole; so is
    every piece with a digit or an apostrophe. Unlike there, a word ends at a special token.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): one that marks spaces with `▁`.

    Raises:
        ValueError: if it does not.
    """

    def _rule(self, model: dict, steps: dict[str, dict]) -> Callable[[str], Joint]:
        if "Metaspace" not in steps:
            raise _not_understood(model, steps, "which pieces have a space before them (by a Metaspace pre-tokenizer)")

        def joint(piece: str) -> Joint:
            # `▁` and `<` are neither letters nor in the punctuation, so they need no rule of their own.
            is_english = all(character.lower() in ALBERT_LETTERS | ALBERT_PUNCTUATION for character in piece)
            return Joint(ANYTHING if piece in ALBERT_PUNCTUATION or not is_english else BOUNDARY, LETTER)

        return joint


class SpaceMarkedStarts(_TabledStarts):
    """The words between spaces, as in fairseq: "dog." is one word, and so is a Chinese or Japanese sentence.

    A piece begins a word if it begins with the space marker (`is_beginning_of_word` in `gpt2_bpe.py` and
    `sentencepiece_bpe.py` of fairseq's `data/encoders`), and so does a special token. A piece without the marker joins
    what stands before it, a special token too: to a tokenizer that puts no space before a text (RoBERTa's), the first
    word of a sentence is one with the `</s>` before it, if special tokens are masked like others. Where they are not,
    the words of `Masking` end at them.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): one that marks spaces, by `Ġ` or `▁`.

    Raises:
        ValueError: if it does not.
    """

    def _rule(self, model: dict, steps: dict[str, dict]) -> Callable[[str], Joint]:
        text_of = _text_of_marked_pieces(model, steps)
        if text_of is None:
            raise _not_understood(model, steps, "which pieces have a space before them")
        return lambda piece: Joint(ANYTHING if text_of(piece)[0].startswith(" ") else NOTHING, LETTER)


def _complete_endings(joints: np.ndarray, begins_text: np.ndarray) -> None:
    """Give pieces that are only a part of a character the ending of the piece before them, in place."""
    parts = np.flatnonzero(joints & ANYTHING == 0)
    if len(parts) == 0:
        return
    begins_run = (np.diff(parts, prepend=-2) != 1) | begins_text[parts]
    runs = np.flatnonzero(begins_run)
    endings = joints[parts[runs] - 1] & ANYTHING
    # A text may begin within a character, and the rest of that character is one word.
    endings[begins_text[parts[runs]] | (parts[runs] == 0) | (endings == BOUNDARY)] = OTHER
    joints[parts] |= np.repeat(endings, np.diff(runs, append=len(parts)))


def _description(tokenizer: PreTrainedTokenizerBase) -> tuple[dict, dict[str, dict]]:
    """The tokenizer's model, and its normalizers and pre-tokenizers by type, as in `tokenizer.json`."""
    if not tokenizer.is_fast:
        raise ValueError(
            f"tokenizer: {type(tokenizer).__name__} does not say where words begin. Prepare the corpus with a "
            "word segmenter, mask tokens instead of words, or use a tokenizer of the tokenizers library."
        )
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    steps, waiting = {}, [description["normalizer"], description["pre_tokenizer"]]
    while waiting:
        step = waiting.pop()
        if step is not None:
            steps[step["type"]] = step
            waiting += step.get("pretokenizers", []) + step.get("normalizers", [])
    return description["model"], steps


def _not_understood(model: dict, steps: dict[str, dict], what: str) -> ValueError:
    return ValueError(
        f"tokenizer: a {model['type']} model after the steps {sorted(steps)} does not say {what}. Prepare the corpus "
        "with a word segmenter, or mask tokens instead of words."
    )


def _table(tokenizer: PreTrainedTokenizerBase, model: dict, rule: Callable[[str], Joint]) -> np.ndarray:
    """For each id `begins_after << 8 | ends_in`; 16 bits, so that a large vocabulary's table stays in the cache."""
    vocabulary = tokenizer.get_vocab()
    unknown = unknown_ids(tokenizer, model.get("unk_id"), vocabulary.get(model.get("unk_token")))
    apart = {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids} - unknown

    table = np.full(
        max(len(tokenizer), max(vocabulary.values()) + 1), WORD.begins_after << 8 | WORD.ends_in, np.uint16
    )
    for piece, index in vocabulary.items():
        if index not in apart:
            joint = Joint(ANYTHING, LETTER) if index in unknown else rule(piece)
            table[index] = joint.begins_after << 8 | joint.ends_in
    return table


def _with_prefix(piece: str, prefix: str) -> Joint:
    first, last = _edges(piece.removeprefix(prefix))
    return Joint(_continues(first) if piece.startswith(prefix) else ANYTHING, last or LETTER)


def _with_suffix(piece: str, suffix: str) -> Joint:
    first, last = _edges(piece.removesuffix(suffix))
    return Joint(_continues(first), BOUNDARY if piece.endswith(suffix) else last or LETTER)


def _continues(first: int) -> int:
    """After what a piece begins a word although it is one that continues words."""
    if first == UNSPACED:
        return ANYTHING
    return BOUNDARY if first == PART_OF_CHARACTER else BOUNDARY | UNSPACED


def _of_gpt2_pattern(text: str, begins_within_character: bool) -> Joint:
    first, last = _edges(text, begins_within_character)
    if text in CONTRACTIONS:
        return WORD
    if text == "'":
        return Joint(_begins_after(first), APOSTROPHE)
    begins_after = _begins_after(first)
    # A vocabulary without the piece 's spells it in two.
    return Joint(begins_after & ~APOSTROPHE if "'" + text in CONTRACTIONS else begins_after, last)


def _of_word_characters(text: str, begins_within_character: bool) -> Joint:
    first, last = (LETTER if edge == DIGIT else edge for edge in _edges(text, begins_within_character))
    return Joint(_begins_after(first), last)


def _begins_after(first: int) -> int:
    """After what a piece begins a word whose first character is of this class."""
    if first == SPACE:
        return ANYTHING
    if first == PART_OF_CHARACTER:
        return BOUNDARY
    if first == UNSPACED:
        return ANYTHING & ~SPACE
    return ANYTHING & ~(first | SPACE | (APOSTROPHE if first == OTHER else 0))


def _text_of_marked_pieces(model: dict, steps: dict[str, dict]) -> Callable[[str], tuple[str, bool]] | None:
    """How to read a piece: its text, with a space for the marker, and whether it begins within a character.

    None for a tokenizer that marks no spaces.
    """
    if "ByteLevel" in steps:
        bytes_of = {character: byte for byte, character in bytes_to_unicode().items()}

        def text_of(piece: str) -> tuple[str, bool]:
            is_bytes = all(character in bytes_of for character in piece)
            return _decode(bytes(bytes_of[character] for character in piece) if is_bytes else piece.encode())

        return text_of
    if "Metaspace" in steps:
        marker, has_bytes = steps["Metaspace"]["replacement"], model.get("byte_fallback", False)

        def text_of(piece: str) -> tuple[str, bool]:
            byte = re.fullmatch("<0x([0-9A-F]{2})>", piece) if has_bytes else None
            return _decode(bytes.fromhex(byte[1])) if byte else (piece.replace(marker, " "), False)

        return text_of
    return None


def _decode(data: bytes) -> tuple[str, bool]:
    """The text of UTF-8 bytes, and whether they begin within a character.

    A character that is cut off at the end becomes one of its kind.
    """
    within = data[:1] != b"" and 0x80 <= data[0] < 0xC0
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(data.lstrip(bytes(range(0x80, 0xC0))))
    cut_off = decoder.getstate()[0]
    return text + (_likely_character(cut_off) if cut_off else ""), within


@cache
def _likely_character(first_bytes: bytes) -> str:
    """A character of the class that most characters with these first bytes in UTF-8 have."""
    known = MOST_USED.get(first_bytes, first_bytes)
    length = 2 + (known[0] >= 0xE0) + (known[0] >= 0xF0)
    code = known[0] & (0x7F >> length)
    for byte in known[1:]:
        code = code << 6 | byte & 0x3F
    bits = 6 * (length - len(known))
    # The smallest code of three bytes is 800 (hexadecimal), and 4,096 of a plane's characters show its kind.
    codes = range(max(code << bits, 0x800 if length == 3 else 0), (code + 1) << bits, max(1, (1 << bits) >> 12))
    characters = [chr(one) for one in codes if one < 0x110000 and unicodedata.category(chr(one))[0] != "C"]
    classes = Counter(map(_class, characters))
    return max(characters, key=lambda character: classes[_class(character)], default="\ufffd")


def _edges(text: str, begins_within_character: bool = False) -> tuple[int, int]:
    """Classes of the first and the last character; a mark at the end belongs to the character before it."""
    first = PART_OF_CHARACTER if begins_within_character or not text else _class(text[0])
    classes = (_class(character) for character in reversed(text))
    return first, next((one for one in classes if one != PART_OF_CHARACTER), PART_OF_CHARACTER)


@cache
def _class(character: str) -> int:
    if character == " ":
        return SPACE
    if character.isspace():
        return BLANK
    category = unicodedata.category(character)[0]
    if category == "M" or character in JOINERS:
        return PART_OF_CHARACTER
    if category == "L":
        return UNSPACED if unicodedata.name(character, "").startswith(UNSPACED_NAMES) else LETTER
    return DIGIT if category == "N" else OTHER
