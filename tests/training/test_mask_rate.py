"""A mask rate that follows the steps: the masks that the rate gives, whoever collates and whenever."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hf_encoders import (
    DataCollatorForMaskedLM,
    HfeBertConfig,
    HfeBertForMaskedLM,
    MaskRate,
    PreTrainingTrainer,
    SentenceBlocks,
)
from hf_encoders.runs.recipe import Phase
from hf_encoders.runs.run import PhaseExamples, RunExamples
from tests.corpus.corpora import TINY_MODEL, make_dataset, random_documents
from tests.training.tiny import NO_DROPOUT, training_arguments


class Pieces:
    """A third of the ids continues a word."""

    def __init__(self, tokenizer):
        pass

    def __call__(self, ids, begins_text):
        return (ids % 3 != 0) | begins_text


def blocks(length=24):
    return SentenceBlocks(make_dataset(random_documents(60)), length, redraw=False)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_masked": "nearest"},
        {"num_masked": "bernoulli", "at_least_one": False},
        {"unit": "word", "word_starts": Pieces},
        {"unit": "word", "word_starts": Pieces, "share_of_words": True},
        {"unit": "span", "word_starts": Pieces},
        {"max_predictions": 5},
    ],
)
def test_examples_with_a_rate_are_masked_as_by_a_collator_of_that_rate(tokenizer, options):
    data_set = blocks(128)
    examples = data_set.__getitems__(range(len(data_set)))
    high = DataCollatorForMaskedLM(tokenizer, mask_probability=0.4, **options)
    low = DataCollatorForMaskedLM(tokenizer, mask_probability=0.1, **options)(examples)
    found = high([replace(example, mask_rate=0.1) for example in examples])
    assert found.keys() == low.keys() and all(torch.equal(found[name], low[name]) for name in low)
    if options.get("unit") != "span" and "max_predictions" not in options:
        # A lower rate predicts the first of the same random order.
        assert not ((low["labels"] != -100) & (high(examples)["labels"] == -100)).any()


def test_a_batch_may_have_several_rates(tokenizer):
    examples = [replace(example, mask_rate=rate) for example, rate in zip(blocks()[:2], (0.1, 0.9), strict=True)]
    counts = (DataCollatorForMaskedLM(tokenizer)(examples)["labels"] != -100).sum(dim=1).tolist()
    assert counts[1] > 4 * counts[0]


def test_a_step_has_one_rate_however_it_is_divided():
    for micro_batches in (1, 3):
        phases = [PhaseExamples(Phase(steps, 24, 6), blocks()) for steps in (3, 5)]
        run = RunExamples(phases, micro_batches, MaskRate(0.4, 0.2))
        rates = [{part.mask_rate for part in run[item]} for item in range(len(run))]
        expected = [0.4 - 0.2 * step / 8 for step in range(8) for _ in range(micro_batches)]
        assert [one for rate in rates for one in rate] == pytest.approx(expected)


def make(tokenizer, folder, **arguments):
    torch.manual_seed(0)
    config = HfeBertConfig(**{**TINY_MODEL, **NO_DROPOUT, "num_hidden_layers": 1, "max_position_embeddings": 64})
    settings = {"per_device_train_batch_size": 1, "max_steps": 8, "save_steps": 5, "learning_rate": 0.1}
    data_set = SentenceBlocks(make_dataset(random_documents(60)), 64)
    return PreTrainingTrainer(
        model=HfeBertForMaskedLM(config),
        args=training_arguments(
            folder, **settings, logging_strategy="no", train_sampling_strategy="sequential", **arguments,
        ),
        train_dataset=RunExamples([PhaseExamples(Phase(8, 64, 4), data_set)], 1, MaskRate(0.4, 0.1)),
        eval_dataset=blocks(64),
        data_collator=DataCollatorForMaskedLM(tokenizer, mask_probability=0.1),
    )  # fmt: skip


@pytest.mark.slow
def test_rates_follow_the_steps_with_workers_and_after_a_restart(tokenizer, tmp_path):
    runs, shares = [], []
    for workers, resume in ((0, None), (2, None), (0, str(tmp_path / "0" / "checkpoint-5"))):
        trainer = make(tokenizer, tmp_path / str(workers), dataloader_num_workers=workers)
        inner, seen = trainer.model.forward, []

        def forward(*, inner=inner, seen=seen, **inputs):
            seen.append(float((inputs["labels"] != -100).sum() / (inputs["attention_mask"].sum() - 8)))
            return inner(**inputs)

        forward.__signature__ = __import__("inspect").signature(inner)
        trainer.model.forward = forward
        trainer.train(resume_from_checkpoint=resume)
        runs.append([parameter.detach().clone() for parameter in trainer.model.parameters()])
        shares.append(seen)
    assert shares[0] == pytest.approx(
        [0.4 - 0.3 * step / 8 for step in range(8)], abs=0.03
    )  # separators count as tokens here
    assert shares[1] == shares[0] and shares[2] == shares[0][5:]
    for other in runs[1:]:
        assert all(torch.equal(one, two) for one, two in zip(runs[0], other, strict=True))
    trainer.model.forward = inner
    assert np.isfinite(trainer.evaluate()["eval_loss"])


def test_rates_out_of_range_are_refused():
    with pytest.raises(ValueError, match="start=0"):
        MaskRate(0, 0.15)
    with pytest.raises(ValueError, match="shape='step' must be one of linear, cosine"):
        MaskRate(shape="step")
