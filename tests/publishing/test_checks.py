"""What a directory must hold before it is published: each check finds its fault and names the remedy."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_encoders.publishing import verification as other_process
from hf_encoders.publishing.files import may_have_pooler
from hf_encoders.publishing.publish import check_card, check_directory, check_files, check_loading
from hf_encoders.publishing.record import TrainingRecord, make_model_card
from hf_encoders.publishing.verification import difference
from tests.hub.tiny_checkpoints import (
    ALBERT,
    BERT,
    FAMILIES,
    ROBERTA,
    make_config,
    make_model,
    make_tokenizer,
    save_checkpoint,
)
from tests.publishing.findings import edit_config, errors
from tests.publishing.saved import RECORD, save


MLM = "AutoModelForMaskedLM"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that can be published."""
    return save(BERT, MLM, tmp_path_factory.mktemp("good") / "model")


@pytest.fixture
def directory(good: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(good, tmp_path / "model"))


@pytest.mark.processes
def test_heads_pass_and_load_elsewhere(tmp_path):
    """Of one family, which have the same files otherwise; and what plain transformers cannot load."""
    heads = (MLM, "AutoModelForNextSentencePrediction", "AutoModelForQuestionAnswering", "AutoModelForMultipleChoice")
    directories = [save(BERT, head, tmp_path / head) for head in heads]
    directories.append(save(ALBERT, MLM, tmp_path / "relative", position_embedding_type="relative_key"))
    assert not any(list(check_files(directory, directory)) for directory in directories)
    assert list(check_loading(directories)) == []


def test_a_check_names_the_directory_and_the_remedy(tmp_path):
    for path, words in ((tmp_path / "none", "does not exist"), (tmp_path, "has no config.json: give")):
        (text,) = errors(check_directory(path))
        assert words in text


def remove(name):
    return lambda directory: (directory / name).unlink()


def write_index(directory):
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors.index.json").write_text(
        '{"metadata": {}, "weight_map": {"x": "model-00001-of-00001.safetensors"}}'
    )


def set_weight(number):
    """In a row of the embeddings that no probe need meet."""

    def break_it(directory):
        weights = load_file(directory / "model.safetensors")
        weights["bert.embeddings.word_embeddings.weight"][-1, 0] = number
        save_file(weights, directory / "model.safetensors", {"format": "pt"})

    return break_it


FAULTS = {
    "NaN": (set_weight(float("nan")), "bert.embeddings.word_embeddings.weight is not finite: give a checkpoint"),
    "infinite": (set_weight(float("-inf")), "bert.embeddings.word_embeddings.weight is not finite: give a checkpoint"),
    "an adapter": (lambda d: (d / "adapter_config.json").write_text("{}"), "model.merge_and_unload()"),
    "auto_map as a list": (lambda d: edit_config(d, auto_map=["x"]), "auto_map=['x'], which is not an object"),
    "pipelines as a list": (lambda d: edit_config(d, custom_pipelines=["x"]), "custom_pipelines=['x'], which is no"),
    "configuration as a list": (
        lambda d: (d / "config.json").write_text("[1]"),
        "config.json holds a list, not an object",
    ),
    "no weights": (remove("model.safetensors"), "has no model.safetensors"),
    "no safetensors": (
        lambda d: (d / "model.safetensors").write_bytes(b"version https://git-lfs"),
        "is a Git LFS pointer",
    ),
    "missing shard": (write_index, "model-00001-of-00001.safetensors"),
    "auto_map of one head": (
        lambda d: edit_config(d, auto_map={"AutoConfig": "configuration_bert.HfeBertConfig"}),
        "auto_map does not name this package's class for AutoModel, ",
    ),
    "no auto_map": (lambda d: edit_config(d, auto_map={}), "auto_map does not name"),
    "modeling file missing": (remove("modeling_bert.py"), "modeling_bert.py: code that config.json names"),
    "imported file missing": (remove("encoder_tokens.py"), "encoder_tokens.py: code that config.json names"),
    "no tokenizer": (lambda d: [path.unlink() for path in d.glob("tokenizer*")], "tokenizer.save_pretrained("),
    "broken tokenizer": (lambda d: (d / "tokenizer.json").write_text("{"), "has no tokenizer that can be loaded"),
    "tokenizer of another": (lambda d: make_tokenizer(ROBERTA).save_pretrained(d), "and the model rows for 19"),
    "another kind of model": (lambda d: edit_config(d, model_type="gpt2"), "model_type='gpt2'"),
    "a text for a number": (lambda d: edit_config(d, hidden_size="x"), "'hidden_size' expected int"),
    "no head": (lambda d: edit_config(d, architectures=None), "architectures=None"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_error(fault, directory):
    break_it, words = FAULTS[fault]
    break_it(directory)
    (error,) = errors(check_directory(directory))
    assert words in error


@pytest.mark.processes
def test_an_encoder_without_pooler_passes_with_a_warning(tmp_path, forked_loads):
    """Families that never have one are worth no warning."""
    model = type(make_model(BERT, "AutoModel"))(make_config(BERT), add_pooling_layer=False)
    distilbert = next(family for family in FAMILIES if family.name == "distilbert")
    without, never = save_checkpoint(model, BERT, tmp_path / "bert"), save(distilbert, "AutoModel", tmp_path / "never")
    assert not may_have_pooler(type(make_model(distilbert, "AutoModel")))
    assert list(check_files(without, without)) == []
    (finding,) = check_loading([without, never])
    assert not finding.is_error
    assert f"{without} has no pooler: load it with add_pooling_layer=False" in finding.text


def test_a_padding_id_of_another_is_worth_a_warning(directory):
    edit_config(directory, pad_token_id=1)
    (finding,) = check_files(directory, directory)
    assert not finding.is_error and "pads with id 0, but pad_token_id=1" in finding.text


@pytest.mark.processes
def test_code_that_computes_something_else_or_needs_the_package_is_found(directory, forked_loads):
    blocks, tokens = directory / "encoder_blocks.py", directory / "encoder_tokens.py"
    text, scores = blocks.read_text(), "self.decoder(self.transform(hidden_states))"
    assert scores in text
    blocks.write_text(text.replace(scores, f"1.01 * {scores}"))
    (error,) = errors(check_loading([directory], trust_remote_code=True))
    assert "without hf_encoders, trust_remote_code=True: outputs differ by up to" in error
    blocks.write_text(text)
    tokens.write_text(tokens.read_text() + "\nimport hf_encoders\n")
    (error,) = errors(check_loading([directory], trust_remote_code=True))
    assert "trust_remote_code=True" in error and "hf_encoders" in error


@pytest.mark.processes
def test_weights_of_a_part_are_refused(directory, forked_loads):
    weights = load_file(directory / "model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if "transform" not in k}, directory / "model.safetensors", {"format": "pt"}
    )
    (text,) = errors(check_loading([directory]))
    assert "has no weights for cls.predictions.transform" in text and "randomly initialised" in text


@pytest.mark.processes
def test_verify_loading_prints_each_way_and_refuses_another_model(good, capsys, monkeypatch, forked_loads):
    model = make_model(BERT, MLM)
    loaded_once = []
    load_elsewhere = other_process.load_elsewhere
    # The second call compares the same loads with another model: two processes instead of four.
    once = lambda loads: loaded_once or loaded_once.extend(load_elsewhere(loads)) or loaded_once  # noqa: E731
    monkeypatch.setattr(other_process, "load_elsewhere", once)
    other_process.verify_loading(good, model)
    printed = capsys.readouterr().out
    names = [line.split(":")[1].split(",")[0].strip() for line in printed.splitlines()]
    assert names == ["HfeBertForMaskedLM", "BertForMaskedLM"]
    with torch.no_grad():
        model.cls.predictions.bias[3] += 0.5
    with pytest.raises(RuntimeError, match="trust_remote_code=True: outputs differ by up to 0.5"):
        other_process.verify_loading(good, model)


def test_outputs_are_compared_at_tokens():
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    expected, at_padding = torch.zeros(2, 3), torch.tensor([[0.0, 0, 0], [0, 0, 1]])
    assert difference({"logits": at_padding}, {"logits": expected}, mask).largest == 0
    assert difference({"logits": at_padding[:, :2] + 2}, {"logits": expected[:, :2]}, mask) == (2, 1)
    assert not difference({"logits": expected * float("nan")}, {"logits": expected}, mask).is_rounding


def test_what_a_card_lacks_is_found():
    model = make_model(BERT, MLM)
    card = str(make_model_card(model, RECORD, "me/encoder", has_curve=True))
    assert list(check_card(card, RECORD, {"loss_curve.png"})) == []
    (text,) = errors(check_card(card, RECORD, set()))
    assert "shows loss_curve.png, which is not published with it" in text
    (text,) = errors(check_card(card.replace("license: mit", "license: MIT"), RECORD, {"loss_curve.png"}))
    assert "license 'MIT'" in text
    (text,) = errors(check_card("---\nlicense: [\n---\n# x", RECORD, set()))
    assert "no readable metadata" in text
    empty = str(make_model_card(model, TrainingRecord(), "me/encoder"))
    first, second = check_card(empty, TrainingRecord(), set())
    assert not first.is_error and "no licence is stated" in first.text
    assert not second.is_error and "objectives, corpus" in second.text


def test_a_head_that_transformers_lacks_is_loaded_with_our_code_only(tmp_path: Path) -> None:
    """Its `AutoModelForPreTraining` gives another class for the same configuration, DeBERTa's."""
    family = next(family for family in FAMILIES if family.name == "deberta-v2")
    model = make_model(family, "AutoModelForPreTraining")
    folder = save(family, "AutoModelForPreTraining", tmp_path / "model")
    assert [load.way for load in other_process.loads_of(folder, model, "AutoModelForPreTraining")] == ["remote"]
    assert "Plain transformers has no class with this head" in str(make_model_card(model, RECORD, "me/mine"))
    encoder = make_model(family, "AutoModel")
    assert [load.way for load in other_process.loads_of(folder, encoder, "AutoModel")] == ["remote", "plain"]
