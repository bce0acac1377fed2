"""A tiny encoder on disk and labelled rows of its words, for the tests in this folder."""

import random
from pathlib import Path
from typing import Any

import datasets
from transformers import PreTrainedTokenizerBase

from tests.hub.tiny_checkpoints import WORDS, Family, make_model, make_tokenizer, save_checkpoint


NO_DROPOUT = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "seq_classif_dropout": 0.0,
    "qa_dropout": 0.0,
    "summary_last_dropout": 0.0,
}
LENGTH = 24  # tokens


def save_encoder(family: Family, folder: Path, **fields: Any) -> Path:
    """A pre-trained checkpoint without dropout, as pre-training leaves one."""
    return save_checkpoint(make_model(family, family.token_head, **NO_DROPOUT, **fields), family, folder)


def tokenizer_of(family: Family) -> PreTrainedTokenizerBase:
    """The tokenizer beside `save_encoder`'s weights."""
    return make_tokenizer(family)


def sentences(count: int, seed: int = 0) -> list[str]:
    """Sentences of 1 to 9 words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS[:12], k=draw.randint(1, 9))) for _ in range(count)]


def labelled(count: int, seed: int = 0) -> dict[str, list[str]]:
    """Sentences that are about a cat, or not; every third one is."""
    texts = [f"{text} {'cat' if i % 3 == 0 else 'dog'}" for i, text in enumerate(sentences(count, seed))]
    return {"text": texts, "label": ["cat" if i % 3 == 0 else "none" for i in range(count)]}


def splits(**columns: dict[str, list]) -> datasets.DatasetDict:
    """Data sets of columns by split."""
    return datasets.DatasetDict({name: datasets.Dataset.from_dict(rows) for name, rows in columns.items()})
