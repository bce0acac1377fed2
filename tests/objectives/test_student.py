"""Students: which weights they begin with, that they compute the same, and what is refused."""

from pathlib import Path

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from hf_encoders import (
    HfeAlbertForMaskedLM,
    HfeBertForMaskedLM,
    HfeBertForPreTraining,
    HfeBertModel,
    HfeDistilBertConfig,
    HfeDistilBertForMaskedLM,
    HfeRobertaConfig,
    HfeRobertaForMaskedLM,
    HfeXLMWithLMHeadModel,
    spread_layers,
    student_config,
    student_from,
)
from tests.models.tiny import LANGUAGES
from tests.objectives.distilled_tiny import make_batch, make_teacher


def logits(model: PreTrainedModel, **batch: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(**batch).logits


def test_a_distilbert_of_all_layers_computes_what_the_bert_does() -> None:
    """Token type 0 is in the positions, to the rounding of one sum."""
    for teacher in (make_teacher(), make_teacher(HfeBertForPreTraining)):
        student = student_from(teacher.double(), range(5))
        assert type(student) is HfeDistilBertForMaskedLM
        batch = make_batch(teacher.config)
        expected = teacher(**batch)
        found = logits(student.double(), **batch)
        expected = getattr(expected, "logits", None) if "logits" in expected else expected.prediction_logits
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


def test_the_layers_are_those_asked_for_in_their_order() -> None:
    teacher = make_teacher()
    student = student_from(teacher, [4, 0, 4])
    assert student.config.n_layers == 3
    own, of_teacher = student.distilbert.transformer.layer, teacher.bert.encoder.layer
    for place, layer in enumerate((4, 0, 4)):
        assert torch.equal(own[place].attention.q_lin.weight, of_teacher[layer].attention.self.query.weight)
        assert torch.equal(own[place].ffn.lin2.bias, of_teacher[layer].output.dense.bias)
        assert torch.equal(own[place].output_layer_norm.weight, of_teacher[layer].output.LayerNorm.weight)
    own[0].ffn.lin1.weight.data.zero_()
    assert of_teacher[4].intermediate.dense.weight.any()  # copies


@pytest.mark.parametrize(
    "model_class", [HfeBertForMaskedLM, HfeRobertaForMaskedLM, HfeXLMWithLMHeadModel, HfeDistilBertForMaskedLM]
)
def test_students_of_the_same_family(model_class: type[PreTrainedModel]) -> None:
    fields = LANGUAGES if model_class is HfeXLMWithLMHeadModel else {}
    teacher = make_teacher(model_class, **fields)
    family = teacher.config.model_type
    student = student_from(teacher, family=family)
    assert type(student) is model_class and student.config.num_hidden_layers == 2
    assert student.config.to_dict().keys() == teacher.config.to_dict().keys()
    whole = student_from(teacher, range(5), family)
    batch = make_batch(teacher.config)
    torch.testing.assert_close(logits(whole, **batch), logits(teacher, **batch), atol=0, rtol=0)


def test_relative_positions_go_to_a_student_of_the_same_family_only() -> None:
    teacher = make_teacher(position_embedding_type="relative_key")
    student = student_from(teacher, range(5), "bert")
    batch = make_batch(teacher.config)
    torch.testing.assert_close(logits(student, **batch), logits(teacher, **batch), atol=0, rtol=0)
    with pytest.raises(ValueError, match="token types go into absolute positions, .*: choose the family bert"):
        student_from(teacher)


def test_a_checkpoint_of_transformers_is_a_teacher(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=41, hidden_size=18, num_attention_heads=3, num_hidden_layers=4, intermediate_size=23
    )
    stock = transformers.BertForPreTraining(config).eval()
    stock.save_pretrained(tmp_path)
    student = student_from(HfeBertForMaskedLM.from_pretrained(tmp_path), range(4))
    student.save_pretrained(tmp_path / "student")
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "student", trust_remote_code=False)
    assert type(again) is transformers.DistilBertForMaskedLM
    batch = make_batch(student.config)
    expected = stock(batch["input_ids"], batch["attention_mask"]).prediction_logits
    is_real = batch["attention_mask"] == 1
    found = logits(again, input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    torch.testing.assert_close(found[is_real], expected[is_real], atol=1e-5, rtol=1e-5)


def test_the_configuration_is_the_teachers_but_for_what_is_asked() -> None:
    teacher = make_teacher(hidden_act="relu", layer_norm_eps=1e-5)
    config = student_config(teacher.config, 2, dropout=0.3)
    assert type(config) is HfeDistilBertConfig
    expected = {"dim": 18, "n_heads": 3, "hidden_dim": 23, "n_layers": 2, "vocab_size": 41, "pad_token_id": 1}
    expected |= {"dropout": 0.3, "attention_dropout": 0.1, "activation": "relu", "max_position_embeddings": 13}
    assert {name: getattr(config, name) for name in expected} == expected
    assert config.layer_norm_eps == 1e-5 and config.to_dict()["model_type"] == "hfe_distilbert"


def test_distilroberta_is_a_roberta_of_six_layers() -> None:
    config = student_config(HfeRobertaConfig(), 6)
    with torch.device("meta"):
        student = HfeRobertaForMaskedLM(config)
    assert sum(parameter.numel() for parameter in student.parameters()) == 82_170_201


def test_layers_are_spread_as_those_of_the_paper() -> None:
    assert spread_layers(12, 6) == [0, 2, 4, 7, 9, 11]
    assert spread_layers(24, 12)[-1] == 23 and spread_layers(3, 3) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [0, 5]}, "layers: 5 is not a layer of the teacher, which has 0 to 4"),
        ({"layers": [-1]}, "layers: -1 is not a layer"),
        ({"layers": [True]}, "layers: True is not a layer"),
        ({"layers": []}, "layers is empty"),
        ({"family": "roberta"}, "family 'roberta': a bert teacher has students of the family distilbert or bert"),
        ({"family": "gpt"}, "family 'gpt': it must be one of"),
        ({"dim": 24}, r"word_embeddings.weight is \(41, 24\) in the student and \(41, 18\) in the teacher: leave out"),
        ({"position_embedding_type": "relative_key"}, "need 'absolute'.* leave it out"),
        ({"hiden_dim": 3}, "hiden_dim is not a field of HfeDistilBertConfig: did you mean hidden_dim"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        student_from(make_teacher(), **options)


def test_teachers_that_have_no_students_are_refused() -> None:
    with pytest.raises(ValueError, match="5 layers have no weights of their own each .as in ALBERT"):
        student_from(make_teacher(HfeAlbertForMaskedLM))
    with pytest.raises(ValueError, match="teacher is a HfeBertModel, which has no masked-LM head.*HfeBertForMaskedLM"):
        student_from(make_teacher(HfeBertModel))
    with pytest.raises(ValueError, match="teacher is a BertForMaskedLM, which has no masked-LM head of this package"):
        student_from(transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=1, hidden_size=12)))
