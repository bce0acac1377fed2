"""What nothing reads is refused: labels without a head, misspelt arguments, configurations of another family."""

import copy
import inspect
from typing import Any

import pytest
import torch
import transformers
from datasets import Dataset
from transformers import PreTrainedModel
from transformers.utils import TransformersKwargs

import hf_encoders
from hf_encoders.objectives.sentence_pairs import (
    DataCollatorForNextSentencePrediction,
    DataCollatorForSentenceOrderPrediction,
    DocumentChunks,
    SentencePairCollator,
)
from tests import families
from tests.hub.tiny_checkpoints import BERT, make_tokenizer
from tests.models.test_errors import assert_refused
from tests.models.tiny import (
    ALL_MODELS,
    BASE_MODELS,
    CONFIGURATIONS,
    MASKED_LM,
    MULTIPLE_CHOICE,
    PRETRAINING,
    QUESTION_ANSWERING,
    tiny_config,
    tiny_model,
    token_ids,
)


every_model = pytest.mark.parametrize("model_class", ALL_MODELS)
LABELS = ("labels", "next_sentence_label", "sentence_order_label", "start_positions", "end_positions")
# Of transformers' own arguments, those that are on where an encoder cannot do what they ask for.
NOT_FOR_ENCODERS = {
    "output_router_logits": True,
    "past_key_values": torch.ones(2, 2),
    "encoder_hidden_states": torch.ones(2, 2),
    "head_mask": torch.ones(3, 3),
    "seq_idx": torch.zeros(1, 4, dtype=torch.int32),
}


def ids_for(model: PreTrainedModel) -> torch.Tensor:
    """`(2, 5)`, for the heads of choices `(2, 3, 5)`."""
    return token_ids(model.config, *((2, 3, 5) if isinstance(model, MULTIPLE_CHOICE) else (2, 5)))


def labels_of(model: PreTrainedModel) -> set[str]:
    """Those that the head takes, as transformers' classes of the same name do."""
    if isinstance(model, BASE_MODELS):
        return set()
    if isinstance(model, QUESTION_ANSWERING):
        return {"start_positions", "end_positions"}
    return {"labels", model.loss_terms["pair"]} if isinstance(model, PRETRAINING) else {"labels"}


@every_model
def test_a_label_that_the_head_does_not_take_is_refused(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    labels = labels_of(model)
    names = " and ".join(f"'{name}'" for name in LABELS if name in labels)
    for label in set(LABELS) - labels:
        inputs = {"input_ids": ids_for(model), label: torch.tensor([0, 1])}
        assert_refused(model, f"{model_class.__name__}.forward takes no '{label}', .*leave it out", **inputs)
        if labels:
            # To call another objective's label by the name of this head's is the last remedy.
            assert_refused(model, f"its labels are {names}: use a model with a head for it", **inputs)


@every_model
def test_a_label_that_is_none_trains_nothing_and_passes(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class).eval()
    expected = model(ids_for(model))
    found = model(ids_for(model), **dict.fromkeys(LABELS))
    assert found.keys() == expected.keys() and "loss" not in found
    assert torch.equal(found[0], expected[0])


@every_model
def test_a_misspelt_argument_is_refused(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    for misspelt, meant in (
        ("inputs_embed", "inputs_embeds"),
        ("atention_mask", "attention_mask"),
        ("token_type_id", "token_type_ids"),
        ("positions_ids", "position_ids"),
        ("output_atentions", "output_attentions"),
        ("cu_seqlens_q", "cu_seq_lens_q"),
    ):
        message = f"{model_class.__name__}.forward takes no '{misspelt}': did you mean '{meant}'"
        assert_refused(model, message, input_ids=ids_for(model), **{misspelt: None})


@pytest.mark.parametrize("model_class", PRETRAINING)
def test_a_misspelt_label_is_refused(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    label = model.loss_terms["pair"]
    given = {"input_ids": ids_for(model), "labels": ids_for(model), f"{label}s": torch.tensor([0, 1])}
    assert_refused(model, f"did you mean '{label}'", **given)


@every_model
def test_all_unknown_arguments_are_named(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    given = {"input_ids": ids_for(model), "special_tokens_mask": ids_for(model), "foo": 1}
    assert_refused(model, "takes no 'foo', .* takes no 'special_tokens_mask', ", **given)


@every_model
def test_what_transformers_passes_to_any_model_changes_nothing(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    expected = model(ids_for(model))
    passed = dict.fromkeys(TransformersKwargs.__annotations__) | dict.fromkeys(NOT_FOR_ENCODERS)
    passed |= {"num_items_in_batch": torch.tensor(9), "use_cache": False, "return_dict": True, "is_causal": False}
    passed |= {"max_length_q": 5, "max_length_k": 5, "cache_position": None, "encoder_attention_mask": None}
    found = model(ids_for(model), **passed)
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=0)
    assert isinstance(model(ids_for(model), return_dict=False), tuple)


@every_model
def test_what_an_encoder_cannot_do_is_refused(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    for name, value in NOT_FOR_ENCODERS.items():
        message = f"takes no '{name}', which an encoder does not use"
        assert_refused(model, message, input_ids=ids_for(model), **{name: value})


@pytest.mark.parametrize("model_class", QUESTION_ANSWERING)
@pytest.mark.parametrize(("given", "missing"), [("start", "end"), ("end", "start")])
def test_half_of_an_answer_is_refused(model_class: type[PreTrainedModel], given: str, missing: str) -> None:
    model = tiny_model(model_class)
    labels = {f"{given}_positions": torch.tensor([1, 2])}
    assert_refused(model, f"{missing}_positions is None", input_ids=ids_for(model), **labels)


@pytest.mark.parametrize("model_class", [*MASKED_LM, *PRETRAINING])
@pytest.mark.parametrize(
    "collator_class", [DataCollatorForNextSentencePrediction, DataCollatorForSentenceOrderPrediction]
)
def test_a_pair_collator_goes_with_its_own_head_alone(
    model_class: type[PreTrainedModel], collator_class: type[SentencePairCollator]
) -> None:
    """Not with the other objective's either, unless the user says so by the label's name."""
    tokenizer = make_tokenizer(BERT)
    config = tiny_config(model_class.config_class, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    model = model_class(config)
    documents = {"input_ids": [[[9, 10], [11, 12]], [[13, 14], [15, 16]]]}
    chunks = DocumentChunks(Dataset.from_dict(documents), max_length=11, redraw=False)
    batch = collator_class(tokenizer)([chunks[0], chunks[1]])
    label = collator_class(tokenizer).label_name
    own = model.loss_terms.get("pair")
    if own == label:
        assert model(**batch).pair_loss is not None
        return
    assert_refused(model, f"{model_class.__name__}.forward takes no '{label}'", **batch)
    if own is not None:
        assert_refused(model, rf"label_name='{own}' of a pair collator", **batch)
        assert model(**collator_class(tokenizer, label_name=own)([chunks[0], chunks[1]])).pair_loss is not None


@pytest.mark.processes
def test_a_compiled_model_refuses_too() -> None:
    model = tiny_model(hf_encoders.HfeBertForPreTraining)
    compiled = torch.compile(model, backend="eager")
    given = {"input_ids": ids_for(model), "labels": ids_for(model)}
    assert compiled(**given).loss is not None
    with pytest.raises(ValueError, match="takes no 'sentence_order_label'"):
        compiled(**given, sentence_order_label=torch.tensor([0, 1]))


def test_a_subclass_may_take_more_arguments() -> None:
    class Shifted(hf_encoders.HfeBertModel):
        def forward(self, *args: Any, shift: int = 0, **kwargs: Any):
            self.shift = shift
            return super().forward(*args, **kwargs)

    class Masked(hf_encoders.HfeBertForMaskedLM):
        def _add_encoder(self, add_pooling_layer: bool) -> None:
            self.bert = Shifted(self.config, add_pooling_layer)

    model = Masked(tiny_config(hf_encoders.HfeBertConfig))
    model(ids_for(model), shift=3)
    assert model.bert.shift == 3
    assert_refused(model, "takes no 'shiftt': did you mean 'shift'", input_ids=ids_for(model), shiftt=3)


@every_model
def test_a_configuration_of_another_family_is_refused(model_class: type[PreTrainedModel]) -> None:
    name = model_class.config_class.__name__
    for config_class in CONFIGURATIONS:
        if config_class is not model_class.config_class:
            with pytest.raises(ValueError, match=f"{model_class.__name__} needs a {name}, .* {config_class.__name__}"):
                model_class(tiny_config(config_class))


@pytest.mark.parametrize("config_class", CONFIGURATIONS)
def test_the_remedy_for_a_configuration_of_transformers_works(config_class: type) -> None:
    stock = families.needed_stock_class(config_class)
    fields = {"vocab_size": 43, "pad_token_id": 1}
    fields |= {"hidden_size": 20, "num_attention_heads": 2, "num_hidden_layers": 1}
    # transformers derives the width of XLNet's heads from its own names only.
    fields = {config_class.own_name(name): value for name, value in fields.items()}
    config = stock(**fields, id2label={0: "a", 1: "b", 2: "c"})
    auto_class = next(
        one for one in ("AutoModelForMaskedLM", "AutoModelForPreTraining") if one in config_class.AUTO_MAP
    )
    model_class = families.model_class(config_class, auto_class)
    with pytest.raises(ValueError, match=rf"pass {config_class.__name__}.from_dict\(config.to_dict\(\)\)"):
        model_class(config)
    converted = config_class.from_dict(config.to_dict())
    model = model_class(converted)
    assert model.config.vocab_size == 43 and model.config.num_labels == 3
    ours = getattr(transformers, auto_class).from_config(config)
    ours.load_state_dict(model.state_dict())


def test_a_class_of_the_same_name_is_the_same_family() -> None:
    """The code beside a checkpoint has a configuration class of its own."""
    remote = type("HfeBertConfig", (hf_encoders.HfeBertConfig.__base__,), dict(vars(hf_encoders.HfeBertConfig)))
    config = copy.copy(tiny_config(hf_encoders.HfeBertConfig))
    object.__setattr__(config, "__class__", remote)
    assert not isinstance(config, hf_encoders.HfeBertConfig)
    hf_encoders.HfeBertModel(config)


def test_inputs_come_first_by_position_and_surplus_ones_are_refused() -> None:
    model = hf_encoders.HfeBertForMaskedLM(tiny_config(hf_encoders.HfeBertConfig)).eval()
    ids = ids_for(model)
    assert torch.equal(model(ids, torch.ones_like(ids)).logits, model(input_ids=ids).logits)
    with pytest.raises(TypeError, match="9 arguments by position: only input_ids, attention_mask"):
        model(*[None] * 9)


def test_a_forward_of_the_user_is_left_as_it_is() -> None:
    class OfBatches(hf_encoders.HfeBertForMaskedLM):
        def forward(self, batch: dict[str, torch.Tensor]) -> Any:
            return super().forward(**batch)

    model = OfBatches(tiny_config(hf_encoders.HfeBertConfig))
    assert model({"input_ids": ids_for(model)}).logits.dim() == 3
    innermost = inspect.unwrap(hf_encoders.HfeBertForMaskedLM.forward)  # what accelerate leaves of it
    assert list(inspect.signature(innermost).parameters)[:2] == ["self", "input_ids"]
