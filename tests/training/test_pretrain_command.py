"""`hf-encoders pretrain`: text in, a model that loads anywhere out; gone on with; the same however it is divided."""

import dataclasses
import json
import re
import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer, TrainerCallback

from hf_encoders.cli import main
from hf_encoders.data.corpus import arrow_file, prepare_corpus, sentence_encoding, sentence_store
from hf_encoders.loading import load_tokenizer
from hf_encoders.publishing.training_record import TrainingRecord
from hf_encoders.training import pretrain_command
from hf_encoders.training.checkpoints import facts_of_checkpoint
from hf_encoders.training.run_folder import open_parts
from tests.end_to_end.test_quickstart import write_corpus


TINY = {
    "family": "albert",
    "objective": "sop",
    "model": {
        "num_hidden_layers": 2,
        "hidden_size": 12,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "embedding_size": 8,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.0,
    },
    "tokenizer": {"vocab_size": 150},
    "mask_rate": [0.3, 0.15],
    "masking": {"unit": "ngram"},
    "optimizer": "lamb",
    "phases": [{"steps": 4, "length": 24, "examples": 6}, {"steps": 2, "length": 40, "examples": 3}],
    "training": {"learning_rate": 0.01, "warmup_steps": 0.3, "weight_decay": 0.01},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recipe, text, and a finished run with all its checkpoints."""
    folder = tmp_path_factory.mktemp("pretrain")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY), encoding="utf-8")
    write_corpus(folder / "text.txt", 60, "alpha")
    assert pretrain(folder, "whole", "--save_total_limit", "9") == 0
    return folder


def pretrain(folder, output, *words, corpus="text.txt", recipe="tiny.yaml"):
    options = ["--validation-share", "0.2", "--save_steps", "2", "--disable_tqdm", "True", *words]
    corpus = ["--corpus", str(folder / corpus), "--output", str(folder / output)]
    return main(["pretrain", str(folder / recipe), *corpus, *options])


def weights(directory):
    return load_file(directory / "model.safetensors")


def test_text_goes_in_and_a_recorded_model_comes_out(folder):
    model = folder / "whole" / "model"
    assert type(AutoModelForMaskedLM.from_pretrained(model)).__module__.startswith("transformers.models.albert")
    tokenizer = AutoTokenizer.from_pretrained(model)
    config = json.loads((model / "config.json").read_text())
    assert config["vocab_size"] % 64 == 0 and 0 <= config["vocab_size"] - len(tokenizer) < 64
    assert config["max_position_embeddings"] == 40
    record = TrainingRecord.load(model)
    assert record.schedule["phases"] == "4 steps of 6 x 24 tokens, 2 steps of 3 x 40 tokens"
    assert record.schedule["optimizer"] == "LAMB" and record.schedule["warm-up steps"] == 2
    assert "30 to 15 % of the tokens, chosen by ngram" in record.objectives["masked language modelling"]
    assert (model / "loss_curve.png").stat().st_size > 1000
    assert "SOP" in (model / "README.md").read_text() or "sentence-order" in (model / "README.md").read_text()


def test_the_schedule_runs_over_all_phases(folder):
    state = json.loads((folder / "whole" / "checkpoint-6" / "trainer_state.json").read_text())
    rates = {entry["step"]: entry["learning_rate"] for entry in state["log_history"] if "learning_rate" in entry}
    # Two steps of warm-up, then linear from 0.01 to 0 over four.
    assert [rates[step] for step in range(1, 7)] == pytest.approx([0.0, 0.005, 0.01, 0.0075, 0.005, 0.0025])


def test_an_interrupted_run_goes_on_to_the_same_weights(folder, capsys):
    shutil.copytree(folder / "whole", folder / "again")
    for step in (4, 6):
        shutil.rmtree(folder / "again" / f"checkpoint-{step}")
    shutil.rmtree(folder / "again" / "model")
    assert pretrain(folder, "again") == 0
    assert re.search(r"Going on from .*again/checkpoint-2", capsys.readouterr().out)
    before, after = weights(folder / "whole" / "model"), weights(folder / "again" / "model")
    assert all(torch.equal(before[name], after[name]) for name in before)
    # Tokens and seconds of the steps before the restart count.
    state = json.loads((folder / "whole" / "checkpoint-2" / "trainer_state.json").read_text())
    seconds = state["stateful_callbacks"]["HealthCallback"]["attributes"]["training_seconds"]
    record = TrainingRecord.load(folder / "again" / "model")
    assert record.seconds > seconds > 0
    tokens = TrainingRecord.load(folder / "whole" / "model")
    assert record.tokens_per_second * record.seconds == pytest.approx(tokens.tokens_per_second * tokens.seconds)


def test_a_complete_checkpoint_that_had_not_got_its_name_is_gone_on_from(folder, capsys):
    """The first of a run, so that there is no other one."""
    unnamed = folder / "unnamed"
    shutil.copytree(folder / "whole", unnamed)
    (unnamed / "_unfinished").mkdir()
    (unnamed / "checkpoint-2").rename(unnamed / "_unfinished" / "checkpoint-2")
    for name in ("checkpoint-4", "checkpoint-6", "model"):
        shutil.rmtree(unnamed / name)
    assert pretrain(folder, "unnamed") == 0
    assert re.search(r"Going on from .*unnamed/checkpoint-2", capsys.readouterr().out)


def test_the_corpus_is_put_in_one_piece_once(folder, monkeypatch):
    """Not for each length of the recipe, and each count, anew."""
    written = []
    write = sentence_store.write_corpus
    monkeypatch.setattr(sentence_store, "write_corpus", lambda *a, **k: written.append(a) or write(*a, **k))
    assert pretrain(folder, "pieces", "--plan") == 0
    assert len(written) == 2  # to train on, and held out


def test_accumulation_changes_nothing(folder):
    tokenizer = str(folder / "whole" / "tokenizer")
    assert pretrain(folder, "divided", "--gradient_accumulation_steps", "3", "--tokenizer", tokenizer) == 0
    before, after = weights(folder / "whole" / "model"), weights(folder / "divided" / "model")
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-5, atol=1e-5)


def test_a_plan_trains_nothing(folder, capsys):
    assert pretrain(folder, "planned", "--plan", "--per_device_train_batch_size", "2") == 0
    printed = capsys.readouterr().out
    assert "tiny: albert, sop" in printed and "together 6 steps" in printed
    assert "3 x 2" in printed and "2 x 2" in printed
    assert not list((folder / "planned").glob("checkpoint-*"))
    # Made once: the run goes on with what the plan of text needed.
    assert f"the corpus made for it stays for the run: {folder / 'planned' / '_corpus'}" in printed
    with pytest.raises(SystemExit):
        main(["pretrain", "--help"])
    assert "corpus are made for it, and stay in --output" in " ".join(capsys.readouterr().out.split())


def test_numbers_of_a_plan_are_rounded_and_grouped(folder, capsys):
    tokenizer = ("--tokenizer", str(folder / "whole" / "tokenizer"))
    assert pretrain(folder, "huge", "--plan", "--max_steps", "6000000000", *tokenizer, corpus="whole/_corpus") == 0
    printed = capsys.readouterr().out
    numbers = re.findall(r"[\d.,]+(?= |$)", printed)
    assert "together 6,000,000,000 steps" in printed
    assert not any(re.search(r"\d{4,}|\d,\d+\.\d", number) for number in numbers), printed


@pytest.mark.parametrize("words", [(), ("--measure",)])
def test_a_plan_of_a_prepared_corpus_leaves_nothing(folder, words, capsys):
    tokenizer = ("--tokenizer", str(folder / "whole" / "tokenizer"))
    assert pretrain(folder, "nothing/of it", "--plan", *tokenizer, *words, corpus="whole/_corpus") == 0
    assert ("measured: a forward" if words else "estimated: ") in capsys.readouterr().out
    assert not (folder / "nothing").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seed", "5"), "holds a run with another seed"),
        (("--learning_rate", "0.02"), r"holds a run with another training \(learning_rate\)"),
        (("--max_steps", "3"), r"recipe \(phases\).* It has 4 steps of 6 x 24 tokens, 2 steps of 3 x 40 tokens"),
        (("--max_steps", "9", "--learning_rate", "0.02"), r"holds a run with another training \(learning_rate\)"),
        (("--max_steps", "9", "--seed", "5"), "holds a run with another seed"),
        (("--measure",), "--measure is for --plan"),
        (("--foo", "5"), "unrecognized arguments: --foo 5"),
        (("--num_train_epochs", "5"), r"--num_train_epochs: use phases \(steps\)"),
        (("--optim", "sgd"), "--optim: use optimizer"),
        (("--per_device_train_batch_size", "0"), "per_device_train_batch_size=0 must be at least 1"),
        (("--gradient_accumulation_steps", "4"), "accumulation steps are 4"),
        (("--language", "German"), "'German' is not a language code"),
        (("--weight_decay", "0"), "optimizer lamb with weight_decay=0"),
    ],
)
def test_other_arguments_are_refused(folder, words, said, capsys):
    assert pretrain(folder, "whole", *words) == 2
    assert re.search(said, capsys.readouterr().err)


def test_a_prepared_corpus_needs_its_tokenizer(folder, capsys):
    assert pretrain(folder, "second", corpus="whole/_corpus") == 2
    assert "--tokenizer is missing: give the one that the corpus" in capsys.readouterr().err
    assert pretrain(folder, "second", "--tokenizer", str(folder / "whole/tokenizer"), corpus="whole/_corpus") == 0
    before, after = weights(folder / "whole" / "model"), weights(folder / "second" / "model")
    assert all(torch.equal(before[name], after[name]) for name in before)
    shutil.copytree(folder / "whole/tokenizer", folder / "edited")
    text = (folder / "edited/tokenizer.json").read_text()
    (folder / "edited/tokenizer.json").write_text(text.replace("alpha", "alpho"))
    assert pretrain(folder, "second", "--tokenizer", str(folder / "edited"), corpus="whole/_corpus") == 2
    assert "is not the one that the corpus" in capsys.readouterr().err
    assert pretrain(folder, "second", "--corpus", str(folder / "whole/_corpus"), str(folder / "text.txt")) == 2
    assert "holds text, and" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["max_steps", "last phase", "phase behind"])
def test_a_finished_run_becomes_longer_with_the_schedule_of_the_longer_run(folder, how, capsys, monkeypatch):
    """Its steps stay as they were; what is killed of the rest and resumed is as if it had not been killed."""
    output, words, recipe = f"longer {how}", [], dict(TINY)
    first, last = TINY["phases"]
    if how == "max_steps":
        words = ["--max_steps", "10"]
    elif how == "last phase":
        recipe["phases"] = [first, {**last, "steps": 6}]
    else:
        recipe["phases"] = [first, last, {"steps": 4, "length": 32, "examples": 4}]
    (folder / "tiny.yaml").rename(folder / "kept.yaml")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    shutil.copytree(folder / "whole", folder / output)
    used, make_trainer = [], pretrain_command.make_trainer

    class Rates(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
            used.append(optimizer.param_groups[0]["lr"])

    def watched_trainer(*arguments):
        trainer = make_trainer(*arguments)
        trainer.add_callback(Rates())
        return trainer

    monkeypatch.setattr(pretrain_command, "make_trainer", watched_trainer)
    try:
        assert pretrain(folder, output, *words) == 0
        printed = capsys.readouterr().out
        assert "This run had 6 steps and goes on to 10 (4 steps of 6 x 24 tokens, " in printed
        # 3 steps of warm-up, then linear over 7: at step 6 of 10, 4 of these are left.
        assert "Of 10 steps instead of 6: the learning rate of step 6 is 0.00571, and was 0." in printed
        assert used == pytest.approx([0.01 * left / 7 for left in (4, 3, 2, 1)])
        state = json.loads((folder / output / "checkpoint-10" / "trainer_state.json").read_text())
        rates = {entry["step"]: entry["learning_rate"] for entry in state["log_history"] if "learning_rate" in entry}
        assert [rates[step] for step in range(6, 11)] == pytest.approx(
            [0.0025, *(0.01 * left / 7 for left in (4, 3, 2, 1))]
        )
        record = TrainingRecord.load(folder / output / "model")
        assert record.schedule["optimizer steps"] == 10 and record.schedule["phases"].startswith("4 steps of 6 x 24")
        after = weights(folder / output / "model")
        assert any(not torch.equal(after[name], old) for name, old in weights(folder / "whole" / "model").items())
        shutil.rmtree(folder / output / "checkpoint-10")
        shutil.rmtree(folder / output / "model")
        assert pretrain(folder, output, *words) == 0
        assert re.search(r"Going on from .*/checkpoint-8", capsys.readouterr().out)
        again = weights(folder / output / "model")
        assert all(torch.equal(after[name], again[name]) for name in after)
        assert pretrain(folder, output, *words) == 0
        assert "This run is finished" in capsys.readouterr().out
    finally:
        (folder / "kept.yaml").replace(folder / "tiny.yaml")
    assert how != "max_steps" or pretrain(folder, output) == 2


def test_what_cannot_be_made_longer_is_left_as_it_is(folder, capsys):
    """Phases that are over cannot be longer; without a checkpoint there is nothing to go on from."""
    first, last = TINY["phases"]
    recipe = {**TINY, "phases": [{**first, "steps": 5}, last]}
    (folder / "other_first.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    assert pretrain(folder, "whole", recipe="other_first.yaml") == 2
    assert "a longer run keeps these, and adds to the last (--max_steps) or behind it" in capsys.readouterr().err
    shutil.copytree(folder / "whole", folder / "no checkpoint")
    for step in (2, 4, 6):
        shutil.rmtree(folder / "no checkpoint" / f"checkpoint-{step}")
    before = (folder / "no checkpoint" / "run.json").read_text()
    assert pretrain(folder, "no checkpoint", "--max_steps", "9") == 2
    assert "a finished run of 6 steps without a checkpoint to go on from" in capsys.readouterr().err
    assert (folder / "no checkpoint" / "run.json").read_text() == before


def test_longer_examples_than_the_model_has_positions_for_are_refused_before_anything_is_written(folder, capsys):
    """Not after `run.json` says that the folder holds the longer run, which it would then refuse to go back from."""
    longer = [*TINY["phases"], {"steps": 2, "length": 48, "examples": 3}]
    (folder / "longer.yaml").write_text(yaml.safe_dump({**TINY, "phases": longer}), encoding="utf-8")
    shutil.copytree(folder / "whole", folder / "positions")
    before = (folder / "positions" / "run.json").read_bytes()
    assert pretrain(folder, "positions", recipe="longer.yaml") == 2
    said = capsys.readouterr().err
    assert "examples of 48 tokens need more positions than the model of the run" in said and said.count("\n") == 1
    assert "max_position_embeddings from the start" in said
    assert (folder / "positions" / "run.json").read_bytes() == before
    assert pretrain(folder, "positions") == 0
    assert "This run is finished" in capsys.readouterr().out


def test_a_run_with_positions_to_spare_goes_on_with_longer_examples(folder):
    recipe = {**TINY, "model": {**TINY["model"], "max_position_embeddings": 50}}
    (folder / "spare.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    assert pretrain(folder, "spare", recipe="spare.yaml") == 0
    recipe["phases"] = [*TINY["phases"], {"steps": 2, "length": 48, "examples": 3}]
    (folder / "spare.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    assert pretrain(folder, "spare", recipe="spare.yaml") == 0
    assert TrainingRecord.load(folder / "spare" / "model").schedule["optimizer steps"] == 8


def test_what_fails_before_training_leaves_the_run_as_it_was(folder, monkeypatch, capsys):
    shutil.copytree(folder / "whole", folder / "failed")
    before = json.loads((folder / "failed" / "run.json").read_text())

    def fail(*arguments):
        raise ValueError("no such device")

    with monkeypatch.context() as patch:
        patch.setattr(pretrain_command.PreTrainingTrainer, "_load_from_checkpoint", fail)
        with pytest.raises(ValueError, match="no such device"):  # of this file, so with a traceback
            pretrain(folder, "failed", "--max_steps", "8")
    assert json.loads((folder / "failed" / "run.json").read_text()) == before
    assert pretrain(folder, "failed") == 0
    assert "This run is finished" in capsys.readouterr().out


def test_a_run_goes_on_under_another_spelling_of_its_text_and_other_settings_that_shape_nothing(
    folder, capsys, monkeypatch
):
    token = "hf_" + "aB3" * 12
    recipe = {**TINY, "training": {**TINY["training"], "hub_token": token, "logging_steps": 2}}
    (folder / "kept_token.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    assert pretrain(folder, "respelled", recipe="kept_token.yaml") == 0
    for file in ("run.json", "tokenizer/recipe.json"):
        assert token not in (folder / "respelled" / file).read_text()
    capsys.readouterr()
    monkeypatch.chdir(folder)
    words = ["--output", "respelled", "--validation-share", "0.2", "--disable_tqdm", "True"]
    assert main(["pretrain", "tiny.yaml", "--corpus", "./text.txt", *words, "--save_steps", "3"]) == 0
    assert "This run is finished" in capsys.readouterr().out
    recipe["training"]["weight_decay"] = 0.02
    (folder / "kept_token.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    assert pretrain(folder, "respelled", recipe="kept_token.yaml") == 2
    assert "holds a run with another training (weight_decay)" in capsys.readouterr().err


def without(entry, *path):
    """The content of `run.json` without an entry, or with another value of it."""

    def changed(noted, value=None):
        inner = noted
        for name in path[:-1]:
            inner = inner[name]
        if entry == "missing":
            del inner[path[-1]]
        else:
            inner[path[-1]] = entry
        return json.dumps(noted).encode()

    return changed


@pytest.mark.parametrize(
    "content",
    [
        b'{"recipe": {"pha',
        b"[]",
        b"{}",
        b'{"recipe": {"phases": [{"steps": 1}]}}',
        b"\xff",
        b"",
        without("missing", "recipe", "training"),
        without("missing", "recipe", "masking"),
        without("missing", "training", "adam_beta1"),
        without("missing", "seed"),
        without([], "recipe"),
        without(None, "recipe", "training"),
        without(5, "corpus"),
        without([], "recipe", "phases"),
        without([5], "recipe", "phases"),
        without("two", "threads"),
    ],
)
def test_a_damaged_run_file_is_told_with_the_remedy(folder, content, capsys):
    damaged = folder / "damaged"
    shutil.copytree(folder / "whole", damaged, dirs_exist_ok=True)
    if callable(content):
        content = content(json.loads((folder / "whole" / "run.json").read_text()))
    (damaged / "run.json").write_bytes(content)
    for words in ((), ("--plan",), ("--max_steps", "9")):
        assert pretrain(folder, "damaged", *words) == 2
        said = capsys.readouterr().err
        assert re.search(r"damaged/run.json is damaged \(.*restore it, or give --overwrite to begin anew", said)
        assert said.count("\n") == 1
    (damaged / "run.json").write_text((folder / "whole" / "run.json").read_text())
    (damaged / "tokenizer" / "recipe.json").write_text("{")
    assert pretrain(folder, "damaged") == 2
    assert "tokenizer/recipe.json is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", [b"[]", b"{", b"{}", b'{"statistics": {}}', b'{"statistics": 5}', "tokenizer", "run"]
)
@pytest.mark.parametrize("corpus", ["text.txt", "broken/_corpus"])
def test_a_damaged_corpus_file_is_told_with_the_remedy(folder, corpus, content, capsys):
    shutil.copytree(folder / "whole", folder / "broken", dirs_exist_ok=True)
    if isinstance(content, str):
        found = json.loads((folder / "whole" / "_corpus" / "corpus.json").read_text())
        changed = (
            {**found, "run": {}} if content == "run" else {**found, "settings": {**found["settings"], content: 5}}
        )
        content = json.dumps(changed).encode()
    (folder / "broken" / "_corpus" / "corpus.json").write_bytes(content)
    tokenizer = ("--tokenizer", str(folder / "whole" / "tokenizer")) if corpus != "text.txt" else ()
    assert pretrain(folder, "broken", *tokenizer, corpus=corpus) == 2
    said = capsys.readouterr().err
    assert re.search(r"_corpus/corpus.json is damaged \(.*\): restore it, or prepare the corpus again", said)
    assert said.count("\n") == 1


def test_a_model_stays_until_the_next_one_is_whole(folder, monkeypatch):
    shutil.copytree(folder / "whole", folder / "replaced")
    (folder / "replaced" / "model" / "modeling_of_another_family.py").write_text("")
    before = {path.name: path.read_bytes() for path in (folder / "replaced" / "model").iterdir()}

    def full_disk(*arguments, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("hf_encoders.publishing.pretrained_folder.draw_loss_curve", full_disk)
        assert pretrain(folder, "replaced", "--overwrite", "--seed", "7", "--max_steps", "2") == 2
    assert {path.name: path.read_bytes() for path in (folder / "replaced" / "model").iterdir()} == before
    assert not (folder / "replaced" / "_model").exists()
    assert pretrain(folder, "replaced", "--seed", "7", "--max_steps", "2") == 0
    assert TrainingRecord.load(folder / "replaced" / "model").schedule["seed"] == 7
    assert not (folder / "replaced" / "model" / "modeling_of_another_family.py").exists()
    assert not list((folder / "replaced").glob("_*model*"))


def test_resuming_does_not_warn_of_tied_weights(folder, capsys, caplog):
    shutil.copytree(folder / "whole", folder / "quiet")
    shutil.rmtree(folder / "quiet" / "checkpoint-6")
    shutil.rmtree(folder / "quiet" / "model")
    assert pretrain(folder, "quiet") == 0
    out, err = capsys.readouterr()
    assert "Going on from" in out
    assert "missing keys" not in out + err + caplog.text and "Writing model shards" not in out + err


def test_a_finished_run_is_not_run_again(folder, capsys):
    before = (folder / "whole" / "model" / "training_record.json").stat().st_mtime_ns
    assert pretrain(folder, "whole") == 0
    assert "This run is finished" in capsys.readouterr().out
    assert (folder / "whole" / "model" / "training_record.json").stat().st_mtime_ns == before


def test_the_plan_has_what_was_given_before_the_recipe(folder, capsys):
    tokenizer = ("--tokenizer", str(folder / "whole" / "tokenizer"), "--plan")
    assert pretrain(folder, "told", *tokenizer, "--learning_rate", "3e-3", "--warmup_steps", "0.5") == 0
    assert "learning rate 0.003 (linear, 3 steps of warm-up)" in capsys.readouterr().out


@pytest.mark.parametrize("named", ["--corpus", "--tokenizer"])
def test_overwrite_does_not_remove_what_the_run_reads(folder, named, capsys):
    inputs = {"--corpus": str(folder / "text.txt"), "--tokenizer": str(folder / "whole" / "tokenizer")}
    inputs[named] = str(folder / "whole" / {"--corpus": "_corpus", "--tokenizer": "tokenizer"}[named])
    words = [word for pair in inputs.items() for word in pair]
    assert pretrain(folder, "whole", "--overwrite", *words) == 2
    assert re.search("--overwrite would remove .*, which this run reads", capsys.readouterr().err)
    assert (folder / "whole" / "model").is_dir() and (folder / "whole" / "checkpoint-6").is_dir()


def test_a_restart_by_torchrun_goes_on_though_it_began_with_overwrite(folder, monkeypatch, capsys):
    shutil.copytree(folder / "whole", folder / "restarted")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert pretrain(folder, "restarted", "--overwrite") == 0
    assert "This run is finished" in capsys.readouterr().out
    assert (folder / "restarted" / "checkpoint-6").is_dir()


def test_a_tokenizer_that_lies_there_is_not_written_over(folder, capsys):
    shutil.copytree(folder / "whole" / "tokenizer", folder / "mine" / "tokenizer")
    (folder / "mine" / "tokenizer" / "recipe.json").unlink()
    assert pretrain(folder, "mine") == 2
    assert "mine/tokenizer was not made by this command: give it as --tokenizer" in capsys.readouterr().err


def test_overwrite_removes_the_run_alone(folder, capsys):
    shutil.copytree(folder / "whole", folder / "over")
    (folder / "over" / "notes.txt").write_text("mine")
    assert pretrain(folder, "over", "--overwrite", "--plan", "--seed", "5") == 2
    assert "--overwrite removes a run, and --plan makes none" in capsys.readouterr().err
    assert (folder / "over" / "checkpoint-6").exists()
    assert pretrain(folder, "over", "--overwrite", "--seed", "5", "--max_steps", "2") == 0
    assert (folder / "over" / "notes.txt").exists()
    assert [path.name for path in (folder / "over").glob("checkpoint-*")] == ["checkpoint-2"]


def test_a_tokenizer_of_another_recipe_is_not_taken(folder, tmp_path, capsys):
    other = {**TINY, "tokenizer": {"vocab_size": 151}}
    (folder / "other.yaml").write_text(yaml.safe_dump(other), encoding="utf-8")
    assert pretrain(folder, "begun", "--plan") == 0
    assert pretrain(folder, "begun", "--plan", recipe="other.yaml") == 2
    assert "begun/tokenizer was trained for another run" in capsys.readouterr().err


class Scarce:
    """A data collator with room for a few examples only."""

    def __init__(self, collator, most):
        self.collator, self.most, self.asked = collator, most, []

    def __getattr__(self, name):
        return getattr(self.collator, name)

    def __call__(self, features):
        self.asked.append(sum(map(len, features)))
        if self.asked[-1] > self.most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")
        return self.collator(features)


def test_out_of_memory_halves_what_is_taken_at_once_and_trains_the_same(folder, capsys, monkeypatch):
    original = pretrain_command.make_trainer

    def with_little_memory(*arguments):
        trainer = original(*arguments)
        trainer.data_collator = Scarce(trainer.data_collator, most=3)
        return trainer

    monkeypatch.setattr(pretrain_command, "make_trainer", with_little_memory)
    tokenizer = ("--tokenizer", str(folder / "whole" / "tokenizer"), "--eval_strategy", "no")
    assert pretrain(folder, "scarce", *tokenizer) == 2
    said = capsys.readouterr().err
    assert "memory was not enough for 4 examples of 40 tokens at once: give --per_device_train_batch_size 2" in said
    assert pretrain(folder, "scarce", *tokenizer, "--auto_find_batch_size", "True") == 0
    assert "Out of memory: 2 examples of the longest phase at once from here on." in capsys.readouterr().out
    before, after = weights(folder / "whole" / "model"), weights(folder / "scarce" / "model")
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("measured", [(), ("--measure",)])
def test_the_plan_is_of_what_is_trained(folder, monkeypatch, measured):
    plans = []
    original = pretrain_command.plan_of_run
    monkeypatch.setattr(pretrain_command, "plan_of_run", lambda *a: plans.append(original(*a)) or plans[-1])
    tokenizer = ("--tokenizer", str(folder / "whole" / "tokenizer"), "--plan", *measured)
    for words in ((), ("--gradient_accumulation_steps", "3"), ("--activation_checkpointing", "True")):
        assert pretrain(folder, "measured", *tokenizer, *words) == 0
    whole, divided, recomputed = plans
    for one, other in zip(whole.phases, divided.phases, strict=True):
        assert other.tokens == pytest.approx(one.tokens, rel=0.1)  # of samples
    assert recomputed.bytes < whole.bytes
    assert "a checkpoint every 2 steps" in str(whole)
    assert "no checkpoint before the end" in str(dataclasses.replace(whole, recipe=whole.recipe.of_steps(2)))


def test_nothing_is_pushed_in_silence_after_the_end(folder, capsys):
    assert pretrain(folder, "whole", "--push_to_hub", "True", "--hub_model_id", "me/it") == 2
    assert re.search("this run is finished. `hf-encoders publish .*whole/model --repo NAME`", capsys.readouterr().err)


def test_too_few_documents_are_told_with_what_they_are_for(folder, capsys):
    (folder / "three.txt").write_text("One is here. Two is there.\n\nThree is.\nFour is.\n\nFive. Six is five.")
    (folder / "pairs.yaml").write_text(yaml.safe_dump({**TINY, "objective": "nsp"}), encoding="utf-8")
    tokenizer = ("--tokenizer", str(folder / "whole" / "tokenizer"))
    assert pretrain(folder, "few", *tokenizer, corpus="three.txt", recipe="pairs.yaml") == 2
    assert "holds 3 document(s), and nsp needs 4: 2 to train on, 2 kept apart" in capsys.readouterr().err


def test_checkpoints_note_the_corpus(folder):
    facts = facts_of_checkpoint(folder / "whole" / "checkpoint-6")
    (corpus,) = facts["corpora"]
    assert corpus["documents"] == 48  # of 60, a fifth of them kept apart


def test_nothing_is_removed_or_made_for_wrong_paths(folder, capsys):
    shutil.copytree(folder / "whole", folder / "kept")
    assert pretrain(folder, "kept", "--overwrite", corpus="nowhere.txt") == 2
    assert (folder / "kept" / "model").is_dir()
    assert re.search(r"paths: '.*nowhere.txt' does not exist", capsys.readouterr().err)
    assert pretrain(folder, "text.txt") == 2
    assert re.search(r"--output '.*text.txt': .* is a file: name a folder", capsys.readouterr().err)


def test_wrong_paths(folder, capsys):
    assert pretrain(folder, "third", corpus="nowhere.txt") == 2
    assert "nowhere.txt" in capsys.readouterr().err
    assert pretrain(folder, "third", recipe="nowhere.yaml") == 2
    assert "nor one of the shipped recipes" in capsys.readouterr().err
    (folder / "empty.txt").write_text("")
    assert pretrain(folder, "third", corpus="empty.txt") == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_prepared_parts_are_one_corpus_also_beyond_the_limit_of_list_columns(folder, capsys, monkeypatch):
    documents = (folder / "text.txt").read_text().split("\n\n")
    tokenizer = load_tokenizer(folder / "whole" / "tokenizer")
    monkeypatch.setattr(sentence_encoding, "SENTENCES_A_CALL", 5)
    for number, is_large in enumerate((True, False)):
        (folder / f"part{number}.txt").write_text("\n\n".join(documents[number::2]))
        with monkeypatch.context() as limit:
            if is_large:
                limit.setattr(arrow_file, "MOST_IN_A_LIST_COLUMN", 300)
            part = folder / "parts" / f"part-{number}"
            prepare_corpus([folder / f"part{number}.txt"], part, tokenizer, workers=1)
    arguments = ("--tokenizer", str(folder / "whole" / "tokenizer"))
    monkeypatch.setattr(arrow_file, "MOST_IN_A_LIST_COLUMN", 300)
    assert pretrain(folder, "of-parts", *arguments, corpus="parts") == 0
    assert (folder / "of-parts" / "model" / "model.safetensors").is_file()
    assert pretrain(folder, "of-parts", *arguments, corpus="parts") == 0
    assert "This run is finished" in capsys.readouterr().out, "the same parts are the same corpus"
    opened = open_parts([folder / "parts" / f"part-{number}" for number in range(2)])
    assert len(opened) == len(set(documents))
    (folder / "parts" / "more.txt").write_text("One. Two.")
    assert pretrain(folder, "mixed", *arguments, corpus="parts") == 2
    assert "holds text, and" in capsys.readouterr().err
