"""The training loop: exact under accumulation, the best checkpoint, seeds, classes."""

import math
import shutil
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, BertConfig

from hf_encoders.finetuning import (
    multiple_choice,
    question_answering,
    sequence_classification,
    sequence_regression,
    token_classification,
)
from hf_encoders.finetuning.runs import RunSettings, finetune, load_model, num_steps, with_defaults
from hf_encoders.loading import load_config
from hf_encoders.tokenizer_loading import longest_input
from tests.finetuning.tiny import LENGTH, labelled, save_encoder, sentences, splits, tokenizer_of
from tests.hub.tiny_checkpoints import ALBERT, BERT, FAMILIES, ROBERTA, make_config


# Plain gradient descent: Adam would make a large step out of a rounding difference, and both Adam and clipping would
# hide a gradient that is a multiple of the right one.
DESCENT = {
    "optim": "sgd",
    "max_grad_norm": 0.0,
    "learning_rate": 0.1,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "max_steps": 3,
}


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    return {family.name: save_encoder(family, tmp_path_factory.mktemp(family.name)) for family in FAMILIES}


def classification(family, count=20, **options):
    data = splits(train=labelled(count), validation=labelled(10, seed=1), test=labelled(10, seed=2))
    return sequence_classification.prepare(data, tokenizer_of(family), max_length=LENGTH, **options)


def similarity(family):
    data = splits(train={"a": sentences(20), "b": sentences(20, 1), "label": [i % 5 / 2 for i in range(20)]})
    return sequence_regression.prepare(
        data, tokenizer_of(family), max_length=LENGTH, text_column="a", text_pair_column="b"
    )


def choices(family):
    endings = [list(row) for row in zip(sentences(20, 1), sentences(20, 2), sentences(20, 3), strict=True)]
    rows = {"prompt": sentences(20), "endings": endings, "label": [i % 3 for i in range(20)]}
    return multiple_choice.prepare(splits(train=rows), tokenizer_of(family), max_length=LENGTH)


def tags(family):
    """Sentences of unequal numbers of words: the loss is a mean over words, not over rows."""
    rows = [text.split() for text in sentences(20)]
    marked = [[{"cat": "B-X", "dog": "B-Y"}.get(word, "O") for word in words] for words in rows]
    data = splits(train={"tokens": rows, "ner_tags": marked})
    return token_classification.prepare(data, tokenizer_of(family), max_length=LENGTH)


def questions(family):
    """Windows of unequal lengths: the softmax of the loss leaves padding out."""
    contexts = [f"{'sat on a ' * (i % 7)}cat and the {'sat on a ' * (i % 7)}" for i in range(20)]
    answers = [{"text": ["cat"], "answer_start": [context.index("cat")]} for context in contexts]
    data = splits(train={"question": ["cat"] * 20, "context": contexts, "answers": answers})
    return question_answering.prepare(data, tokenizer_of(family), max_length=43)


def run(task, family, encoders, tmp_path, seed=0, training=DESCENT, **settings):
    settings = RunSettings(str(encoders[family.name]), training={"disable_tqdm": True, **training}, **settings)
    return finetune(task, tokenizer_of(family), settings, seed, tmp_path / "run")


def assert_same_weights(one, other, tolerance):
    torch.testing.assert_close(one.state_dict(), other.state_dict(), atol=tolerance, rtol=tolerance)


TASKS = {
    "classification": (classification, {}),
    "choices": (choices, {}),
    "multi-label": (partial(classification, multi_label=True), {}),
    "class weights": (classification, {"class_weights": [3.0, 0.5]}),
    "regression": (similarity, {}),
    "tags": (tags, {}),
    "questions": (questions, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "task"),
    [
        pytest.param(family, task, id=f"{family.name}-{task}")
        for family in FAMILIES
        for task in (TASKS if family is BERT else ("classification",))
    ],
)
def test_eight_rows_are_four_times_two_accumulated(encoders, tmp_path, family, task):
    """The third step has the 4 rows that are left of 20: half a batch.

    All tasks for BERT, and one for other families: the losses of a head are the same code for all.
    """
    make_task, settings = TASKS[task]
    task = make_task(family)
    models = [
        run(
            task, family, encoders, tmp_path, checkpoint="last", **settings,
            training={**DESCENT, "per_device_train_batch_size": rows, "gradient_accumulation_steps": 8 // rows},
        ).model
        for rows in (8, 2)
    ]  # fmt: skip
    assert_same_weights(*models, tolerance=2e-5)
    assert moved(models[0], encoders[family.name], task) > 1e-2


def moved(model, encoder, task):
    """Largest change of a weight of the encoder."""
    config = load_config(str(encoder))
    before = load_model(str(encoder), task.auto_class, config, task.config_fields).base_model.state_dict()
    return max((value - before[name]).abs().max() for name, value in model.base_model.state_dict().items())


@pytest.mark.slow
def test_stock_classes_train_the_same_model_and_average_over_micro_batches(encoders, tmp_path):
    task = classification(BERT, count=16)
    ours, stock, accumulated = (
        run(
            task, BERT, encoders, tmp_path, classes=classes, checkpoint="last",
            training={**DESCENT, "per_device_train_batch_size": rows, "gradient_accumulation_steps": 8 // rows},
        )
        for classes, rows in (("hf_encoders", 8), ("transformers", 8), ("transformers", 2))
    )  # fmt: skip
    assert type(ours.model).__name__ == "HfeBertForSequenceClassification"
    assert type(stock.model).__module__ == "transformers.models.bert.modeling_bert"
    assert_same_weights(ours.model, stock.model, tolerance=2e-5)
    assert_same_weights(stock.model, accumulated.model, tolerance=2e-5)
    assert ours.metrics["test"] == pytest.approx(stock.metrics["test"], abs=1e-5)


def scripted(task, values):
    """Let the evaluations in the run find these values of the main metric, one after the other."""
    upcoming = iter(values)
    task.compute_metrics = lambda name: lambda prediction: {"accuracy": next(upcoming, 0.0)}
    return task


@pytest.mark.slow
def test_the_best_checkpoint_is_kept_and_patience_ends_the_run(encoders, tmp_path):
    training = {**DESCENT, "max_steps": 50, "eval_strategy": "steps", "eval_steps": 2}
    task = scripted(classification(BERT), [0.2, 0.6, 0.5, 0.6, 0.9])
    best = run(task, BERT, encoders, tmp_path, training=training, patience=2)
    assert (best.best_step, best.steps) == (4, 8)
    until_there = run(
        classification(BERT), BERT, encoders, tmp_path, training={**DESCENT, "max_steps": 4}, checkpoint="last"
    )
    assert_same_weights(best.model, until_there.model, tolerance=0)
    assert list((tmp_path / "run").iterdir()) == []
    del task.eval_sets["validation"]
    last = run(task, BERT, encoders, tmp_path)
    assert (last.best_step, last.steps, list(last.metrics)) == (None, 3, ["test"])


@pytest.mark.slow
def test_a_run_is_a_function_of_its_seed(encoders, tmp_path):
    task = classification(ALBERT)
    one, again, other = (run(task, ALBERT, encoders, tmp_path, seed=seed).model for seed in (3, 3, 4))
    assert_same_weights(one, again, tolerance=0)
    assert not torch.equal(one.classifier.weight, other.classifier.weight)


def test_from_scratch_loads_no_weight(encoders, tmp_path):
    still = {**DESCENT, "learning_rate": 0.0, "max_steps": 1}
    task = classification(ROBERTA)
    loaded = run(task, ROBERTA, encoders, tmp_path, training=still).model
    scratch = run(task, ROBERTA, encoders, tmp_path, training=still, from_scratch=True).model
    assert moved(loaded, encoders["roberta"], task) == 0
    names = [name for name, value in scratch.base_model.named_parameters() if value.dim() == 2]
    before = loaded.base_model.state_dict()
    assert names
    assert not any(torch.equal(scratch.base_model.state_dict()[name], before[name]) for name in names)


def test_a_run_counts_tokens_without_padding_and_has_the_defaults_of_its_width(encoders, tmp_path):
    task = classification(BERT)
    result = run(task, BERT, encoders, tmp_path, training={"num_train_epochs": 2.0})
    tokens = sum(len(ids) for ids in task.train_set["input_ids"])
    assert result.tokens_per_second * result.seconds == pytest.approx(2 * tokens)
    assert (result.training["learning_rate"], result.steps) == (1e-3, 2)


def test_a_model_that_diverged_has_no_metrics(encoders, tmp_path):
    training = {**DESCENT, "learning_rate": 1e30}
    with pytest.raises(ValueError, match="seed 0, validation: the scores are NaN"):
        run(classification(BERT), BERT, encoders, tmp_path, training=training, checkpoint="last")


@pytest.mark.parametrize("classes", ["hf_encoders", "transformers"])
def test_damaged_and_unfitting_weights_are_refused(encoders, tmp_path, classes):
    folder = shutil.copytree(encoders["bert"], tmp_path / "bert")
    file, auto_class = folder / "model.safetensors", AutoModelForSequenceClassification

    def load(labels=2):
        return load_model(str(folder), auto_class, load_config(str(folder), classes), {"num_labels": labels})

    weights = load_file(file)
    load(3).save_pretrained(folder)
    with pytest.raises(ValueError, match="cannot be loaded as"):
        load(2)
    for absent in ("bert.", "bert.encoder.layer.1."):
        kept = {name: value for name, value in weights.items() if not name.startswith(absent)}
        save_file(kept, file, metadata={"format": "pt"})
        with pytest.raises(ValueError, match=r"bert\.|asks for 2 layers"):
            load()
    for damage in (lambda: file.write_bytes(file.read_bytes()[:1000]), file.unlink):
        damage()
        with pytest.raises(ValueError, match="--model .* cannot be loaded as AutoModelForSequenceClassification"):
            load()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_longest_input_is_what_the_model_takes(encoders, family):
    folder, tokenizer = str(encoders[family.name]), tokenizer_of(family)
    config = load_config(folder)
    longest = longest_input(config, tokenizer)
    if config.has_position_table:
        model = load_model(folder, AutoModelForSequenceClassification, config, {})
        model(input_ids=torch.full((1, longest), 5))
        with pytest.raises((ValueError, IndexError, RuntimeError)):
            model(input_ids=torch.full((1, longest + 1), 5))
    else:
        # Without a table, what the model was trained on; 512 where neither it nor this tokenizer has a limit.
        has_limit = family.name in ("modernbert", "deberta-v2")
        assert longest == (make_config(family).max_position_embeddings if has_limit else 512)
    tokenizer.model_max_length = 17
    assert longest_input(config, tokenizer) == 17


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"checkpoint": "first"}, "--checkpoint 'first' must be one of best, last"),
        ({"patience": 0}, "--patience 0"),
        ({"layer_decay": 0.0}, "--layer-decay 0.0: it must be in"),
        ({"patience": 1, "checkpoint": "last"}, "--checkpoint last"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RunSettings("model", **settings)


def test_types_of_entities_may_be_called_like_sets(encoders, tmp_path):
    """`Trainer` puts its prefix only before names that do not begin with it."""
    rows = {"tokens": [text.split() for text in sentences(12)]}
    rows["ner_tags"] = [["B-test", *["O"] * (len(words) - 1)] for words in rows["tokens"]]
    task = token_classification.prepare(splits(train=rows, test=rows), tokenizer_of(BERT), max_length=LENGTH)
    found = run(task, BERT, encoders, tmp_path).metrics["test"]
    assert {"test_f1", "test_number", "overall_f1", "loss"} <= found.keys() and "f1" not in found


def test_a_head_that_is_kept_is_printed_and_outputs_that_config_json_asks_for_are_no_predictions(tmp_path, capsys):
    """Of another task it would begin with classes that mean something else."""
    folder = {BERT.name: save_encoder(BERT, tmp_path / "encoder", output_hidden_states=True)}
    tuned = run(classification(BERT), BERT, folder, tmp_path)
    assert tuned.metrics["test"]["accuracy"] >= 0
    assert "the checkpoint's head" not in capsys.readouterr().out
    tuned.model.save_pretrained(tmp_path / "tuned")
    data = splits(train={"text": sentences(8), "label": ["sad", "glad"] * 4})
    task = sequence_classification.prepare(data, tokenizer_of(BERT), max_length=LENGTH)
    run(task, BERT, {BERT.name: tmp_path / "tuned"}, tmp_path)
    assert "head (trained for cat, none) for glad, sad; --new-head" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (similarity, {}, "one class per row or token"),
        (classification, {"class_weights": [3.0, 0.5]}, "--class-weights"),
        (classification, {"training": {"gradient_accumulation_steps": 2}}, "--accumulation"),
    ],
)
def test_label_smoothing_that_would_not_be_what_it_says_is_refused(make, settings, message, encoders, tmp_path):
    training = {**DESCENT, "label_smoothing_factor": 0.1, **settings.get("training", {})}
    with pytest.raises(ValueError, match=message):
        run(make(BERT), BERT, encoders, tmp_path, **{**settings, "training": training})


@pytest.mark.slow
def test_logs_of_tensorboard_are_kept(encoders, tmp_path):
    pytest.importorskip("tensorboard")
    run(classification(BERT), BERT, encoders, tmp_path, training={**DESCENT, "report_to": "tensorboard"})
    assert list((tmp_path / "run" / "runs").rglob("events*")) and not (tmp_path / "run" / "checkpoints").exists()


def test_what_cannot_be_loaded_is_refused(tmp_path, encoders):
    with pytest.raises(ValueError, match="--model .* has no config.json"):
        load_config(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "mpnet"}')
    with pytest.raises(ValueError, match="model_type='mpnet'; .*--classes transformers"):
        load_config(str(tmp_path))
    with pytest.raises(ValueError, match="--classes 'mine'"):
        load_config(str(encoders["bert"]), "mine")
    task = classification(BERT)
    del task.eval_sets["validation"]
    with pytest.raises(ValueError, match="--patience needs a validation set"):
        run(task, BERT, encoders, tmp_path, patience=2)


@pytest.mark.parametrize(
    ("width", "examples", "given", "rate", "epochs"),
    [
        (1024, 100, {}, 5e-5, 3),
        (512, 32 * 100, {}, 1.1e-4, 5),
        (384, 32 * 500, {}, 2e-4, 3),
        (256, 1600, {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}, 4.5e-4, 5),
        (256, 1600, {"num_train_epochs": 2.0}, 4.5e-4, 2),
        (256, 1600, {"learning_rate": 3e-5}, 3e-5, 10),
        (36, 24, {}, 1e-3, 50),
    ],
)
def test_what_the_user_leaves_open_follows_from_the_encoders_width_and_the_number_of_examples(
    width, examples, given, rate, epochs
):
    settings = with_defaults(RunSettings("any", training=given), BertConfig(hidden_size=width), examples)
    assert (settings.training["learning_rate"], settings.training["num_train_epochs"]) == (rate, epochs)
    assert with_defaults(settings, BertConfig(hidden_size=768), examples) == settings
    rows = settings.training["per_device_train_batch_size"] * settings.training["gradient_accumulation_steps"]
    assert num_steps(settings.training, examples) == math.ceil(examples / rows) * epochs
    assert num_steps({**settings.training, "max_steps": 7}, examples) == 7


def test_float16_on_a_cpu_is_refused_and_bfloat16_is_not(encoders, tmp_path):
    with pytest.raises(ValueError, match="fp16: float16 mixed precision needs an accelerator: use bf16"):
        run(classification(BERT), BERT, encoders, tmp_path, training={**DESCENT, "fp16": True, "use_cpu": True})
    training = {**DESCENT, "bf16": True, "use_cpu": True}
    rounded = run(classification(BERT), BERT, encoders, tmp_path, training=training)
    exact = run(classification(BERT), BERT, encoders, tmp_path, training={**DESCENT, "use_cpu": True})
    assert rounded.training_loss != exact.training_loss
    assert rounded.training_loss == pytest.approx(exact.training_loss, rel=0.02)
