"""Packed batches under Trainer: the same steps and figures, and the settings that are to work."""

import pytest
import torch
from transformers import Trainer

from hf_encoders import (
    DataCollatorForDialogueLM,
    DataCollatorForNextSentencePrediction,
    DataCollatorForSentenceOrderPrediction,
    Dialogues,
    DocumentChunks,
    EpochCallback,
    HfeAlbertConfig,
    HfeAlbertForPreTraining,
    HfeBertConfig,
    HfeBertForPreTraining,
    PreTrainingTrainer,
)
from tests.corpus.corpora import TINY_MODEL, make_dataset, random_documents
from tests.training.tiny import NO_DROPOUT, training_arguments


LENGTH = 24
SIZES = {
    **TINY_MODEL,
    "pad_token_id": 0,
    **NO_DROPOUT,
    "initializer_range": 0.2,
}
# Those of pairs, from text to batch; `test_normalisation` has the others.
OBJECTIVES = {
    "nsp": (HfeBertForPreTraining, HfeBertConfig, DataCollatorForNextSentencePrediction, DocumentChunks),
    "dialogue": (HfeBertForPreTraining, HfeBertConfig, DataCollatorForDialogueLM, Dialogues),
    "sop": (HfeAlbertForPreTraining, HfeAlbertConfig, DataCollatorForSentenceOrderPrediction, DocumentChunks),
}
# Number of documents and seed that give so many examples.
CORPORA = {
    "nsp": {32: (26, 0), 60: (44, 2)},
    "dialogue": {32: (28, 2), 60: (58, 2)},
    "sop": {32: (26, 0), 60: (44, 2)},
}


def make_examples(objective, num_examples=60, redraw=False):
    documents = make_dataset(random_documents(*CORPORA[objective][num_examples]))
    examples = OBJECTIVES[objective][3](documents, LENGTH, redraw=redraw)
    assert redraw or len(examples) == num_examples
    return examples


def make(objective, folder, tokenizer, train_set, packed, trainer_class=PreTrainingTrainer, eval_set=None, **settings):
    torch.manual_seed(0)
    model_class, config_class, collator_class, _ = OBJECTIVES[objective]
    extra = {name: settings.pop(name) for name in ("callbacks",) if name in settings}
    more = {"embedding_size": 10, "classifier_dropout_prob": 0.0} if objective == "sop" else {}
    arguments = {"max_steps": 3, "learning_rate": 0.5, "lr_scheduler_type": "constant", "optim": "sgd", **settings}
    return trainer_class(
        model=model_class(config_class(**SIZES, **more)),
        args=training_arguments(folder, save_strategy="no", logging_steps=1, **arguments),
        train_dataset=train_set,
        eval_dataset=eval_set,
        data_collator=collator_class(tokenizer, packed=packed),
        **extra,
    )


def trained(*args, **arguments):
    trainer = make(*args, **arguments)
    trainer.train()
    names = ("loss", "mlm_loss", "mlm_accuracy", "pair_loss", "pair_accuracy", "grad_norm")
    logs = [{name: log[name] for name in names if name in log} for log in trainer.state.log_history[:3]]
    return logs, [parameter.detach().clone() for parameter in trainer.model.parameters()], trainer


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_batch_is_the_same_however_it_is_packed_and_cut(tokenizer, objective, tmp_path):
    """32 padded examples a step = packed = 4 x 8 packed; a step an epoch."""
    examples = make_examples(objective, 32)
    whole, parameters, _ = trained(objective, tmp_path, tokenizer, examples, False, per_device_train_batch_size=32)
    assert whole[0]["loss"] - whole[2]["loss"] > 1e-3 and len(whole[0]) == 6
    for size, accumulation in ((32, 1), (8, 4)):
        logs, packed, _ = trained(
            objective, tmp_path, tokenizer, examples, True, per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulation,
        )  # fmt: skip
        for expected, log in zip(whole, logs, strict=True):
            assert log == pytest.approx(expected, abs=1e-5)
        assert max(float((a - b).abs().max()) for a, b in zip(parameters, packed, strict=True)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_evaluation_is_the_same_packed(tokenizer, objective, tmp_path):
    held_out, results = make_examples(objective), []
    for packed, size in ((False, 7), (True, 7), (True, 4)):
        trainer = make(
            objective, tmp_path, tokenizer, make_examples(objective, redraw=True), packed,
            per_device_eval_batch_size=size,
        )  # fmt: skip
        metrics = trainer.evaluate(held_out)
        results.append({name: value for name, value in metrics.items() if "loss" in name or "accuracy" in name})
    assert len(results[0]) == 5
    for packed_results in results[1:]:
        assert packed_results == pytest.approx(results[0], abs=1e-5)


@pytest.mark.parametrize("trainer_class", [PreTrainingTrainer, Trainer])
@pytest.mark.parametrize("workers", [0, 2])
def test_default_settings_draw_every_epoch_anew_and_count_tokens(tokenizer, trainer_class, workers, tmp_path):
    chunks = make_examples("nsp", redraw=True)
    collator = DataCollatorForNextSentencePrediction(tokenizer, packed=True)
    steps = len(chunks) // 4
    trainer = make(
        "nsp", tmp_path, tokenizer, chunks, True, trainer_class=trainer_class, callbacks=[EpochCallback()],
        max_steps=2 * steps, per_device_train_batch_size=4, dataloader_num_workers=workers,
        dataloader_persistent_workers=workers > 0, include_num_input_tokens_seen="all", learning_rate=0.01,
    )  # fmt: skip
    inner, seen = trainer.model.forward, []

    def forward(**inputs):
        seen.append(inputs)
        return inner(**inputs)

    forward.__signature__ = __import__("inspect").signature(inner)
    trainer.model.forward = forward
    trainer.train()

    def rows(inputs):
        ids, bounds = inputs["input_ids"][0].tolist(), inputs["cu_seq_lens_q"].tolist()
        return [ids[begin:end] for begin, end in zip(bounds[:-1], bounds[1:], strict=True)]

    drawn = []
    for epoch, batches in enumerate((seen[:steps], seen[steps:])):
        chunks.set_epoch(epoch)
        expected = sorted(rows(collator([chunks[i] for i in range(len(chunks))])))
        drawn.append(sorted(row for inputs in batches for row in rows(inputs)))
        assert drawn[epoch] == expected
    assert drawn[0] != drawn[1]
    assert all(type(inputs["max_length_q"]) is int for inputs in seen)
    num_tokens = sum(len(row) for epoch in drawn for row in epoch)
    assert trainer.state.num_input_tokens_seen == num_tokens


def test_predictions_of_packed_rows_come_back_in_one_process(tokenizer, tmp_path):
    """Outputs are those of the rows: a pair's scores an example."""
    examples = make_examples("nsp")
    trainer = make("nsp", tmp_path, tokenizer, make_examples("nsp", redraw=True), True, per_device_eval_batch_size=7)
    predicted = trainer.predict(examples)
    scores = [array for array in predicted.predictions if array.shape == (len(examples), 2)]
    assert len(scores) == 1
    padded = DataCollatorForNextSentencePrediction(tokenizer)([examples[i] for i in range(len(examples))])
    with torch.no_grad():
        expected = trainer.model(**padded).seq_relationship_logits
    torch.testing.assert_close(torch.from_numpy(scores[0]), expected, rtol=0, atol=1e-5)
