"""Permutation language modelling by the command: a run that is exact and resumes, its card, and wrong recipes."""

import json
import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining, AutoTokenizer, XLNetTokenizer

from hf_encoders import get_objective
from hf_encoders.cli import main
from hf_encoders.runs.recipe import recipe_of
from hf_encoders.runs.run import Run, divide
from tests.corpus.corpora import make_dataset, random_documents, write_corpus
from tests.training.tiny import make_tokenizer


RECIPE = {
    "family": "xlnet",
    "objective": "plm",
    "model": {"n_layer": 2, "d_model": 24, "n_head": 3, "d_inner": 40, "dropout": 0.0, "initializer_range": 0.1},
    "tokenizer": {"vocab_size": 150},
    "examples": {"reuse": True},
    "phases": [{"steps": 60, "length": 32, "examples": 16}],
    "training": {"learning_rate": 0.005, "warmup_steps": 0.1, "logging_steps": 20, "save_steps": 30},
}


def pretrain(folder, output, *words):
    (folder / "tiny.yaml").write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    options = ["--validation-share", "0.2", "--disable_tqdm", "True", "--use_cpu", *words]
    paths = ["--corpus", str(folder / "text.txt"), "--output", str(folder / output)]
    return main(["pretrain", str(folder / "tiny.yaml"), *paths, *options])


@pytest.mark.slow
def test_a_resumed_run_is_the_same_and_saves_what_transformers_reads(tmp_path, capsys):
    write_corpus(tmp_path / "text.txt", 120, "alpha")
    assert pretrain(tmp_path, "run") == 0
    folder = tmp_path / "run" / "model"
    record = json.loads((folder / "training_record.json").read_text())
    assert set(record["losses"]) == {"predicted tokens, held-out"}
    (words,) = record["objectives"].values()
    assert "in a random order, in spans of up to 5" in words and "50% read in reverse" in words
    assert not record["fills_masks"]
    assert "predicted tokens loss" in capsys.readouterr().out
    model = AutoModelForPreTraining.from_pretrained(folder)
    assert type(model).__module__.startswith("transformers.")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert isinstance(tokenizer, XLNetTokenizer) and tokenizer.padding_side == "left"
    special = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    assert tokenizer.convert_ids_to_tokens(range(9)) == special
    ids = tokenizer("alpha saw cat")["input_ids"]
    assert ids[-2:] == [tokenizer.sep_token_id, tokenizer.cls_token_id] and tokenizer.unk_token_id not in ids

    whole = load_file(folder / "model.safetensors")
    shutil.rmtree(tmp_path / "run" / "checkpoint-60")
    shutil.rmtree(folder)
    assert pretrain(tmp_path, "run") == 0
    assert "Resuming from" in capsys.readouterr().out
    again = load_file(folder / "model.safetensors")
    assert whole.keys() == again.keys() and all(torch.equal(whole[name], again[name]) for name in whole)


@pytest.mark.slow
def test_a_step_is_the_same_however_it_is_divided(tmp_path):
    """One micro-batch = three = two of each of two processes, in losses, gradients and weights."""
    documents, found = make_dataset(random_documents(80, 0, (3, 6))), []
    recipe = recipe_of("tiny", {**RECIPE, "optimizer": "sgd", "phases": [{"steps": 3, "length": 24, "examples": 12}]})
    for accumulation in (1, 3, 4):
        options = {"eval_strategy": "no", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1}
        run = Run.from_recipe(
            recipe, tmp_path / str(accumulation), options, divide(recipe, 1, accumulation=accumulation)
        )
        torch.manual_seed(0)
        trainer = run.trainer(documents, documents, make_tokenizer())
        assert trainer.eval_dataset.dataset.num_reused == 12  # evaluation is of the same rows
        trainer.train()
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        found.append([[entry[name] for name in ("loss", "plm_loss", "plm_accuracy", "grad_norm")] for entry in logs])
        found[-1].append([float(weight.detach().double().norm()) for weight in trainer.model.parameters()])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert two == pytest.approx(one, abs=1e-5)


def test_what_the_card_says():
    objective = get_objective("plm")
    collator = objective.collator_class(make_tokenizer(), fill_up=False, reversed_share=0.0)
    (words,) = objective.describe(collator, (), {"reuse": True}, {"mask_rate": 0.138}).values()
    assert words == (
        "13.8% of the tokens in a random order, in spans of up to 5; pairs of segments, half random; each after the "
        "text before it, in an order of its own; 0% read in reverse"
    )
    assert objective.loss_baselines(6.5) == {"plm_loss": ("unigram cross-entropy", 6.5)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"family": "bert", "model": {}},
            "objective plm: bert has no head for predicted tokens. Use mlm .* or the family",
        ),
        ({"objective": "mlm"}, "objective mlm: xlnet has no head for masked tokens. Use plm, or the family bert"),
        ({"masking": {"unit": "word"}}, "masking: plm has no option 'unit': its options are predicted_one_in"),
        ({"masking": {"max_span": 0}}, "masking: max_span=0 must be a whole number"),
        ({"examples": {"reused": True}}, "examples: plm has no option 'reused'"),
        ({"mask_rate": [0.3, 0.15]}, "mask_rate: plm has none: its order depends on what is predicted"),
        ({"phases": [{**RECIPE["phases"][0], "masking": {"max_span": 3}}]}, "phases: plm is the same in every phase"),
        ({"model": {**RECIPE["model"], "d_model": 25}}, "model: d_model=25 must be even"),
    ],
)
def test_wrong_recipes(change, message):
    with pytest.raises(ValueError, match=message):
        recipe_of("tiny", {**RECIPE, **change})


def test_commands_of_masked_tokens_do_not_offer_it(capsys):
    with pytest.raises(SystemExit):
        main(["quickstart", "--objective", "plm"])
    assert "invalid choice: 'plm'" in capsys.readouterr().err
