"""Text with many equal counts, and tokenizers trained on it: what order a hash map has would show."""

import hashlib
import random
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.tokenizer_training import train_tokenizer
from hf_encoders.registration import configurations


FAMILIES = configurations()
FEW_WORDS = ["the cat sat on the mat", "a dog, a cat and 中文字 run", "Über naïve façades"]


def lines(number: int = 400) -> list[str]:
    generator = random.Random(0)
    words = [
        "".join(generator.choices("abcdefghijklmnopqrstuvwxyzäöü", k=generator.randint(2, 9))) for _ in range(300)
    ]
    return [" ".join(generator.choices(words, k=12)) + "." for _ in range(number)] + FEW_WORDS


def train(config_class: type, vocab_size: int = 420, **options) -> PreTrainedTokenizerBase:
    return train_tokenizer(lines(), config_class, vocab_size, 48, **options)


def digests(directory: str) -> list[str]:
    """Hashes of all files of a tokenizer of each family."""
    hashes = []
    for config_class in FAMILIES:
        folder = Path(directory, config_class.model_type)
        train(config_class).save_pretrained(folder)
        hashes += [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())]
    return hashes
