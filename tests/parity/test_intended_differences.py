"""Where our models do something else than transformers' own on purpose: at padding, and without labels."""

import pytest
import torch
import transformers
from transformers import PreTrainedModel

import hf_encoders
from tests.parity.parity_with_transformers import ROW_LENGTH, make_batch, make_config, make_labels, make_pair


FAMILIES = ("Bert", "Roberta", "Albert")


def pairs(head: str, families: tuple[str, ...] = FAMILIES) -> tuple[tuple[type, type], ...]:
    """Our class and transformers' of each family."""
    return tuple((getattr(hf_encoders, f"Hfe{name}{head}"), getattr(transformers, name + head)) for name in families)


BASE_MODELS, MASKED_LM = pairs("Model"), pairs("ForMaskedLM")
PRETRAINING = pairs("ForPreTraining", ("Bert", "Albert"))
TOKEN_CLASSIFIERS = [ours for ours, _ in pairs("ForTokenClassification")]
QUESTION_ANSWERING = [ours for ours, _ in pairs("ForQuestionAnswering")]
kinds_with_padding = pytest.mark.parametrize("kind", ["right", "left", "holes"])


def model_and_batch(model_class: type[PreTrainedModel], kind: str) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    config = make_config(model_class, 31)
    return model_class(config).eval(), make_batch(kind, config)


@kinds_with_padding
@pytest.mark.parametrize("model_class", [*(ours for ours, _ in (*BASE_MODELS, *MASKED_LM)), *TOKEN_CLASSIFIERS])
def test_states_and_scores_of_tokens_are_zero_at_padding(model_class: type[PreTrainedModel], kind: str) -> None:
    model, batch = model_and_batch(model_class, kind)
    outputs = model(**batch, output_hidden_states=True)
    is_padding = batch["attention_mask"] == 0
    assert is_padding.any()
    for states in (outputs[0], *outputs.hidden_states):
        assert not states[is_padding].any()
        assert states[~is_padding].any(dim=-1).all()


@kinds_with_padding
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model_class", QUESTION_ANSWERING)
def test_answers_cannot_lie_in_padding_unless_labels_ask_for_its_scores(
    model_class: type[PreTrainedModel], dtype: torch.dtype, kind: str
) -> None:
    model, batch = model_and_batch(model_class, kind)
    model = model.to(dtype)
    is_padding = batch["attention_mask"] == 0
    lowest = torch.finfo(dtype).min
    outputs = model(**batch)
    for logits in (outputs.start_logits, outputs.end_logits):
        assert (logits[is_padding] == lowest).all()
        assert (logits[~is_padding] > lowest).all()
    places = torch.tensor([1, 2, 3])
    with_labels = model(**batch, start_positions=places, end_positions=places)
    assert (with_labels.start_logits > lowest).all()


@pytest.mark.parametrize("keep_padding", [False, True])
@pytest.mark.parametrize("pair", BASE_MODELS, ids=lambda pair: pair[1].__name__)
def test_the_first_real_token_is_pooled_when_padding_stands_on_the_left(pair: tuple, keep_padding: bool) -> None:
    """The pooled output of a sequence does not depend on the side of its padding (positions given)."""
    config = make_config(pair[0], 32)
    ours, stock = make_pair(*pair, config)
    left = make_batch("left", config)
    starts = (left["attention_mask"] == 0).sum(dim=1)
    assert starts.tolist() == [0, 1, 3]
    first_position = config.pad_token_id + 1 if config.model_type == "roberta" else 0
    for row, start in enumerate(starts.tolist()):
        positions = torch.arange(ROW_LENGTH)[None] + first_position
        alone = {
            "input_ids": left["input_ids"][row : row + 1, start:],
            "position_ids": positions[:, : ROW_LENGTH - start],
        }
        expected = stock(**alone).pooler_output[0]
        padded_positions = (positions - start).clamp(min=0)
        got = ours(
            left["input_ids"][row : row + 1],
            attention_mask=left["attention_mask"][row : row + 1],
            position_ids=padded_positions,
            keep_padding=keep_padding,
        ).pooler_output[0]
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("keep_padding", [False, True])
@pytest.mark.parametrize("pair", BASE_MODELS, ids=lambda pair: pair[1].__name__)
def test_a_row_of_padding_only_is_zero_and_harms_no_other(pair: tuple, keep_padding: bool) -> None:
    model, batch = model_and_batch(pair[0], "right")
    expected = model(**batch)
    batch["attention_mask"][1] = 0
    outputs = model(**batch, keep_padding=keep_padding)
    pooled_zero = model.pool(torch.zeros(1, model.config.hidden_size))
    torch.testing.assert_close(outputs.pooler_output[1:2], pooled_zero)
    torch.testing.assert_close(outputs.pooler_output[[0, 2]], expected.pooler_output[[0, 2]], atol=1e-5, rtol=1e-5)
    if not keep_padding:
        assert not outputs.last_hidden_state[1].any()


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("pair", MASKED_LM, ids=lambda pair: pair[1].__name__)
def test_a_batch_without_predicted_tokens_has_loss_zero(pair: tuple, train: bool) -> None:
    config = make_config(pair[0], 33)
    batch = make_batch("right", config)
    ours, stock = (model.train(train) for model in make_pair(*pair, config))
    nothing = torch.full(batch["input_ids"].shape, -100)
    assert stock(**batch, labels=nothing).loss.isnan()
    loss = ours(**batch, labels=nothing).loss
    assert loss.item() == 0.0
    loss.backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in ours.parameters())


@pytest.mark.parametrize("model_class", [*TOKEN_CLASSIFIERS, *QUESTION_ANSWERING])
def test_a_batch_without_labels_or_answers_has_loss_zero(model_class: type[PreTrainedModel]) -> None:
    model, batch = model_and_batch(model_class, "right")
    labels = {"labels": torch.full(batch["input_ids"].shape, -100)}
    if model_class in QUESTION_ANSWERING:
        labels = dict.fromkeys(("start_positions", "end_positions"), torch.full((3,), ROW_LENGTH))
    assert model(**batch, **labels).loss.item() == 0.0


@pytest.mark.parametrize("pretraining", PRETRAINING, ids=lambda classes: classes[1].__name__)
def test_pretraining_loss_sums_the_objectives_whose_labels_are_given(pretraining: tuple) -> None:
    ours_class, stock_class = pretraining
    pair_label = ours_class.loss_terms["pair"]
    config = make_config(ours_class, 34)
    batch = make_batch("right", config)
    ours, stock = make_pair(ours_class, stock_class, config)
    labels = make_labels("ForPreTraining", config, batch)
    both = ours(**batch, **labels)
    torch.testing.assert_close(both.loss, stock(**batch, **labels).loss)
    torch.testing.assert_close(both.loss, both.mlm_loss + both.pair_loss)
    assert not both.mlm_loss.requires_grad and not both.pair_loss.requires_grad

    tokens_only = ours(**batch, labels=labels["labels"])
    torch.testing.assert_close(tokens_only.loss, both.mlm_loss)
    torch.testing.assert_close(tokens_only.mlm_loss, both.mlm_loss)
    assert tokens_only.pair_loss is None
    pairs_only = ours(**batch, **{pair_label: labels[pair_label]})
    torch.testing.assert_close(pairs_only.loss, both.pair_loss)
    assert pairs_only.mlm_loss is None
    for partial in ({"labels": labels["labels"]}, {pair_label: labels[pair_label]}):
        assert stock(**batch, **partial).loss is None
    assert ours(**batch).loss is None


@pytest.mark.parametrize("pair", (*MASKED_LM, *PRETRAINING), ids=lambda p: p[1].__name__)
def test_training_with_labels_returns_no_logits_unless_asked(pair: tuple) -> None:
    config = make_config(pair[0], 35)
    batch = make_batch("right", config)
    model, _ = make_pair(*pair, config)
    field = "logits" if "MaskedLM" in pair[0].__name__ else "prediction_logits"
    labels = {"labels": make_labels("ForMaskedLM", config, batch)["labels"]}
    assert model(**batch, **labels)[field] is not None
    expected = model(**batch)[field]
    without_logits = model(**batch, **labels, return_logits=False)
    assert getattr(without_logits, field) is None
    model.train()
    assert getattr(model(**batch, **labels), field) is None
    assert model(**batch)[field] is not None
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    outputs = model(**batch, **labels, return_logits=True)
    torch.testing.assert_close(outputs[field], expected)
    torch.testing.assert_close(outputs.loss, without_logits.loss)
