"""Find the tokens that begin a word, for whole-word masking: from token ids alone, or with a word segmenter.

Whether a token begins a word depends on it and on the token before it: a table says of each token after which endings
(a letter, a digit, ...) it begins a word, and what it ends in itself. In scripts without spaces each token is a word;
a corpus prepared with a word segmenter has their words in a column. A segmenter is a `Callable[[str], list[str]]`: it
takes one sentence and returns its words in order; joined, they are the sentence, with or without its white space.
"""

import json
import logging
import unicodedata
from collections.abc import Callable, Sequence
from enum import IntFlag
from functools import cache
from itertools import accumulate, pairwise
from types import ModuleType

import numpy as np
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from hf_encoders.corpus.special_tokens import check_offsets, unknown_ids


# Endings, one bit each. After a boundary every token begins a word. A part of a character has no ending: it ends in
# whatever the token before it does.
BOUNDARY, LETTER, DIGIT, OTHER, UNSPACED, SPACE = (1 << bit for bit in range(6))
ANYTHING, NOTHING, PART = 63, 0, 0

# Scripts written without spaces, by the Unicode names of their letters.
UNSPACED_NAMES = tuple(
    f"{script} " for script in ("CJK", "IDEOGRAPHIC", "HIRAGANA", "HALFWIDTH", "THAI", "LAO", "KHMER", "MYANMAR")
) + ("KATAKANA",)
JOINERS = "\u200c\u200d"
# Most characters whose UTF-8 begins with these bytes: symbols, full-width punctuation, emoji, CJK. Others: letters.
FIRST_BYTES = {0xE2: OTHER, 0xEF: OTHER, 0xF0: OTHER} | dict.fromkeys(range(0xE3, 0xEA), UNSPACED)
BYTES = {character: byte for byte, character in bytes_to_unicode().items()}
# `special_pieces` in `create_pretraining_data.py` of google-research/albert: no apostrophe, no `<`, `=` and `>`.
ALBERT_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
ALBERT_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")


# How a token joins its neighbours: the endings after which it begins a word, and its ending.
Joint = tuple[int, int]
WORD: Joint = (ANYTHING, BOUNDARY)


class UnitStart(IntFlag):
    """Units that a token begins, as bits of a corpus's column `word_starts`.

    The units of each level partition the text: a token inside a longer unit lacks that unit's bit, and every other
    word begins a phrase and an entity too. A sentence begins with the bits of all levels that the corpus has.
    """

    WORD = 1
    PHRASE = 2  # such as a collocation
    ENTITY = 4  # such as a name
    LISTED = 8  # an entity of the corpus's lexicon, where other words only begin with the bit ENTITY


class WordStarts:
    """Find the tokenizer's own words.

    A token begins a word, by kind of tokenizer:
        - WordPiece (`##`): without the prefix.
        - Byte-level BPE (`Ġ`): with the marker, or where letters, digits and other characters change.
        - Unigram or BPE with `▁`: with the marker, or where word characters (letters, digits) and others change.
        - BPE with a suffix (`</w>`): after a token with the suffix.
        - WordLevel: always.

    The first token of a text begins a word, special and added tokens are words of their own, and an unknown token
    begins a word, which may continue. A space marker on its own begins the word that follows it.

    These are the words of the pre-tokenizer (`word_ids()`), except that punctuation is separate from words with `▁`
    too; that each token is a word in scripts without spaces; that combining marks and joiners belong to the character
    before them (rule WB4 of Unicode's annex 29); that a contraction spelled in several tokens (`'`, `s`) is several
    words; and that a character divided into several tokens is classified by its first byte.

    Raises:
        ValueError: For tokenizers of another kind, and those written in Python.

    >>> from transformers import BertTokenizer
    >>> pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing"]
    >>> word_starts = WordStarts(BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}))
    >>> ids = np.array([2, 5, 6, 3, 6, 5, 6])  # [CLS] play ##ing [SEP] ##ing, play ##ing
    >>> word_starts(ids, np.array([True, False, False, False, False, True, False])).astype(int)
    array([1, 1, 0, 1, 1, 1, 0])
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        check_offsets(tokenizer, "masking of whole words", "mask tokens instead of words")
        model, steps = _description(tokenizer)
        rule = self._rule(model, steps)
        if not rule:  # an empty prefix or suffix is none
            raise ValueError(
                f"tokenizer: {type(self).__name__} finds no words for a {model['type']} model after the steps "
                f"{sorted(steps)}. Prepare the corpus with a word segmenter, or mask tokens instead of words."
            )
        vocabulary = tokenizer.get_vocab()
        unknown = unknown_ids(tokenizer, model.get("unk_id"), vocabulary.get(model.get("unk_token")))
        apart = {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids} - unknown
        size = max(len(tokenizer), max(vocabulary.values()) + 1)
        self.begins_after, self.ends_in = (np.full(size, bits, dtype=np.uint8) for bits in WORD)
        for piece, index in vocabulary.items():
            if index not in apart:
                joint = (ANYTHING, LETTER) if index in unknown else rule(piece)
                self.begins_after[index], self.ends_in[index] = joint
        self.has_parts = bool(np.any(self.ends_in == PART))

    def _rule(self, model: dict, steps: dict[str, dict]) -> Callable[[str], Joint] | None:
        """Return how a piece joins its neighbours, for a tokenizer so described; `None` for other kinds."""
        if model["type"] == "WordLevel":
            return lambda piece: WORD
        # The suffix first: CLIP's tokenizer is byte-level and has a suffix in place of the marker.
        if suffix := model.get("end_of_word_suffix"):
            return lambda piece: _with_suffix(piece, suffix)
        if prefix := model.get("continuing_subword_prefix"):
            return lambda piece: _with_prefix(piece, prefix)
        if "ByteLevel" in steps:
            return lambda piece: _by_classes(*_edges_of_bytes(piece))
        if marker := _space_marker(steps):
            return lambda piece: _by_classes(
                *(LETTER if edge == DIGIT else edge for edge in _edges(piece.replace(marker, " ")))
            )
        return None

    def __call__(self, ids: np.ndarray, begins_text: np.ndarray) -> np.ndarray:
        """Return True where a token begins a word, from the ids of texts and True at the first token of each; `(N,)`.

        A word never continues in the next text; nor, unless a rule says so, after a special token.
        """
        endings = self.ends_in[ids]
        if self.has_parts:
            endings[(endings == PART) & begins_text] = LETTER  # a text may begin within a character
            endings = endings[np.maximum.accumulate(np.where(endings != PART, np.arange(len(ids)), 0))]
        begins = np.array(begins_text, dtype=bool)
        begins[:1] = True
        begins[1:] |= (self.begins_after[ids[1:]] & endings[:-1]) != 0
        return begins


class ContinuationStarts(WordStarts):
    """Find the words of the original BERT code: a token with the prefix `##` joins whatever comes before it.

    From `create_masked_lm_predictions` in `create_pretraining_data.py` of google-research/bert. So a run of kana or
    Thai is one word of many tokens, and a token with the prefix joins special tokens too.
    """

    def _rule(self, model: dict, steps: dict[str, dict]) -> Callable[[str], Joint] | None:
        prefix = model.get("continuing_subword_prefix")
        return prefix and (lambda piece: (NOTHING if piece.startswith(prefix) else ANYTHING, LETTER))


class SentencePieceStarts(WordStarts):
    """Find the words of the original ALBERT code, artefact included.

    A token begins a word if it begins with `▁` or `<`, is a punctuation mark, or has a character other than English
    letters and that punctuation (`_is_start_piece_sp` in `create_pretraining_data.py` of google-research/albert), so
    that words of most languages are never masked as a whole. Unlike there, a word ends at a special token.
    """

    def _rule(self, model: dict, steps: dict[str, dict]) -> Callable[[str], Joint] | None:
        def joint(piece: str) -> Joint:
            is_english = all(character.lower() in ALBERT_LETTERS | ALBERT_PUNCTUATION for character in piece)
            return (ANYTHING if piece in ALBERT_PUNCTUATION or not is_english else BOUNDARY, LETTER)

        return joint if "Metaspace" in steps else None


class SpaceMarkedStarts(WordStarts):
    """Find the words between spaces, as in fairseq: "dog." is one word, and so is a Chinese or Japanese sentence.

    A token begins a word if it begins with the space marker (`is_beginning_of_word` in `gpt2_bpe.py` and
    `sentencepiece_bpe.py` of fairseq's `data/encoders`), and so does a special token. Others join what comes before,
    also a special token: if these are masked, the first word of a sentence is one with the `</s>` before it, for a
    tokenizer that puts no space before a text (RoBERTa's).
    """

    def _rule(self, model: dict, steps: dict[str, dict]) -> Callable[[str], Joint] | None:
        marker = _space_marker(steps)
        return marker and (lambda piece: (ANYTHING if piece.startswith(marker) else NOTHING, LETTER))


def _description(tokenizer: PreTrainedTokenizerBase) -> tuple[dict, dict[str, dict]]:
    """Return the tokenizer's model, and its normalizers and pre-tokenizers by type, as in `tokenizer.json`."""
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    steps, waiting = {}, [description["normalizer"], description["pre_tokenizer"]]
    while waiting:
        step = waiting.pop()
        if step is not None:
            steps[step["type"]] = step
            waiting += step.get("pretokenizers", []) + step.get("normalizers", [])
    return description["model"], steps


def _space_marker(steps: dict[str, dict]) -> str | None:
    return "Ġ" if "ByteLevel" in steps else steps.get("Metaspace", {}).get("replacement")


def _with_prefix(piece: str, prefix: str) -> Joint:
    first, last = _edges(piece.removeprefix(prefix))
    return _continues(first) if piece.startswith(prefix) else ANYTHING, last or LETTER


def _with_suffix(piece: str, suffix: str) -> Joint:
    first, last = _edges(piece.removesuffix(suffix))
    return _continues(first), BOUNDARY if piece.endswith(suffix) else last or LETTER


def _continues(first: int) -> int:
    """Return the endings after which a token that continues words begins one nevertheless."""
    if first == UNSPACED:
        return ANYTHING
    return BOUNDARY if first == PART else BOUNDARY | UNSPACED


def _by_classes(first: int, last: int) -> Joint:
    """Return how a token joins its neighbours that begins a word where the class of characters changes."""
    begins_after = {SPACE: ANYTHING, PART: BOUNDARY, UNSPACED: ANYTHING & ~SPACE}
    return begins_after.get(first, ANYTHING & ~(first | SPACE)), last


def _edges(text: str) -> tuple[int, int]:
    """Return the classes of the first and the last character; a mark at the end belongs to the character before it."""
    classes = [_class(character) for character in text] or [PART]
    return classes[0], next((kind for kind in reversed(classes) if kind != PART), PART)


def _edges_of_bytes(piece: str) -> tuple[int, int]:
    """Return `_edges` of a byte-level token, which may begin and end within a character."""
    is_bytes = all(character in BYTES for character in piece)
    data = bytes(BYTES[character] for character in piece) if is_bytes else piece.encode()
    text = data.decode(errors="replace")
    first, last = _edges(text)
    if text.startswith("\ufffd"):
        first = PART if data[0] < 0xC0 else FIRST_BYTES.get(data[0], LETTER)
    if text.endswith("\ufffd"):
        first_bytes = [byte for byte in data if byte >= 0xC0]
        last = FIRST_BYTES.get(first_bytes[-1], LETTER) if first_bytes else PART
    return first, last


@cache
def _class(character: str) -> int:
    if character == " ":
        return SPACE
    category = unicodedata.category(character)[0]
    if category == "M" or character in JOINERS:
        return PART
    if category == "L":
        return UNSPACED if unicodedata.name(character, "").startswith(UNSPACED_NAMES) else LETTER
    return DIGIT if category == "N" else OTHER


def import_jieba(option: str) -> ModuleType:
    """Return the package jieba, or raise a ValueError that names the option which needs it."""
    try:
        import jieba
    except ImportError as error:
        raise ValueError(
            f"{option}='jieba': the package jieba is not installed: pip install 'hf_encoders[chinese]', or give "
            "entries or a function of your own."
        ) from error
    jieba.setLogLevel(logging.WARNING)
    return jieba


def jieba_segmenter(entries: Sequence[str] = ()) -> Callable[[str], list[str]]:
    """Return the Chinese segmenter of the package `jieba`, with its dictionary loaded.

    `entries` are words or names that are added to its dictionary, so that it does not cut them.

    Raises:
        ValueError: If the package is not installed.
    """
    jieba = import_jieba("word_segmenter")
    if entries := tuple(entry for entry in entries if not any(map(str.isspace, entry))):
        return JiebaWithEntries(entries)
    jieba.initialize()
    return jieba.lcut


class JiebaWithEntries:
    """`jieba.lcut` with entries added to a separate dictionary; pickled and compared by the entries."""

    def __init__(self, entries: tuple[str, ...]):
        self.entries, self.words = entries, import_jieba("word_segmenter").Tokenizer()
        for entry in entries:
            self.words.add_word(entry)

    def __call__(self, sentence: str) -> list[str]:
        """Return the words of a sentence."""
        return self.words.lcut(sentence)

    def __reduce__(self) -> tuple[type["JiebaWithEntries"], tuple[tuple[str, ...]]]:
        return JiebaWithEntries, (self.entries,)


def word_starts_of_tokens(sentence: str, words: list[str], offsets: list[tuple[int, int]]) -> np.ndarray:
    """Return 1 where a token begins a word, 0 where it continues the word of the token before; `uint8`, `(T,)`.

    A token belongs to the word of its first character that is not white space: a character divided into several tokens
    begins one word, and after a token that crosses a word boundary, the rest of the second word begins a word.

    `offsets` are the first character in the sentence (not normalized), and the one after the last, of T tokens.

    Raises:
        ValueError: If the words are not those of the sentence.

    >>> word_starts_of_tokens("我们 学习", ["我们", "学习"], [(0, 1), (1, 2), (2, 4), (4, 5)])
    array([1, 0, 1, 0], dtype=uint8)
    """
    solid = ["".join(word.split()) for word in words]
    if "".join(solid) != "".join(sentence.split()):
        raise ValueError(
            f"word_segmenter gives {words!r:.80} for {sentence!r:.80}: joined, its words must be the sentence (white "
            "space is ignored)."
        )
    # White space belongs to the next word; in the end, to the last one.
    numbers = [number for number, word in enumerate(solid) for _ in word] or [0]
    solid_before = accumulate((not character.isspace() for character in sentence), initial=0)
    of_characters = [numbers[min(before, len(numbers) - 1)] for before in solid_before]
    of_tokens = [of_characters[begin] for begin, _ in offsets]
    return np.array([number != before for before, number in pairwise([-1, *of_tokens])], dtype=np.uint8)
