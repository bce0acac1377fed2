"""Permutation language modelling under Trainer: the same steps however they are split, and a context that helps."""

import math

import numpy as np
import pytest
import torch

from hf_encoders import (
    DataCollatorForPermutationLM,
    HfeXLNetConfig,
    HfeXLNetLMHeadModel,
    PreTrainingTrainer,
    ReusedChunks,
)
from tests import processes
from tests.corpus.corpora import make_dataset
from tests.training import permutation_steps
from tests.training.permutation_steps import STEPS, train
from tests.training.test_translation_language_modelling import largest_difference
from tests.training.three_steps import ONE_PROCESS, TWO_PROCESSES
from tests.training.tiny import training_arguments


@pytest.mark.processes
def test_steps_are_alike_however_they_are_split(tmp_path):
    """Accumulated = two processes = packed, in losses, gradients, parameters and evaluation."""
    folder = tmp_path / "two"
    folder.mkdir()
    for ended in processes.run_all(permutation_steps.train_in_each_split, 2, folder):
        assert ended.status == 0, ended.told
    found = {name: train(split, tmp_path) for name, split in ONE_PROCESS.items()}
    found |= torch.load(folder / "found.pt", weights_only=True)
    assert len(found) == len(ONE_PROCESS) + len(TWO_PROCESSES)
    whole = found.pop("whole")
    differences = {name: largest_difference(whole, other) for name, other in found.items()}
    assert differences == pytest.approx(dict.fromkeys(found, 0), abs=2e-5)
    before, after = whole["logs"][-2:]
    assert len(whole["logs"]) == STEPS + 2 and before["loss"] - after["loss"] > 1e-2


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
