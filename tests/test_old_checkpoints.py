"""Folders of 2019 and 2020, of families under another name, and with files that lie: read, or refused at once."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModel, AutoModelForMaskedLM, CamembertConfig, CamembertForMaskedLM

import hf_encoders
from hf_encoders.loading import load_weights, read_config
from hf_encoders.publishing.publish import check_directory
from hf_encoders.registration import configurations
from tests.models.tiny import BASE_MODELS, right_padded, tiny_config, tiny_model


SIZES = {
    "hidden_size": 12, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16, "vocab_size": 31,
}  # fmt: skip
# What transformers 2 and 3 wrote into every file, and what the files of the Hub's first models have.
OF_2020 = {
    "_num_labels": 5, "bad_words_ids": None, "bos_token_id": None, "decoder_start_token_id": None,
    "directionality": "bidi", "do_sample": False, "early_stopping": False, "eos_token_ids": None,
    "finetuning_task": "mrpc", "gradient_checkpointing": False, "hidden_acts": "gelu",
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "is_decoder": False, "is_encoder_decoder": False,
    "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "length_penalty": 1.0, "max_length": 20, "num_beams": 1,
    "num_return_sequences": 1, "output_attentions": False, "output_hidden_states": False, "output_past": True,
    "pad_token_ids": 0, "pooler_fc_size": 768, "pruned_heads": {}, "repetition_penalty": 1.0,
    "task_specific_params": None, "temperature": 1.0, "top_k": 50, "torchscript": False, "use_bfloat16": False,
    "xla_device": True,
}  # fmt: skip


def written(folder: Path, fields: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def edited(folder: Path, **fields: Any) -> Path:
    return written(folder, json.loads((folder / "config.json").read_text()) | fields)


@pytest.mark.parametrize("config_class", configurations(), ids=lambda one: one.model_type)
def test_fields_of_2020_load_and_are_kept(config_class: type, tmp_path: Path) -> None:
    fields = tiny_config(config_class).to_dict() | OF_2020
    config = read_config(written(tmp_path, {name: fields[name] for name in fields if name != "auto_map"}))
    assert type(config) is config_class
    assert config.num_labels == 2
    assert config.eos_token_ids is None
    assert config.output_past is True
    config.save_pretrained(tmp_path / "again")
    assert read_config(tmp_path / "again").xla_device is True
    assert config_class.from_dict(fields).hidden_acts == "gelu"
    assert config_class(**config.to_dict()).to_dict() == config.to_dict()


def test_what_a_user_types_is_still_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean hidden_act?"):
        hf_encoders.HfeBertConfig(hidden_acts="gelu")
    config = read_config(written(tmp_path, {**SIZES, "model_type": "bert", "hidden_acts": "gelu"}))
    with pytest.raises(ValueError, match="did you mean eos_token_id?"):
        type(config)(**SIZES, eos_token_ids=None)


@pytest.mark.parametrize("model_class", BASE_MODELS)
def test_family_of_a_file_without_one_is_that_of_its_architecture(model_class: type, tmp_path: Path) -> None:
    config_class = model_class.config_class
    for auto_class, reference in config_class.AUTO_MAP.items():
        name = reference.rpartition(".")[2].removeprefix("Hfe")
        fields = tiny_config(config_class).to_dict() | {"architectures": [name]}
        folder = written(tmp_path, {name: fields[name] for name in fields if name not in ("model_type", "auto_map")})
        if auto_class != "AutoConfig":
            assert type(read_config(folder)) is config_class, name


@pytest.mark.parametrize("head", [hf_encoders.HfeBertForMaskedLM, hf_encoders.HfeAlbertForMaskedLM])
def test_family_of_a_file_without_one_is_that_of_its_weights(head: type, tmp_path: Path) -> None:
    tiny_model(head).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    written(tmp_path, {name: config[name] for name in config if name not in ("model_type", "architectures")})
    config = read_config(tmp_path)
    assert type(config) is head.config_class
    model, missing, _ = load_weights(str(tmp_path), AutoModelForMaskedLM, config)
    assert type(model) is head and not missing


@pytest.mark.parametrize("architectures", [None, ["BertGenerationEncoder"], ["RobertaPreLayerNormForMaskedLM"], "x"])
def test_a_family_that_cannot_be_told_is_a_line_to_add(architectures: Any, tmp_path: Path) -> None:
    """RoBERTa's parameters have XLM-R's names."""
    model = tiny_model(hf_encoders.HfeRobertaForMaskedLM)
    model.save_pretrained(tmp_path)
    fields = {**SIZES, "model_type": None, "architectures": architectures}
    with pytest.raises(
        ValueError, match='has no model_type: add the line "model_type": "bert", or .* of bert, roberta'
    ):
        read_config(written(tmp_path, fields), "--model")


def test_camembert_is_roberta(tmp_path: Path) -> None:
    """The same parameters and outputs; saved as RoBERTa, which plain transformers reads."""
    config = CamembertConfig(**SIZES, max_position_embeddings=19, type_vocab_size=1, layer_norm_eps=1e-5)
    torch.manual_seed(3)
    stock = CamembertForMaskedLM(config).eval()
    stock.save_pretrained(tmp_path / "camembert")
    config = read_config(tmp_path / "camembert")
    model, missing, unexpected = load_weights(str(tmp_path / "camembert"), AutoModelForMaskedLM, config)
    assert type(model) is hf_encoders.HfeRobertaForMaskedLM and not missing and not unexpected
    model.eval().save_pretrained(tmp_path / "saved")
    batch = right_padded(config)
    is_real, expected = batch["attention_mask"] == 1, stock(**batch).logits
    for one in (
        model,
        hf_encoders.HfeRobertaForMaskedLM.from_pretrained(tmp_path / "camembert"),
        transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "saved"),
        AutoModelForMaskedLM.from_pretrained(tmp_path / "saved", trust_remote_code=True),
    ):
        torch.testing.assert_close(one(**batch).logits[is_real], expected[is_real], atol=1e-6, rtol=1e-5)
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["model_type"] == "roberta"


def test_names_that_only_look_alike_are_refused(tmp_path: Path) -> None:
    for model_type in ("camembert-v2", "data2vec-text", "ernie", "flaubert", "xlm-roberta-xl"):
        with pytest.raises(ValueError, match=f"model_type='{model_type}'; this package has bert, roberta"):
            read_config(written(tmp_path, {**SIZES, "model_type": model_type}))


@pytest.mark.parametrize("model_class", BASE_MODELS)
def test_more_layers_than_the_weights_have_are_refused_before_they_are_built(
    model_class: type, tmp_path: Path
) -> None:
    tiny_model(model_class).save_pretrained(tmp_path)
    config_class = model_class.config_class
    names = ("num_hidden_layers", *(("num_hidden_groups",) if config_class.model_type == "albert" else ()))
    # ModernBERT's types of layers follow from their number then.
    edited(tmp_path, layer_types=None, **{config_class.own_name(name): 10**6 for name in names})
    config = read_config(tmp_path)
    with pytest.raises(ValueError, match="config.json asks for 1000000 layers, and the weights are of [23]:"):
        load_weights(str(tmp_path), AutoModel, config)


def test_nested_json_is_refused(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    tiny_model(hf_encoders.HfeBertModel).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(f'{{"model_type": "bert", "x": {deep}}}')
    with pytest.raises(ValueError, match="--model .* has no readable config.json"):
        read_config(tmp_path, "--model")
    assert any("has no readable config.json" in finding.text for finding in check_directory(tmp_path))


@pytest.mark.parametrize("place", ["../outside.safetensors", "/outside.safetensors"])
def test_weights_outside_of_the_folder_are_not_read(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny_model(hf_encoders.HfeBertModel).save_pretrained(folder)
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    place = place if place.startswith("..") else str(tmp_path) + place
    names = tiny_model(hf_encoders.HfeBertModel).state_dict()
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, place)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for auto_class in (hf_encoders.HfeBertModel, AutoModel):
        kwargs = {"trust_remote_code": True} if auto_class is AutoModel else {}
        with pytest.raises(OSError, match="outside.safetensors', outside of its folder"):
            auto_class.from_pretrained(folder, **kwargs)
    for config in (read_config(folder), transformers.BertConfig.from_pretrained(folder)):
        with pytest.raises(ValueError, match="outside.safetensors', outside of its folder"):
            load_weights(str(folder), AutoModel, config)
