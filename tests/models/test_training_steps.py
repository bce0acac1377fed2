"""One step of training: every parameter moves, and how a batch is cut does not matter."""

import inspect
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from hf_encoders import HfeBertForPreTraining
from tests.models.tiny import (
    BASE_MODELS,
    CLASSIFIERS,
    DISCRIMINATORS,
    EVERY_HEAD,
    HEAD_DROPOUTS,
    LM_HEADS,
    MASKED_LM,
    MULTIPLE_CHOICE,
    NEXT_SENTENCE,
    NO_DROPOUT,
    PRETRAINING,
    QUESTION_ANSWERING,
    RELATIVE_MASKED_LM,
    TOKEN_CLASSIFIERS,
    packed,
    right_padded,
    tiny_model,
    token_ids,
)


def labelled_batch(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """8 rows of 2 to 9 tokens; 1 to 8 predicted tokens a row."""
    lengths = (9, 2, 7, 3, 8, 5, 2, 6)
    if isinstance(model, MULTIPLE_CHOICE):
        batch = {name: value.unflatten(0, (4, 2)) for name, value in right_padded(model.config, lengths).items()}
        return {**batch, "labels": torch.tensor([0, 1, 1, 0])}
    batch = right_padded(model.config, lengths)
    second = (torch.arange(9)[None] >= torch.tensor(lengths)[:, None] // 2).long()
    batch["token_type_ids"] = second % model.config.type_vocab_size
    pairs = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])
    if isinstance(model, QUESTION_ANSWERING):
        return {**batch, "start_positions": pairs, "end_positions": pairs + 1}
    if isinstance(model, (*CLASSIFIERS, *NEXT_SENTENCE)):
        return {**batch, "labels": pairs}
    classes = model.num_labels if isinstance(model, (*TOKEN_CLASSIFIERS, *DISCRIMINATORS)) else model.config.vocab_size
    labels = torch.randint(0, classes, batch["input_ids"].shape)
    for row, length in enumerate(lengths):
        labels[row, max(1, (length * (row + 1)) // 9) :] = -100
    batch["labels"] = labels
    if isinstance(model, PRETRAINING):
        batch[model.loss_terms["pair"]] = pairs
    return batch


# Of XLNet there are no query rows here, and choices have one segment.
KEY_BIASES = ("key.bias", "k_lin.bias", "mask_emb")


def without_effect(model: PreTrainedModel) -> tuple[str, ...]:
    """Endings of the biases that add the same to all that a softmax compares: keys, choices, columns."""
    if isinstance(model, MULTIPLE_CHOICE):
        is_linear = not getattr(model.config, "summary_activation", None)
        summary = ("sequence_summary.summary.bias",) if is_linear else ()
        return *KEY_BIASES, ".classifier.bias", "logits_proj.bias", *summary, "seg_embed", "r_s_bias"
    if isinstance(model, QUESTION_ANSWERING):
        last_norms = ("layer.2.output.LayerNorm.bias", "groups.1.albert_layers.1.full_layer_layer_norm.bias")
        return *KEY_BIASES, "qa_outputs.bias", ".classifier.bias", *last_norms
    return KEY_BIASES


def gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def rows_of(batch: dict[str, torch.Tensor], rows: slice) -> dict[str, torch.Tensor]:
    return {name: value[rows] for name, value in batch.items()}


@pytest.mark.parametrize("model_class", [*(m for m in EVERY_HEAD if m not in BASE_MODELS)])
def test_every_parameter_moves(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class, tie_word_embeddings=True).train()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    loss = model(**labelled_batch(model)).loss
    assert loss.requires_grad and loss.shape == ()
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    for name, parameter in model.named_parameters():
        if f".{name}".endswith(without_effect(model)):
            torch.testing.assert_close(parameter, before[name], atol=1e-5, rtol=0)
        else:
            assert not torch.allclose(parameter, before[name], atol=1e-7, rtol=0), name


@pytest.mark.parametrize("position_embedding_type", ["relative_key", "relative_key_query"])
@pytest.mark.parametrize("model_class", RELATIVE_MASKED_LM)
def test_every_relative_position_table_moves(model_class: type[PreTrainedModel], position_embedding_type: str) -> None:
    model = tiny_model(model_class, position_embedding_type=position_embedding_type).train()
    model(**labelled_batch(model)).loss.backward()
    tables = [p for name, p in model.named_parameters() if "distance_embedding" in name]
    assert len(tables) == (4 if model.config.model_type == "albert" else 3)
    assert all(table.grad.any() for table in tables)


NO_HEAD_DROPOUT = dict.fromkeys(HEAD_DROPOUTS, 0.0)


@pytest.mark.parametrize("counts", [int, torch.tensor], ids=["number", "tensor"])
@pytest.mark.parametrize(
    "model_class",
    [
        *(*MASKED_LM, *PRETRAINING, *DISCRIMINATORS, *LM_HEADS),
        *(*TOKEN_CLASSIFIERS, *CLASSIFIERS, *MULTIPLE_CHOICE, *NEXT_SENTENCE),
    ],
)
def test_four_accumulated_passes_are_one_batch(model_class: type[PreTrainedModel], counts: Any) -> None:
    model = tiny_model(model_class, **NO_DROPOUT, **NO_HEAD_DROPOUT).double().train()
    batch = labelled_batch(model)
    whole = model(**batch)
    whole.loss.backward()
    expected = gradients(model)

    model.zero_grad()
    totals = {"num_items_in_batch": counts(int((batch["labels"] != -100).sum()))}
    rows = len(batch["labels"]) // 4
    losses = []
    for step in range(4):
        outputs = model(**rows_of(batch, slice(step * rows, step * rows + rows)), **totals)
        loss = outputs.loss
        if model_class in PRETRAINING:  # as PreTrainingTrainer does, which counts the pairs too
            loss = outputs.mlm.nll / totals["num_items_in_batch"] + outputs.pair.nll / 8
        loss.backward()
        losses.append(loss)
    torch.testing.assert_close(sum(losses), whole.loss, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(gradients(model), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
@pytest.mark.parametrize("model_class", CLASSIFIERS)
def test_four_accumulated_passes_are_one_batch_for_numbers_and_flags(
    model_class: type[PreTrainedModel], problem: str
) -> None:
    fields = {**NO_DROPOUT, "num_labels": 3, "problem_type": problem}
    model = tiny_model(model_class, **fields).double()
    batch = {**right_padded(model.config, (5, 3, 6, 2)), "labels": torch.randint(0, 2, (4, 3)).double()}
    losses = [model(**rows_of(batch, slice(row, row + 1)), num_items_in_batch=12).loss for row in range(4)]
    torch.testing.assert_close(sum(losses), model(**batch).loss, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("model_class", [*MASKED_LM, *PRETRAINING, *DISCRIMINATORS, *LM_HEADS, *TOKEN_CLASSIFIERS])
def test_a_packed_batch_is_the_padded_one(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class, **NO_DROPOUT, **NO_HEAD_DROPOUT).double().train()
    batch = labelled_batch(model)
    pair_labels = {name: batch.pop(name) for name in [name for name in batch if batch[name].dim() == 1]}
    results = []
    for inputs in (batch, packed(batch)):
        model.zero_grad()
        loss = model(**inputs, **pair_labels).loss
        loss.backward()
        results.append((loss, gradients(model)))
    torch.testing.assert_close(results[1], results[0], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("model_class", PRETRAINING)
def test_reported_sums_are_those_of_the_batch(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    batch = labelled_batch(model)
    outputs = model(**batch)
    scores = outputs.seq_relationship_logits if model_class is HfeBertForPreTraining else outputs.sop_logits
    is_predicted = batch["labels"] != -100
    assert outputs.mlm.count == is_predicted.sum()
    assert outputs.mlm.correct == (outputs.prediction_logits.argmax(-1) == batch["labels"])[is_predicted].sum()
    torch.testing.assert_close(outputs.mlm.nll / outputs.mlm.count, outputs.mlm_loss)
    assert outputs.pair.count == 8
    assert outputs.pair.correct == (scores.argmax(-1) == batch[model.loss_terms["pair"]]).sum()
    torch.testing.assert_close(outputs.pair.nll / 8, outputs.pair_loss)
    assert [value.requires_grad for value in (*outputs.mlm, *outputs.pair)] == [True, False, False] * 2


def test_unlabelled_pairs_do_not_count() -> None:
    model = tiny_model(HfeBertForPreTraining)
    ids = token_ids(model.config, 3, 5)
    some = model(ids, next_sentence_label=torch.tensor([1, -100, 0]))
    kept = model(ids[[0, 2]], next_sentence_label=torch.tensor([1, 0]))
    assert some.pair.count == 2
    torch.testing.assert_close(some.loss, kept.loss)


def test_loss_terms_name_the_label_argument_of_each_term():
    for model_class in EVERY_HEAD:
        assert set(model_class.loss_terms.values()) <= set(inspect.signature(model_class.forward).parameters)
