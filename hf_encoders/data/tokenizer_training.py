"""A tokenizer of a family's own kind, trained on a corpus: WordPiece for BERT, byte-level BPE for RoBERTa, Unigram for
ALBERT.

The training itself is the `tokenizers` library's.
"""

from collections.abc import Iterable, Iterator

import transformers
from transformers import PreTrainedTokenizerBase

from hf_encoders.models.encoder_configuration import EncoderConfig


def train_tokenizer(
    sentences: Iterable[str], config_class: type[EncoderConfig], vocab_size: int, max_length: int
) -> PreTrainedTokenizerBase:
    """Train the kind of tokenizer that a family's published models have.

    Args:
        sentences: the corpus.
        config_class: the family's configuration class, which names its tokenizer class.
        vocab_size (`int`): most entries in the vocabulary; a small corpus may give fewer.
        max_length (`int`): longest sequence in tokens, recorded as `model_max_length`.

    Raises:
        ValueError: if the corpus is empty.
    """
    untrained = getattr(transformers, config_class.TOKENIZER_CLASS)()
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
