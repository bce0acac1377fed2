"""What the user names is found at once, or told at once with the remedy."""

import itertools
import json
from types import SimpleNamespace

import datasets
import pytest
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from transformers import AutoConfig, AutoTokenizer

from hf_encoders import HfeXLMConfig, loading, tokenizer_loading
from hf_encoders.cli import main
from hf_encoders.loading import is_local, load_config, read_config
from hf_encoders.publishing.files import module_files
from hf_encoders.tokenizer_loading import load_tokenizer


NEW_HOURS = itertools.count(10**9, 3600)


@pytest.fixture
def saved(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "tok")
    return tmp_path / "tok"


@pytest.fixture
def hub(monkeypatch):
    """A Hub that answers as is set, and counts the questions."""

    def answer(url, timeout):
        answer.urls.append(url)
        if answer.error is not None:
            raise answer.error

    answer.urls, answer.error = [], None
    answer.seconds = next(NEW_HOURS)  # answers are remembered for a minute
    monkeypatch.setattr(loading, "get_hf_file_metadata", answer)
    monkeypatch.setattr(loading, "time", SimpleNamespace(monotonic=lambda: answer.seconds))
    return answer


def refusing(*_, **__):
    raise AssertionError("transformers was asked")


@pytest.fixture
def no_network(hub, monkeypatch):
    hub.error = OSError("[Errno -2] Name or service not known")
    for auto in (AutoTokenizer, AutoConfig):
        monkeypatch.setattr(auto, "from_pretrained", refusing)


@pytest.mark.parametrize("load", [load_tokenizer, load_config, read_config])
def test_a_name_without_a_network_is_asked_for_once(no_network, hub, load):
    with pytest.raises(
        ValueError, match="'?no-such'? is not a folder here, has not been downloaded, and .* not known"
    ):
        load("no-such")
    assert len(hub.urls) == 1 and "no-such" in hub.urls[0]


@pytest.mark.parametrize(
    "words",
    [
        ["corpus", "--input", "TEXT", "--output", "OUT", "--tokenizer", "no-such"],
        ["corpus", "--dataset", "no-such", "--output", "OUT", "--tokenizer", "TOK"],
        ["tokenizer", "--kind", "bpe", "--dataset", "no-such", "--output", "OUT"],
        ["pretrain", "bert-minutes", "--corpus", "TEXT", "--output", "OUT", "--tokenizer", "no-such"],
        ["finetune", "text-classification", "--model", "no-such", "--train", "TEXT", "--output", "OUT"],
        ["evaluate", "--model", "no-such", "--text", "TEXT"],
    ],
)
def test_every_command_tells_it_in_one_line(no_network, saved, tmp_path, capsys, monkeypatch, words):
    monkeypatch.setattr(datasets, "load_dataset", refusing)
    if "TOK" in words:
        monkeypatch.setattr(tokenizer_loading, "load_tokenizer", lambda *_: None)
    (tmp_path / "a.txt").write_text("w5 w6")
    names = {"TEXT": str(tmp_path / "a.txt"), "OUT": str(tmp_path / "out"), "TOK": str(saved)}
    assert main([names.get(word, word) for word in words]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "'no-such' is not a folder here, has not been downloaded, and the Hub cannot be reached" in error
    assert not (tmp_path / "out").exists()


def test_what_was_downloaded_is_loaded_without_a_network(hub, monkeypatch):
    hub.error = OSError("no network")
    monkeypatch.setattr(loading, "try_to_load_from_cache", lambda name, file: "x" if file == "vocab.txt" else None)
    assert is_local("org/name") is True
    hub.error = None
    hub.seconds += 60
    assert is_local("org/name") is False


@pytest.mark.parametrize("error", [None, OSError("no network")])
def test_the_hub_is_asked_once_for_many_files(hub, monkeypatch, saved, error):
    hub.error = error
    (saved / "modules.json").write_text(json.dumps([{"path": "1_Pooling", "type": "sentence_transformers.models.X"}]))
    downloaded = {file.name: str(file) for file in saved.iterdir()}
    monkeypatch.setattr(loading, "try_to_load_from_cache", lambda _, file: downloaded.get(file))
    monkeypatch.setattr(loading, "cached_file", lambda _, file, **__: downloaded.get(file))
    assert set(module_files("me/st")) == {"modules.json"}
    assert is_local("me/st", "--model") is (error is not None) and len(hub.urls) == 1
    hub.seconds += 60
    assert is_local("me/st") is (error is not None) and len(hub.urls) == 2


def test_what_the_hub_says_is_told(hub):
    response = SimpleNamespace(headers={}, request=None, status_code=404)
    hub.error = RepositoryNotFoundError("404", response=response)
    with pytest.raises(ValueError, match="the Hub has no such repository that you can read: check the spelling"):
        load_tokenizer("no-such")
    hub.error = HfHubHTTPError("429", response=response)
    assert is_local("busy/name") is False, "transformers tries again"


@pytest.mark.parametrize("name", ["./no-such", "/no/such", "a/b/c", "~/no-such", "no-such/"])
def test_a_path_to_nothing_is_no_question_for_the_hub(hub, name):
    with pytest.raises(ValueError, match=f"{name} does not exist: check the spelling"):
        load_tokenizer(name)
    assert hub.urls == []


def test_a_model_that_must_be_told_languages_is_refused_where_no_data_tells_them(tmp_path):
    config = HfeXLMConfig(n_langs=2, lang2id={"en": 0, "zh": 1})
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="needs langs for every token.*set default_lang in config.json.*en, zh"):
        load_config(str(tmp_path))
    assert read_config(tmp_path, None).required_ids == {"langs": "default_lang"}  # to publish and to export
    config.default_lang = "zh"
    config.save_pretrained(tmp_path)
    assert load_config(str(tmp_path)).required_ids == {}


def test_files_of_a_tokenizer(saved, hub, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert load_tokenizer(saved / name).get_vocab() == load_tokenizer(str(saved)).get_vocab()
    (tmp_path / "sp.model").write_bytes(b"\n\x0e\n\x05<pad>")
    with pytest.raises(
        ValueError, match="--tokenizer '.*sp.model' is a bare SentencePiece model: .*--from-sentencepiece"
    ):
        load_tokenizer(tmp_path / "sp.model", "--tokenizer")
    (tmp_path / "vocab.txt").write_text("[PAD]")
    with pytest.raises(ValueError, match="is a file: give the folder of a tokenizer"):
        load_tokenizer(tmp_path / "vocab.txt")
    with pytest.raises(ValueError, match="is a file: give the folder that it is in"):
        read_config(tmp_path / "vocab.txt")
    assert hub.urls == []
