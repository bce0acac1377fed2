"""A tokenizer of a family's own kind, trained on a corpus: WordPiece for BERT, byte-level BPE for RoBERTa, Unigram for
ALBERT.

The training itself is the `tokenizers` library's.
"""

import inspect
from collections.abc import Iterable, Iterator

import transformers
from transformers import PreTrainedTokenizerBase

from hf_encoders.models.encoder_configuration import EncoderConfig


def train_tokenizer(
    sentences: Iterable[str],
    config_class: type[EncoderConfig],
    vocab_size: int,
    max_length: int,
    lowercase: bool = True,
    strip_accents: bool = False,
) -> PreTrainedTokenizerBase:
    """Train the kind of tokenizer that a family's published models have.

    Args:
        sentences: the corpus.
        config_class: the family's configuration class, which names its tokenizer class.
        vocab_size (`int`): most entries in the vocabulary; a small corpus may give fewer.
        max_length (`int`): longest sequence in tokens, recorded as `model_max_length`.
        lowercase (`bool`): whether text is lower-cased, as in the uncased BERT and the ALBERT models; byte-level BPE
            never is.
        strip_accents (`bool`): whether combining marks are removed, as in those models. They carry meaning in most
            languages, and vowels in some (Hindi, Thai).

    Raises:
        ValueError: if the corpus is empty.
    """
    tokenizer_class = getattr(transformers, config_class.TOKENIZER_CLASS)
    wanted = {"do_lower_case": lowercase, "strip_accents": strip_accents, "keep_accents": not strip_accents}
    understood = inspect.signature(tokenizer_class.__init__).parameters
    untrained = tokenizer_class(**{name: value for name, value in wanted.items() if name in understood})
    counted = _Counted(sentences)
    tokenizer = untrained.train_new_from_iterator(_batches(counted), vocab_size=vocab_size, show_progress=False)
    if counted.count == 0:
        raise ValueError("sentences is empty: a tokenizer needs text to be trained on. Check the corpus files.")
    tokenizer.model_max_length = max_length
    return tokenizer


class _Counted:
    """Passes items through and counts them."""

    def __init__(self, items: Iterable[str]):
        self.items = items
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        for item in self.items:
            self.count += 1
            yield item


def _batches(sentences: Iterable[str], size: int = 1000) -> Iterator[list[str]]:
    batch = []
    for sentence in sentences:
        batch.append(sentence)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
