"""A mask rate that follows the steps: what the lower rate's draws give, whoever collates and whenever."""

import numpy as np
import pytest
import torch
from transformers import TrainingArguments

from hf_encoders import HfeBertConfig, HfeBertForMaskedLM
from hf_encoders.data import DataCollatorForMaskedLM, SentenceBlocks
from hf_encoders.training import LinearMaskRate, PreTrainingTrainer
from hf_encoders.training.mask_rate import prepared_collator, thinned
from tests.data.corpora import make_dataset, random_documents


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
        {"quota": "nearest"},
        {"quota": "bernoulli", "at_least_one": False},
        {"unit": "word", "word_starts": Pieces},
        {"unit": "word", "word_starts": Pieces, "quota_in_units": True},
    ],
)
def test_taking_masks_back_gives_the_lower_rates_masks(tokenizer, options):
    data_set = blocks(128)
    examples = data_set.__getitems__(range(len(data_set)))
    high = DataCollatorForMaskedLM(tokenizer, mask_probability=0.4, **options)
    high = prepared_collator(high, LinearMaskRate(0.4, 0.1))
    low = DataCollatorForMaskedLM(tokenizer, mask_probability=0.1, **options)(examples)
    found = thinned(high(examples), 0.1)
    assert set(found) == {"input_ids", "labels", "attention_mask"}
    assert torch.equal(found["input_ids"], low["input_ids"])
    assert torch.equal(found["labels"], low["labels"])
    assert torch.equal(thinned(high(examples), 0.4)["labels"], high(examples)["labels"])


@pytest.mark.parametrize("unit", ["token", "word", "ngram", "span"])
@pytest.mark.parametrize("high", [0.3, 0.6])
def test_shares_are_the_rates(make_tokenizer, unit, high):
    tokenizer = make_tokenizer(1000)
    rows = [{"input_ids": [1, *np.random.default_rng(i).integers(5, 1000, 126).tolist(), 2]} for i in range(3000)]
    collator = DataCollatorForMaskedLM(tokenizer, mask_probability=high, unit=unit, word_starts=Pieces)
    batch = prepared_collator(collator, LinearMaskRate(high, 0.15))(rows)
    for rate in (0.15, 0.22, 0.3):
        labels = thinned(batch, rate)["labels"]
        assert float((labels != -100).float().sum() / (126 * 3000)) == pytest.approx(rate, rel=0.015)
        assert int((labels != -100).sum(dim=1).max()) < 126 * rate + 32  # a span more at most


def test_the_callers_collator_stays_as_it_is(tokenizer):
    collator = DataCollatorForMaskedLM(tokenizer, mask_probability=0.3)
    prepared_collator(collator, LinearMaskRate())
    assert "mask_rates" not in collator([{"input_ids": [1, 7, 8, 9, 2]}])


def make(tokenizer, folder, **arguments):
    torch.manual_seed(0)
    config = HfeBertConfig(
        vocab_size=60, hidden_size=12, num_hidden_layers=1, num_attention_heads=3, intermediate_size=20,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    settings = {"per_device_train_batch_size": 4, "max_steps": 8, "save_steps": 5, "learning_rate": 0.1}
    data_set = SentenceBlocks(make_dataset(random_documents(60)), 64)
    return PreTrainingTrainer(
        model=HfeBertForMaskedLM(config),
        args=TrainingArguments(
            folder, **settings, report_to="none", use_cpu=True, disable_tqdm=True, logging_strategy="no", **arguments
        ),
        train_dataset=data_set,
        eval_dataset=blocks(64),
        data_collator=DataCollatorForMaskedLM(tokenizer, mask_probability=0.4),
        mask_rate=LinearMaskRate(0.4, 0.1),
    )


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


def test_collators_that_cannot_follow_are_refused(tokenizer):
    for collator, message in (
        (len, "needs a data collator of hf_encoders.data"),
        (DataCollatorForMaskedLM(tokenizer), "give it mask_probability=0.3"),
        (DataCollatorForMaskedLM(tokenizer, mask_probability=0.3, max_predictions=20), "max_predictions"),
        (DataCollatorForMaskedLM(tokenizer, mask_probability=0.3, pass_over_long_words=True), "pass_over_long_words"),
    ):
        with pytest.raises(ValueError, match=message):
            prepared_collator(collator, LinearMaskRate())
    with pytest.raises(ValueError, match="start=0"):
        LinearMaskRate(0, 0.15)
