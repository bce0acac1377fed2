"""Exports compute what the checkpoint computes, need no code of this package, and are refused when they are wrong."""

import importlib.util
import json
import logging
import resource
import warnings
from pathlib import Path

import onnx
import onnxruntime
import peft
import pytest
import sentence_transformers
import torch
import transformers
from safetensors.torch import load_file, save_file

from hf_encoders import cli
from hf_encoders.publishing import export
from hf_encoders.publishing.export import export_checkpoint
from hf_encoders.publishing.verification import Load, difference, load_elsewhere, outputs_of, probe_batch
from tests.families import HEADS_OF_OURS_ALONE
from tests.hub.tiny_checkpoints import (
    ALBERT,
    BERT,
    FAMILIES,
    ROBERTA,
    TEXTS,
    built_in,
    make_config,
    make_model,
    make_tokenizer,
    save_checkpoint,
)
from tests.publishing.saved import ALL_HEADS, name_of, save


MLM = "AutoModelForMaskedLM"
PLAIN_FILES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


def corrupt(writer, name: str, amount: float):
    """A writer that puts one wrong number into what another has written."""

    def write(model, head, folder):
        writer(model, head, folder)
        weights = load_file(folder / "model.safetensors")
        weights[name].view(-1)[0] += amount
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    return write


@pytest.mark.parametrize("case", ALL_HEADS, ids=name_of)
def test_native_is_transformers_own_model(case, tmp_path):
    family, head = case
    source = save(family, head, tmp_path / "source", seed=3)
    if family.config_class.AUTO_MAP[head].rpartition(".")[2] in HEADS_OF_OURS_ALONE:
        with pytest.raises(ValueError, match="transformers has no DebertaV2ForPreTraining"):
            export_checkpoint(source, "native", tmp_path / "native")
        return
    folder, seen = export_checkpoint(source, "native", tmp_path / "native")
    # transformers' XLM with its language model can generate, and is saved with the settings of that.
    can_generate = getattr(transformers, built_in(family, head)).can_generate()
    files = [*PLAIN_FILES, *["generation_config.json"] * can_generate]
    assert sorted(path.name for path in folder.iterdir()) == sorted(files)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text())
    assert tokenizer_config["tokenizer_class"] != "TokenizersBackend"  # which transformers 4 does not know
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == [built_in(family, head)] and config["model_type"] == family.name
    assert not {"auto_map", "custom_pipelines", "position_embedding_type"} & set(config)
    kind = getattr(transformers, built_in(family, head))
    model, found = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(found.values())
    source_model = make_model(*case, seed=3)
    batch = probe_batch(source_model, head, (9, 4))
    again = difference(outputs_of(model.eval(), batch), outputs_of(source_model, batch), batch["attention_mask"])
    assert again.largest < 1e-5 and seen.largest < 1e-5


@pytest.mark.parametrize("form", ["native", "safetensors-bf16"])
def test_an_encoder_that_was_saved_without_pooler_is_exported(form, tmp_path):
    model = type(make_model(BERT, "AutoModel"))(make_config(BERT), add_pooling_layer=False)
    folder, _ = export_checkpoint(save_checkpoint(model, BERT, tmp_path / "source"), form, tmp_path / "export")
    assert not [name for name in load_file(folder / "model.safetensors") if "pooler" in name]


@pytest.mark.processes
def test_native_directories_load_where_the_package_is_not(tmp_path, forked_loads):
    loads = []
    for family in (BERT, ALBERT):
        source = save(family, MLM, tmp_path / family.name)
        folder, _ = export_checkpoint(source, "native", tmp_path / f"{family.name}-native")
        model = make_model(family, MLM)
        batch = probe_batch(model, MLM)
        loads.append(Load(folder, "plain", MLM, batch, outputs_of(model, batch)))
    loaded = load_elsewhere(loads)
    assert [result.problem(load) for load, result in zip(loads, loaded, strict=True)] == ["", ""]
    assert [result.class_name for result in loaded] == ["BertForMaskedLM", "AlbertForMaskedLM"]


def test_sentence_transformers_reads_the_encoder_of_a_masked_language_model(tmp_path):
    source = save(ROBERTA, MLM, tmp_path / "source")
    folder, _ = export_checkpoint(source, "native", tmp_path / "native", head="AutoModel")
    embedder = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    batch = make_tokenizer(ROBERTA)(list(TEXTS), padding=True, return_tensors="pt")
    with torch.no_grad():
        states = make_model(ROBERTA, MLM).roberta(**batch).last_hidden_state
    mean = states.sum(dim=1) / batch["attention_mask"].sum(dim=1, keepdim=True)
    torch.testing.assert_close(torch.tensor(embedder.encode(list(TEXTS))), mean, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_bf16_weights_are_the_originals_rounded(family, tmp_path):
    head = "AutoModelForSequenceClassification"
    source = save(family, head, tmp_path / "source")
    folder, seen = export_checkpoint(source, "safetensors-bf16", tmp_path / "half")
    written, original = load_file(folder / "model.safetensors"), load_file(source / "model.safetensors")
    assert written.keys() == original.keys()
    assert all(torch.equal(value, original[name].bfloat16()) for name, value in written.items())
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert (folder / f"modeling_{family.name.replace('-', '_')}.py").exists()
    assert 1e-4 < seen.largest < 0.1  # it is rounded, and not more


@pytest.mark.parametrize(
    ("form", "words"),
    [("native", "native export differ by up to 0.5"), ("safetensors-bf16", "bias is not the original rounded")],
)
def test_a_wrong_weight_is_refused_and_nothing_is_left(form, words, tmp_path, monkeypatch):
    source = save(BERT, MLM, tmp_path / "source")
    monkeypatch.setitem(export.WRITERS, form, corrupt(export.WRITERS[form], "cls.predictions.bias", 0.5))
    with pytest.raises(RuntimeError, match=words):
        export_checkpoint(source, form, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


ONNX = [
    (BERT, MLM, "absolute"),
    (ALBERT, "AutoModelForMultipleChoice", "absolute"),
    (ROBERTA, MLM, "relative_key_query"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "head", "positions"), ONNX, ids=["mlm", "choices", "relative"])
def test_onnx_runs_in_onnx_runtime_at_other_shapes(family, head, positions, tmp_path):
    source = save(family, head, tmp_path / "source", position_embedding_type=positions)
    folder, seen = export_checkpoint(source, "onnx", tmp_path / "onnx")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.onnx", *PLAIN_FILES[2:]]
    assert "auto_map" not in json.loads((folder / "config.json").read_text())
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    model = make_model(family, head, position_embedding_type=positions)
    batch = probe_batch(model, head, (17, 2, 6, 9))
    assert {one.name for one in session.get_inputs()} == set(batch)
    names = [one.name for one in session.get_outputs()]
    values = session.run(None, {name: value.numpy() for name, value in batch.items()})
    exported = dict(zip(names, map(torch.from_numpy, values), strict=True))
    assert difference(exported, outputs_of(model, batch), batch["attention_mask"]).largest < 1e-5 > seen.largest


@pytest.mark.slow
def test_exporting_to_onnx_prints_nothing_of_torchs_own(tmp_path, monkeypatch, capfd):
    find_spec = importlib.util.find_spec
    without = lambda name, *rest: None if name == "torchvision" else find_spec(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", without)
    records, logger, handler = [], logging.getLogger("torch.onnx"), logging.Handler()
    level, handler.emit = logger.level, records.append
    logger.addHandler(handler)
    source = str(save(BERT, MLM, tmp_path / "source"))
    try:
        assert cli.main(["export", source, "--to", "onnx", "--output", str(tmp_path / "onnx")]) == 0
    finally:
        logger.removeHandler(handler)
    printed = capfd.readouterr()
    assert "torchvision" not in printed.err + printed.out and records == []
    assert logger.level == level


def test_a_full_disk_is_told_in_one_line_and_leaves_nothing(tmp_path, capsys):
    source = save(BERT, MLM, tmp_path / "source")
    capsys.readouterr()
    for form in ("native", "safetensors-bf16", "onnx"):
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        # As a full disk does, but for the number of the error: no file may grow beyond 2,000 bytes.
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limit[1]))
        try:
            code = cli.main(["export", str(source), "--to", form, "--output", str(tmp_path / "out")])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        said = capsys.readouterr().err.strip().splitlines()
        assert code == 2 and len(said) == 1
        assert said[0].startswith("hf-encoders export: ") and "File too large" in said[0]
        assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_wrong_onnx_graph_is_refused(tmp_path, monkeypatch):
    write_onnx = export.WRITERS["onnx"]

    def write_of_another(model, head, folder):
        write_onnx(make_model(ROBERTA, MLM, seed=9, position_embedding_type="relative_key"), head, folder)
        onnx.checker.check_model(str(folder / "model.onnx"))

    monkeypatch.setitem(export.WRITERS, "onnx", write_of_another)
    source = save(ROBERTA, MLM, tmp_path / "source", position_embedding_type="relative_key")
    with pytest.raises(RuntimeError, match="the outputs of the onnx export differ"):
        export_checkpoint(source, "onnx", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_what_cannot_be_exported_is_refused_before_it_is_loaded(tmp_path, monkeypatch):
    source, bf16 = save(BERT, MLM, tmp_path / "source", position_embedding_type="relative_key"), "safetensors-bf16"
    for form, output, head, words in (
        ("native", "out", None, "position_embedding_type='relative_key'.*onnx"),
        ("gguf", "out", None, "form='gguf': choose one of native"),
        ("onnx", "source", None, "output '.*source' exists"),
        (bf16, "out", "AutoModelForCausalLM", "head='AutoModelForCausalLM': bert has AutoModel, "),
        (bf16, "out", "AutoModelForTokenClassification", "no weights for classifier.bias.*randomly initialised"),
    ):
        with pytest.raises(ValueError, match=words):
            export_checkpoint(source, form, tmp_path / output, head)
    (source / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="has no tokenizer"):
        export_checkpoint(source, bf16, tmp_path / "out")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"hf_encoders\[onnx\].*pip install onnx onnxscript onnxruntime"):
        export_checkpoint(source, "onnx", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("beside", ["adapter alone", "whole model"])
def test_an_adapter_is_refused_with_the_remedy(beside, tmp_path, capsys):
    model = make_model(BERT, "AutoModelForSequenceClassification")
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"])).save_pretrained(tmp_path / "source")
    make_tokenizer(BERT).save_pretrained(tmp_path / "source")
    if beside == "whole model":
        save(BERT, MLM, tmp_path / "source")
    arguments = ["export", str(tmp_path / "source"), "--to", "native", "--output", str(tmp_path / "out")]
    assert cli.main(arguments) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert "source holds a PEFT adapter (adapter_config.json): merge the adapter first" in said
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def published(folder: Path) -> torch.nn.Module:
    """transformers' own BERT, as published checkpoints are: no `auto_map`."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 17}
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=19, **sizes)).eval()
    model.save_pretrained(folder, max_shard_size="4KB")
    make_tokenizer(BERT).save_pretrained(folder)
    return model


def test_published_checkpoints_come_in_shards_and_old_names(tmp_path):
    expected = published(tmp_path / "source").state_dict()
    index_file = tmp_path / "source" / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    shards = set(index["weight_map"].values())
    assert len(shards) > 1

    def old(values):
        names = ((name, name.replace("LayerNorm.weight", "LayerNorm.gamma")) for name in values)
        return {new.replace("LayerNorm.bias", "LayerNorm.beta"): values[name] for name, new in names}

    for shard in shards:
        save_file(old(load_file(tmp_path / "source" / shard)), tmp_path / "source" / shard, {"format": "pt"})
    index_file.write_text(json.dumps({**index, "weight_map": old(index["weight_map"])}))
    folder, _ = export_checkpoint(tmp_path / "source", "native", tmp_path / "native")
    written = load_file(folder / "model.safetensors")
    assert any("LayerNorm.weight" in name for name in written) and not any("gamma" in name for name in written)
    assert all(torch.equal(value, expected[name]) for name, value in written.items())


def test_pickled_weights_are_refused(tmp_path, capsys):
    model = published(tmp_path / "source")
    for path in (tmp_path / "source").glob("model*"):
        path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(model.state_dict(), tmp_path / "source" / "pytorch_model.bin")
    with pytest.raises(OSError, match="in pytorch_model.bin only, which is not read: convert it"):
        export_checkpoint(tmp_path / "source", "native", tmp_path / "out")
    arguments = ["export", str(tmp_path / "source"), "--to", "native", "--output", str(tmp_path / "out")]
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert "hf-encoders export: " in said and "Traceback" not in said and "pytorch_model.bin" in said
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
