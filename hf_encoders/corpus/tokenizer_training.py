"""Train the kind of tokenizer that a family has: WordPiece, byte-level BPE, BPE with a suffix, or Unigram.

The training itself is that of the `tokenizers` library. The same text and settings give the same tokenizer, byte for
byte; `learning.py` says how, and what is left open for Unigram.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import transformers
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.source_words import count_source_words
from hf_encoders.corpus.suffix_bpe import suffix_bpe_tokenizer
from hf_encoders.corpus.vocabulary_learning import learn_vocabulary
from hf_encoders.corpus.word_counts import count_words, covered_words
from hf_encoders.models.encoder_configuration import EncoderConfig


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
