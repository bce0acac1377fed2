"""Checkpoints: of 2018, of transformers, and of ours, in both directions."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from hf_encoders import HfeBertForMaskedLM, HfeBertForPreTraining, HfeBertModel

from .tiny import ALL_MODELS, MASKED_LM, PRETRAINING, right_padded, tiny_model


def stock_class(model_class: type[PreTrainedModel]) -> type[PreTrainedModel]:
    return getattr(transformers, model_class.__name__.removeprefix("Hfe"))


def outputs_of(model: PreTrainedModel) -> torch.Tensor:
    """What a head computes from one batch without padding, first field."""
    ids = right_padded(model.config, (7, 7, 7))["input_ids"]
    if "MultipleChoice" in type(model).__name__:
        ids = ids[None]
    return model.eval()(ids)[0]


@pytest.fixture
def checkpoint_of_2018(tmp_path: Path) -> Path:
    """A pre-trained BERT in the layout of the first releases: other LayerNorm names, a table of positions."""
    fields = tiny_model(HfeBertForPreTraining).config
    model = transformers.BertForPreTraining(transformers.BertConfig.from_dict(fields.to_dict()))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    tensors = {"bert.embeddings.position_ids": torch.arange(13)[None]}
    for name, value in model.state_dict().items():
        if "decoder" not in name:  # tied
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[name] = value.clone()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    config = {name: getattr(fields, name) for name in (*names, "max_position_embeddings", "type_vocab_size")}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "pad_token_id": 1, **config}))
    return tmp_path


@pytest.mark.parametrize(
    ("model_class", "unused"),
    [
        (HfeBertForPreTraining, set()),
        (
            HfeBertForMaskedLM,
            {
                "bert.pooler.dense.weight",
                "bert.pooler.dense.bias",
                "cls.seq_relationship.weight",
                "cls.seq_relationship.bias",
            },
        ),
    ],
)
def test_a_checkpoint_of_2018_loads_and_is_saved_under_todays_names(
    checkpoint_of_2018: Path, model_class: type[PreTrainedModel], unused: set[str], tmp_path: Path
) -> None:
    ours, info = model_class.from_pretrained(checkpoint_of_2018, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    assert set(info["unexpected_keys"]) == unused
    stock = stock_class(model_class).from_pretrained(checkpoint_of_2018)
    torch.testing.assert_close(outputs_of(ours), outputs_of(stock), atol=1e-5, rtol=1e-5)

    ours.save_pretrained(tmp_path / "saved")
    names = load_file(tmp_path / "saved/model.safetensors").keys()
    assert not any(name.endswith(("gamma", "beta", "position_ids")) for name in names)
    assert "bert.embeddings.LayerNorm.weight" in names
    again, info = model_class.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert torch.equal(outputs_of(again), outputs_of(ours))


@pytest.mark.parametrize("model_class", ALL_MODELS)
def test_plain_transformers_reads_ours_and_we_read_its(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    fields = {"num_labels": 2}
    ours = tiny_model(model_class, **fields)
    ours.save_pretrained(tmp_path / "ours")
    stock, info = stock_class(model_class).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    torch.testing.assert_close(outputs_of(ours), outputs_of(stock), atol=1e-5, rtol=1e-5)

    stock.save_pretrained(tmp_path / "stock")
    again, info = model_class.from_pretrained(tmp_path / "stock", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert all(torch.equal(value, ours.state_dict()[name]) for name, value in again.state_dict().items())


@pytest.mark.parametrize("model_class", [*MASKED_LM, *PRETRAINING])
def test_auto_classes_of_plain_transformers_need_no_flag(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    ours = tiny_model(model_class)
    ours.save_pretrained(tmp_path)
    stock = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, trust_remote_code=False)
    assert type(stock).__module__.startswith("transformers.")
    torch.testing.assert_close(outputs_of(ours), outputs_of(stock), atol=1e-5, rtol=1e-5)
    base = transformers.AutoModel.from_pretrained(tmp_path, trust_remote_code=False)
    torch.testing.assert_close(outputs_of(base), outputs_of(ours.base_model), atol=1e-5, rtol=1e-5)


def test_weights_are_safetensors_without_the_tied_ones(tmp_path: Path) -> None:
    for model_class in MASKED_LM:
        folder = tmp_path / model_class.__name__
        tiny_model(model_class).save_pretrained(folder)
        weights = [path.name for path in folder.iterdir() if path.suffix not in (".py", ".json")]
        assert weights == ["model.safetensors"]
        assert not any("decoder" in name for name in load_file(folder / "model.safetensors"))


def test_sharded_weights_are_read_back(tmp_path: Path) -> None:
    model = tiny_model(HfeBertForPreTraining)
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 3 and (tmp_path / "model.safetensors.index.json").is_file()
    again, info = HfeBertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert torch.equal(outputs_of(again), outputs_of(model))


@pytest.mark.parametrize("model_class", [*MASKED_LM, *PRETRAINING])
def test_half_precision_survives_saving(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    model = tiny_model(model_class).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    again = model_class.from_pretrained(tmp_path)
    assert {parameter.dtype for parameter in again.parameters()} == {torch.bfloat16}
    assert torch.equal(outputs_of(again), outputs_of(model))
    assert {p.dtype for p in model_class.from_pretrained(tmp_path, dtype=torch.float32).parameters()} == {
        torch.float32
    }


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("size", [47, 30])
@pytest.mark.parametrize("model_class", [*MASKED_LM, *PRETRAINING])
def test_another_vocabulary_size_survives_saving(
    model_class: type[PreTrainedModel], size: int, tied: bool, tmp_path: Path
) -> None:
    model = tiny_model(model_class, tie_word_embeddings=tied)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.resize_token_embeddings(size)
    assert model.config.vocab_size == size
    embeddings, decoder = model.get_input_embeddings(), model.get_output_embeddings()
    assert embeddings.num_embeddings == decoder.out_features == decoder.bias.shape[0] == size
    assert (decoder.weight is embeddings.weight) == tied
    assert (decoder.bias is model.mlm_head.bias) == tied
    assert model.mlm_head.bias.shape == (size,)
    kept = min(size, 41)
    name = next(name for name in before if name.endswith("word_embeddings.weight"))
    assert torch.equal(embeddings.weight[:kept], before[name][:kept])

    model.save_pretrained(tmp_path)
    again, info = model_class.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["unexpected_keys"] and not info["missing_keys"]
    ids = right_padded(again.config)["input_ids"]
    logits = again(ids)[0]
    assert logits.shape == (3, 7, size)
    assert torch.equal(logits, model(ids)[0])


def test_a_base_model_is_read_from_a_head_and_a_head_from_a_base_model(tmp_path: Path) -> None:
    head = tiny_model(HfeBertForPreTraining)
    head.save_pretrained(tmp_path / "head")
    base = HfeBertModel.from_pretrained(tmp_path / "head")
    assert torch.equal(outputs_of(base), outputs_of(head.base_model))
    base.save_pretrained(tmp_path / "base")
    again, info = HfeBertForPreTraining.from_pretrained(tmp_path / "base", output_loading_info=True)
    assert all(name.startswith("cls.") for name in info["missing_keys"])
    assert torch.equal(outputs_of(again.base_model), outputs_of(head.base_model))
    # What is missing is drawn as in a new model.
    weight = again.cls.seq_relationship.weight
    assert 0 < weight.std() < 0.05 and not again.cls.predictions.bias.any()


@pytest.mark.parametrize("model_class", ALL_MODELS)
def test_new_models_are_drawn_as_in_transformers(model_class: type[PreTrainedModel]) -> None:
    """Normal with `initializer_range`, biases and padding rows 0, LayerNorms 1."""
    config = tiny_model(model_class, initializer_range=0.5).config
    for name, parameter in model_class(config).named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name.lower():
            assert (parameter == 1).all(), name
        else:
            assert 0.25 < parameter.std() < 0.75, name
        if name.endswith("word_embeddings.weight"):
            assert not parameter[config.pad_token_id].any()
