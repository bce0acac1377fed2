"""`hf-encoders tokenizer --extend`: a checkpoint with entries for the words of a text, whole or not at all."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from hf_encoders import HfeBertConfig, HfeElectraConfig
from hf_encoders.cli import main
from hf_encoders.corpus import tokenizer_command
from hf_encoders.corpus.tokenizer_training import padded_vocab_size
from hf_encoders.objectives.rtd import ReplacedTokenDetectionModel
from hf_encoders.writing import UNFINISHED
from tests.commands.adapt_runs import head_of
from tests.corpus.test_extension import domain_lines
from tests.corpus.test_tokenizer_training import KINDS
from tests.corpus.trained import FAMILIES, lines, train
from tests.families import model_class
from tests.models.tiny import tiny_config


@pytest.fixture
def text(tmp_path) -> str:
    path = tmp_path / "domain.txt"
    path.write_text("\n\n".join(domain_lines()), encoding="utf-8")
    return str(path)


@pytest.fixture
def alone(tmp_path) -> Path:
    """A tokenizer without a model."""
    train(FAMILIES[0]).save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def checkpoint(config_class, folder) -> str:
    """A masked language model with its tokenizer, as transformers' own class writes it."""
    tokenizer = train(config_class)
    fields = {"vocab_size": padded_vocab_size(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    model = model_class(config_class, head_of(config_class))(tiny_config(config_class, **fields))
    model.save_pretrained(folder / "ours")
    getattr(transformers, head_of(config_class)).from_pretrained(folder / "ours").save_pretrained(folder / "stock")
    tokenizer.save_pretrained(folder / "stock")
    return str(folder / "stock")


def extend(*arguments) -> int:
    return main(["tokenizer", "--extend", *map(str, arguments)])


def refused(capsys, *arguments) -> str:
    """The message of a command that is refused before text is counted."""
    assert extend(*arguments) == 2
    message = capsys.readouterr().err
    assert "choosing" not in message and "Traceback" not in message
    return message


@pytest.mark.parametrize("config_class", KINDS, ids=lambda config_class: config_class.model_type)
def test_a_stock_checkpoint_is_extended_and_stock_loads_it(config_class, text, tmp_path, capsys):
    source, out, other = checkpoint(config_class, tmp_path), tmp_path / "out", tmp_path / "other.txt"
    other.write_text("\n\n".join(lines()), encoding="utf-8")
    assert extend(source, "--add", 3, "--input", text, "--keep", other, "--output", out) == 0
    before, tokenizer = AutoTokenizer.from_pretrained(source), AutoTokenizer.from_pretrained(out)
    load = getattr(transformers, head_of(config_class))
    model, old = (load.from_pretrained(folder).eval() for folder in (out, source))
    assert len(tokenizer) == len(before) + 3
    assert model.get_input_embeddings().num_embeddings == padded_vocab_size(tokenizer)
    pieces = {int(number): ids for number, ids in json.loads((out / "new_entries.json").read_text()).items()}
    for number, ids in pieces.items():
        expected = old.get_input_embeddings().weight[ids].mean(dim=0)
        torch.testing.assert_close(model.get_input_embeddings().weight[number], expected)
    report = json.loads((out / "tokenizer_report.json").read_text())
    assert report["added"] == tokenizer.convert_ids_to_tokens(list(pieces))
    assert report["text"]["tokens_after"] < report["text"]["tokens_before"]
    assert report["kept"]["tokens_after"] == report["kept"]["tokens_before"] and report["kept"]["otherwise_cut"] == 0
    assert str(tmp_path) not in (out / "tokenizer_report.json").read_text()
    assert "other text" in capsys.readouterr().out


def test_weights_that_the_named_class_does_not_have_are_left_out_and_named(text, tmp_path, capsys):
    source = checkpoint(HfeBertConfig, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(source)
    fields = {"vocab_size": padded_vocab_size(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    model_class(HfeBertConfig, "AutoModelForPreTraining")(tiny_config(HfeBertConfig, **fields)).save_pretrained(source)
    file = Path(source, "config.json")
    for name, is_kept in (("BertForPreTraining", True), ("BertForMaskedLM", False)):
        file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": [name]}))
        assert extend(source, "--add", 2, "--input", text, "--output", tmp_path / name) == 0
        printed, saved = capsys.readouterr().out, load_file(tmp_path / name / "model.safetensors")
        assert ("bert.pooler.dense.weight" in saved) == ("cls.seq_relationship.weight" in saved) == is_kept
        assert ("are left out: bert.pooler.dense.bias, bert.pooler.dense.weight, cls.seq_rel" in printed) != is_kept


@pytest.mark.parametrize("option", ["--input", "--corpus"])
def test_a_tokenizer_alone(option, alone, text, tmp_path, capsys):
    assert extend(alone, option, text, "--output", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "AutoTokenizer" in printed and "new entries of 1,000" in printed  # a warning: the text gives fewer
    assert not (tmp_path / "out" / "config.json").exists()


def test_columns_are_also_those_of_the_other_text_and_skipped_files_are_reported(alone, tmp_path, capsys):
    for name, texts in {"domain": domain_lines(), "other": lines()}.items():
        (tmp_path / name).mkdir()
        rows = "\n".join(json.dumps({"body": text}) for text in texts)
        (tmp_path / name / "a.jsonl").write_text(rows, encoding="utf-8")
    (tmp_path / "domain" / "notes.md").write_text("not read", encoding="utf-8")
    words = ["--add", 2, "--input", tmp_path / "domain", "--keep", tmp_path / "other", "--text-column", "body"]
    assert extend(alone, *words, "--output", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "other text" in printed and "1 .md" in printed
    assert json.loads((tmp_path / "out" / "tokenizer_report.json").read_text())["reading"]["skipped_files"]


def test_nothing_is_written_before_all_is(text, tmp_path, monkeypatch):
    source, out = checkpoint(FAMILIES[0], tmp_path), tmp_path / "out"
    assert extend(source, "--add", 1, "--input", text, "--output", out) == 0
    before = {file.name: file.read_bytes() for file in out.iterdir()}

    def fail(*arguments):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(tokenizer_command, "save_report", fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        extend(source, "--add", 3, "--input", text, "--output", out, "--overwrite")
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--add", "0"], "--add 0"),
        (["--vocab-size", "90"], "--vocab-size is for a new tokenizer"),
        (["--cased"], "--cased is for a new tokenizer"),
        (["--keep", "nowhere.txt"], "--keep: 'nowhere.txt' does not exist"),
        (["--keep", "EMPTY"], "there is no text"),
        (["--limit", "nan"], "--limit nan"),
    ],
)
def test_wrong_options_are_refused_before_text_is_read(arguments, message, alone, text, tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("\n\n")
    arguments = [str(tmp_path / "empty.txt") if word == "EMPTY" else word for word in arguments]
    assert message in refused(capsys, alone, "--input", text, "--output", tmp_path / "out", *arguments)
    assert not (tmp_path / "out" / "tokenizer.json").exists()


def test_nothing_stays_of_an_overwritten_checkpoint_and_a_killed_command(alone, text, tmp_path):
    source, out = checkpoint(FAMILIES[0], tmp_path / "start"), tmp_path / "out"
    assert extend(source, "--add", 1, "--input", text, "--output", out) == 0
    (out / "README.md").write_text("mine")
    (out / UNFINISHED).mkdir()  # of a command that was killed
    (out / UNFINISHED / "config.json").write_text("{")
    assert extend(alone, "--add", 1, "--input", text, "--output", out, "--overwrite") == 0
    assert not any((out / name).exists() for name in ("config.json", "model.safetensors", UNFINISHED))
    assert (out / "README.md").read_text() == "mine"


@pytest.mark.parametrize("source", ["nowhere/at/all", "empty"])
def test_a_source_without_tokenizer(source, text, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "--extend" in refused(capsys, source, "--input", text, "--output", tmp_path / "out")


def test_checkpoints_that_are_not_whole_are_refused_before_text_is_read(text, tmp_path, capsys):
    source, command = Path(checkpoint(HfeBertConfig, tmp_path)), ("--input", text, "--output", tmp_path / "out")
    file, config = source / "model.safetensors", source / "config.json"
    weights, fields = load_file(file), json.loads(config.read_text())

    def message(changed_weights, changed_fields) -> str:
        save_file(changed_weights, file, metadata={"format": "pt"})
        config.write_text(json.dumps({**fields, **changed_fields}))
        return refused(capsys, source, *command)

    assert "has no weights for" in message(dict(list(weights.items())[2:]), {})
    assert "names no head of bert" in message(weights, {"architectures": ["BertForSomethingElse"]})
    fewer = {"num_hidden_layers": fields["num_hidden_layers"] - 1}
    assert "of a layer that its config.json does not have" in message(weights, fewer)
    name = next(name for name in weights if name.endswith("output.dense.weight"))
    broken = {**weights, name: torch.full_like(weights[name], torch.nan)}
    assert f"weight {name} is not finite" in message(broken, {})
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.add_tokens([f"<{number}>" for number in range(64)])
    tokenizer.save_pretrained(source)
    assert "the other tokens were never trained" in message(weights, {})


def test_a_discriminator_s_generator_is_extended_too(text, tmp_path):
    tokenizer = train(HfeElectraConfig)
    fields = {"vocab_size": padded_vocab_size(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    model = ReplacedTokenDetectionModel(tiny_config(HfeElectraConfig, **fields))
    for folder in (tmp_path / "source", tmp_path / "again"):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    for name in ("source", "again"):
        words = (tmp_path / name, "--add", 3, "--input", text, "--output", tmp_path / "out", "--overwrite")
        assert extend(*words) == 0
        pieces = json.loads((tmp_path / "out" / "new_entries.json").read_text())
        extended = ReplacedTokenDetectionModel.from_pretrained(tmp_path / "out")
        for part, before in ((extended.discriminator, model.discriminator), (extended.generator, model.generator)):
            rows, old = (one.get_input_embeddings().weight for one in (part, before))
            for number, ids in pieces.items():
                torch.testing.assert_close(rows[int(number)], old[ids].mean(dim=0))
    bert = checkpoint(HfeBertConfig, tmp_path)
    assert extend(bert, "--add", 3, "--input", text, "--output", tmp_path / "out", "--overwrite") == 0
    assert not (tmp_path / "out" / "generator").exists()


def test_transformers_4_knows_the_class_of_the_tokenizer(text, tmp_path):
    source = checkpoint(HfeBertConfig, tmp_path)
    file = Path(source, "tokenizer_config.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}))
    assert extend(source, "--add", 3, "--input", text, "--output", tmp_path / "out") == 0
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["tokenizer_class"] == (
        "PreTrainedTokenizerFast"
    )
    assert AutoTokenizer.from_pretrained(tmp_path / "out").mask_token == "[MASK]"
