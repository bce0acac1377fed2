"""Ids are those of tokenizer.json, whatever class stands beside it, and also once they are saved."""

import io
import json
import shutil

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers
from transformers import AutoTokenizer, BertJapaneseTokenizer, CamembertTokenizer

from hf_encoders import HfeRobertaConfig, tokenizer_loading, train_tokenizer
from hf_encoders.cli import main
from hf_encoders.loading import read_config
from hf_encoders.publishing.files import published_files, save_tokenizer
from hf_encoders.registration import config_class_of, configurations
from hf_encoders.tokenizer_loading import load_tokenizer
from tests.finetuning.tiny import save_encoder
from tests.hub.tiny_checkpoints import BERT


TRAINED_ON = ["The pump failed, the valve stopped.", "A motor ran; the umbrella isn't here.", "Die Übung läuft."] * 20
TEXTS = ["The pump failed", "Die Übung isn't 12,345  here.", "a [MASK], a <mask> and a ﬁne Ｔｅｓｔ"]
# Vocabularies: WordPiece, byte-level BPE, Unigram, Unigram with RoBERTa's special tokens, BPE with a suffix.
FAMILIES = ("bert", "roberta", "albert", "xlm-roberta", "xlm")
CLASSES = ("Bert", "Roberta", "Albert", "XLNet", "XLMRoberta", "DistilBert", "Electra", "Camembert", "MPNet")


def folder_with_class(family, name, folder, **fields):
    """A trained tokenizer, in whose tokenizer_config.json another class is written."""
    train_tokenizer(TRAINED_ON, config_class_of(family), 300, max_length=77).save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    kept = {key: value for key, value in json.loads(file.read_text()).items() if key.endswith(("_token", "_length"))}
    file.write_text(json.dumps({**kept, "tokenizer_class": f"{name}TokenizerFast", **fields}))
    return folder


def assert_as_in_file(tokenizer, file):
    expected = Tokenizer.from_file(str(file))
    assert [tokenizer(text).input_ids for text in TEXTS] == [expected.encode(text).ids for text in TEXTS]
    assert tokenizer(*TEXTS[:2]).input_ids == expected.encode(*TEXTS[:2]).ids
    assert tokenizer.get_vocab() == expected.get_vocab()


@pytest.mark.parametrize(
    ("family", "name"), [*zip(FAMILIES * 2, CLASSES, strict=False), ("bert", "Bert"), ("xlm", "Albert")]
)
def test_ids_are_those_of_the_file_whatever_the_class(family, name, tmp_path):
    source = folder_with_class(family, name, tmp_path / "source", padding_side="left")
    tokenizer = load_tokenizer(source)
    save_tokenizer(tokenizer, tmp_path / "saved")
    for read in (tokenizer, load_tokenizer(tmp_path / "saved"), AutoTokenizer.from_pretrained(tmp_path / "saved")):
        assert_as_in_file(read, source / "tokenizer.json")
        assert (read.model_max_length, read.padding_side) == (77, "left")
        written = json.loads((source / "tokenizer_config.json").read_text())
        for role in ("mask_token", "pad_token", "cls_token", "sep_token", "unk_token"):
            assert getattr(read, role) == written[role]


def test_special_tokens_of_old_folders_and_those_of_the_class(tmp_path):
    source = folder_with_class("bert", "Roberta", tmp_path / "old")
    written = json.loads((source / "tokenizer_config.json").read_text())
    tokens = {key: value for key, value in written.items() if key.endswith("_token")}
    (source / "special_tokens_map.json").write_text(json.dumps(tokens))
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')
    tokenizer = load_tokenizer(source)
    assert (tokenizer.mask_token, tokenizer.bos_token) == ("[MASK]", None)
    assert tokenizer.model_input_names == ["input_ids", "attention_mask"]
    assert_as_in_file(tokenizer, source / "tokenizer.json")

    (source / "special_tokens_map.json").unlink()
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')  # strip_accents: another one
    tokenizer = load_tokenizer(source)
    assert (tokenizer.mask_token, tokenizer.pad_token_id) == ("[MASK]", 0)
    assert tokenizer.model_input_names == ["input_ids", "token_type_ids", "attention_mask"]
    assert_as_in_file(tokenizer, source / "tokenizer.json")


def test_settings_that_disagree_with_the_file_have_no_effect(tmp_path):
    source = folder_with_class("bert", "Bert", tmp_path / "source", do_lower_case=False, strip_accents=False)
    assert AutoTokenizer.from_pretrained(source)(TEXTS[0]).input_ids.count(1) > 0, "transformers follows the settings"
    assert_as_in_file(load_tokenizer(source), source / "tokenizer.json")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_class_that_gives_the_same_ids_is_kept(family, tmp_path, monkeypatch):
    saved = train_tokenizer(TRAINED_ON, config_class_of(family), 300)
    saved.save_pretrained(tmp_path)
    if family != "xlm":  # the file is not made a second tokenizer for comparison
        monkeypatch.setattr(tokenizer_loading, "PreTrainedTokenizerFast", None)
    assert type(load_tokenizer(tmp_path)) is type(saved)


def test_a_class_is_kept_where_the_same_steps_are_described_otherwise(tmp_path):
    saved = train_tokenizer(TRAINED_ON, config_class_of("albert"), 300)
    saved.save_pretrained(tmp_path)
    backend = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    # As in the published files of ALBERT and many of XLM-R, although the words are cut at white space anyway.
    backend.normalizer = normalizers.Sequence([backend.normalizer, normalizers.Replace("  ", " ")])
    backend.save(str(tmp_path / "tokenizer.json"))
    assert type(load_tokenizer(tmp_path)) is type(saved)


def test_tokens_that_were_added_after_the_file_was_written(tmp_path):
    source = folder_with_class("bert", "Roberta", tmp_path / "source", extra_special_tokens=["<title>"])
    size = Tokenizer.from_file(str(source / "tokenizer.json")).get_vocab_size()
    (source / "added_tokens.json").write_text(json.dumps({"gearbox": size}))
    tokenizer = load_tokenizer(source)
    assert tokenizer("gearbox <title>", add_special_tokens=False).input_ids == [size, size + 1]
    assert tokenizer(TEXTS[0]).input_ids == Tokenizer.from_file(str(source / "tokenizer.json")).encode(TEXTS[0]).ids


def test_a_class_in_python_beside_a_tokenizer_json_is_kept_and_said(tmp_path, caplog):
    source = folder_with_class("bert", "BertJapanese", tmp_path)
    fields = json.loads((source / "tokenizer_config.json").read_text())
    fields |= {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "basic"}
    (source / "tokenizer_config.json").write_text(json.dumps(fields))
    vocabulary = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
    (source / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)))
    tokenizer = load_tokenizer(source)
    assert "BertJapaneseTokenizer, written in Python: tokenizer.json is not read" in caplog.text
    (source / "tokenizer.json").unlink()
    alone = load_tokenizer(source)
    assert type(tokenizer) is type(alone) is BertJapaneseTokenizer
    assert [tokenizer(text).input_ids for text in TEXTS] == [alone(text).input_ids for text in TEXTS]


@pytest.mark.parametrize("damage", [b"{", b'{"version": "1.0", "model": {"type": "Bigram"}}'])
def test_a_damaged_file_is_refused(damage, tmp_path):
    source = folder_with_class("bert", "Bert", tmp_path)
    (source / "tokenizer.json").write_bytes(damage)
    with pytest.raises(ValueError, match=f"--model '{source}' has no tokenizer that can be loaded"):
        load_tokenizer(source, "--model")


def test_a_fine_tuned_model_has_the_ids_of_the_file(tmp_path):
    model = save_encoder(BERT, tmp_path / "model", vocab_size=400)
    for file in model.glob("*token*"):
        file.unlink()
    shutil.copytree(folder_with_class("bert", "Roberta", tmp_path / "tokenizer"), model, dirs_exist_ok=True)
    (tmp_path / "a.csv").write_text("text,label\n" + "The pump failed.,a\nA motor ran.,b\n" * 6)
    command = ["finetune", "text-classification", "--model", model, "--train", tmp_path / "a.csv", "--max-steps", 1]
    words = [*command, "--output", tmp_path / "out", "--disable-tqdm", "True"]
    assert main([str(word) for word in words]) == 0
    assert_as_in_file(AutoTokenizer.from_pretrained(tmp_path / "out" / "seed-0"), model / "tokenizer.json")


def test_added_tokens_are_those_of_the_file(tmp_path):
    """tokenizer_config.json says otherwise about the space before the mask, and is saved without that."""
    for family, name in (("roberta", "Roberta"), ("bert", "Roberta")):
        source = folder_with_class(family, name, tmp_path / family)
        backend = Tokenizer.from_file(str(source / "tokenizer.json"))
        fields = json.loads((source / "tokenizer_config.json").read_text())
        mask, mask_id = fields["mask_token"], backend.token_to_id(fields["mask_token"])
        backend.add_special_tokens([AddedToken(mask, lstrip=True, special=True)])
        backend.save(str(source / "tokenizer.json"))
        fields["added_tokens_decoder"] = {str(mask_id): {"content": mask, "lstrip": False, "special": True}}
        (source / "tokenizer_config.json").write_text(json.dumps(fields))
        save_tokenizer(load_tokenizer(source), tmp_path / family / "saved")
        saved = tmp_path / family / "saved"
        for read in (load_tokenizer(source), load_tokenizer(saved), AutoTokenizer.from_pretrained(saved)):
            text = f"The pump  {mask} failed"
            assert read(text).input_ids == backend.encode(text).ids
            assert_as_in_file(read, source / "tokenizer.json")


def test_a_null_prefix_is_an_empty_one(tmp_path, caplog):
    saved = train_tokenizer(TRAINED_ON, config_class_of("roberta"), 300)
    saved.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "tokenizer.json").read_text())
    names = ("continuing_subword_prefix", "end_of_word_suffix")
    for value in (None, ""):
        fields["model"] |= dict.fromkeys(names, value)
        (tmp_path / "tokenizer.json").write_text(json.dumps(fields))
        tokenizer = load_tokenizer(tmp_path)
        assert type(tokenizer) is type(saved) and "does not give the ids" not in caplog.text
        assert_as_in_file(tokenizer, tmp_path / "tokenizer.json")


@pytest.mark.parametrize("kind", ["Bertweet", "Phobert"])
def test_published_tokenizers_in_python_are_loaded_beside_a_tokenizer_json(kind, tmp_path, caplog):
    """BERTweet and PhoBERT, which are RoBERTa models."""
    source = tmp_path / "published"
    folder_with_class("roberta", kind, source)
    (source / "vocab.txt").write_text("the 9\nt@@ 5\nh@@ 5\ne 5\n")
    (source / "bpe.codes").write_text("#version: 0.2\nt h 5\nth e</w> 5\n")
    fields = {"tokenizer_class": f"{kind}Tokenizer", "model_max_length": 77}
    (source / "tokenizer_config.json").write_text(json.dumps(fields))
    tokenizer = load_tokenizer(source, "--model")
    assert type(tokenizer).__name__ == f"{kind}Tokenizer"
    assert f"--model '{source}': the ids are those of {kind}Tokenizer, written in Python" in caplog.text
    save_tokenizer(tokenizer, tmp_path / "saved")
    assert {file.name for file in (tmp_path / "saved").iterdir()} <= published_files(tmp_path / "saved")
    if kind == "Bertweet":  # transformers 5 saves the merges without their counts, and reads them with these
        shutil.copy(source / "bpe.codes", tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved")("the thee").input_ids == tokenizer("the thee").input_ids


def test_camembert_without_a_tokenizer_json(tmp_path):
    """Also where the configuration has been read as RoBERTa's before, as every command does."""
    spm = pytest.importorskip("sentencepiece", reason="pip install 'hf_encoders[sentencepiece]'")
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINED_ON), model_writer=model, vocab_size=34, minloglevel=2
    )
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model.getvalue())
    fields = HfeRobertaConfig(vocab_size=70).to_dict() | {"model_type": "camembert"}
    del fields["tokenizer_class"], fields["auto_map"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    config = read_config(tmp_path)
    tokenizer = load_tokenizer(tmp_path, config=config)
    assert type(tokenizer) is type(load_tokenizer(tmp_path)) is CamembertTokenizer
    ids = tokenizer("The pump failed").input_ids
    assert ids == load_tokenizer(tmp_path)("The pump failed").input_ids and tokenizer.unk_token_id not in ids
    config.save_pretrained(tmp_path / "saved")
    assert read_config(tmp_path / "saved").tokenizer_class == "CamembertTokenizer"


@pytest.mark.parametrize("config_class", configurations(), ids=lambda config_class: config_class.model_type)
def test_a_folder_without_a_tokenizer_is_refused_for_every_family(config_class, tmp_path):
    """transformers makes one of special tokens, of which DeBERTa's has two twice."""
    config_class().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no tokenizer.*save it there with tokenizer.save_pretrained"):
        load_tokenizer(str(tmp_path))
