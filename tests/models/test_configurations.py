"""Configurations: defaults, file form, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import PreTrainedModel

import hf_encoders
from hf_encoders import (
    HfeAlbertConfig,
    HfeBertConfig,
    HfeDistilBertConfig,
    HfeElectraConfig,
    HfeRobertaConfig,
    HfeXLMConfig,
    HfeXLNetConfig,
)
from hf_encoders.models.encoder_configuration import EncoderConfig
from tests.families import has_field, is_derived, needed_stock_class
from tests.models.tiny import CONFIGURATIONS, EVERY_HEAD, LANGUAGES, WITH_RELATIVE, tiny_config, tiny_model


each_family = pytest.mark.parametrize("config_class", CONFIGURATIONS)
each_relative_family = pytest.mark.parametrize("config_class", [one.config_class for one in WITH_RELATIVE])


@pytest.mark.parametrize(
    "config_class", [HfeBertConfig, HfeAlbertConfig, HfeXLMConfig, HfeDistilBertConfig, HfeXLNetConfig]
)
def test_defaults_are_those_of_transformers(config_class: type[EncoderConfig]) -> None:
    ours, stock = config_class(), needed_stock_class(config_class)()
    names = set(stock.to_dict()) - {"transformers_version", "is_decoder", "add_cross_attention", "use_cache"}
    for name in names:
        assert getattr(ours, name, None) == getattr(stock, name), name


def test_defaults_are_those_of_the_released_roberta() -> None:
    config = HfeRobertaConfig()
    released = {
        "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
        "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu",
    }  # fmt: skip
    assert {name: getattr(config, name) for name in released} == released


@each_family
def test_file_form_is_read_by_the_class_it_came_from_and_by_transformers(
    config_class: type[EncoderConfig], tmp_path: Path
) -> None:
    config = tiny_config(config_class, num_labels=5)
    config.save_pretrained(tmp_path)
    again = config_class.from_pretrained(tmp_path)
    assert again.to_dict() == config.to_dict()
    expected = needed_stock_class(config_class)
    stock = transformers.AutoConfig.from_pretrained(tmp_path, trust_remote_code=False)
    assert type(stock) is expected
    for name in ("hidden_size", "vocab_size", "pad_token_id", "num_labels", "max_position_embeddings"):
        if has_field(config_class, name):
            assert getattr(stock, name) == getattr(config, name)


@pytest.mark.parametrize("model_class", EVERY_HEAD)
def test_every_head_writes_the_whole_auto_map(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    tiny_model(model_class).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    family = model_class.config_class.model_type
    assert saved["model_type"] == family
    assert saved["architectures"] == [model_class.__name__.removeprefix("Hfe")]
    tasks = ("PreTraining", "MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering")
    expected = {"AutoConfig", "AutoModel", *(f"AutoModelFor{task}" for task in (*tasks, "MultipleChoice"))}
    expected |= {"AutoModelForNextSentencePrediction"} if family == "bert" else set()
    expected -= {"AutoModelForMaskedLM"} if family == "xlnet" else set()
    assert set(saved["auto_map"]) == expected
    for reference in saved["auto_map"].values():
        module, name = reference.split(".")
        assert (tmp_path / f"{module}.py").is_file()
        assert hasattr(hf_encoders, name)


@each_family
def test_auto_map_keeps_entries_of_others_and_replaces_stale_ones(config_class: type[EncoderConfig]) -> None:
    stale = {"AutoModel": "old.Model", "AutoTokenizer": ["mine.Tokenizer", None]}
    config = tiny_config(config_class, auto_map=stale)
    assert config.auto_map == {**config_class.AUTO_MAP, "AutoTokenizer": ["mine.Tokenizer", None]}


@each_relative_family
@pytest.mark.parametrize("position_embedding_type", ["relative_key", "relative_key_query"])
def test_relative_positions_have_a_model_type_of_their_own(
    config_class: type[EncoderConfig], position_embedding_type: str
) -> None:
    config = tiny_config(config_class, position_embedding_type=position_embedding_type)
    config.architectures = ["HfeXForMaskedLM"]
    saved = config.to_dict()
    assert saved["model_type"] == f"hfe_{config_class.model_type}"
    assert saved["architectures"] == ["HfeXForMaskedLM"]
    assert not config.is_native


@each_relative_family
def test_a_model_type_of_our_own_is_read_without_a_warning(
    config_class: type[EncoderConfig], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config(config_class, position_embedding_type="relative_key")
    config.save_pretrained(tmp_path)
    again = config_class.from_pretrained(tmp_path)
    assert again.to_dict() == config.to_dict()
    assert again.model_type == config_class.model_type
    assert not caplog.records


@each_family
@pytest.mark.parametrize("field", ["is_decoder", "add_cross_attention"])
def test_decoders_are_refused(config_class: type[EncoderConfig], field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}=True.*encoder.*Use transformers' own class"):
        tiny_config(config_class, **{field: True})
    tiny_config(config_class, **{field: False})


@each_family
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 0),
        ("hidden_size", -1),
        ("num_hidden_layers", 0),
        ("num_attention_heads", 0),
        ("intermediate_size", 0),
        ("max_position_embeddings", 0),
        ("type_vocab_size", -1),
        ("hidden_dropout_prob", 1.0),
        ("attention_probs_dropout_prob", -0.1),
        ("position_embedding_type", "rotary"),
        ("hidden_act", "gelu_old"),
        ("pad_token_id", 41),
        ("pad_token_id", -1),
    ],
)
def test_values_out_of_range_are_named(config_class: type[EncoderConfig], field: str, value: Any) -> None:
    if is_derived(config_class, field):
        with pytest.raises(ValueError, match=rf"{field}={value!r}: .* leave it out"):
            config_class(**{field: value})
        return
    with pytest.raises(ValueError, match=rf"{config_class.own_name(field)}={value!r} must be"):
        tiny_config(config_class, **{field: value})


@pytest.mark.parametrize(
    ("config_class", "fields", "message"),
    [
        (HfeBertConfig, {"classifier_dropout": 1.5}, "classifier_dropout=1.5 must be a probability"),
        (HfeAlbertConfig, {"classifier_dropout_prob": -1}, "classifier_dropout_prob=-1 must be a probability"),
        (HfeAlbertConfig, {"embedding_size": 0}, "embedding_size=0 must be at least 1"),
        (HfeAlbertConfig, {"inner_group_num": 0}, "inner_group_num=0 must be at least 1"),
        (HfeAlbertConfig, {"num_hidden_groups": 4}, "num_hidden_groups=4 is more than num_hidden_layers=3.*Lower"),
        (HfeRobertaConfig, {"pad_token_id": None}, "pad_token_id=None.*set the tokenizer's pad id"),
        (HfeRobertaConfig, {"max_position_embeddings": 2}, "max_position_embeddings=2 leaves no position.*set it to"),
        (HfeXLMConfig, {"causal": True}, "causal=True is a decoder's"),
        (HfeXLNetConfig, {"attn_type": "uni"}, "attn_type='uni' is a decoder's"),
        (HfeXLNetConfig, {"same_length": True}, "same_length=True is a decoder's"),
        (HfeXLNetConfig, {"untie_r": False}, "untie_r=False shares biases"),
        (HfeXLNetConfig, {"bi_data": True}, "bi_data=True is is_reversed of forward"),
        (HfeXLNetConfig, {"use_mems_train": True}, "use_mems_train=True is memory"),
        (HfeXLNetConfig, {"clamp_len": 0}, "clamp_len=0 must be at least 1, or -1"),
        (HfeXLNetConfig, {"d_head": 5}, "d_head=5 must be d_model / n_head = 6"),
        (HfeXLNetConfig, {"hidden_size": 15}, "d_model=15 must be even"),
        (HfeXLNetConfig, {"summary_type": "mean"}, "summary_type='mean' is not built"),
        (HfeXLMConfig, {"summary_proj_to_labels": False}, "summary_proj_to_labels=False is not built"),
        (HfeElectraConfig, {"summary_type": "mean"}, "summary_type='mean' is not built"),
        (HfeXLNetConfig, {"summary_last_dropout": 1.0}, "summary_last_dropout=1.0 must be a probability"),
        (HfeXLMConfig, {"is_encoder": False}, "is_encoder=False is a decoder's"),
        (HfeXLMConfig, {"asm": True}, "asm=True is an adaptive softmax"),
        (HfeXLMConfig, {"n_langs": 0, "lang2id": None}, "n_langs=0 must be at least 1"),
        (HfeXLMConfig, LANGUAGES | {"lang2id": {"de": 3, "zh": 1}}, "lang2id=.* an id of its own below n_langs=3"),
        (HfeXLMConfig, LANGUAGES | {"lang2id": {"de": 1, "zh": 1}}, "lang2id=.* an id of its own"),
        (HfeXLMConfig, LANGUAGES | {"default_lang": "fr"}, r"default_lang='fr' is not in lang2id \(de, en, zh\)"),
        (HfeXLMConfig, LANGUAGES | {"lang2id": None}, "default_lang='zh' is not in lang2id .*set lang2id too"),
        (
            HfeXLMConfig,
            LANGUAGES | {"use_lang_emb": False},
            "default_lang='zh' has no effect without language embeddings",
        ),
        (HfeXLMConfig, {"summary_first_dropout": 1}, "summary_first_dropout=1 must be a probability"),
        (
            HfeXLMConfig,
            {"sinusoidal_embeddings": True, "position_embedding_type": "relative_key"},
            "sinusoidal_embeddings=True has no effect on relative positions",
        ),
        (HfeElectraConfig, {"embedding_size": 0}, "embedding_size=0 must be at least 1"),
        (HfeElectraConfig, {"generator_size": 0}, r"generator_size=0 must be a share of the width, in \(0, 1\]"),
        (HfeElectraConfig, {"generator_size": 1.5}, "generator_size=1.5 must be a share of the width"),
        (HfeElectraConfig, {"summary_last_dropout": 1}, "summary_last_dropout=1 must be a probability"),
    ],
)
def test_values_out_of_a_familys_range_are_named(config_class: type, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_config(config_class, **fields)


def test_fields_that_xlnet_does_not_have() -> None:
    """transformers' XLNet cannot read a file with the first one."""
    for name, value in {"max_position_embeddings": 512, "position_embedding_type": "relative_key"}.items():
        with pytest.raises(ValueError, match=f"{name}={value!r}: XLNet .*: leave it out"):
            HfeXLNetConfig(**{name: value})
        assert name not in HfeXLNetConfig().to_dict()


@pytest.mark.parametrize("config_class", CONFIGURATIONS)
@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("hiden_size", "hidden_size"),
        ("num_hidden_layer", "num_hidden_layers"),
        ("vocabsize", "vocab_size"),
        ("max_position_embedding", "max_position_embeddings"),
        ("hidden_dropout_probs", "hidden_dropout_prob"),
    ],
)
def test_a_misspelt_field_is_refused(config_class, misspelt, meant):
    if not has_field(config_class, meant):
        return
    with pytest.raises(
        ValueError, match=f"{misspelt} is not a field of {config_class.__name__}: did you mean {meant}?"
    ):
        config_class(**{misspelt: 3})


@pytest.mark.parametrize("config_class", CONFIGURATIONS)
def test_other_fields_are_kept_as_in_transformers(config_class):
    """Published files have such: of other versions, of other frameworks, of the user."""
    others = {
        "output_past": True, "pooler_num_fc_layers": 3, "_hidden_size": 7, "layer_norm_epsilon": 1e-5,
        "directionality": "bidi", "hidden_dropout": 0, "sep_token_id": 3, "net_structure_type": 0, "team": "search",
    }  # fmt: skip
    config = config_class(**others)
    assert {name: getattr(config, name) for name in others} == others


def test_a_mixture_of_layers_is_refused_instead_of_left_out() -> None:
    with pytest.raises(ValueError, match=r"combined_layers=\[1, 2\] is not a field: see examples/combine_layers.py"):
        hf_encoders.HfeBertConfig(combined_layers=[1, 2], layer_combination="weighted_sum")
