"""`Initial`: each layout that transformers writes begins as its weights, and says what is new."""

from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoTokenizer

from hf_encoders.models.encoder_checkpoints import encoder_weights
from hf_encoders.registration import config_class_of
from hf_encoders.runs.initial import Initial
from tests.commands.adapt_runs import checkpoint
from tests.families import model_class
from tests.models.tiny import NO_DROPOUT, tiny_config


PUBLISHED = ("bert", "roberta", "albert", "electra")
HEADS = {"base": "AutoModel", "classifier": "AutoModelForSequenceClassification"}


@pytest.fixture(scope="module", params=PUBLISHED)
def stock(request, tmp_path_factory) -> Path:
    """A checkpoint with an MLM head (ELECTRA's: a generator), as transformers' own class saves it."""
    return Path(checkpoint(tmp_path_factory.mktemp("stock"), request.param, "AutoModelForMaskedLM"))


def written(stock: Path, folder: Path, auto_class: str = "AutoModelForMaskedLM", dtype=None, **saving) -> Path:
    """The same with another head or in another layout."""
    model = getattr(transformers, auto_class).from_pretrained(stock, dtype=dtype)
    model.save_pretrained(folder, **saving)
    AutoTokenizer.from_pretrained(stock).save_pretrained(folder)
    return folder


def begin(source: Path) -> transformers.PreTrainedModel:
    initial = Initial(str(source))
    return initial.model(initial.config)


def test_shards_and_the_name_of_the_folder_change_nothing(stock, tmp_path):
    sharded = written(stock, tmp_path, max_shard_size="20KB")
    assert (sharded / "model.safetensors.index.json").exists() and not (sharded / "model.safetensors").exists()
    before, after = begin(stock), begin(sharded)
    assert before.new_weights == after.new_weights == frozenset()
    loaded = after.state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in before.state_dict().items())
    assert Initial(str(stock)).facts["weights"] == Initial(str(sharded)).facts["weights"]


def test_weights_of_16_bits_become_32(stock, tmp_path):
    halves = begin(written(stock, tmp_path, dtype=torch.bfloat16))
    assert {value.dtype for value in halves.parameters()} == {torch.float32}
    rounded = {name: value.bfloat16().float() for name, value in begin(stock).named_parameters()}
    assert all(torch.equal(value, rounded[name]) for name, value in halves.named_parameters())
    assert halves.new_weights == frozenset()


@pytest.mark.parametrize("head", HEADS)
def test_without_an_mlm_head_the_encoder_is_the_checkpoint_s_and_the_head_new(stock, head, tmp_path):
    before, after = begin(stock), begin(written(stock, tmp_path, HEADS[head]))
    of_encoder, loaded = encoder_weights(before), dict(after.named_parameters())
    assert len(of_encoder) > 10
    for name, value in before.named_parameters():
        if name in of_encoder:
            assert torch.equal(value, loaded[name]) and name not in after.new_weights, name
        else:
            assert name in after.new_weights, name
    assert not after.new_weights & of_encoder


def test_a_pickle_is_refused_with_the_remedy(stock, tmp_path):
    written(stock, tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model.elsewhere")
    torch.save(begin(stock).state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"CHECKPOINT .*pytorch_model.bin only, which is not read: convert it once"):
        _ = Initial(str(tmp_path)).facts


@pytest.mark.parametrize(("family", "kind"), [("bert", "relative_key"), ("albert", "relative_key_query")])
def test_relative_positions_of_this_package(family, kind, tmp_path):
    config_class = config_class_of(family)
    config = tiny_config(config_class, position_embedding_type=kind, **NO_DROPOUT)
    model = model_class(config_class, "AutoModelForMaskedLM")(config)
    model.save_pretrained(tmp_path)
    loaded = begin(tmp_path).state_dict()
    assert any("distance_embedding" in name for name in loaded)
    assert all(torch.equal(value, loaded[name]) for name, value in model.state_dict().items())
