"""Tokenizers that are written in Python, lack an unknown token, lose capitals, or have more ids than the model."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, BertJapaneseTokenizer, BertTokenizer, PreTrainedTokenizerFast

from hf_encoders.cli import main
from hf_encoders.finetuning.task import encode_texts
from hf_encoders.tokenizer_loading import load_tokenizer
from tests.finetuning.tiny import save_encoder
from tests.hub.tiny_checkpoints import BERT


TEXTS = ["弁を点検した", "ポンプは停止した", "弁は停止した", "ポンプを点検した"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def encoder_with(tokenizer, folder, vocab_size=300):
    save_encoder(BERT, folder, vocab_size=vocab_size)
    for file in folder.glob("*token*"):
        file.unlink()
    tokenizer.save_pretrained(folder)
    return folder


def csv_of(texts, folder):
    rows = [f"{text},{'ab'[number % 2]}" for number, text in enumerate(texts * 6)]
    (folder / "a.csv").write_text("\n".join(["text,label", *rows]))
    return folder / "a.csv"


def command(*words):
    return main([str(word) for word in words])


def finetune(task, model, file, output, *words):
    options = ["--max-steps", 1, "--max-length", 16, "--disable-tqdm", "True", *words]
    return command("finetune", task, "--model", model, "--train", file, "--output", output, *options)


@pytest.fixture
def in_python(tmp_path):
    """A Japanese encoder whose tokenizer cuts text into characters, in Python."""
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *sorted(set("".join(TEXTS)))]))
    options = {"word_tokenizer_type": "basic", "subword_tokenizer_type": "character", "model_max_length": 32}
    tokenizer = BertJapaneseTokenizer(tmp_path / "vocab.txt", do_lower_case=False, **options)
    return encoder_with(tokenizer, tmp_path / "model")


def test_texts_are_classified_with_a_tokenizer_in_python(in_python, tmp_path, capsys):
    assert (
        finetune("text-classification", in_python, csv_of(TEXTS, tmp_path), tmp_path / "out", "--max-length", 7) == 0
    )
    plan = capsys.readouterr().out
    own, saved = load_tokenizer(in_python), AutoTokenizer.from_pretrained(tmp_path / "out" / "seed-0")
    assert type(saved) is BertJapaneseTokenizer
    assert [saved(text).input_ids for text in TEXTS] == [own(text).input_ids for text in TEXTS]
    assert plan.count("7 at most; 100.0% are truncated") == 2  # 8 or 10 tokens, in training and validation
    encoded, truncated = encode_texts(TEXTS[:2], TEXTS[2:], own, 18)
    assert [len(ids) for ids in encoded["input_ids"]] == [15, 18] and truncated == 1
    assert {0, 1} == set(encoded["token_type_ids"][0])


WORDS = '{"tokens": ["弁", "を"], "ner_tags": ["B-X", "O"]}\n' * 8
ANSWER = (
    '{"id": "NUMBER", "question": "何", "context": "弁NUMBER", "answers": {"text": ["弁"], "answer_start": [0]}}\n'
)
ANSWERS = "".join(ANSWER.replace("NUMBER", str(number)) for number in range(12))


@pytest.mark.parametrize(("task", "content"), [("token-classification", WORDS), ("question-answering", ANSWERS)])
def test_places_in_the_text_are_asked_of_no_tokenizer_in_python(in_python, task, content, tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text(content)
    assert finetune(task, in_python, tmp_path / "a.jsonl", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert "BertJapaneseTokenizer is written in Python" in error and "classify whole texts" in error


def test_a_tokenizer_in_python_is_not_extended(in_python, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS))
    assert command("tokenizer", "--extend", in_python, "--input", tmp_path / "a.txt", "--output", tmp_path / "b") == 2
    assert "tokenizer.json" in capsys.readouterr().err


def wordpiece_without_unknown(words):
    backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(
        ("[SEP]", words.index("[SEP]")), ("[CLS]", words.index("[CLS]"))
    )
    roles = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=32, **roles)


def test_words_outside_a_vocabulary_without_unknown_token(tmp_path, capsys):
    words = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "pump", "ran"]
    model = encoder_with(wordpiece_without_unknown(words), tmp_path / "model")
    data = csv_of(["pump ran", "ran"], tmp_path)
    assert finetune("text-classification", model, data, tmp_path / "covered") == 0
    assert finetune("text-classification", model, data, tmp_path / "out", "--text-column", "CHUNK") == 2
    error = capsys.readouterr().err  # which has "unk" in it
    assert "--text-column CHUNK: the train data has no such column" in error and "unknown words" not in error
    assert finetune("text-classification", model, csv_of(["pump ran", "valve"], tmp_path), tmp_path / "out") == 2
    assert "the tokenizer has no token for unknown words" in capsys.readouterr().err
    (tmp_path / "a.txt").write_text("a pump\n\nran\n\nvalve")
    assert command("corpus", "--tokenizer", model, "--input", tmp_path / "a.txt", "--output", tmp_path / "c") == 2
    assert "the tokenizer has no token for unknown words" in capsys.readouterr().err


def test_byte_level_vocabularies_need_no_unknown_token(tmp_path):
    words = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    backend.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    roles = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=32, **roles)
    model = encoder_with(tokenizer, tmp_path / "model")
    assert finetune("text-classification", model, csv_of(TEXTS[:2], tmp_path), tmp_path / "out") == 0


def test_more_ids_than_the_model_has_rows_are_refused_before_training(tmp_path, capsys):
    vocab = {word: i for i, word in enumerate([*SPECIAL, "the", "pump", "ran", "umbrella"])}
    model = encoder_with(
        BertTokenizer(vocab=vocab, model_max_length=32), tmp_path / "model", vocab_size=len(vocab) - 1
    )
    assert finetune("text-classification", model, csv_of(["the pump", "ran"], tmp_path), tmp_path / "out") == 2
    assert "the tokenizer has ids up to 8, and the model rows for 8" in capsys.readouterr().err
    assert not (tmp_path / "out" / "seed-0").exists()


@pytest.mark.parametrize("lowercase", [True, False])
def test_capitals_that_no_text_gives_are_warned_of(lowercase, tmp_path, caplog):
    vocab = {word: i for i, word in enumerate([*SPECIAL, "The", "the", "Pump", "pump", "ran"])}
    tokenizer = BertTokenizer(vocab=vocab, do_lower_case=lowercase, model_max_length=32)
    model = encoder_with(tokenizer, tmp_path / "model")
    assert finetune("text-classification", model, csv_of(["The pump", "ran"], tmp_path), tmp_path / "out") == 0
    assert ("40% of the entries have capitals" in caplog.text) is lowercase
