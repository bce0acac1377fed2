"""What the subclass of Trainer promises beside the normalisation: restarts, exact evaluation, clear refusals."""

import math

import datasets
import pytest
import torch
from torch.utils.data import Subset
from transformers import Trainer

from hf_encoders import (
    DataCollatorForMaskedLM,
    DataCollatorForNextSentencePrediction,
    DocumentChunks,
    EpochCallback,
    HfeBertConfig,
    HfeBertForMaskedLM,
    HfeBertForPreTraining,
    HfeElectraConfig,
    PreTrainingTrainer,
    SentenceBlocks,
)
from hf_encoders.objectives.rtd import DataCollatorForReplacedTokenDetection, ReplacedTokenDetectionModel
from tests.corpus.corpora import TINY_MODEL, equal_documents
from tests.training.tiny import NO_DROPOUT, training_arguments


LENGTH = 24


def corpus() -> datasets.Dataset:
    return equal_documents(16, sentences=4)


def make(model_class, folder, tokenizer, train_set, trainer_class=PreTrainingTrainer, eval_set=None, **arguments):
    torch.manual_seed(0)
    config = HfeBertConfig(**TINY_MODEL, **NO_DROPOUT)
    callbacks = arguments.pop("callbacks", None)
    settings = {"per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 6, "max_steps": 10}
    return trainer_class(
        model=model_class(config),
        args=training_arguments(
            folder, **{**settings, "learning_rate": 0.1, "logging_strategy": "no", **arguments}
        ),
        train_dataset=train_set,
        eval_dataset=eval_set,
        data_collator=DataCollatorForNextSentencePrediction(tokenizer, LENGTH),
        callbacks=callbacks,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_was_restarted_within_an_epoch_is_the_run_that_was_not(tokenizer, workers, tmp_path):
    """16 chunks, 4 steps an epoch, restart at step 6: in the middle of the second epoch."""
    runs = []
    for name, resume in (("whole", None), ("whole", str(tmp_path / "whole" / "checkpoint-6"))):
        trainer = make(
            HfeBertForPreTraining,
            tmp_path / name,
            tokenizer,
            DocumentChunks(corpus(), LENGTH),
            dataloader_num_workers=workers,
        )
        trainer.train(resume_from_checkpoint=resume)
        runs.append(trainer.model.state_dict())
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


@pytest.mark.slow
def test_the_stock_trainer_says_what_it_needs_to_be_restarted(tokenizer, tmp_path):
    def stock(**arguments):
        data_set = DocumentChunks(corpus(), LENGTH)
        return make(HfeBertForPreTraining, tmp_path, tokenizer, data_set, trainer_class=Trainer, **arguments)

    whole = stock(callbacks=[EpochCallback()])
    whole.train()
    with pytest.raises(ValueError, match="EpochCallback"):
        stock().train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    restarted = stock(callbacks=[EpochCallback()])
    restarted.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    for one, other in zip(whole.model.parameters(), restarted.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_epochs_reach_a_subset(tokenizer, tmp_path):
    chunks = DocumentChunks(corpus(), LENGTH)
    make(HfeBertForPreTraining, tmp_path, tokenizer, Subset(chunks, range(8)), save_strategy="no").train()
    assert chunks.epoch == 4


def test_evaluation_is_summed_losses_over_summed_counts(tokenizer, tmp_path):
    """Whatever the batch size, and equal to one pass over everything."""
    held_out = DocumentChunks(corpus(), LENGTH, redraw=False)
    found = []
    for size in (3, 16):
        trainer = make(
            HfeBertForPreTraining, tmp_path, tokenizer, DocumentChunks(corpus(), LENGTH), eval_set=held_out,
            per_device_eval_batch_size=size,
        )  # fmt: skip
        found.append(trainer.evaluate())
    batch = trainer.data_collator([held_out[i] for i in range(len(held_out))])
    with torch.no_grad():
        outputs = trainer.model.eval()(**batch)
    for metrics in found:
        assert metrics["eval_mlm_loss"] == pytest.approx(float(outputs.mlm.nll / outputs.mlm.count), abs=1e-5)
        assert metrics["eval_pair_accuracy"] == pytest.approx(float(outputs.pair.correct / outputs.pair.count))
        assert metrics["eval_loss"] == pytest.approx(float(outputs.loss), abs=1e-5)
        assert metrics["eval_perplexity"] == pytest.approx(math.exp(metrics["eval_mlm_loss"]))


@pytest.mark.parametrize("packed", [False, True])
def test_repeated_examples_count_in_no_term_over_all_tokens(tokenizer, tmp_path, monkeypatch, packed):
    """The last batches of several processes end with examples that are there already, or hold these alone."""
    fields = {**TINY_MODEL, **NO_DROPOUT, "embedding_size": 10, "generator_size": 0.5}
    collator = DataCollatorForReplacedTokenDetection(tokenizer, packed=packed, mask_probability=0.3)
    blocks = SentenceBlocks(corpus(), LENGTH, redraw=False)
    model = ReplacedTokenDetectionModel(HfeElectraConfig(**fields)).eval()
    trainer = PreTrainingTrainer(model=model, args=training_arguments(tmp_path), data_collator=collator)
    examples = [blocks[i] for i in range(5)]
    for num_own in (3, 0):
        monkeypatch.setattr(trainer, "_num_own_examples", lambda inputs, num_own=num_own: num_own)
        trainer.prediction_step(model, collator(examples), prediction_loss_only=True)
        sums = trainer._taken_sums()
        expected = torch.zeros_like(sums)
        if num_own:
            outputs = model(**collator(examples[:num_own]))
            expected[0, :3] = torch.stack(outputs.mlm)
            expected[1] = torch.stack(outputs.rtd)
            assert sums[0, 3].isnan() and sums[1, 2] > sums[0, 2] > 0
        torch.testing.assert_close(sums[:, :3], expected[:, :3], atol=1e-4, rtol=1e-5)


def test_one_objective_alone_is_evaluated_too(tokenizer, tmp_path):
    """Stock Trainer returns no eval_loss where one of the two labels is missing."""
    trainer = make(HfeBertForPreTraining, tmp_path, tokenizer, DocumentChunks(corpus(), LENGTH))
    names = list(trainer.label_names)
    trainer.data_collator = DataCollatorForMaskedLM(tokenizer)
    rows = datasets.Dataset.from_dict({"input_ids": [[1, 7, 8, 9, 2]] * 5})
    metrics = trainer.evaluate(rows)
    assert metrics["eval_loss"] == metrics["eval_mlm_loss"] and "eval_pair_loss" not in metrics
    assert trainer.label_names == names


def test_the_training_set_is_not_evaluated_on(tokenizer, tmp_path):
    chunks = DocumentChunks(corpus(), LENGTH)
    with pytest.raises(ValueError, match="redraw=False"):
        make(HfeBertForPreTraining, tmp_path, tokenizer, chunks, eval_set=chunks).evaluate()


def test_settings_that_the_figures_cannot_follow_are_refused(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="label_smoothing_factor"):
        make(HfeBertForMaskedLM, tmp_path, tokenizer, DocumentChunks(corpus(), LENGTH), label_smoothing_factor=0.1)
