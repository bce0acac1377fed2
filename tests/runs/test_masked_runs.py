"""Runs whose masking needs data of the text, or changes by phase: found, divided, resumed, recorded, refused."""

import json
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
import yaml

from hf_encoders import get_objective
from hf_encoders.cli import main
from hf_encoders.corpus.similar_words import SIMILAR_WORDS_FILE, SimilarWords
from hf_encoders.corpus.word_starts import UnitStart
from hf_encoders.objectives import presets
from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.runs.recipe import load_recipe
from hf_encoders.runs.sources import Source, Sources, masking_options
from tests import processes
from tests.corpus.corpora import random_documents, write_corpus
from tests.runs.masked_run import MASKED, PHASES, make_recipe, train, train_each_in_processes
from tests.runs.test_recipes import MINIMAL
from tests.training.tiny import make_tokenizer


ALL = UnitStart.WORD | UnitStart.PHRASE | UnitStart.ENTITY


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus on disk whose sentences have words, phrases and entities, and a table of similar words beside it."""
    random, documents = np.random.default_rng(0), random_documents(30, 0, (3, 6), (3, 9))
    starts = [
        [[int(ALL), *random.choice([0, 1, 3, 5, 7], len(sentence) - 1).tolist()] for sentence in document]
        for document in documents
    ]
    features = datasets.Features({"input_ids": _lists("int32"), "word_starts": _lists("uint8")})
    folder = tmp_path_factory.mktemp("corpus")
    made = datasets.Dataset.from_dict({"input_ids": documents, "word_starts": starts}, features)
    made.save_to_disk(str(folder))
    SimilarWords.of({(i,): [(5 + (i - 4) % 55,)] for i in range(5, 60, 2)}, make_tokenizer()).save(folder)
    return datasets.load_from_disk(str(folder))


def _lists(kind):
    return datasets.List(datasets.List(datasets.Value(kind)))


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKED)
def test_a_step_is_the_same_however_it_is_divided(corpus, tmp_path, name):
    """Six examples at once, and three times two: losses and parameters."""
    whole, divided = (train(make_recipe(name), corpus, tmp_path / str(n), accumulation=n) for n in (1, 3))
    losses = [[log["loss"] for log in trainer.state.log_history if "loss" in log] for trainer in (whole, divided)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5) and len(set(losses[0])) == 6
    others = dict(divided.model.named_parameters())
    for parameter, value in whole.model.named_parameters():
        assert torch.allclose(value, others[parameter], atol=1e-5, rtol=0), parameter


@pytest.mark.processes
def test_two_processes_train_as_one_does(corpus, tmp_path, one_thread):
    folder = str(Path(corpus.cache_files[0]["filename"]).parent)
    (tmp_path / "two").mkdir()
    for ended in processes.run_all(train_each_in_processes, 2, tmp_path / "two", folder):
        assert ended.status == 0, ended.told
    both = torch.load(tmp_path / "two" / "found.pt", weights_only=True)
    for name in MASKED:
        alone = train(make_recipe(name), corpus, tmp_path / name)
        losses = [log["loss"] for log in alone.state.log_history if "loss" in log]
        assert both[name]["losses"] == pytest.approx(losses, abs=1e-5)
        for parameter, value in alone.model.state_dict().items():
            assert torch.allclose(value, both[name]["parameters"][parameter], atol=1e-5, rtol=0), parameter


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKED)
def test_a_resumed_run_is_as_one_never_stopped(corpus, tmp_path, name):
    """From the checkpoint in the middle of the second phase; bit for bit."""
    recipe = make_recipe(name)
    whole = train(recipe, corpus, tmp_path, save_strategy="steps", save_steps=3).model.state_dict()
    resumed = train(recipe, corpus, tmp_path, resume=str(tmp_path / "checkpoint-3")).model.state_dict()
    assert [one for one, value in whole.items() if not torch.equal(value, resumed[one])] == []
    other = train(make_recipe(name, masking={}, phases=PHASES), corpus, tmp_path / "other").model.state_dict()
    assert any(not torch.equal(value, other[one]) for one, value in whole.items())


def test_the_data_of_masking_is_found_beside_the_corpus(corpus):
    tokenizer = make_tokenizer()
    options = masking_options(make_recipe("macbert"), tokenizer, Sources.of(corpus))
    assert len(options["similar_words"].table) == 28 and options["mask_probability"] == 0.3
    options = masking_options(make_recipe("xlm"), tokenizer, Sources.of({"a": Source(corpus), "b": Source(corpus)}))
    tokens = np.concatenate([sentence for document in corpus["input_ids"][:] for sentence in document])
    assert options["token_counts"].tolist() == (2 * np.bincount(tokens, minlength=60)).tolist()
    options = masking_options(make_recipe("ernie"), tokenizer, Sources.of(corpus))
    assert [one["unit"] for one in options.pop("phase_masking")] == ["token", "phrase", "entity"]
    assert options == {**presets.ERNIE_MASKING, "mask_probability": 0.3}


def test_what_the_corpus_lacks_is_refused_before_training(corpus, tmp_path, make_tokenizer):
    tokenizer, plain = make_tokenizer(60), corpus.remove_columns("word_starts")
    plain.save_to_disk(str(tmp_path))
    plain = datasets.load_from_disk(str(tmp_path))
    with pytest.raises(ValueError, match="similar_words.safetensors is missing: .*--similar-words build"):
        masking_options(make_recipe("macbert"), tokenizer, Sources.of(plain))
    with pytest.raises(ValueError, match="similar_words.safetensors was made with another tokenizer"):
        masking_options(make_recipe("macbert"), tokenizer, Sources.of(corpus))
    with pytest.raises(ValueError, match="in memory has no table of similar words"):
        masking_options(make_recipe("macbert"), tokenizer, Sources.of(datasets.Dataset.from_dict({"input_ids": []})))
    said = "the corpus, or a part of it, has no units of level 'entity', which mixed masks: .*corpus --lexicon FILE"
    words = corpus.map(lambda row: {"word_starts": [[1] * len(one) for one in row["word_starts"]]})
    for documents in (plain, words, datasets.concatenate_datasets([corpus, words])):
        with pytest.raises(ValueError, match=said):
            masking_options(make_recipe("mixed"), tokenizer, Sources.of(documents))


BY_WORD = {"unit": "word", "ngram_probabilities": None}
TEXT_PHASE = {"steps": 2, "length": 24, "examples": 4}
TEXT_RUN = {
    **MINIMAL,
    "objective": "sop",
    "masking": {"preset": "MACBERT_MASKING"},
    "tokenizer": {"vocab_size": 150},
    "phases": [TEXT_PHASE, {**TEXT_PHASE, "masking": BY_WORD}],
    "training": {"learning_rate": 0.01},
}


def pretrain(folder, fields, *words):
    (folder / "run.yaml").write_text(yaml.safe_dump(fields, sort_keys=False), encoding="utf-8")
    corpus = ["--corpus", str(folder / "text.txt"), "--output", str(folder / "run"), "--validation-share", "0.2"]
    options = ["--disable_tqdm", "True", "--eval_strategy", "no", *words]
    return main(["pretrain", str(folder / "run.yaml"), *corpus, *options])


@pytest.mark.slow
def test_a_run_on_text_learns_its_similar_words_and_tells_what_it_did(tmp_path, capsys):
    write_corpus(tmp_path / "text.txt", 200, "alpha")
    assert pretrain(tmp_path, TEXT_RUN, "--language", "zh") == 0
    told = capsys.readouterr()
    assert "warning: run masks words, and zh is written without spaces, so that each token counts as a" in told.out
    assert "words of the corpus without a similar one" in told.out + told.err
    assert "phase 2: 2 steps of 4 x 24 tokens (masking unit=word ngram_probabilities=None)" in told.out
    table = tmp_path / "run" / "_corpus" / SIMILAR_WORDS_FILE
    noted = json.loads((tmp_path / "run" / "run.json").read_text())
    assert noted["similar words"] == SimilarWords.load(table.parent).fingerprint
    assert noted["recipe"]["phases"][1]["masking"] == BY_WORD
    record = TrainingRecord.load(tmp_path / "run" / "model")
    assert record.fills_masks is False
    masked, of_phase = record.objectives["masked language modelling"].split(". phase 2: ")
    for words in (masked, of_phase):
        assert words.startswith("15 % of the tokens, of those 0 % [MASK], 80 % similar words, 10 % random, 10 % kept")
    assert "unit=ngram, " in masked and "(0.4, 0.3, 0.2, 0.1)" in masked and "unit=word" in of_phase
    # By the rules of Chinese a line is one sentence, so that few examples are pairs.
    assert record.objectives["sentence-order prediction"].endswith("% of the pairs swapped (label 1)")
    assert record.corpus["words without a similar one"].endswith("%")
    card = (tmp_path / "run" / "model" / "README.md").read_text(encoding="utf-8")
    assert "It fills no [MASK]: in its training no token became the mask token." in card
    assert "pipeline_tag: feature-extraction" in card

    # With another table, it is another run.
    first = SimilarWords.load(table.parent)
    SimilarWords(first.words, {}, first.tokenizer).save(table.parent)
    longer = {**TEXT_RUN, "phases": [*TEXT_RUN["phases"], TEXT_RUN["phases"][0]]}
    assert pretrain(tmp_path, longer, "--language", "zh") != 0
    assert "holds a run with another similar words" in capsys.readouterr().err


def test_masking_of_evaluation_alone_is_called_so_on_the_card():
    """Where each phase has its own; ERNIE's recipes do."""
    recipe, logged = load_recipe("ernie-minutes"), {"mask_rate": 0.2}
    objective, tokenizer = get_objective(recipe.objective), make_tokenizer()
    collator = objective.collator_class(tokenizer, 64, phase_masking=recipe.phase_masking, **recipe.masking)
    of_phases = objective.describe(collator, (), {}, logged)["masked language modelling"].split(". ")
    assert [words.partition(":")[0] for words in of_phases] == ["phase 1", "phase 2", "phase 3", "evaluation"]
    assert "15 % of the tokens, of those 80 % [MASK], 10 % random, 10 % kept; unit=word" in of_phases[3]


def test_text_without_units_longer_than_words_is_refused_before_a_tokenizer_is_trained(tmp_path, capsys):
    write_corpus(tmp_path / "text.txt", 20, "alpha")
    fields = {**TEXT_RUN, "masking": {"units": {"phrase": 0.5, "entity": 0.5}}, "phases": MINIMAL["phases"]}
    assert pretrain(tmp_path, fields) != 0
    told = capsys.readouterr().err
    assert "--corpus is text, and run masks units of entity and phrase" in told
    assert "`hf-encoders tokenizer --family bert --input TEXT --output TOKENIZER`" in told
    assert "`hf-encoders corpus --input TEXT --tokenizer TOKENIZER --output CORPUS --lexicon FILE --phrases`" in told
    assert not (tmp_path / "run" / "tokenizer").exists()
