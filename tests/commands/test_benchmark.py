import argparse
import functools
import json
import re

import pytest
import torch

from hf_encoders import HfeBertConfig
from hf_encoders.benchmark import command as work
from hf_encoders.benchmark import implementations
from hf_encoders.benchmark.settings import Setting
from hf_encoders.cli import main
from hf_encoders.commands import benchmark as command
from hf_encoders.corpus.python_docs import LabelledDocument
from hf_encoders.publishing.hardware import GEMM_SIDES
from tests.benchmark.tiny import tiny_config, tiny_text


@pytest.fixture
def folder(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(GEMM_SIDES, "cpu", 64)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "text.txt").write_text(tiny_text())
    return tmp_path


def benchmark(folder, *arguments: str, family: str = "bert") -> int:
    tiny_config(family, dropout=0.1).save_pretrained(folder / family)
    given = ["--text", folder / "text.txt", "--tokenizer", folder / "tokenizer"]
    given += ["--length", "16", "--batch-size", "4", "--rounds", "2", "--steps", "1"]
    model = [] if {"--family", "--size", "--model"} & set(arguments) else ["--model", folder / family]
    return main(["benchmark", *map(str, [*given, *model, *arguments])])


@pytest.mark.parametrize(
    ("family", "num_tables", "arguments"),
    [
        ("bert", 4, ("--task", "pretraining", "inference", "--dtype", "float32", "bfloat16")),
        ("bert", 1, ("--objective", "nsp")),
        ("roberta", 4, ("--task", "pretraining", "inference", "--examples", "full", "documents")),
        ("albert", 2, ("--task", "pretraining", "inference", "--against", "modernbert")),
        ("albert", 1, ("--objective", "sop", "--task", "inference", "--against")),
    ],
)
def test_tables_on_standard_output_and_all_rounds_as_json(folder, capsys, family, num_tables, arguments):
    assert benchmark(folder, *arguments, "--json", folder / "out.json", family=family) == 0
    output = capsys.readouterr().out
    found = json.loads((folder / "out.json").read_text())
    assert found["machine"]["threads"] == 1 and found["machine"]["cpu"] and found["machine"]["transformers"]
    assert len(found["tables"]) == num_tables
    for table in found["tables"]:
        setting, lines = table["setting"], table["lines"]
        assert table["gemm_flops_per_second"] > 0 and table["parameters"] > 0
        assert setting["family"] == family
        assert lines[0]["name"] == "transformers sdpa" and lines[-1]["name"] == "hf_encoders"
        assert set(lines[0]["pass_ratio"].values()) == {1.0}
        assert lines[-1]["padding"] == 0
        for line in lines:
            assert line["name"] in output
            assert len(line["rounds"]) == 2
            assert line["pass_ratio"]["least"] <= line["pass_ratio"]["median"] <= line["pass_ratio"]["greatest"]
            assert line["mfu"]["median"] > 0 and line["activation_megabytes"] > 0
            is_inference = setting["task"] == "inference"
            assert all((turn["update_seconds"] == 0) == is_inference for turn in line["rounds"])


@pytest.mark.slow
def test_a_size_of_each_family_with_a_tokenizer_trained_here(folder, capsys):
    text = folder / "text.txt"
    arguments = ["--text", text, "--family", "bert", "roberta", "albert", "--size", "small", "--vocab-size", "300"]
    arguments += ["--length", "16", "--batch-size", "2", "--rounds", "1", "--steps", "1", "--against", "grouped"]
    assert main(["benchmark", *map(str, arguments)]) == 0
    output = capsys.readouterr().out
    for family in ("bert", "roberta", "albert"):
        assert f"pretraining (mlm), {family} small, 2 x 16, paragraphs, float32, cpu" in output
    assert output.count("transformers sdpa, by length") == 3 and "ModernBERT" not in output


def test_without_text_the_python_documentation_is_read_once(folder, capsys, monkeypatch):
    sentences = [sentence.split() for sentence in tiny_text().splitlines() if sentence]
    documents = [LabelledDocument("python", [[" ".join(words)] * 3]) for words in sentences]
    calls = []
    monkeypatch.setattr(work, "read_python_documents", lambda *_: calls.append(1) or documents)
    monkeypatch.setattr(work, "read_documents", lambda *_, **__: pytest.fail("no files were given"))
    threads = torch.get_num_threads()
    arguments = ["--family", "bert", "roberta", "--vocab-size", "300", "--threads", "2", "--length", "16"]
    arguments += ["--batch-size", "2", "--rounds", "1", "--steps", "1", "--against", "--task", "inference"]
    assert main(["benchmark", *arguments]) == 0
    assert len(calls) == 1
    assert torch.get_num_threads() == threads
    output = capsys.readouterr().out
    assert output.count("\nhf_encoders ") == 2
    assert "| | padding | hf_encoders | MFU, stock → this |" in output


def test_compiled_is_measured_beside_eager(folder, capsys, monkeypatch):
    """Dynamo alone, without a compiler; in every setting, however many graphs torch keeps."""
    dtypes = []

    def keep(graph: torch.fx.GraphModule, inputs: list) -> object:
        dtypes.append(next(one.dtype for one in inputs if isinstance(one, torch.Tensor) and one.is_floating_point()))
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=keep))
    arguments = ("--against", "compiled", "--task", "inference", "--dtype", "float32", "bfloat16")
    with torch._dynamo.config.patch(recompile_limit=1):
        assert benchmark(folder, *arguments) == 0
    assert capsys.readouterr().out.count("\nhf_encoders compiled  ") == 2
    assert len(dtypes) == 2


def settings_of(monkeypatch, *arguments: str) -> tuple[list[Setting], list[str]]:
    """Settings and implementations where there is CUDA."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    given = parser.parse_args(arguments)
    work.set_defaults(given)
    work.check_arguments(given)
    return work.make_settings(given), given.against


def test_on_cuda_the_defaults_are_the_whole_table(monkeypatch, capsys):
    monkeypatch.setattr(implementations, "is_flash_attn_2_available", lambda: True)
    settings, against = settings_of(monkeypatch)
    assert [str(setting) for setting in settings] == [
        "pretraining (mlm), bert base, 128 x 128, paragraphs, bfloat16, cuda",
        "pretraining (mlm), bert base, 32 x 512, documents, bfloat16, cuda",
        "pretraining (mlm), bert large, 64 x 128, paragraphs, bfloat16, cuda",
        "pretraining (mlm), bert large, 16 x 512, documents, bfloat16, cuda",
    ]
    assert {setting.steps for setting in settings} == {10}
    assert against == ["flash", "grouped", "modernbert", "compiled"]
    assert implementations.best_kernel(settings[0]) == "flash_attention_2"
    _, against = settings_of(monkeypatch, "--objective", "nsp")
    assert against == ["flash", "grouped", "compiled"]
    assert not capsys.readouterr().err


def test_without_flash_attention_it_is_left_out_and_told(monkeypatch, capsys):
    _, against = settings_of(monkeypatch, "--size", "small")
    assert against == ["grouped", "modernbert", "compiled"]
    assert "transformers flash is left out: flash attention needs --device cuda, --dtype bf" in capsys.readouterr().err


def test_memory_that_is_not_enough_says_what_to_lower(folder, capsys, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(work, "measure", fail)
    assert benchmark(folder) == 2
    assert re.search("--batch-size 4: .* does not fit into the device's memory: lower it", capsys.readouterr().err)


def test_cuda_that_is_not_there_is_refused(folder, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert benchmark(folder, "--device", "cuda") == 2
    assert "--device cuda: torch finds no CUDA device here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch-size", "5000"), r"the text gives \d+ rows .*too few for a batch of 5000"),
        (("--family", "roberta", "--objective", "nsp"), "roberta has no head for sentence pairs"),
        (("--objective", "nsp", "--examples", "full"), "--examples: rows of --objective nsp are sentence pairs"),
        (
            ("--objective", "nsp", "--against", "modernbert"),
            "--against modernbert: it has no head for --objective nsp",
        ),
        (
            ("--against", "flash"),
            "--against flash: flash attention needs --device cuda, --dtype bfloat16 and the pack",
        ),
        (("--length", "41"), "max_position_embeddings=40, and rows of 41 tokens need 41: lower --length"),
        (("--length", "4"), "--length 4: must be at least 8"),
        (("--rounds", "0"), "--rounds 0: must be at least 1"),
        (("--dropout", "1"), r"--dropout 1.0: must be a probability in \[0, 1\)"),
        (("--model", "./nowhere"), "--model './nowhere' does not exist"),
        (("--tokenizer", "nowhere/at/all"), "--tokenizer 'nowhere/at/all' does not exist"),
        (("--json", "nowhere/out.json"), "--json nowhere/out.json: its folder does not exist"),
    ],
)
def test_wrong_input_is_told_before_anything_is_measured(folder, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr("hf_encoders.benchmark.command.measure", lambda *_: pytest.fail("it was measured"))
    assert benchmark(folder, *arguments) == 2
    error = capsys.readouterr().err
    assert re.search(message, error)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 20}, "vocab_size=20, but the tokenizer has 60 entries"),
        ({"pad_token_id": 3}, "pad_token_id=3, but the tokenizer's is 0"),
        (
            {"position_embedding_type": "relative_key"},
            "position_embedding_type='relative_key' does not exist in trans",
        ),
        ({"model_type": "gpt2"}, "model_type='gpt2'; this package has bert, roberta, albert"),
    ],
)
def test_a_configuration_that_cannot_be_compared_is_refused(folder, capsys, changes, message):
    HfeBertConfig(**{"vocab_size": 60, "hidden_size": 24, "num_attention_heads": 3}).save_pretrained(folder / "own")
    file = folder / "own" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    assert benchmark(folder, "--model", str(folder / "own")) == 2
    assert message in capsys.readouterr().err


def test_family_and_size_exclude_a_configuration_of_ones_own(folder, capsys):
    assert benchmark(folder, "--model", str(folder), "--size", "base") == 2
    assert "leave out --family and --size" in capsys.readouterr().err
