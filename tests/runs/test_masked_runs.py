"""Runs whose masking needs data of the text, or changes by phase: found, divided, resumed, recorded, refused."""

import json
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from hf_encoders import get_objective
from hf_encoders.cli import main
from hf_encoders.corpus.similar_words import SimilarWords
from hf_encoders.corpus.word_starts import UnitStart
from hf_encoders.objectives import presets
from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.runs.recipe import load_recipe
from hf_encoders.runs.sources import Source, Sources, masking_options
from tests import processes
from tests.corpus.corpora import random_documents, write_corpus
from tests.runs.masked_run import MASKED, PHASES, losses_of, make_recipe, train, train_each_in_processes
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
def test_models_that_share_no_weight_are_clipped_each_by_its_norm(corpus, tmp_path):
    """One step of SGD without decay is as long as the rate times the largest norm, for each of the two."""
    steps = {"weight_decay": 0.0, "max_grad_norm": 0.01, "lr_scheduler_type": "constant"}
    recipe = make_recipe("deberta", phases=[{**PHASES[0], "steps": 1}])
    before = train(recipe, corpus, tmp_path / "none", **{**steps, "learning_rate": 1e-12}).model.state_dict()
    model = train(recipe, corpus, tmp_path / "one", **{**steps, "learning_rate": 0.1}).model
    for name in ("generator", "discriminator"):
        moved = [value - before[key] for key, value in model.named_parameters() if key.startswith(name)]
        assert torch.stack([each.norm() for each in moved]).norm().item() == pytest.approx(0.001, rel=1e-3)


@pytest.mark.parametrize("name", [name for name in MASKED if name not in ("xlm", "mixed")])
def test_a_run_is_the_same_however_its_steps_are_divided_and_if_it_is_resumed(corpus, tmp_path, name):
    """Six examples at once, and three times two; from the middle of the second phase, bit for bit."""
    whole = train(make_recipe(name), corpus, tmp_path, save_strategy="steps", save_steps=3)
    resumed = train(make_recipe(name), corpus, tmp_path, resume=str(tmp_path / "checkpoint-3"))
    divided = train(make_recipe(name), corpus, tmp_path / "divided", accumulation=3)
    changed = {"masking": {}, "phases": PHASES, "optimizer": "sgd"}
    otherwise = train(make_recipe(name, **changed), corpus, tmp_path / "otherwise")
    losses = losses_of(whole)
    assert losses == pytest.approx(losses_of(divided), abs=1e-5) and len(set(losses)) == 6
    states = [trainer.model.state_dict() for trainer in (resumed, divided, otherwise)]
    for parameter, value in whole.model.state_dict().items():
        assert torch.equal(value, states[0][parameter]), parameter
        assert torch.allclose(value, states[1][parameter], atol=1e-5, rtol=0), parameter
    assert any(not torch.equal(value, states[2][parameter]) for parameter, value in states[0].items())


def test_a_phase_has_its_learning_rate_and_its_fields_also_where_a_run_goes_on(corpus, tmp_path):
    """Bit for bit from each edge; a checkpoint has the fields of its phase, the model those of the last."""
    saved = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 6}
    whole = train(make_recipe("modernbert"), corpus, tmp_path, **saved)
    rates = [log["learning_rate"] for log in whole.state.log_history if "loss" in log]
    # Linear to 0, as without phases, and a share of it.
    shares = [1.0, 1.0, 0.4, 0.4, 0.2, 0.1 + 0.1 * (1 - 0.5**0.5)]
    assert rates == pytest.approx([0.1 * (1 - step / 6) * shares[step] for step in range(6)])
    for step, theta, window in ((2, 100, 4), (3, 160_000, 4), (5, 160_000, 8)):
        config = json.loads((tmp_path / f"checkpoint-{step}" / "config.json").read_text())
        found = config["rope_parameters"]["full_attention"]["rope_theta"], config["local_attention"]
        assert found == (theta, window), step
    for edge in (2, 4):
        resume = str(tmp_path / f"checkpoint-{edge}")
        resumed = train(make_recipe("modernbert"), corpus, tmp_path / "resumed", resume=resume)
        assert losses_of(resumed)[-1] == losses_of(whole)[-1]
        for parameter, value in whole.model.state_dict().items():
            assert torch.equal(value, resumed.model.state_dict()[parameter]), (edge, parameter)
    same = train(make_recipe("modernbert", phases=PHASES), corpus, tmp_path / "same").model.state_dict()
    assert any(not torch.equal(value, same[name]) for name, value in whole.model.state_dict().items())


def test_a_rate_of_the_first_phase_is_that_of_the_first_step_and_absolute(corpus, tmp_path):
    """Also where the command gives the others another rate."""
    phases = [{**PHASES[0], "learning_rate": 0.05}, *PHASES[1:]]
    options = {"lr_scheduler_type": "constant", "save_strategy": "steps", "save_steps": 1, "save_total_limit": 6}
    run = train(make_recipe("modernbert", phases=phases), corpus, tmp_path / "own", learning_rate=0.2, **options)
    rates = [log["learning_rate"] for log in run.state.log_history if "loss" in log]
    assert rates == pytest.approx([0.05] * 2 + [0.2] * 4)
    # What is logged is the schedule's; the steps are those of a run with the rate of the phase.
    train(make_recipe("modernbert", phases=PHASES), corpus, tmp_path / "all", learning_rate=0.05, **options)
    for step, are_equal in ((1, True), (2, True), (3, False)):
        own, all_steps = (
            load_file(tmp_path / which / f"checkpoint-{step}" / "model.safetensors") for which in ("own", "all")
        )
        assert all(torch.equal(value, all_steps[name]) for name, value in own.items()) == are_equal, step


def test_a_phase_keeps_what_the_model_has_and_it_does_not_set(corpus, tmp_path):
    """Thetas of a checkpoint, of which the recipe says nothing."""
    own = {**MASKED["modernbert"]["model"], "rope_parameters": {"sliding_attention": {"rope_theta": 777}}}
    phases = [PHASES[0], {**PHASES[1], "model": {"rope_parameters": {"full_attention": {"rope_theta": 100}}}}]
    run = train(make_recipe("modernbert", model=own, phases=phases), corpus, tmp_path)
    thetas = {name: values["rope_theta"] for name, values in run.model.config.rope_parameters.items()}
    assert thetas == {"full_attention": 100, "sliding_attention": 777}


@pytest.mark.processes
def test_two_processes_train_as_one_does(corpus, tmp_path, one_thread):
    folder = str(Path(corpus.cache_files[0]["filename"]).parent)
    (tmp_path / "two").mkdir()
    for ended in processes.run_all(train_each_in_processes, 2, tmp_path / "two", folder):
        assert ended.status == 0, ended.told
    both = torch.load(tmp_path / "two" / "trained.pt", weights_only=True)
    for name in MASKED:
        alone = train(make_recipe(name), corpus, tmp_path / name)
        assert both[name]["losses"] == pytest.approx(losses_of(alone), abs=1e-5)
        for parameter, value in alone.model.state_dict().items():
            assert torch.allclose(value, both[name]["parameters"][parameter], atol=1e-5, rtol=0), parameter


def test_the_data_of_masking_is_found_beside_the_corpus(corpus):
    tokenizer = make_tokenizer()
    options = masking_options(make_recipe("macbert"), tokenizer, Sources.of(corpus))
    assert len(options["similar_words"].table) == 28 and options["mask_probability"] == 0.3
    options = masking_options(make_recipe("xlm"), tokenizer, Sources.of({"a": Source(corpus), "b": Source(corpus)}))
    tokens = np.concatenate([sentence for document in corpus["input_ids"][:] for sentence in document])
    assert options["token_counts"].tolist() == (2 * np.bincount(tokens, minlength=60)).tolist()
    options = masking_options(make_recipe("ernie"), tokenizer, Sources.of(corpus))
    assert [masking["unit"] for masking in options.pop("phase_masking")] == ["token", "phrase", "entity"]
    assert options == {**presets.ERNIE_MASKING, "mask_probability": 0.3}


def test_what_the_corpus_lacks_is_refused_before_training(corpus, tmp_path, make_tokenizer):
    tokenizer, plain = make_tokenizer(60), corpus.remove_columns("word_starts")
    plain.save_to_disk(str(tmp_path))
    plain = datasets.load_from_disk(str(tmp_path))
    words = corpus.map(lambda row: {"word_starts": [[1] * len(sentence) for sentence in row["word_starts"]]})
    for name, documents, message in (
        ("macbert", plain, "similar_words.safetensors is missing: .*--similar-words build"),
        ("macbert", corpus, "similar_words.safetensors was made with another tokenizer"),
        ("macbert", datasets.Dataset.from_dict({"input_ids": []}), "in memory has no table of similar words"),
        ("mixed", plain, "no units of level 'entity', which mixed masks: .*corpus --lexicon FILE"),
        ("mixed", words, "no units of level 'entity'"),
        ("mixed", datasets.concatenate_datasets([corpus, words]), "no units of level 'entity'"),
    ):
        with pytest.raises(ValueError, match=message):
            masking_options(make_recipe(name), tokenizer, Sources.of(documents))


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
def test_a_run_on_text_learns_its_similar_words_and_says_what_it_did(tmp_path, capsys):
    write_corpus(tmp_path / "text.txt", 200, "alpha")
    assert pretrain(tmp_path, TEXT_RUN, "--language", "zh") == 0
    printed = capsys.readouterr().out
    assert "warning: run masks words, and zh is written without spaces, so that each token counts as a" in printed
    assert "words of the corpus without a similar one" in printed
    assert "phase 2: 2 steps of 4 x 24 tokens (masking unit=word ngram_probabilities=None)" in printed
    table, model = tmp_path / "run" / "_corpus", tmp_path / "run" / "model"
    noted = json.loads((tmp_path / "run" / "run.json").read_text())
    assert noted["similar words"] == SimilarWords.load(table).fingerprint
    assert noted["recipe"]["phases"][1]["masking"] == BY_WORD
    record = TrainingRecord.load(model)
    assert record.fills_masks is False
    masked, of_phase = record.objectives["masked language modelling"].split(". phase 2: ")
    for words in (masked, of_phase):
        assert words.startswith("15 % of the tokens, of those 0 % [MASK], 80 % similar words, 10 % random, 10 % kept")
    assert "unit=ngram, " in masked and "(0.4, 0.3, 0.2, 0.1)" in masked and "unit=word" in of_phase
    # By the rules of Chinese a line is one sentence, so that few examples are pairs.
    assert record.objectives["sentence-order prediction"].endswith("% of the pairs swapped (label 1)")
    assert record.corpus["words without a similar one"].endswith("%")
    card = (model / "README.md").read_text(encoding="utf-8")
    assert "It fills no [MASK]: in its training no token became the mask token." in card
    assert "pipeline_tag: feature-extraction" in card

    # With another table, it is another run.
    first = SimilarWords.load(table)
    SimilarWords(first.words, {}, first.tokenizer).save(table)
    longer = {**TEXT_RUN, "phases": [*TEXT_RUN["phases"], TEXT_RUN["phases"][0]]}
    assert pretrain(tmp_path, longer, "--language", "zh") == 2
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
    assert pretrain(tmp_path, fields) == 2
    error = capsys.readouterr().err
    assert "--corpus is text, and run masks units of entity and phrase" in error
    assert "`hf-encoders corpus --lexicon FILE --phrases`" in error
    assert not (tmp_path / "run" / "tokenizer").exists()
