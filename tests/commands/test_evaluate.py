"""`hf-encoders evaluate`: what it prints and writes, and what it refuses before anything is loaded."""

import argparse
import json

import numpy as np
import pytest
import transformers
from transformers import MPNetConfig, MPNetForMaskedLM

import hf_encoders
from hf_encoders import pseudo_log_likelihoods, pseudo_perplexity, token_log_probabilities
from hf_encoders.commands import evaluate as command
from hf_encoders.evaluation import scores
from tests.hub.tiny_checkpoints import BERT, FAMILIES, make_model, make_tokenizer, save_checkpoint


MASKED = [family for family in FAMILIES if "AutoModelForMaskedLM" in family.config_class.AUTO_MAP]
SENTENCES = ["The cat sat on a mat.", "A dog slept.", "The zebra slept all day long."]
PAIRS = [("The cat sat.", "Cat the sat.", "order"), ("mat", "dog", "word"), ("a dog", "dog a", "order")]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text.txt").write_text(f"{SENTENCES[0]} {SENTENCES[1]}\n\n{SENTENCES[2]}\n")
    rows = [dict(zip(("sentence_good", "sentence_bad", "UID"), pair, strict=True)) for pair in PAIRS]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def evaluate(folder, *arguments: str, family=BERT) -> int:
    model = folder / family.name
    if not model.exists():
        save_checkpoint(make_model(family, "AutoModelForMaskedLM"), family, model)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    given = parser.parse_args(["--model", str(model), "--device", "cpu", *map(str, arguments)])
    command.check(given)
    return command.run(given)


@pytest.mark.parametrize("classes", ["hf_encoders", "transformers"])
@pytest.mark.parametrize("family", MASKED, ids=lambda family: family.name)
def test_table_and_json(folder, capsys, family, classes):
    code = evaluate(
        folder, "--text", folder / "text.txt", "--pairs", folder / "pairs.jsonl", "--classes", classes,
        "--mask-rest-of-word", "--json", folder / "out.json", family=family,
    )  # fmt: skip
    assert code == 0
    output, metrics = capsys.readouterr().out, json.loads((folder / "out.json").read_text())
    model, tokenizer = make_model(family, "AutoModelForMaskedLM"), make_tokenizer(family)
    scores = token_log_probabilities(model, tokenizer, SENTENCES, mask_rest_of_word=True)
    text = metrics["text"]
    assert text["pseudo_perplexity"] == pytest.approx(pseudo_perplexity(scores), rel=1e-5)
    assert text["log_likelihood_per_token"] == pytest.approx(np.concatenate(scores).mean(), rel=1e-5)
    assert (text["sentences"], text["tokens"], text["skipped_sentences"]) == (3, sum(map(len, scores)), 0)
    assert f"pseudo-perplexity {text['pseudo_perplexity']:,.2f}" in output

    good, bad = (pseudo_log_likelihoods(model, tokenizer, column, mask_rest_of_word=True)
                 for column in list(zip(*PAIRS, strict=True))[:2])  # fmt: skip
    pairs = metrics["pairs"]
    assert (pairs["accuracy"], pairs["pairs"]) == ((good > bad).mean(), 3)
    assert {name: row["pairs"] for name, row in pairs["paradigms"].items()} == {"order": 2, "word": 1}
    assert all(name in output for name in ("order", "word", "all", f"{pairs['accuracy']:.1%}"))
    assert metrics["mask_rest_of_word"] is True and metrics["machine"]["torch"]


def row(number, **others):
    return {"sentence_good": f"good {number}", "sentence_bad": f"bad {number}", **others}


def test_files_and_folders_of_pairs_are_read_in_order_and_wrong_ones_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").mkdir()
    files = {
        "folder/b.jsonl": [row(3), row(4)],
        "folder/a.jsonl": [row(1, UID="island"), row(2, UID="agreement")],
        "single.jsonl": [row(5, field="syntax")],
        "wrong.jsonl": [row(1), {"sentence_good": "alone"}],
    }
    for name, rows in files.items():
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    pairs = scores.read_minimal_pairs([tmp_path / "folder", tmp_path / "single.jsonl"])
    assert pairs["sentence_good"] == [f"good {number}" for number in (1, 2, 3, 4, 5)]
    assert pairs["UID"] == ["island", "agreement", "b", "b", "single"]
    first = scores.read_minimal_pairs([tmp_path / "folder"], most_per_file=1)
    assert first["sentence_bad"] == ["bad 1", "bad 3"]
    for name, message in (
        ("none.jsonl", "none.jsonl is not a file"),
        ("empty", "has no .*jsonl file"),
        ("wrong.jsonl", "wrong.jsonl, row 2: sentence_bad is None"),
    ):
        with pytest.raises(ValueError, match=message):
            scores.read_minimal_pairs([tmp_path / name])


def test_classes_decide_whose_model_runs(folder, monkeypatch):
    seen = []

    def recording(model, *given, **named):
        seen.append(type(model))
        return token_log_probabilities(model, *given, **named)

    monkeypatch.setattr(scores, "token_log_probabilities", recording)
    for classes in ("hf_encoders", "transformers"):
        evaluate(folder, "--text", folder / "text.txt", "--classes", classes)
    assert seen == [hf_encoders.HfeBertForMaskedLM, transformers.BertForMaskedLM]


@pytest.mark.parametrize("classes", ["hf_encoders", "transformers"])
def test_weights_without_an_mlm_head_are_refused_and_pretraining_checkpoints_have_one(folder, classes):
    save_checkpoint(make_model(BERT, "AutoModelForPreTraining"), BERT, folder / "bert")
    assert evaluate(folder, "--text", folder / "text.txt", "--classes", classes) == 0
    save_checkpoint(make_model(BERT, "AutoModelForSequenceClassification"), BERT, folder / "bert")
    with pytest.raises(ValueError, match="has no weights for .* saved with its MLM head"):
        evaluate(folder, "--text", folder / "text.txt", "--classes", classes)


def test_unknown_words_are_printed_and_limit_takes_the_first(folder, capsys):
    arguments = ("--text", folder / "text.txt", "--pairs", folder / "pairs.jsonl", "--json", folder / "out.json")
    evaluate(folder, *arguments, "--limit", "2")
    metrics = json.loads((folder / "out.json").read_text())
    assert (metrics["text"]["sentences"], metrics["pairs"]["pairs"]) == (2, 2)
    assert "unknown" not in capsys.readouterr().out
    evaluate(folder, "--text", folder / "text.txt", "--one-sentence-per-line")
    assert "of tokens are unknown" in capsys.readouterr().out


def test_long_sentences_are_refused_or_left_out_and_counted(folder, capsys):
    (folder / "text.txt").write_text("The dog slept.\n" + "mat " * 50 + "\n")
    given = ("--text", folder / "text.txt", "--one-sentence-per-line")
    with pytest.raises(ValueError, match="1 of 2 sentences are longer than the 43 tokens .* with --skip-long"):
        evaluate(folder, *given)
    evaluate(folder, *given, "--skip-long")
    output = capsys.readouterr().out
    assert "1 sentences, 4 tokens" in output and "1 sentences were too long and skipped" in output


@pytest.mark.parametrize("classes", ["hf_encoders", "transformers"])
def test_a_family_without_a_head_for_masked_tokens(folder, classes):
    for family in (family for family in FAMILIES if family not in MASKED):
        save_checkpoint(make_model(family, "AutoModel"), family, folder / family.name)
        with pytest.raises(ValueError, match=f"is a {family.name}, which has no head for masked tokens"):
            evaluate(folder, "--text", folder / "text.txt", "--classes", classes, family=family)


def test_another_architecture_needs_the_classes_of_transformers(folder):
    sizes = {"hidden_size": 12, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 17}
    model = MPNetForMaskedLM(MPNetConfig(vocab_size=len(make_tokenizer(BERT)), **sizes))
    model.save_pretrained(folder / "bert")
    make_tokenizer(BERT).save_pretrained(folder / "bert")
    with pytest.raises(ValueError, match="use --classes transformers"):
        evaluate(folder, "--text", folder / "text.txt")
    assert evaluate(folder, "--text", folder / "text.txt", "--classes", "transformers") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "neither --text nor --pairs"),
        (["--text", "text.txt", "--limit", "0"], "--limit 0"),
        (["--text", "text.txt", "--max-tokens", "-1"], "--max-tokens -1"),
        (["--text", "text.txt", "--json", "none/out.json"], "--json none/out.json: its folder does not exist"),
        (["--text", "text.txt", "--json", "/"], "--json /: is a folder"),
        (["--text", "none.txt"], "'none.txt' does not exist"),
        (["--text", "empty.txt"], "has no sentence"),
        (["--pairs", "none.jsonl"], "--pairs 'none.jsonl' does not exist"),
    ],
)
def test_wrong_arguments_are_told_before_anything_is_loaded(folder, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    (folder / "empty.txt").write_text("\n")
    monkeypatch.setattr(scores, "load_encoder", lambda *given: pytest.fail("loaded"))
    with pytest.raises(ValueError, match=message):
        evaluate(folder, *arguments)
