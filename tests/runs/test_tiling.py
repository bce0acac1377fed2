"""Large models tiled from smaller ones: each weight beside a loop over its elements, and the command."""

import json
import re

import numpy as np
import pytest
import torch
import yaml

from hf_encoders import tile_weights
from tests.commands.pretrain_runs import pretrain
from tests.corpus.corpora import write_corpus
from tests.families import model_classes
from tests.models.tiny import tiny_model


LARGER = {"num_hidden_layers": 5, "hidden_size": 30, "num_attention_heads": 5, "intermediate_size": 40}


MLM_CLASSES = {each.config_class.model_type: each for each in model_classes("AutoModelForMaskedLM")}


def tiled_by_hand(small, shape):
    """The smaller array in the middle, wrapped around: element by element."""
    first = [(larger - size) // 2 for size, larger in zip(small.shape, shape, strict=True)]
    result = np.empty(shape, small.dtype)
    for place in np.ndindex(*shape):
        result[place] = small[tuple((i - f) % n for i, f, n in zip(place, first, small.shape, strict=True))]
    return result


@pytest.mark.parametrize("mlm_class", MLM_CLASSES.values(), ids=MLM_CLASSES)
def test_every_weight_is_tiled_from_the_middle(mlm_class):
    smaller, model = tiny_model(mlm_class), tiny_model(mlm_class, **LARGER)
    source = {name: value.numpy() for name, value in smaller.state_dict().items()}
    before = {name: value.clone().numpy() for name, value in model.state_dict().items()}
    assert tile_weights(model, smaller) is model
    changed = 0
    for name, value in model.state_dict().items():
        number = re.search(r"(?<=\.)\d+(?=\.)", name)
        # Three layers become five: 0, 0.6, 1.2, 1.8 and 2.4, rounded. ALBERT's groups are as many in both.
        layer = number and (number[0] if "albert" in name else str(round(int(number[0]) * 3 / 5)))
        small = source.get(name if number is None else name[: number.start()] + layer + name[number.end() :])
        if small is None:  # layer 1 of a ModernBERT takes layer 0 or another, and that has no first LayerNorm
            assert "attn_norm" in name and np.array_equal(value, before[name])
            continue
        count = {"Wqkv": 3, "Wi": 2}.get(name.split(".")[-2], 1)
        blocks = zip(np.split(small, count), np.split(value.numpy(), count), strict=True)
        expected = np.concatenate([tiled_by_hand(block, target.shape) for block, target in blocks])
        np.testing.assert_array_equal(value.numpy(), expected, err_msg=name)
        changed += not np.array_equal(before[name], expected)
    assert changed > 10


def test_a_model_of_twice_the_layers_has_no_random_one():
    """Layer 5 of 6 would take layer round(2.5) = 2 of 3, and layer 3 of 4 of two layers its second."""
    smaller = tiny_model(MLM_CLASSES["bert"], num_hidden_layers=2)
    model = tile_weights(tiny_model(MLM_CLASSES["bert"], num_hidden_layers=4), smaller)
    for layer, source in enumerate([0, 0, 1, 1]):
        weights = (part.bert.encoder.layer[n].output.dense.weight for part, n in ((model, layer), (smaller, source)))
        assert torch.equal(*weights)


def test_a_model_of_the_same_sizes_is_a_copy():
    mlm_class = MLM_CLASSES["bert"]
    smaller, model = tiny_model(mlm_class), mlm_class(tiny_model(mlm_class).config)
    tile_weights(model, smaller)
    assert all(torch.equal(value, smaller.state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "family, fields, named",
    [
        ("bert", {"vocab_size": 50}, "vocab_size=50: smaller has 41"),
        ("bert", {"max_position_embeddings": 20}, "max_position_embeddings=20: smaller has 13"),
        ("bert", {"hidden_size": 30}, "num_attention_heads=3: heads are 10 wide, and those of smaller 6"),
        ("bert", {"num_hidden_layers": 2}, "num_hidden_layers=2: smaller has 3: it must not be larger"),
        ("bert", {"type_vocab_size": 3}, r"token_type_embeddings.weight is \(2, 18\) .* as many rows"),
        ("bert", {"intermediate_size": 20}, "intermediate_size=20: smaller has 23"),
        ("roberta", {}, "smaller has a HfeBertConfig, and the model a HfeRobertaConfig: .* one family"),
    ],
)
def test_what_cannot_be_tiled(family, fields, named):
    with pytest.raises(ValueError, match=named):
        tile_weights(tiny_model(MLM_CLASSES[family], **fields), tiny_model(MLM_CLASSES["bert"]))


def test_a_run_is_initialised_from_a_smaller_model(tmp_path, capsys):
    """At a rate of almost 0 the trained model is the tiled one; its tokenizer is the smaller one's."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    larger = {"num_hidden_layers": 3, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 30}
    recipe = {
        "family": "modernbert",
        "objective": "mlm",
        "tokenizer": {"vocab_size": 400},
        "phases": [{"steps": 2, "length": 24, "examples": 4}],
    }
    for name, model, rate in (
        ("small", sizes, 0.01),
        ("large", larger, 1e-12),
        ("other", {**larger, "num_attention_heads": 2}, 1e-3),
    ):
        fields = {**recipe, "model": model, "training": {"learning_rate": rate}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(fields), encoding="utf-8")
    (tmp_path / "bert.yaml").write_text(yaml.safe_dump({**fields, "family": "bert"}), encoding="utf-8")
    write_corpus(tmp_path / "text.txt", 60, "alpha")
    assert pretrain(tmp_path, "first", recipe="small.yaml") == 0
    smaller = str(tmp_path / "first" / "model")
    words = ["--initialise-from", smaller]
    assert pretrain(tmp_path, "refused", *words, recipe="other.yaml") == 2
    assert "num_attention_heads=2: heads are 12 wide" in capsys.readouterr().err
    assert pretrain(tmp_path, "refused", *words, recipe="bert.yaml") == 2
    assert "is a modernbert, and recipe bert is of the family bert: choose" in capsys.readouterr().err
    assert not (tmp_path / "refused").exists()
    assert pretrain(tmp_path, "second", *words, recipe="large.yaml") == 0
    assert "held-out, before" in capsys.readouterr().out
    trained = MLM_CLASSES["modernbert"].from_pretrained(tmp_path / "second" / "model")
    expected = tile_weights(type(trained)(trained.config), MLM_CLASSES["modernbert"].from_pretrained(smaller))
    for name, value in expected.state_dict().items():
        assert torch.allclose(value, trained.state_dict()[name], atol=1e-6, rtol=0), name
    assert json.loads((tmp_path / "second" / "run.json").read_text())["initial checkpoint"]["how"] == "tiled"
    vocabularies = [(tmp_path / run / "model" / "tokenizer.json").read_text() for run in ("first", "second")]
    assert vocabularies[0] == vocabularies[1]
