"""Two objectives whose context helps: translations of masked words, and neighbours of permuted ones."""

import math

import numpy as np
import pytest
import torch

from hf_encoders import (
    DataCollatorForMaskedLM,
    DataCollatorForPermutationLM,
    HfeBertConfig,
    HfeBertForMaskedLM,
    HfeXLNetConfig,
    HfeXLNetLMHeadModel,
    ParallelPairs,
    PreTrainingTrainer,
    ReusedChunks,
)
from tests.corpus.corpora import make_dataset
from tests.training.tiny import NO_DROPOUT, training_arguments


WORDS, FIRST_WORD = 20, 5  # of each language
LENGTH = 20


def dictionary_pairs(num_pairs: int) -> ParallelPairs:
    """Sentences of 4 to 7 random words, and the same in another language: each word has one translation."""
    random = np.random.default_rng(0)
    translation = FIRST_WORD + WORDS + random.permutation(WORDS)
    sentences = [random.integers(0, WORDS, random.integers(4, 8)) for _ in range(num_pairs)]
    documents = [[(FIRST_WORD + words).tolist(), translation[words].tolist()] for words in sentences]
    return ParallelPairs(make_dataset(documents), LENGTH, ("en", "zh"))


@pytest.mark.slow
def test_a_masked_word_is_found_in_the_translation(tokenizer, tmp_path):
    """Words are independent, so alone they cannot be predicted better than by chance, log 20 = 3.0 nats."""
    model = HfeBertForMaskedLM(
        HfeBertConfig(
            vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
            max_position_embeddings=LENGTH, initializer_range=0.1, **NO_DROPOUT,
        )
    )  # fmt: skip
    pairs = dictionary_pairs(3000)
    collator = DataCollatorForMaskedLM(tokenizer, packed=True, first_position=0, mask_probability=0.2)
    trainer = PreTrainingTrainer(
        model=model,
        args=training_arguments(
            tmp_path, max_steps=300, per_device_train_batch_size=64, learning_rate=5e-3, save_strategy="no"
        ),
        train_dataset=pairs,
        data_collator=collator,
    )
    trainer.train()

    # The second word of every first side is masked, and the second side is there or not.
    sides = [example.segments for example in pairs.at_epoch(0)[:500]]
    losses = {}
    for name, shown in (("with", 2), ("without", 1)):
        rows = []
        for sentences in sides:
            parts = [[tokenizer.cls_token_id, *words, tokenizer.sep_token_id] for words in sentences[:shown]]
            rows.append({"input_ids": sum(parts, []), "position_ids": [i for part in parts for i in range(len(part))]})
        plain = DataCollatorForMaskedLM(
            tokenizer, first_position=0, mask_replace_probability=0.0, random_replace_probability=0.0
        )
        batch = plain(rows)
        batch["labels"] = torch.full_like(batch["input_ids"], -100)
        batch["labels"][:, 2] = batch["input_ids"][:, 2]
        batch["input_ids"][:, 2] = tokenizer.mask_token_id
        with torch.no_grad():
            losses[name] = float(model.eval()(**batch).loss)

    # Seen: 0.07 and 3.7.
    assert losses["with"] < 1.0 and losses["without"] > math.log(WORDS) - 0.3


@pytest.mark.slow
def test_a_word_is_predicted_from_its_neighbours_in_either_direction(tokenizer, tmp_path):
    """Words count on from a random one, so a neighbour tells the word; alone it is log 40 = 3.7 nats.

    In an example that is read in reverse too: distances would otherwise point to the wrong side.
    """
    generator = np.random.default_rng(0)
    runs = [[int(first + i) % 40 + 10 for i in range(10)] for first in generator.integers(0, 40, 1200)]
    documents = make_dataset([[run[:5], run[5:]] for run in runs])
    model = HfeXLNetLMHeadModel(
        HfeXLNetConfig(
            vocab_size=60, d_model=32, n_layer=2, n_head=4, d_inner=64, dropout=0.0, initializer_range=0.1,
            pad_token_id=0,
        )
    )  # fmt: skip
    options = {"short_sequence_probability": 0.0}
    trainer = PreTrainingTrainer(
        model=model,
        args=training_arguments(
            tmp_path, max_steps=200, per_device_train_batch_size=64, learning_rate=5e-3, save_strategy="no"
        ),
        train_dataset=ReusedChunks(documents, 13, **options),
        eval_dataset=ReusedChunks(documents, 13, redraw=False, **options),
        data_collator=DataCollatorForPermutationLM(tokenizer, packed=True),
    )
    trainer.train()
    metrics = trainer.evaluate()
    assert metrics["eval_plm_loss"] < 1.0 < math.log(40)
    assert metrics["eval_perplexity"] == pytest.approx(math.exp(metrics["eval_plm_loss"]))
