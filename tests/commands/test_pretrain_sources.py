"""`hf-encoders pretrain --corpus NAME=PATH ...`: several sources in a run, planned, evaluated, resumed, extended."""

import json
import re
from contextlib import suppress

import pytest
import torch
import yaml

from hf_encoders import prepare_corpus
from hf_encoders.corpus.parallel import prepare_parallel_corpus
from hf_encoders.objectives import mixture
from hf_encoders.publishing.curves import read_run
from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.tokenizer_loading import load_tokenizer
from hf_encoders.training.checkpoints import facts_of_checkpoint
from tests.commands.pretrain_runs import TINY, pretrain, same_weights, stopped_after, weights
from tests.corpus.corpora import write_corpus


RECIPE = {
    **TINY,
    "phases": [{"steps": 4, "length": 24, "examples": 6}, {"steps": 2, "length": 40, "examples": 4}],
    "sources": {"alpha": 0.5},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two texts of 60 and 30 documents, and a finished run over both with all its checkpoints."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    write_corpus(folder / "en.txt", 60, "alpha")
    law = write_corpus(folder / "law.txt", 30, "beta")
    documents = law.read_text(encoding="utf-8").split("\n\n")
    # Every second one backwards: where all documents have the same lengths in the same order, lengths tell the order
    # of a pair, so that none has a label.
    documents[::2] = ["\n".join(reversed(document.split("\n"))) for document in documents[::2]]
    law.write_text("\n\n".join(documents), encoding="utf-8")
    assert run(folder, "whole", "--save_total_limit", "9") == 0
    return folder


def run(folder, output, *words, corpus=("en=en.txt", "law=law.txt"), recipe="tiny.yaml"):
    """The later `--corpus` of a command counts."""
    paths = [f"{name}={folder / path}" for name, path in (word.split("=") for word in corpus)]
    return pretrain(folder, output, "--corpus", *paths, *words, recipe=recipe)


def last_evaluation(folder):
    state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    (entry,) = [entry for entry in state["log_history"] if entry["step"] == 6 and "eval_loss" in entry]
    return entry


def test_each_source_is_prepared_and_recorded(folder):
    whole = folder / "whole"
    assert sorted(path.name for path in (whole / "_corpus").iterdir()) == ["en", "law"]
    noted = json.loads((whole / "run.json").read_text())
    assert set(noted["corpus"]) == {"en", "law"} and noted["languages"] == {"en": ["en"], "law": ["en"]}
    record = TrainingRecord.load(whole / "model")
    assert record.corpus["documents"] == 48 + 24 and record.corpus["name"] == "en: en.txt, law: law.txt"
    assert re.fullmatch(r"[\d,]+ tokens, read 0\.\d+ times", record.corpus["law"])
    assert record.schedule["sources"] == "alpha 0.5" and record.language == ["en"]
    evaluated = {(entry["dataset"], entry["metric"]) for entry in record.evaluation}
    assert {("held-out documents of law", "perplexity"), ("held-out documents of the corpus", "accuracy")} <= evaluated
    assert [corpus.split()[0] for corpus in facts_of_checkpoint(whole / "checkpoint-6")["corpora"]] == ["48", "24"]
    assert "held-out documents of law" in (whole / "model" / "README.md").read_text()


def test_losses_of_each_source_and_over_all(folder):
    """In one entry of the log; over all is the mean over items, which lies between the two."""
    entry = last_evaluation(folder / "whole" / "checkpoint-6")
    losses = [entry[name] for name in ("eval_en_mlm_loss", "eval_mlm_loss", "eval_law_mlm_loss")]
    assert min(losses[0], losses[2]) < losses[1] < max(losses[0], losses[2])
    assert entry["eval_loss"] == pytest.approx(entry["eval_mlm_loss"] + entry["eval_pair_loss"])
    assert {"eval_en_pair_accuracy", "eval_law_pair_accuracy"} <= entry.keys()
    curve = read_run(folder / "whole")
    assert curve.losses() == ["mlm_loss", "pair_loss"] and curve.sources() == ["en", "law"]


def test_the_plan_says_shares_and_passes(folder, capsys):
    tokenizer = ("--tokenizer", str(folder / "whole" / "tokenizer"))
    prepared = ("en=whole/_corpus/en", "law=whole/_corpus/law")
    assert run(folder, "nothing", "--plan", *tokenizer, "--corpus-weights", "law=3", "en=1", corpus=prepared) == 0
    printed = capsys.readouterr().out
    assert re.search(r"source +share +passes an epoch", printed) or re.search(r"phase 1: share", printed)
    (law,) = re.findall(r"^ +law +75\.0% +(\d+\.\d+) ", printed, re.M)
    assert float(law) == pytest.approx(0.75 * (48 + 24) / 24, rel=0.3)  # chunks are not documents
    assert not (folder / "nothing").exists()


def test_a_source_that_is_read_very_often_is_warned_of(folder, monkeypatch):
    warnings = []
    monkeypatch.setattr(mixture.logger, "warning_once", warnings.append)
    write_corpus(folder / "small.txt", 3, "alpha")
    words = ["--plan", "--validation-share", "0.3", "--tokenizer", str(folder / "whole" / "tokenizer")]
    words += ["--corpus-weights", "small=3", "en=1"]
    assert run(folder, "small", *words, corpus=("en=en.txt", "small=small.txt")) == 0
    expected = r"Source small is read \d+\.\d times in an epoch of the mixture"
    assert warnings and all(re.match(expected, warning) for warning in warnings)


def test_an_interrupted_run_ends_with_the_same_weights(folder, capsys):
    """Also under the sources in another order."""
    stopped_after(folder, "whole", "again", 2)
    assert run(folder, "again", corpus=("law=law.txt", "en=en.txt")) == 0
    assert re.search(r"Resuming from .*again/checkpoint-2", capsys.readouterr().out)
    assert same_weights(folder, "whole", "again")
    first, second = last_evaluation(folder / "whole"), last_evaluation(folder / "again")
    assert all(value == second[name] for name, value in first.items() if name.endswith(("loss", "accuracy")))


def test_accumulation_changes_nothing(folder):
    tokenizer = str(folder / "whole" / "tokenizer")
    assert run(folder, "divided", "--gradient_accumulation_steps", "4", "--tokenizer", tokenizer) == 0
    before, after = weights(folder / "whole" / "model"), weights(folder / "divided" / "model")
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "corpus", "said"),
    [
        (("--sampling-alpha", "0.7"), None, r"holds a run with another recipe \(sources\)"),
        (("--language", "law=de"), None, r"--corpus law=...: .*made with other settings"),
        ((), ("en=en.txt", "web=law.txt"), "trained for another run|another corpus"),
        ((), ("en=en.txt",), "trained for another run|another corpus"),
    ],
)
def test_another_run_is_refused(folder, words, corpus, said, capsys):
    corpus = corpus or ("en=en.txt", "law=law.txt")
    tokenizer = ("--tokenizer", str(folder / "whole" / "tokenizer"))
    assert run(folder, "whole", *words, *tokenizer, corpus=corpus) == 2
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.slow
def test_phases_with_sources_of_their_own(folder, capsys):
    """As in mmBERT, whose alpha falls from phase to phase; a resumed run is the same."""
    phases = [{**RECIPE["phases"][0], "sources": {"alpha": 1.0}}, {**RECIPE["phases"][1], "length": 24}]
    (folder / "phases.yaml").write_text(yaml.safe_dump({**RECIPE, "phases": phases}), encoding="utf-8")
    assert run(folder, "phases", recipe="phases.yaml") == 0
    assert "phase 1: share" in capsys.readouterr().out
    record = TrainingRecord.load(folder / "phases" / "model")
    assert record.schedule["phases"] == "4 steps of 6 x 24 tokens (alpha 1), 2 steps of 4 x 24 tokens"
    stopped_after(folder, "phases", "phases again", 4)
    assert run(folder, "phases again", recipe="phases.yaml") == 0
    assert same_weights(folder, "phases", "phases again")


@pytest.fixture(scope="module")
def prepared(folder):
    """Text, a prepared corpus and a parallel one of the same tokenizer."""
    tokenizer = load_tokenizer(folder / "whole" / "tokenizer")
    prepare_corpus([folder / "law.txt"], folder / "law", tokenizer, workers=1)
    nouns = ("cat", "dog", "house", "river", "song")
    pairs = "".join(f"{noun} {i} is in alpha\t{noun} {i} saw beta\n" for noun in nouns for i in range(8))
    (folder / "pairs.tsv").write_text(pairs, encoding="utf-8")
    prepare_parallel_corpus([folder / "pairs.tsv"], folder / "pairs", tokenizer, languages=("en", "zh"), workers=1)
    recipe = {**RECIPE, "objective": "mlm", "sources": {"weights": {"en": 2, "law": 1, "en-zh": 1}}}
    (folder / "mlm.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return folder


def test_text_and_prepared_and_parallel_corpora_in_one_run(prepared, capsys):
    corpus = ("en=en.txt", "law=law", "en-zh=pairs")
    tokenizer = ("--tokenizer", str(prepared / "whole" / "tokenizer"))
    assert run(prepared, "mixed", *tokenizer, corpus=corpus, recipe="mlm.yaml") == 0
    printed = capsys.readouterr().out
    assert "held-out, en-zh: masked tokens loss" in printed
    assert sorted(path.name for path in (prepared / "mixed" / "_corpus").iterdir()) == ["en"]
    record = TrainingRecord.load(prepared / "mixed" / "model")
    assert record.language == ["en", "zh"] and record.schedule["sources"] == "weights en 2, en-zh 1, law 1"
    assert record.objectives["translation language modelling"].startswith("the same in pairs of en-zh: both sides")
    assert (
        run(prepared, "pairs-of-pairs", *tokenizer, "--corpus-weights", "en=1", "en-zh=1", "law=1", corpus=corpus) == 2
    )
    assert re.search("--corpus en-zh=...: objective sop: the corpus en-zh is parallel text", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("corpus", "words", "said"),
    [
        (("en=en.txt", "plain"), (), "en.txt has no name, and en are names of sources: give NAME=PATH for all"),
        (("en=en.txt", "EN=law.txt"), (), "en and EN differ in case only"),
        (("en=en.txt", "law=law", "law=law.txt"), (), "--corpus law=...: .*law.txt holds text, and .*law is a prep"),
        (
            ("en=en.txt", "en_mlm=law.txt"),
            (),
            "en_mlm=...: eval_en_mlm_loss is that of masked tokens of en: rename it",
        ),
        (("en=en.txt", "law=law.txt"), ("--corpus-weights", "en=1", "web=1"), "there is no source 'web'"),
        (("en=en.txt", "law=law.txt"), ("--corpus-weights", "en=1"), "weights: source 'law' has none"),
        (("plain",), (), "--corpus names no source, and sources: of the recipe says"),
        (("en=en.txt",), ("--language", "de=de"), "--language de=de: .* one of the sources: en"),
        (("en=en.txt",), ("--language", "en=German"), "'German' is not a language code"),
        (("en=en.txt", "law=empty.txt"), ("-t",), "--corpus law=...: "),
        (("en=en.txt", "law=one.txt"), ("-t",), r"--corpus law=... holds 1 document\(s\), and sop needs 2"),
    ],
)
def test_wrong_sources(prepared, corpus, words, said, capsys):
    (prepared / "empty.txt").write_text("\n\n")
    (prepared / "one.txt").write_text("One is here. Two is there.")
    paths = [f"{name}={path and prepared / path}" for name, path in (w.split("=") for w in corpus if "=" in w)]
    paths += [str(prepared / "en.txt") for word in corpus if "=" not in word]
    tokenizer = ["--tokenizer", str(prepared / "whole" / "tokenizer")]
    words = tokenizer if words == ("-t",) else words
    output = "-".join(["wrong", *corpus])
    with suppress(SystemExit):
        assert pretrain(prepared, output, "--corpus", *paths, *words) == 2
    error = capsys.readouterr().err
    assert re.search(said, error), error
    if words != tokenizer:
        assert not (prepared / output).exists()


def test_a_tokenizer_is_trained_on_a_sample_of_sources(folder, capsys):
    recipe = {**RECIPE, "tokenizer": {"vocab_size": 90, "sampling_alpha": 0.1}}
    (folder / "sampled.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    assert run(folder, "sampled", "--plan", recipe="sampled.yaml") == 0
    assert load_tokenizer(folder / "sampled" / "tokenizer").get_vocab()
    noted = json.loads((folder / "sampled" / "tokenizer" / "recipe.json").read_text())
    assert noted["sampling_alpha"] == 0.1 and set(noted["text"]) == {"en", "law"}
    assert run(folder, "sampled", "--plan") == 0
    assert "tokenizer was trained on other text or settings" in capsys.readouterr().out
    recipe = {name: value for name, value in recipe.items() if name != "sources"}
    (folder / "sampled.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    assert pretrain(folder, "unnamed", corpus="en.txt", recipe="sampled.yaml") == 2
    assert "tokenizer: sampling_alpha: of the recipe says" in capsys.readouterr().err
