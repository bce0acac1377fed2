"""Parallel text under Trainer: the same steps however they are split, and a translation that helps."""

import math

import numpy as np
import pytest
import torch

from hf_encoders import DataCollatorForMaskedLM, HfeBertConfig, HfeBertForMaskedLM, ParallelPairs, PreTrainingTrainer
from tests import processes
from tests.corpus.corpora import make_dataset
from tests.training import parallel_steps
from tests.training.parallel_steps import make_trainer, train
from tests.training.three_steps import ONE_PROCESS, TWO_PROCESSES
from tests.training.tiny import NO_DROPOUT, training_arguments


WORDS, FIRST_WORD = 20, 5  # of each language
LENGTH = 20


def largest_difference(one: dict, other: dict) -> float:
    found = [(one["parameters"][n] - p).abs().max().item() for n, p in other["parameters"].items()]
    pairs = zip(one["logs"], other["logs"], strict=True)
    return max(*found, *(abs(first[name] - second[name]) for first, second in pairs for name in first))


@pytest.mark.processes
def test_blocks_mixed_with_pairs_train_alike_however_they_are_split(tmp_path):
    folder = tmp_path / "two"
    folder.mkdir()
    for ended in processes.run_all(parallel_steps.train_in_each_split, 2, folder):
        assert ended.status == 0, ended.told
    found = {name: train(split, tmp_path) for name, split in ONE_PROCESS.items()}
    found |= torch.load(folder / "found.pt", weights_only=True)
    assert len(found) == len(ONE_PROCESS) + len(TWO_PROCESSES)
    whole = found.pop("whole")
    differences = {name: largest_difference(whole, other) for name, other in found.items()}
    assert differences == pytest.approx(dict.fromkeys(found, 0), abs=1e-5)
    assert whole["logs"][0]["loss"] - whole["logs"][2]["loss"] > 1e-2


def test_batches_of_these_steps_hold_both_kinds(tmp_path):
    trainer = make_trainer(ONE_PROCESS["packed"], tmp_path)
    trainer.train_dataset.set_epoch(0)
    batch = next(iter(trainer.get_train_dataloader()))
    restarts = (batch["position_ids"][0] == batch["position_ids"].min()).sum() - (len(batch["cu_seq_lens_q"]) - 1)
    assert 4 <= int(restarts) <= 12  # 8 of 16 on average


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
