"""What `hf-encoders adapt` refuses: each in one line, with the remedy, before it computes."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from hf_encoders.cli import main
from tests.commands.adapt_runs import adapt, checkpoint, write_texts


@pytest.fixture
def folder(tmp_path):
    return write_texts(tmp_path)


def test_text_that_cannot_be_read_leaves_the_folder_to_other_text(folder, capsys):
    source = checkpoint(folder, "bert")
    (folder / "none.txt").write_text("", encoding="utf-8")
    (folder / "other.jsonl").write_text('{"body": "alpha"}\n', encoding="utf-8")
    for corpus, message in (("none.txt", "--corpus: the text has no sentence"), ("other.jsonl", "no field 'text'")):
        assert adapt(folder, source, "run", corpus=corpus) == 2
        assert message in capsys.readouterr().err
    assert adapt(folder, source, "run") == 0
    assert not (folder / "run" / "_corpus" / "_unfinished").exists()


@pytest.mark.parametrize(("family", "rows"), [("bert", 24), ("roberta", 22)])
def test_distances_do_not_become_longer(family, rows, folder, capsys):
    checkpoint(folder, family, max_position_embeddings=24)
    config = json.loads((folder / "ours" / "config.json").read_text())
    about = {"position_embedding_type": "relative_key", "model_type": f"hfe_{family}"}
    (folder / "ours" / "config.json").write_text(json.dumps({**config, **about}))
    assert adapt(folder, folder / "ours", "run", "--max-length", "40") == 2
    assert f"--max-length 40: the checkpoint has distances of up to {rows} tokens" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--corpus", "--keep"])
def test_a_repeated_option_takes_no_text_away(option, folder, capsys):
    """And --keep goes with one --corpus without names."""
    words = ["adapt", "start", "--corpus", folder / "domain.txt", "--keep", folder / "general.txt", "--output", "o"]
    at = words.index(option)
    words[at:at] = [option, folder / "nowhere.txt"]
    assert main(list(map(str, words))) == 2
    assert "nowhere.txt' does not exist" in capsys.readouterr().err
    words = ["--corpus", f"a={folder / 'domain.txt'}", "--keep", folder / "general.txt"]
    assert adapt(folder, "start", "run", *words) == 2
    assert "--keep goes with one --corpus without names" in capsys.readouterr().err


def test_what_does_not_fit_is_refused_before_there_is_text(folder, capsys):
    source = Path(checkpoint(folder, "bert"))
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.add_tokens([f"<{number}>" for number in range(64)])
    tokenizer.save_pretrained(folder / "larger")
    assert adapt(folder, source, "run", "--tokenizer", folder / "larger") == 2
    assert "vocab_size=448 must be at least 484" in capsys.readouterr().err
    weights = load_file(source / "model.safetensors")
    removed = next(name for name in weights if name.endswith("layer.1.output.dense.weight"))
    del weights[removed]
    save_file(weights, source / "model.safetensors")
    assert adapt(folder, source, "run") == 2
    assert f"CHECKPOINT '{source}' has no {removed}" in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_positions_that_the_tokenizer_would_move_are_refused(folder, capsys):
    """RoBERTa's count from the padding id, of which `Trainer` writes the tokenizer's into config.json."""
    source = checkpoint(folder, "roberta")
    file = folder / "start" / "config.json"
    fields = json.loads(file.read_text())
    file.write_text(json.dumps({**fields, "pad_token_id": 0}))
    assert adapt(folder, source, "run") == 2
    error = capsys.readouterr().err
    assert "config.json has pad_token_id=0, which its positions count from, and the tokenizer 1" in error
    assert not (folder / "run").exists()


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder of texts and a checkpoint."""
    folder = write_texts(tmp_path_factory.mktemp("published"))
    return folder, checkpoint(folder, "roberta")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--replay", "1"], "--replay 1.0: it is a share in [0, 1)"),
        (["--replay", "0.2"], "give it with --keep"),
        (["--head-steps", "nan"], "--head-steps"),
        (["--head-steps", "2.5"], "give a share below 1, or a whole number"),
        (["--head-steps", "2"], "has all weights of HfeRobertaForMaskedLM, and no head is new: leave it out"),
        (["--max-length", "4"], "--max-length 4 must be at least 5 tokens"),
        (["--positions", "copy"], "--positions copy is for longer texts than the checkpoint has positions for"),
        (["--positions", "interpolate", "--max-length", "64"], "--positions interpolate is for longer texts"),
        (["--objective", "sop", "--recipe", "albert-minutes"], "model: is the checkpoint's"),
        (["--objective", "nsp"], "roberta has no head for sentence pairs"),
    ],
)
def test_wrong_input(words, message, published, capsys):
    folder, source = published
    assert adapt(folder, source, "run", *words) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "run" / "model").exists()


def test_a_tokenizer_without_a_mask_token_is_refused_before_text_is_read(folder, capsys):
    source = checkpoint(folder, "bert")
    file = folder / "start" / "tokenizer_config.json"
    tokenizer_config = json.loads(file.read_text())
    del tokenizer_config["mask_token"]
    file.write_text(json.dumps({**tokenizer_config, "tokenizer_class": "PreTrainedTokenizerFast"}))
    assert AutoTokenizer.from_pretrained(source).mask_token is None
    assert adapt(folder, source, "run") == 2
    assert "tokenizer has no mask_token" in capsys.readouterr().err
    assert not (folder / "run" / "_corpus").exists()
