"""`vocab_size` of a model for a tokenizer.

The tokenizer of XLM: byte pair encoding of words, whose last piece ends in `</w>`.

transformers has a slow one only, without character offsets. This one is of the `tokenizers` library, and loaded by
plain transformers as `PreTrainedTokenizerFast`. Ids and special tokens are those of the original
(`xlm/data/dictionary.py`), with `</s>` on both ends of a sentence (`batch_sentences` in `xlm/data/dataset.py`).
Differs from it in: words are divided at spaces and punctuation, instead of by a tool for each language.

Vocabularies learned from counted words: WordPiece, BPE and Unigram, with the trainers of `tokenizers`.

The same words and settings give the same vocabulary in every process, which the library alone does not guarantee: it
keeps words in hash maps with a random seed per process, and

- WordPiece numbers the pieces `##x` of one character in map order, and merges pairs of equal counts in the order of
  these numbers: here the pieces are numbered beforehand, by code point;
- BPE with a suffix does the same with the pieces `x</w>`; byte-level BPE has none, and its order is fixed;
- Unigram adds up expected counts as floating-point numbers in map order, so that scores differ in their last digits,
  and gives the characters that it restores after pruning rising scores in the order of another map: here these
  characters share one score, scores are rounded and pieces sorted. Two pieces whose losses are equal up to rounding,
  right where the vocabulary is cut, could still change places.

Train the kind of tokenizer that a family has: WordPiece, byte-level BPE, BPE with a suffix, or Unigram.

The training itself is that of the `tokenizers` library. The same text and settings give the same tokenizer, byte for
byte; `learning.py` says how, and what is left open for Unigram.
"""

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AddedToken, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hf_encoders.corpus.special_tokens import check_tokenizer
from hf_encoders.corpus.word_counts import count_source_words, count_words, covered_words, repeated
from hf_encoders.models.encoder_configuration import EncoderConfig


# Tensor cores are fastest with dimensions that are multiples of 8 to 64 (NVIDIA's guide to matrix multiplication,
# "Requirements to use Tensor Cores": 128 bytes on an A100, 64 values of 16 bits).
MULTIPLE = 64


def padded_vocab_size(tokenizer: PreTrainedTokenizerBase, multiple_of: int = MULTIPLE) -> int:
    """`vocab_size` of a configuration: the tokenizer's ids rounded up, for fast products with the vocabulary.

    The model is padded, not the tokenizer: no text gives the extra ids, and collators never sample them. They stay in
    the softmax, as in transformers' models. At first they take their share of the probability,
    (V - len(tokenizer)) / V, which adds as much to the loss in nats (0.0002 for 30,522 in 30,528); as they are never
    correct, their biases fall and the share vanishes.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Its largest id counts, so that gaps between ids are allowed.
        multiple_of (`int`, *optional*, defaults to 64): At least 1, which pads nothing.

    >>> len(doctest_tokenizer()), padded_vocab_size(doctest_tokenizer())
    (60, 64)
    """
    check_tokenizer(tokenizer)
    if multiple_of < 1:
        raise ValueError(f"multiple_of={multiple_of}: must be at least 1, which pads nothing.")
    least = max(tokenizer.get_vocab().values()) + 1
    return -(-least // multiple_of) * multiple_of


SUFFIX = "</w>"
FIRST, END, PADDING, UNKNOWN = "<s>", "</s>", "<pad>", "<unk>"
SPARE = [f"<special{number}>" for number in range(10)]
MASK = SPARE[1]


def suffix_bpe_tokenizer(
    vocab: dict[str, int] | None = None,
    merges: list[tuple[str, str]] | None = None,
    do_lower_case: bool = True,
    strip_accents: bool = False,
    **options: Any,
) -> PreTrainedTokenizerFast:
    """Make the tokenizer of a vocabulary; without one it has special tokens only, to pre-tokenize text.

    Args:
        vocab (`dict[str, int]`, *optional*): Pieces and their ids.
        merges (`list[tuple[str, str]]`, *optional*): Pairs of pieces, the first to merge first.
        do_lower_case, strip_accents (`bool`, *optional*): Whether to change the text so.
        options: Further arguments of the class, such as `model_max_length`.

    >>> tokenizer = suffix_bpe_tokenizer()
    >>> tokenizer.convert_tokens_to_ids(["<s>", "</s>", "<pad>", "<unk>", "<special0>", "<special1>", "<special9>"])
    [0, 1, 2, 3, 4, 5, 13]
    >>> tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a cat.")
    [('a', (0, 1)), ('cat', (2, 5)), ('.', (5, 6))]
    """
    special = [FIRST, END, PADDING, UNKNOWN, *SPARE]
    vocab = {token: number for number, token in enumerate(special)} if vocab is None else vocab
    model = models.BPE(vocab, merges or [], end_of_word_suffix=SUFFIX, unk_token=UNKNOWN)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=False, strip_accents=strip_accents, lowercase=do_lower_case
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix=SUFFIX)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A {END}", pair=f"{END} $A {END} {END} $B {END}", special_tokens=[(END, vocab[END])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=FIRST,
        eos_token=END,
        cls_token=END,
        sep_token=END,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        mask_token=MASK,
        additional_special_tokens=[token for token in SPARE if token != MASK],
        **options,
    )


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


MAKERS = {"suffix-bpe": suffix_bpe_tokenizer}


def train_tokenizer(
    sentences: Iterable[str] | Mapping[str, Iterable[str]],
    config_class: type[EncoderConfig],
    vocab_size: int,
    max_length: int = 512,
    lowercase: bool = True,
    strip_accents: bool = False,
    character_coverage: float = 1.0,
    sampling_alpha: float = 1.0,
) -> PreTrainedTokenizerBase:
    """Train the kind of tokenizer that a family's published models have.

    Args:
        sentences (`Iterable[str]` or `Mapping[str, Iterable[str]]`): The text, or that of several sources by name.
        config_class (`type[EncoderConfig]`): The family's configuration class, which names its tokenizer class.
        vocab_size (`int`): Largest number of entries, special tokens included; a small corpus may give fewer.
        max_length (`int`, *optional*, defaults to 512): Longest sequence in tokens, saved as `model_max_length`.
        lowercase (`bool`, *optional*, defaults to `True`): Whether to lower-case the text; byte-level BPE never does.
        strip_accents (`bool`, *optional*, defaults to `False`): Whether to remove combining marks, as the published
            uncased models do. They carry meaning in most languages, and vowels in some (Hindi, Thai).
        character_coverage (`float`, *optional*, defaults to 1.0): Share of the characters in the vocabulary, in
            (0, 1]; words with rarer ones are left out. No effect on byte-level BPE.
        sampling_alpha (`float`, *optional*, defaults to 1.0): Of several sources: each counts as much as its share of
            the text (in bytes of UTF-8) to this power, in (0, 1]; lower values give small sources more entries
            (`source_words.py`). XLM: 0.5.

    Raises:
        ValueError: If the text, or that of a source, is empty, or the vocabulary too small for its characters.
    """
    options = pipeline_options(config_class, lowercase, strip_accents)
    untrained = untrained_tokenizer(config_class, options)
    if isinstance(sentences, Mapping):
        words = count_source_words(sentences, untrained, sampling_alpha)
    elif sampling_alpha != 1:
        raise ValueError(f"sampling_alpha={sampling_alpha} is for several sources: give sentences of each by name.")
    else:
        words = count_words(sentences, untrained)
    return tokenizer_of_words(words, config_class, vocab_size, max_length, options, character_coverage)


def pipeline_options(config_class: type[EncoderConfig], lowercase: bool, strip_accents: bool) -> dict[str, bool]:
    """Arguments of a family's tokenizer class for these; only those that it has."""
    understood = inspect.signature(_maker(config_class)).parameters
    wanted = {"do_lower_case": lowercase, "strip_accents": strip_accents, "keep_accents": not strip_accents}
    return {name: value for name, value in wanted.items() if name in understood}


def untrained_tokenizer(config_class: type[EncoderConfig], options: dict[str, Any]) -> PreTrainedTokenizerBase:
    """A family's tokenizer with an empty vocabulary, to pre-tokenize text."""
    return _maker(config_class)(**options)


def tokenizer_of_words(
    words: dict[str, int],
    config_class: type[EncoderConfig],
    vocab_size: int,
    max_length: int,
    options: dict[str, Any],
    character_coverage: float = 1.0,
) -> PreTrainedTokenizerBase:
    """`train_tokenizer` from the words that `count_words` finds with the untrained tokenizer of these options."""
    untrained = untrained_tokenizer(config_class, options)
    is_byte_level = len(untrained.backend_tokenizer.pre_tokenizer.pre_tokenize_str("é")[0][0]) > 1
    if not is_byte_level:
        words = covered_words(words, character_coverage)
    ends = config_class.FIRST_SPECIAL_TOKENS, config_class.LAST_SPECIAL_TOKENS
    vocabulary = learn_vocabulary(words, untrained, vocab_size, *ends)
    return _maker(config_class)(**options, **vocabulary, model_max_length=max_length)


def _maker(config_class: type[EncoderConfig]) -> Callable[..., PreTrainedTokenizerBase]:
    """The family's tokenizer class, or the function for a kind of vocabulary that no class of transformers has."""
    return MAKERS.get(config_class.VOCABULARY_KIND) or getattr(transformers, config_class.TOKENIZER_CLASS)
