"""`hf-encoders finetune`: from files to models with metrics, and refusals before anything is trained."""

import argparse
import contextlib
import csv
import json
import shutil

import datasets
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hf_encoders import writing
from hf_encoders.commands import finetune as command
from hf_encoders.finetuning import report, runs
from hf_encoders.loading import load_config
from hf_encoders.publishing.record import TrainingRecord
from tests.finetuning.tiny import labelled, save_encoder, sentences
from tests.hub.remote_process import run_without_package
from tests.hub.tiny_checkpoints import ALBERT, BERT


QUICK = ("--max-steps", "3", "--batch-size", "8", "--learning-rate", "1e-3", "--disable-tqdm", "True")


def finetune(*words):
    parser = argparse.ArgumentParser(prog="hf-encoders finetune")
    command.add_arguments(parser)
    arguments = parser.parse_args([str(word) for word in words])
    command.check(arguments)
    with contextlib.ExitStack() as arguments.until_end:
        return command.run(arguments)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_encoder(BERT, tmp_path_factory.mktemp("encoder"))


@pytest.fixture
def files(tmp_path):
    for name, seed in (("train", 0), ("test", 1)):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows(zip(*labelled(24, seed).values(), strict=True))
    return {name: tmp_path / f"{name}.csv" for name in ("train", "test")}


def on(model, files, folder):
    return "text-classification", "--model", model, "--train", files["train"], "--output", folder / "out"


def test_two_seeds_give_two_models_and_a_table(bert, files, tmp_path, capsys):
    output = tmp_path / "out"
    code = finetune(
        *on(bert, files, tmp_path), "--test", files["test"], "--seeds", 3, 8,
        "--class-weights", "balanced", "--data-name", "Cats", "--layer-decay", 0.5, *QUICK,
    )  # fmt: skip
    printed, results = capsys.readouterr().out, json.loads((output / "results.json").read_text())
    assert code == 0
    for line in (
        "train: 24 examples",
        "class weights: cat 1.5, none 0.75",
        "learning rate of each layer: 0.5 times the next one's",
        "3 steps of 8 rows per device, learning rate 0.001, seeds [3, 8]",
    ):
        assert line in printed
    assert [of_seed["seed"] for of_seed in results["seeds"]] == [3, 8]
    values = [of_seed["metrics"]["test"]["accuracy"] for of_seed in results["seeds"]]
    assert results["summary"]["test"]["accuracy"]["mean"] == pytest.approx(sum(values) / 2)
    assert results["baseline"]["test"]["accuracy"] == 16 / 24
    record = TrainingRecord.load(output / "seed-8")
    accuracy = next(entry for entry in record.evaluation if entry["metric"] == "accuracy")
    assert accuracy == {
        "task": "text-classification",
        "dataset": "Cats",
        "split": "test",
        "metric": "accuracy",
        "value": round(values[1], 4),
        "baseline": "most frequent label 0.667",
        "seeds": {"3": round(values[0], 4), "8": round(values[1], 4)},
    }
    assert record.base_model == f"{bert.name} (a local folder)"
    assert (record.schedule["seed"], record.schedule["optimizer steps"]) == (8, 3)
    layers = load_config(str(bert)).num_hidden_layers
    assert record.schedule["peak learning rate of the embeddings"] == pytest.approx(0.001 * 0.5 ** (layers + 1))
    assert record.corpus == {"name": "Cats", "training examples": 24} and "test" in record.losses
    assert not list(output.rglob("*.bin"))


@pytest.mark.processes
def test_what_is_saved_gives_the_same_scores_everywhere(bert, files, tmp_path):
    output = tmp_path / "out"
    finetune(*on(bert, files, tmp_path), "--held-out", 0.25, *QUICK)
    folder = output / "seed-0"
    loaded = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert type(loaded).__module__ == "transformers.models.bert.modeling_bert"
    assert loaded.config.id2label == {0: "cat", 1: "none"}
    inputs = AutoTokenizer.from_pretrained(folder)("The cat sat on a mat.", return_tensors="pt")
    with torch.no_grad():
        expected = loaded(**inputs).logits
    scores = run_without_package(
        """
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
        model = AutoModelForSequenceClassification.from_pretrained(argument, trust_remote_code=True).eval()
        inputs = AutoTokenizer.from_pretrained(argument)("The cat sat on a mat.", return_tensors="pt")
        with torch.no_grad():
            result = [type(model).__name__, model(**inputs).logits.tolist()]
        """,
        tmp_path / "home",
        argument=str(folder),
    )
    assert scores[0] == "HfeBertForSequenceClassification"
    torch.testing.assert_close(torch.tensor(scores[1]), expected, atol=1e-5, rtol=0)


def test_regression_and_choices_from_files(tmp_path, capsys):
    encoder = save_encoder(ALBERT, tmp_path / "albert")
    rows = zip(sentences(20), sentences(20, 1), range(20), strict=True)
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\t{number % 5 / 2}\n" for a, b, number in rows))
    finetune(
        "text-regression", "--model", encoder, "--train", tmp_path / "pairs.tsv", "--columns", "a,b,score",
        "--text-column", "a", "--text-pair-column", "b", "--label-column", "score", "--output", tmp_path / "one",
        "--patience", 1, "--eval-steps", 1, *QUICK,
    )  # fmt: skip
    printed = capsys.readouterr().out
    assert "numbers from 0 to 2" in printed and "the validation set chose the weights" in printed
    assert {"pearsonr", "spearmanr", "mse", "loss"} == set(metrics(tmp_path / "one", "validation"))
    rows = [{"prompt": text, "endings": ["cat", "dog", "mat"], "label": i % 3} for i, text in enumerate(sentences(20))]
    (tmp_path / "choices.jsonl").write_text("\n".join(map(json.dumps, rows)))
    finetune(
        "multiple-choice", "--model", encoder, "--train", tmp_path / "choices.jsonl", "--output", tmp_path / "two",
        "--checkpoint", "last", *QUICK,
    )  # fmt: skip
    printed = capsys.readouterr().out
    assert "validation: 2 rows held out of the training data" in printed and "chose the weights" not in printed
    assert {"accuracy", "loss"} == set(metrics(tmp_path / "two", "validation"))


def test_training_rows_in_the_test_set_and_metrics_near_the_baseline_are_warned_of(bert, files, tmp_path, capsys):
    output = tmp_path / "out"
    words = ("text-classification", "--model", bert, "--train", files["train"], "--test", files["train"])
    finetune(*words, "--output", output, "--max-steps", 1, "--bf16", "--disable-tqdm", "True")
    printed, results = capsys.readouterr().out, json.loads((output / "results.json").read_text())
    leak = "test: 24 of 24 rows are in the training data too, with the same text: "
    assert f"WARNING: {leak}" in printed
    assert "chosen for width 36 and 24 training examples: learning rate 0.001" in printed
    assert "1 steps of 32 rows per device, learning rate 0.001" in printed
    assert results["repeated_rows"] == {"test": 24}
    assert results["settings"]["training"]["learning_rate"] == 1e-3 and results["settings"]["training"]["bf16"] is True
    warnings = results["warnings"]["0"]
    assert warnings[-1].startswith("test: accuracy 0.") and "the baseline" in warnings[-1]
    one_class = results["seeds"][0]["only_class"].values()
    assert warnings[:-1] == [f"test: all predictions are '{name}', whatever the input." for name in one_class]
    assert all(f"WARNING: seed 0, {warning}" in printed for warning in warnings)
    record = TrainingRecord.load(output / "seed-0")
    assert record.warnings[0].startswith(leak) and record.warnings[1:] == warnings
    assert record.schedule["peak learning rate"] == 1e-3


def test_a_fine_tuned_model_takes_other_labels_with_a_new_head(bert, files, tmp_path):
    finetune("text-classification", "--model", bert, "--train", files["train"], "--output", tmp_path / "a", *QUICK)
    rows = tmp_path / "topics.csv"
    rows.write_text("text,label\n" + "".join(f"the {name},{name}\n" for name in ("cat", "dog", "mat") * 4))
    words = ("text-classification", "--model", tmp_path / "a" / "seed-0", "--train", rows, *QUICK)
    with pytest.raises(ValueError, match="--model .* cannot be loaded as .*use --new-head"):
        finetune(*words, "--output", tmp_path / "b")
    assert not (tmp_path / "b" / "seed-0").exists()
    finetune(*words, "--output", tmp_path / "b", "--new-head")
    config = load_config(str(tmp_path / "b" / "seed-0"))
    assert list(config.id2label.values()) == ["cat", "dog", "mat"]
    assert json.loads((tmp_path / "b" / "results.json").read_text())["settings"]["new_head"] is True


def metrics(output, name):
    return json.loads((output / "results.json").read_text())["summary"][name]


def test_results_are_not_overwritten_unasked_nor_lost_when_a_run_fails(bert, files, tmp_path, monkeypatch):
    words, output = (*on(bert, files, tmp_path), *QUICK), tmp_path / "out"
    finetune(*words)
    for options, message in (
        ((), "seed-0 exists already"),
        (("--seeds", 1), "results.json exists already"),
        (("--overwrite", "--label-column", "lable"), "--label-column"),
    ):
        with pytest.raises(ValueError, match=message):
            finetune(*words, *options)
    (output / "seed-0" / "old").touch()
    with monkeypatch.context() as patch:
        patch.setattr(report, "make_record", lambda *arguments: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            finetune(*words, "--overwrite")
    assert (output / "seed-0" / "old").exists() and not (output / "_seed-0").exists()
    train = runs.finetune

    def fail_at_one(task, tokenizer, settings, seed, folder):
        if seed == 1:
            raise ValueError("training diverged")
        return train(task, tokenizer, settings, seed, folder)

    monkeypatch.setattr(runs, "finetune", fail_at_one)
    for seeds, finished in (((1,), [0]), ((2, 1), [2])):  # nothing replaces the results before a seed is finished
        with pytest.raises(ValueError, match="diverged"):
            finetune(*words, "--seeds", *seeds, "--overwrite")
        results = json.loads((output / "results.json").read_text())
        assert [of_seed["seed"] for of_seed in results["seeds"]] == finished
    finetune(*words, "--overwrite")
    assert not (output / "seed-0" / "old").exists()


def test_long_work_has_a_bar_on_stderr_that_disable_tqdm_hides(bert, files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(writing, "SECONDS_WITHOUT_BAR", 0.0)
    datasets.enable_progress_bars()
    for name, is_hidden in (("shown", "False"), ("hidden", "True")):
        words = on(bert, files, tmp_path / name)
        assert finetune(*words, "--max-steps", 1, "--batch-size", 8, "--disable-tqdm", is_hidden) == 0
        printed = capsys.readouterr()
        assert ("Tokenizing:   0%" in printed.err) == (name == "shown") and "Tokenizing" not in printed.out
        assert ("%|" in printed.err) == (name == "shown")


def test_two_commands_do_not_write_into_one_folder(bert, files, tmp_path, monkeypatch):
    words = on(bert, files, tmp_path)
    train = runs.finetune

    def train_while_another_is_started(*arguments):
        monkeypatch.setattr(runs, "finetune", lambda *_: pytest.fail("trained beside the other"))
        with pytest.raises(ValueError, match="--output .*out': another process writes there"):
            finetune(*words, *QUICK, "--overwrite")
        return train(*arguments)

    monkeypatch.setattr(runs, "finetune", train_while_another_is_started)
    assert finetune(*words, *QUICK) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["examples.json", "results.json", "seed-0"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--max-length 44", "--max-length 44: .*5 to 43"),
        ("--max-length 4", "--max-length 4"),
        ("--seeds 1 1", "a seed occurs twice"),
        ("--seeds -1", "a seed must be from 0"),
        ("--label-column category", "--label-column category: .* text, label"),
        ("--class-weights dog=2", "no class 'dog'"),
        ("--multi-label --best-metric accuracy", "--best-metric accuracy"),
        ("--optim lion_8bit", "optim=lion_8bit: .*bitsandbytes"),
        ("--optim lamb --weight-decay 0", "optimizer lamb with weight_decay=0"),
        ("--eval-steps 0", "--eval-steps 0"),
        ("--eval-steps 5 --held-out 0", "--eval-steps needs a validation set"),
        ("--per-device-train-batch-size 0", "per_device_train_batch_size=0"),
        ("--learning-rate nan", "learning_rate=nan"),
        ("--learning-rate 10", "learning_rate=10.0 .*at most 1"),
        ("--weight-decay 3000", "learning rate 0.001 x weight decay 3000.0"),
        ("--warmup 5000", "warmup_steps=5,000 .* 50 steps"),
        ("--label-smoothing-factor 1.5", "label_smoothing_factor=1.5"),
        ("--report-to wandb", "report_to=.*wandb"),
        ("--tf32 true", "TrainingArguments: .*tf32"),
        ("--fp16 --use-cpu", "fp16: .*accelerator"),
        ("--max-steps 0", "--max-steps 0"),
        ("--epochs 0", "--epochs 0"),
    ],
)
def test_wrong_options_are_refused_before_a_model_is_loaded(bert, files, tmp_path, monkeypatch, words, message):
    monkeypatch.setattr(runs, "finetune", lambda *_: pytest.fail("trained"))
    with pytest.raises(ValueError, match=message):
        finetune(*on(bert, files, tmp_path), *words.split())


def test_several_processes_and_an_encoder_without_tokenizer_are_refused(bert, files, tmp_path, monkeypatch):
    folder = shutil.copytree(bert, tmp_path / "encoder")
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ValueError, match="--model .* has no tokenizer, or one with special tokens only"):
        finetune(*on(folder, files, tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="start it without torchrun"):
        finetune(*on(bert, files, tmp_path))


@pytest.mark.parametrize("name", [name for name, *_ in command.TASKS])
def test_help_names_defaults_and_units(name, capsys):
    with pytest.raises(SystemExit):
        finetune(name, "--help")
    printed = capsys.readouterr().out
    assert "default: 5e-05" in printed
    assert "tokens" in printed.lower()
