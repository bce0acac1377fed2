"""`hf-encoders pretrain`: text in, a model that loads anywhere out; the same however it is divided."""

import dataclasses
import json
import re
import shutil
from contextlib import suppress

import pytest
import torch
import yaml
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_encoders import prepare_corpus
from hf_encoders.cli import main
from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.runs import train as pretrain_command
from hf_encoders.runs.run import Run
from hf_encoders.tokenizer_loading import load_tokenizer
from tests.commands.pretrain_runs import TINY, pretrain, same_weights, stopped_after, weights


@pytest.fixture(scope="module")
def folder(pretrained):
    return pretrained


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
    assert "30 to 15 % of the tokens" in record.objectives["masked language modelling"]
    assert (model / "loss_curve.png").stat().st_size > 1000
    assert "SOP" in (model / "README.md").read_text() or "sentence-order" in (model / "README.md").read_text()
    # The schedule is over all phases: two steps of warm-up, then linear from 0.01 to 0 over four.
    log = json.loads((folder / "whole" / "checkpoint-6" / "trainer_state.json").read_text())["log_history"]
    rates = {entry["step"]: entry["learning_rate"] for entry in log if "learning_rate" in entry}
    assert [rates[step] for step in range(1, 7)] == pytest.approx([0.0, 0.005, 0.01, 0.0075, 0.005, 0.0025])


def test_an_interrupted_run_ends_with_the_same_weights(folder, capsys):
    stopped_after(folder, "whole", "again", 2)
    assert pretrain(folder, "again") == 0
    printed = capsys.readouterr().out
    assert re.search(r"Resuming from .*again/checkpoint-2", printed)
    assert "2 of 6 steps are done: 4 are left, " in printed
    assert same_weights(folder, "whole", "again")
    # Tokens and seconds of the steps before the restart count.
    state = json.loads((folder / "whole" / "checkpoint-2" / "trainer_state.json").read_text())
    seconds = state["stateful_callbacks"]["HealthCallback"]["attributes"]["training_seconds"]
    whole, record = (TrainingRecord.load(folder / name / "model") for name in ("whole", "again"))
    assert record.seconds > seconds > 0
    assert record.tokens_per_second * record.seconds == pytest.approx(whole.tokens_per_second * whole.seconds)


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
    assert f"the prepared corpus is kept for the run: {folder / 'planned' / '_corpus'}" in printed
    with pytest.raises(SystemExit):
        main(["pretrain", "--help"])
    assert "corpus made for it are kept in --output" in " ".join(capsys.readouterr().out.split())


def test_a_plan_for_another_device_in_its_precision_with_what_overrides_the_recipe(folder, capsys):
    words = ["--tokenizer", str(folder / "whole" / "tokenizer"), "--plan", "--device", "cuda", "--bf16", "True"]
    words += ["--learning_rate", "3e-3", "--warmup_steps", "0.5"]
    assert pretrain(folder, "elsewhere", *words, corpus="whole/_corpus") == 0
    printed = capsys.readouterr().out
    assert "1 x cuda" in printed and "assumed: 30% of 312 TFLOP/s (an A100's in bfloat16" in printed
    assert "learning rate 0.003 (linear, 3 steps of warm-up)" in printed
    assert pretrain(folder, "elsewhere", *words, "--device-tflops", "990", corpus="whole/_corpus") == 0
    assert "assumed: 30% of 990 TFLOP/s (--device-tflops)" in capsys.readouterr().out


@pytest.mark.parametrize("words", [(), ("--measure",)])
def test_a_plan_of_a_prepared_corpus_leaves_nothing(folder, words, capsys):
    tokenizer = ("--tokenizer", str(folder / "whole" / "tokenizer"))
    assert pretrain(folder, "nothing/of it", "--plan", *tokenizer, *words, corpus="whole/_corpus") == 0
    assert ("measured: a forward" if words else "estimated: ") in capsys.readouterr().out
    assert not (folder / "nothing").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--max_steps", "3"), r"recipe \(phases\).* It has 4 steps of 6 x 24 tokens, 2 steps of 3 x 40 tokens"),
        (("--device", "cuda"), "--device is for --plan without --measure"),
        (("--plan", "--device-tflops", "990"), "--device-tflops 990: .* is for --plan --device cuda"),
        (("--optim", "sgd"), r"holds a run with another recipe \(optimizer\)"),
        (("--per_device_train_batch_size", "0"), "per_device_train_batch_size=0 must be at least 1"),
        (("--weight_decay", "0"), "optimizer lamb with weight_decay=0"),
    ],
)
def test_other_arguments_are_refused(folder, words, said, capsys):
    with suppress(SystemExit):
        assert pretrain(folder, "whole", *words) == 2
    assert re.search(said, capsys.readouterr().err)


def test_a_prepared_corpus_needs_its_tokenizer(folder, capsys):
    assert pretrain(folder, "second", corpus="whole/_corpus") == 2
    assert "--tokenizer is missing: give the one that the corpus" in capsys.readouterr().err
    assert pretrain(folder, "second", "--tokenizer", str(folder / "whole/tokenizer"), corpus="whole/_corpus") == 0
    assert same_weights(folder, "whole", "second")
    shutil.copytree(folder / "whole/tokenizer", folder / "edited")
    text = (folder / "edited/tokenizer.json").read_text()
    (folder / "edited/tokenizer.json").write_text(text.replace("alpha", "alpho"))
    assert pretrain(folder, "second", "--tokenizer", str(folder / "edited"), corpus="whole/_corpus") == 2
    assert "was made with another tokenizer than" in capsys.readouterr().err
    assert pretrain(folder, "second", "--corpus", str(folder / "whole/_corpus"), str(folder / "text.txt")) == 2
    assert "holds text, and" in capsys.readouterr().err


def test_a_finished_run_is_not_run_again(folder, capsys):
    before = (folder / "whole" / "model" / "training_record.json").stat().st_mtime_ns
    assert pretrain(folder, "whole") == 0
    assert "This run is finished" in capsys.readouterr().out
    assert pretrain(folder, "whole", "--push_to_hub", "True", "--hub_model_id", "me/it") == 2
    assert re.search("this run is finished. `hf-encoders publish .*whole/model --repo NAME`", capsys.readouterr().err)
    assert (folder / "whole" / "model" / "training_record.json").stat().st_mtime_ns == before
    assert pretrain(folder, "whole", "--plan", "--max-steps", "10") == 0
    assert "6 of 10 steps are done: 4 are left, " in capsys.readouterr().out


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
    assert "--overwrite removes a run, and --plan starts none" in capsys.readouterr().err
    assert (folder / "over" / "checkpoint-6").exists()
    assert pretrain(folder, "over", "--overwrite", "--seed", "5", "--max_steps", "2") == 0
    assert (folder / "over" / "notes.txt").exists()
    assert [path.name for path in (folder / "over").glob("checkpoint-*")] == ["checkpoint-2"]


def test_a_tokenizer_of_another_recipe_is_not_taken(folder, capsys):
    other = {**TINY, "tokenizer": {"vocab_size": 151}}
    (folder / "other.yaml").write_text(yaml.safe_dump(other), encoding="utf-8")
    assert pretrain(folder, "begun", "--plan") == 0
    assert pretrain(folder, "begun", "--plan", recipe="other.yaml") == 0
    assert "begun/tokenizer was trained on other text or settings" in capsys.readouterr().out
    (folder / "text2.txt").write_text((folder / "text.txt").read_text(), encoding="utf-8")
    assert pretrain(folder, "whole", corpus="text2.txt") == 2
    assert "whole/tokenizer was trained for another run" in capsys.readouterr().err


class Scarce:
    """A data collator with room for a few examples only."""

    def __init__(self, collator, most):
        self.collator, self.most = collator, most

    def __getattr__(self, name):
        return getattr(self.collator, name)

    def __call__(self, features):
        if len(features) > self.most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")
        return self.collator(features)


def test_out_of_memory_halves_what_is_taken_at_once_and_trains_the_same(folder, capsys, monkeypatch):
    original = Run.trainer

    def with_little_memory(*arguments):
        trainer = original(*arguments)
        trainer.data_collator = Scarce(trainer.data_collator, most=3)
        return trainer

    monkeypatch.setattr(Run, "trainer", with_little_memory)
    tokenizer = ("--tokenizer", str(folder / "whole" / "tokenizer"), "--eval_strategy", "no")
    assert pretrain(folder, "scarce", *tokenizer) == 2
    remedy = "out of memory with 4 examples of 40 tokens per micro-batch: give --per-device-train-batch-size 2"
    assert remedy in capsys.readouterr().err
    assert pretrain(folder, "scarce", *tokenizer, "--auto_find_batch_size", "True") == 0
    assert "Out of memory: from now on 2 examples of the longest phase per micro-batch." in capsys.readouterr().out
    before, after = weights(folder / "whole" / "model"), weights(folder / "scarce" / "model")
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("measured", [(), ("--measure",)])
def test_the_plan_is_of_what_is_trained(folder, monkeypatch, measured):
    plans = []
    name = "measure_passes" if measured else "make_plan"
    original = getattr(pretrain_command, name)
    monkeypatch.setattr(pretrain_command, name, lambda *a: plans.append(original(*a)) or plans[-1])
    tokenizer = ("--tokenizer", str(folder / "whole" / "tokenizer"), "--plan", *measured)
    for words in ((), ("--gradient_accumulation_steps", "3", "--activation_checkpointing", "True")):
        assert pretrain(folder, "measured", *tokenizer, *words) == 0
    whole, divided = plans
    for phase, other in zip(whole.phases, divided.phases, strict=True):
        assert other.tokens == pytest.approx(phase.tokens, rel=0.1)  # of samples
    assert divided.bytes < whole.bytes
    assert "a checkpoint every 2 steps" in str(whole)
    shorter = Run(whole.run.recipe.of_steps(2), "nowhere")
    assert "no checkpoint before the end" in str(dataclasses.replace(whole, run=shorter))


def test_too_few_documents_are_told_with_what_they_are_for(folder, capsys):
    (folder / "three.txt").write_text("One is here. Two is there.\n\nThree is.\nFour is.\n\nFive. Six is five.")
    (folder / "pairs.yaml").write_text(yaml.safe_dump({**TINY, "objective": "nsp"}), encoding="utf-8")
    tokenizer = ("--tokenizer", str(folder / "whole" / "tokenizer"))
    assert pretrain(folder, "few", *tokenizer, corpus="three.txt", recipe="pairs.yaml") == 2
    assert "holds 3 document(s), and nsp needs 4: 2 to train on and 2 to evaluate on" in capsys.readouterr().err


def test_prepared_parts_are_one_corpus(folder, capsys):
    documents = (folder / "text.txt").read_text().split("\n\n")
    tokenizer = load_tokenizer(folder / "whole" / "tokenizer")
    for number in range(2):
        (folder / f"part{number}.txt").write_text("\n\n".join(documents[number::2]))
        prepare_corpus([folder / f"part{number}.txt"], folder / "parts" / f"part-{number}", tokenizer, workers=1)
    arguments = ("--tokenizer", str(folder / "whole" / "tokenizer"))
    assert pretrain(folder, "of-parts", *arguments, corpus="parts") == 0
    assert (folder / "of-parts" / "model" / "model.safetensors").is_file()
    assert pretrain(folder, "of-parts", *arguments, corpus="parts") == 0
    assert "This run is finished" in capsys.readouterr().out, "the same parts are the same corpus"
    documents_of_run = TrainingRecord.load(folder / "of-parts" / "model").corpus["documents"]
    assert documents_of_run == len(set(documents)) - round(0.2 * len(set(documents)))
    (folder / "parts" / "more.txt").write_text("One. Two.")
    assert pretrain(folder, "mixed", *arguments, corpus="parts") == 2
    assert "holds text, and" in capsys.readouterr().err


def test_recipes_that_continue_a_checkpoint_are_refused_without_one(folder, capsys):
    words = ["pretrain", "adapt-minutes", "--corpus", str(folder / "text.txt"), "--output", str(folder / "no-model")]
    assert main(words) == 2
    assert "use `hf-encoders adapt CHECKPOINT`, or give --from" in capsys.readouterr().err
    assert not (folder / "no-model").exists()
    with pytest.raises(SystemExit):
        main(["pretrain", "--help"])
    assert "adapt-minutes" not in capsys.readouterr().out
