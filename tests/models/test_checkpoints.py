"""Checkpoints: of 2018, of transformers, and of ours, in both directions."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from hf_encoders import (
    HfeAlbertForMaskedLM,
    HfeAlbertForPreTraining,
    HfeAlbertModel,
    HfeBertForMaskedLM,
    HfeBertForPreTraining,
    HfeRobertaForMaskedLM,
    HfeRobertaForTokenClassification,
    HfeRobertaModel,
)
from tests import families
from tests.families import needed_stock_class as stock_class
from tests.models.tiny import (
    ALL_MODELS,
    BASE_MODELS,
    EVERY_HEAD,
    LM_HEADS,
    MASKED_LM,
    PRETRAINING,
    right_padded,
    tiny_model,
)


POOLER = ("bert.pooler.dense.weight", "bert.pooler.dense.bias")
PAIR_HEAD = ("cls.seq_relationship.weight", "cls.seq_relationship.bias")


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
    [(HfeBertForPreTraining, set()), (HfeBertForMaskedLM, {*POOLER, *PAIR_HEAD})],
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


@pytest.mark.parametrize("model_class", EVERY_HEAD)
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
    expected = stock_class(model_class)
    ours = tiny_model(model_class)
    ours.save_pretrained(tmp_path)
    stock = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, trust_remote_code=False)
    assert type(stock).__module__ == expected.__module__
    torch.testing.assert_close(outputs_of(ours), outputs_of(stock), atol=1e-5, rtol=1e-5)
    base = transformers.AutoModel.from_pretrained(tmp_path, trust_remote_code=False)
    torch.testing.assert_close(outputs_of(base), outputs_of(ours.base_model), atol=1e-5, rtol=1e-5)


def test_weights_are_safetensors_without_the_tied_ones(tmp_path: Path) -> None:
    for model_class in MASKED_LM:
        folder = tmp_path / model_class.__name__
        model = tiny_model(model_class)
        model.save_pretrained(folder)
        weights = [path.name for path in folder.iterdir() if path.suffix not in (".py", ".json")]
        assert weights == ["model.safetensors"]
        assert model.all_tied_weights_keys.keys().isdisjoint(load_file(folder / "model.safetensors"))


@pytest.mark.parametrize("model_class", [*MASKED_LM, *PRETRAINING, *LM_HEADS])
def test_half_precision_survives_saving_also_in_shards(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    model = tiny_model(model_class).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2 and (tmp_path / "model.safetensors.index.json").is_file()
    again = model_class.from_pretrained(tmp_path)
    assert {parameter.dtype for parameter in again.parameters()} == {torch.bfloat16}
    assert torch.equal(outputs_of(again), outputs_of(model))
    assert {p.dtype for p in model_class.from_pretrained(tmp_path, dtype=torch.float32).parameters()} == {
        torch.float32
    }


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("size", [47, 30])
@pytest.mark.parametrize("model_class", [*MASKED_LM, *PRETRAINING, *LM_HEADS])
def test_another_vocabulary_size_survives_saving(
    model_class: type[PreTrainedModel], size: int, tied: bool, tmp_path: Path
) -> None:
    model = tiny_model(model_class, tie_word_embeddings=tied)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.resize_token_embeddings(size)
    assert model.config.vocab_size == size
    embeddings, decoder = model.get_input_embeddings(), model.get_output_embeddings()
    assert embeddings.num_embeddings == decoder.out_features == decoder.bias.shape[0] == size
    assert (decoder.weight is embeddings.weight) == (tied or not model._tied_weights_keys)  # DeBERTa's has no own one
    if hasattr(getattr(model, "mlm_head", None), "bias"):  # heads of XLM and XLNet are the decoder alone
        assert (decoder.bias is model.mlm_head.bias) == tied
        assert model.mlm_head.bias.shape == (size,)
    kept = min(size, 41)
    words = ("word_embeddings.weight", "transformer.embeddings.weight", "transformer.word_embedding.weight")
    words += ("tok_embeddings.weight",)
    name = next(name for name in before if name.endswith(words))
    assert torch.equal(embeddings.weight[:kept], before[name][:kept])

    model.save_pretrained(tmp_path)
    again, info = model_class.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["unexpected_keys"] and not info["missing_keys"]
    ids = right_padded(again.config)["input_ids"]
    logits = again(ids)[0]
    assert logits.shape == (3, 7, size)
    assert torch.equal(logits, model(ids)[0])


@pytest.mark.slow
@pytest.mark.parametrize("model_class", [cls for cls in ALL_MODELS if cls not in BASE_MODELS])
def test_a_base_model_is_read_from_a_head_and_a_head_from_a_base_model(
    model_class: type[PreTrainedModel], tmp_path: Path
) -> None:
    """Files of a base model have no prefix in their names."""
    head = tiny_model(model_class)
    head.save_pretrained(tmp_path / "head")
    base_class = type(head.base_model)
    base, info = base_class.from_pretrained(tmp_path / "head", output_loading_info=True)
    assert all(name.startswith("pooler.") for name in info["missing_keys"])
    assert not any(name.startswith(f"{head.base_model_prefix}.") for name in info["unexpected_keys"])
    base_class.from_pretrained(tmp_path / "head")  # a new pooler is no error, nor is a new head below
    expected = head.base_model.state_dict()
    assert all(torch.equal(base.state_dict()[name], value) for name, value in expected.items())

    base.save_pretrained(tmp_path / "base")
    assert not any(
        name.startswith(head.base_model_prefix + ".") for name in load_file(tmp_path / "base/model.safetensors")
    )
    model_class.from_pretrained(tmp_path / "base")
    again, info = model_class.from_pretrained(tmp_path / "base", output_loading_info=True)
    assert info["missing_keys"]
    assert not any(name.startswith(f"{head.base_model_prefix}.") for name in info["missing_keys"])
    assert all(torch.equal(again.base_model.state_dict()[name], value) for name, value in expected.items())
    # What is missing is drawn as in a new model: of 0.02, and ModernBERT's classifiers of 18^-0.5.
    most = 0.3 if model_class.config_class.model_type == "modernbert" else 0.05
    for name in info["missing_keys"]:
        value = again.state_dict()[name]
        assert not value.any() if name.endswith("bias") else (value == 1).all() or 0 < value.std() < most, name


def published(stock: PreTrainedModel, folder: Path, names: Callable[[str], list[str]]) -> Path:
    """A model of transformers in one file, its configuration beside it, each parameter under `names(its name)`."""
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.normal_(std=0.3)
    state = {name: value.clone() for name, value in stock.state_dict().items()}
    tensors = {new: value.clone() for name, value in state.items() for new in names(name)}
    stock.config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def assert_loaded_as_in_transformers(
    model_class: type[PreTrainedModel], folder: Path, missing: tuple[str, ...] = ()
) -> None:
    """Same reports, same parameters, and the same outputs if nothing is missing; our own files give them again."""
    ours, info = model_class.from_pretrained(folder, output_loading_info=True)
    stock, expected = stock_class(model_class).from_pretrained(folder, output_loading_info=True)
    assert info == expected and info["missing_keys"] == set(missing)
    known = {name: value for name, value in stock.state_dict().items() if name not in missing}
    assert all(torch.equal(ours.state_dict()[name], value) for name, value in known.items())
    if not missing:
        torch.testing.assert_close(outputs_of(ours), outputs_of(stock), atol=1e-5, rtol=1e-5)
    ours.save_pretrained(folder / "again")
    again, info = model_class.from_pretrained(folder / "again", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert all(torch.equal(again.state_dict()[name], value) for name, value in ours.state_dict().items())


def stock_of(model_class: type[PreTrainedModel]) -> PreTrainedModel:
    """transformers' own model of the same tiny configuration."""
    fields = tiny_model(model_class).config.to_dict()
    stock = stock_class(model_class)
    return stock(
        stock.config_class(**{name: x for name, x in fields.items() if name not in ("model_type", "auto_map")})
    )


@pytest.mark.parametrize("bias", ["both", "bias", "decoder.bias"])
@pytest.mark.parametrize("model_class", [HfeRobertaForMaskedLM, HfeRobertaModel, HfeRobertaForTokenClassification])
def test_published_roberta(model_class: type[PreTrainedModel], bias: str, tmp_path: Path) -> None:
    """With the tied weights, a table of positions, and the decoder's bias under either name."""

    def names(name: str) -> list[str]:
        if name.startswith("lm_head.") and name.endswith(("lm_head.bias", "decoder.bias")):
            return [name] if bias == "both" or name == f"lm_head.{bias}" else []
        return [name]

    folder = published(stock_of(HfeRobertaForMaskedLM), tmp_path, names)
    tensors = load_file(folder / "model.safetensors")
    assert "lm_head.decoder.weight" in tensors
    tensors = {name: value.clone() for name, value in tensors.items()}
    tensors["roberta.embeddings.position_ids"] = torch.arange(13)[None]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    missing = {
        HfeRobertaForMaskedLM: (),
        HfeRobertaModel: ("pooler.dense.weight", "pooler.dense.bias"),
        HfeRobertaForTokenClassification: ("classifier.weight", "classifier.bias"),
    }
    assert_loaded_as_in_transformers(model_class, folder, missing[model_class])


@pytest.mark.parametrize("model_class", [HfeAlbertForPreTraining, HfeAlbertForMaskedLM, HfeAlbertModel])
def test_published_albert(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    """Without the sentence-order head, with the tied decoder."""
    folder = published(
        stock_of(HfeAlbertForPreTraining), tmp_path, lambda name: [] if name.startswith("sop_classifier") else [name]
    )
    new = ("sop_classifier.classifier.weight", "sop_classifier.classifier.bias")
    assert_loaded_as_in_transformers(model_class, folder, new if model_class is HfeAlbertForPreTraining else ())


@pytest.mark.parametrize(
    ("dropped", "missing"),
    [
        (("cls.seq_relationship",), PAIR_HEAD),
        (("cls.seq_relationship", "bert.pooler", "cls.predictions.decoder"), (*POOLER, *PAIR_HEAD)),
        (
            ("cls.predictions.transform",),
            tuple(
                f"cls.predictions.transform.{name}"
                for name in ("dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias")
            ),
        ),
    ],
)
def test_a_head_of_which_parts_are_there(dropped: tuple[str, ...], missing: tuple[str, ...], tmp_path: Path) -> None:
    stock = stock_of(HfeBertForPreTraining)
    folder = published(stock, tmp_path, lambda name: [] if name.startswith(dropped) else [name])
    assert_loaded_as_in_transformers(HfeBertForPreTraining, folder, missing)


def test_names_of_2018_in_shards(checkpoint_of_2018: Path) -> None:
    whole = HfeBertForPreTraining.from_pretrained(checkpoint_of_2018)
    tensors = {name: x.clone() for name, x in load_file(checkpoint_of_2018 / "model.safetensors").items()}
    assert any(name.endswith("gamma") for name in tensors)
    places = {name: f"model-0000{i % 3 + 1}-of-00003.safetensors" for i, name in enumerate(sorted(tensors))}
    for shard in set(places.values()):
        part = {name: value for name, value in tensors.items() if places[name] == shard}
        save_file(part, checkpoint_of_2018 / shard, metadata={"format": "pt"})
    (checkpoint_of_2018 / "model.safetensors").unlink()
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (checkpoint_of_2018 / "model.safetensors.index.json").write_text(json.dumps(index))
    model = HfeBertForPreTraining.from_pretrained(checkpoint_of_2018)
    assert torch.equal(outputs_of(model), outputs_of(whole))


@pytest.mark.parametrize("model_class", EVERY_HEAD)
def test_new_models_are_drawn_as_in_transformers(model_class: type[PreTrainedModel]) -> None:
    """Normal with `initializer_range`, biases and padding rows 0, LayerNorms 1."""
    config = tiny_model(model_class, initializer_range=0.5, embed_init_std=0.5).config
    for name, parameter in model_class(config).named_parameters():
        if name.endswith(".bias"):
            assert not parameter.any(), name
        elif "norm" in name.lower():
            assert (parameter == 1).all(), name
        else:
            # ModernBERT: narrower by sqrt(2 layers) on the way out (test_modernbert.py).
            least = 0.1 if config.model_type == "modernbert" else 0.25
            assert least < parameter.std() < 0.75, name
        if name.endswith("word_embeddings.weight"):
            assert not parameter[config.pad_token_id].any()


@pytest.mark.parametrize("pretrained_class", [*PRETRAINING, *LM_HEADS, *MASKED_LM])
def test_heads_of_pre_training_that_a_class_leaves_are_not_logged_and_other_names_are(
    pretrained_class: type[PreTrainedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(transformers.modeling_utils.logger, "warning", logged.append)
    pretrained = tiny_model(pretrained_class)
    pretrained.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    family = [cls for cls in EVERY_HEAD if cls.config_class is pretrained_class.config_class]
    for receiver in family:
        logged.clear()
        _, info = receiver.from_pretrained(tmp_path, output_loading_info=True)
        assert not any("UNEXPECTED" in text for text in logged)
        # Who asks is told all the same, as by transformers' class.
        if stock := families.stock_class(receiver):  # DeBERTa's discriminator is ours alone
            _, theirs = stock.from_pretrained(tmp_path, output_loading_info=True)
            assert info["unexpected_keys"] == theirs["unexpected_keys"]
    base = pretrained.base_model_prefix
    head = next(name.partition(".")[0] for name in sorted(weights) if not name.startswith(base))
    strangers = {f"{head}.stranger.weight", f"{base}.pooler.stranger", "other.bias"}
    save_file({**weights, **{name: torch.zeros(2) for name in strangers}}, tmp_path / "model.safetensors")
    for receiver in family:
        logged.clear()
        receiver.from_pretrained(tmp_path)
        (report,) = (text for text in logged if "UNEXPECTED" in text)
        assert report.count("stranger") == 2 and "other.bias" in report
