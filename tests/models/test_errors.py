"""Wrong inputs: a ValueError with the field, the value and the remedy, before anything is computed."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from hf_encoders import HfeBertForNextSentencePrediction, HfeBertForPreTraining, HfeBertModel, HfeRobertaModel
from hf_encoders.models.encoder_attention import EncoderSelfAttention
from hf_encoders.models.encoder_two_streams import RelativeAttention
from tests.models.tiny import (
    BASE_MODELS,
    CLASSIFIERS,
    LM_HEADS,
    MASKED_LM,
    MULTIPLE_CHOICE,
    PRETRAINING,
    TOKEN_CLASSIFIERS,
    WITH_POSITIONS,
    tiny_model,
    token_ids,
)


each_family = pytest.mark.parametrize("model_class", BASE_MODELS)
each_table_of_positions = pytest.mark.parametrize("model_class", WITH_POSITIONS)


def assert_refused(model: PreTrainedModel, message: str, **inputs: Any) -> None:
    """The message fits, and no attention ran before it."""
    ran = []
    for module in model.modules():
        if isinstance(module, (EncoderSelfAttention, RelativeAttention)):
            module.register_forward_pre_hook(lambda *_: ran.append(1))
    with pytest.raises(ValueError, match=message):
        model(**inputs)
    assert not ran


@each_table_of_positions
def test_too_long_sequences(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    longest = (
        11 if issubclass(model_class, HfeRobertaModel) else 13
    )  # RoBERTa's padding id 1 takes two rows of the table
    model(token_ids(model.config, 1, longest))
    message = rf"{longest + 1} tokens.*max_position_embeddings=13 allows {longest}: truncate \(max_length={longest}\)"
    assert_refused(model, "input_ids has sequences of " + message, input_ids=token_ids(model.config, 2, longest + 1))
    embeddings = model.get_input_embeddings()(token_ids(model.config, 2, longest + 1))
    assert_refused(model, "inputs_embeds has sequences of " + message, inputs_embeds=embeddings)


@each_table_of_positions
def test_only_the_sequences_of_a_packed_row_are_limited(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    ids = token_ids(model.config, 1, 20)
    model(ids, cu_seq_lens_q=torch.tensor([0, 10, 20]))
    assert_refused(
        model, "14 tokens.*max_position_embeddings=13", input_ids=ids, cu_seq_lens_q=torch.tensor([0, 14, 20])
    )


@each_family
def test_ids_outside_of_the_vocabulary(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    for wrong in (41, 1000, -1):
        ids = token_ids(model.config, 2, 5)
        ids[1, 3] = wrong
        assert_refused(model, rf"input_ids holds {wrong}, outside of \[0, 40\] \(vocab_size=41\)", input_ids=ids)


@each_table_of_positions
@pytest.mark.parametrize(
    ("field", "size"), [("token_type_ids", "type_vocab_size"), ("position_ids", "max_position_embeddings")]
)
def test_ids_outside_of_the_other_tables(model_class: type[PreTrainedModel], field: str, size: str) -> None:
    model = tiny_model(model_class)
    wrong = getattr(model.config, size)
    for value in (wrong, -2):
        ids = torch.zeros(2, 5, dtype=torch.long)
        ids[0, 4] = value
        message = rf"{field} holds {value}, outside of \[0, {wrong - 1}\] \({size}={wrong}\)"
        assert_refused(model, message, input_ids=token_ids(model.config, 2, 5), **{field: ids})


@each_table_of_positions
@pytest.mark.parametrize("field", ["token_type_ids", "position_ids"])
def test_one_type_and_position_a_token(model_class: type[PreTrainedModel], field: str) -> None:
    model = tiny_model(model_class)
    for shape in ((2, 4), (3, 5), (4,), (2, 5, 1)):
        inputs = {"input_ids": token_ids(model.config, 2, 5), field: torch.zeros(shape, dtype=torch.long)}
        assert_refused(model, rf"{field} has shape .*: pass one per token", **inputs)
    for right in ((2, 5), (1, 5), (5,)):
        model(token_ids(model.config, 2, 5), **{field: torch.zeros(right, dtype=torch.long)})


@each_family
def test_exactly_one_of_ids_and_embeddings(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    ids = token_ids(model.config, 2, 5)
    embeddings = model.get_input_embeddings()(ids)
    assert_refused(model, "exactly one of input_ids or inputs_embeds: neither is given")
    assert_refused(model, "input_ids or inputs_embeds: both are given", input_ids=ids, inputs_embeds=embeddings)
    assert_refused(model, r"inputs_embeds has shape \(2, 5, 3\): pass", inputs_embeds=embeddings[:, :, :3])
    assert_refused(model, r"inputs_embeds has shape \(2, 5\): pass", inputs_embeds=embeddings[:, :, 0])
    assert_refused(model, r"input_ids has shape \(5,\): pass a batch", input_ids=ids[0])


@each_family
def test_masks_of_another_shape(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    for shape in ((2, 4), (3, 5), (5,), (2, 5, 4), (2, 1, 4, 5), (2, 1, 5, 4), (3, 1, 5, 5)):
        inputs = {"input_ids": token_ids(model.config, 2, 5), "attention_mask": torch.ones(shape)}
        assert_refused(model, r"attention_mask has shape .*: pass .*\(2, 5\)", **inputs)


@pytest.mark.parametrize(
    ("bounds", "rows", "message"),
    [
        ([0, 3, 4], 1, r"must rise from 0 to the row's 5 tokens.*\[0, 3, 4\]"),
        ([0, 3, 3, 5], 1, "must rise"),
        ([0, 4, 3, 5], 1, "must rise"),
        ([1, 3, 6], 1, "starts at 1: its first entry must be 0"),
        ([0], 1, "must rise"),
        ([[0, 5]], 1, "must rise"),
        (5, 1, "must rise"),
        ([0, 5, 10], 2, r"for 2 row\(s\): concatenate the sequences into one row"),
    ],
)
def test_boundaries_that_do_not_cover_one_row(bounds: Any, rows: int, message: str) -> None:
    model = tiny_model(HfeBertModel)
    ids = token_ids(model.config, rows, 5)
    assert_refused(model, "cu_seq_lens_q.*" + message, input_ids=ids, cu_seq_lens_q=torch.tensor(bounds))


def test_packed_rows_have_no_mask() -> None:
    model = tiny_model(HfeBertModel)
    ids = token_ids(model.config, 1, 5)
    bounds = torch.tensor([0, 2, 5])
    message = "attention_mask and cu_seq_lens_q were both given: leave attention_mask out"
    assert_refused(model, message, input_ids=ids, attention_mask=torch.ones(1, 5), cu_seq_lens_q=bounds)


@pytest.mark.parametrize("model_class", [*MASKED_LM, *PRETRAINING, *LM_HEADS, *TOKEN_CLASSIFIERS])
@pytest.mark.parametrize("train", [False, True])
def test_token_labels_out_of_range_or_shape(model_class: type[PreTrainedModel], train: bool) -> None:
    model = tiny_model(model_class, num_labels=3).train(train)
    field, size = ("num_labels", 3) if model_class in TOKEN_CLASSIFIERS else ("vocab_size", 41)
    ids = token_ids(model.config, 2, 5)
    for wrong in (size, -1):
        labels = torch.full((2, 5), -100)
        labels[1, 2] = wrong
        message = (
            rf"labels holds {wrong}, outside of \[0, {size - 1}\] \({field}={size}\): pass classes from 0, or -100"
        )
        assert_refused(model, message, input_ids=ids, labels=labels)
    for shape in ((2, 4), (2,), (10,)):
        labels = torch.zeros(shape, dtype=torch.long)
        assert_refused(model, r"labels has shape .*pass labels of shape \(2, 5\)", input_ids=ids, labels=labels)
    assert_refused(model, "labels has dtype torch.float32: pass class ids", input_ids=ids, labels=torch.zeros(2, 5))
    assert_refused(model, "token_type_ids has dtype torch.float32", input_ids=ids, token_type_ids=torch.zeros(2, 5))


@pytest.mark.parametrize("model_class", [*CLASSIFIERS, *MULTIPLE_CHOICE, HfeBertForNextSentencePrediction])
def test_sequence_labels_out_of_range(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class, num_labels=3)
    size = 2 if model_class is HfeBertForNextSentencePrediction else 3
    shape = (2, 3, 5) if model_class in MULTIPLE_CHOICE else (2, 5)
    ids = token_ids(model.config, *shape)
    for wrong in (size, -1):
        message = rf"labels holds {wrong}, outside of \[0, {size - 1}\]"
        assert_refused(model, message, input_ids=ids, labels=torch.tensor([0, wrong]))
    with pytest.raises(ValueError, match=r"labels has .*3"):
        model(ids, labels=torch.tensor([0, 1, 0]))


@pytest.mark.parametrize("model_class", PRETRAINING)
def test_pair_labels_out_of_range(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    name = "next_sentence_label" if model_class is HfeBertForPreTraining else "sentence_order_label"
    ids = token_ids(model.config, 2, 5)
    for wrong in (2, -1):
        message = rf"{name} holds {wrong}, outside of \[0, 1\]"
        assert_refused(model, message, input_ids=ids, **{name: torch.tensor([0, wrong])})
    with pytest.raises(ValueError, match=f"{name} has 3 labels for 2 sequences: pass one each"):
        model(ids, **{name: torch.tensor([0, 1, 0])})


@pytest.mark.parametrize("model_class", MULTIPLE_CHOICE)
def test_choices_need_a_dimension_of_their_own(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    ids = token_ids(model.config, 2, 5)
    assert_refused(model, r"input_ids has shape \(2, 5\): pass \(batch_size, num_choices", input_ids=ids)
    embeddings = model.get_input_embeddings()(ids)
    assert_refused(model, r"inputs_embeds has shape \(2, 5, \d+\): pass", inputs_embeds=embeddings)
    assert_refused(model, "exactly one of input_ids or inputs_embeds")
