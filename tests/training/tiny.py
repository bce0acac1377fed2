"""Sizes, a tokenizer and arguments of runs that take milliseconds."""

import os
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, TrainingArguments

from tests.corpus.corpora import TINY_MODEL


VOCABULARY = TINY_MODEL["vocab_size"]
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """WordPiece of 60 entries; a third of them continue a word."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    words = [f"w{i}" if i % 3 else f"##{i}" for i in range(5, VOCABULARY)]
    vocabulary = {token: i for i, token in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    names = ("pad_token", "cls_token", "sep_token", "unk_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **dict(zip(names, special, strict=True)))


def training_arguments(folder: str | Path, **settings: Any) -> TrainingArguments:
    """On the CPU unless `tests/accelerator/` says otherwise, without reports and progress bars."""
    use_cpu = os.environ.get("HFE_TEST_DEVICE") != "cuda"
    arguments = TrainingArguments(
        str(folder), **{"report_to": "none", "use_cpu": use_cpu, "disable_tqdm": True, **settings}
    )
    if arguments.n_gpu > 1:  # one process with several GPUs would be `DataParallel`, which PreTrainingTrainer refuses
        arguments._n_gpu = 1
    return arguments
