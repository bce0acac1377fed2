"""A family and an objective that the package does not know, added by the public calls and trained by the command."""

import json

import pytest
import torch
import yaml

from hf_encoders import PreTrainingTrainer, get_objective, registration
from hf_encoders.cli import main
from hf_encoders.objectives.objective import objectives
from hf_encoders.runs.recipe import recipe_of
from hf_encoders.runs.run import Run, divide
from tests.corpus.corpora import equal_documents, write_corpus
from tests.objectives.configuration_toy import ToyConfig
from tests.objectives.modeling_toy import ToyForPreTraining
from tests.objectives.toy import add_toys
from tests.training.tiny import make_tokenizer


RECIPE = {
    "family": "toy",
    "objective": "odd",
    "model": {"hidden_size": 16, "num_attention_heads": 1},
    "tokenizer": {"vocab_size": 150},
    "mask_rate": [0.4, 0.2],
    "phases": [{"steps": 30, "length": 24, "examples": 12}, {"steps": 10, "length": 40, "examples": 8}],
    "training": {"learning_rate": 0.02, "logging_steps": 10, "eval_steps": 20, "weight_decay": 0.0},
}


@pytest.fixture(autouse=True)
def toys():
    known = list(registration._registered)
    add_toys()
    yield
    objectives().pop("odd")
    registration._registered[:] = known or registration._registered


def test_a_toy_family_is_pretrained_on_a_toy_objective_by_the_command(tmp_path):
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    write_corpus(tmp_path / "text.txt", 60, "alpha")
    words = ["--corpus", str(tmp_path / "text.txt"), "--output", str(tmp_path / "run"), "--validation-share", "0.2"]
    assert main(["pretrain", str(tmp_path / "toy.yaml"), *words, "--disable_tqdm", "True", "--use_cpu"]) == 0
    record = json.loads((tmp_path / "run" / "model" / "training_record.json").read_text())
    assert set(record["losses"]) == {"masked tokens, held-out", "first tokens, held-out"}
    assert record["objectives"] == {"odd": "masked tokens, first tokens"}
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    training = [entry for entry in state["log_history"] if "loss" in entry]
    for name in ("loss", "mlm_loss", "odd_loss", "mlm_accuracy", "odd_accuracy", "odd_share", "odd_label_1_share"):
        assert all(name in entry for entry in training), name
    for name in ("loss", "mlm_loss", "odd_loss"):
        assert training[-1][name] < 0.9 * training[0][name]
    for entry in training:  # logged losses are sums over items; `loss` is the mean over steps
        assert entry["loss"] == pytest.approx(0.5 * entry["mlm_loss"] + 3 * entry["odd_loss"], rel=0.05)
    assert training[0]["mask_rate"] > training[-1]["mask_rate"] and 0.5 < training[0]["odd_share"] < 0.85


def test_its_terms_are_exact_however_a_step_is_divided(tmp_path):
    """The step of one micro-batch is that of five, though micro-batches have different numbers of labels."""
    phases, found = [{"steps": 3, "length": 20, "examples": 5}], []
    recipe = recipe_of("toy", {**RECIPE, "optimizer": "sgd", "phases": phases})
    for accumulation in (1, 5):
        options = {"eval_strategy": "no", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1}
        run = Run(recipe, tmp_path / str(accumulation), options, divide(recipe, 1, accumulation=accumulation))
        torch.manual_seed(0)
        trainer = run.trainer(equal_documents(11), equal_documents(11), make_tokenizer())
        trainer.train()
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        found.append([[entry[name] for name in ("loss", "mlm_loss", "odd_loss", "grad_norm")] for entry in logs])
        found[-1].append([float(weight.detach().double().norm()) for weight in trainer.model.parameters()])
    for one, other in zip(*found, strict=True):
        assert other == pytest.approx(one, abs=1e-5)


def test_what_a_family_or_an_objective_lacks_is_refused():
    with pytest.raises(ValueError, match="bert has no head for first tokens. Use .*mlm or .*, or the family toy"):
        recipe_of("toy", {**RECIPE, "family": "bert"})
    with pytest.raises(ValueError, match="objective nsp: toy has no head for sentence pairs.* bert or albert"):
        recipe_of("toy", {**RECIPE, "objective": "nsp"})
    with pytest.raises(ValueError, match="masking: odd has no option 'mask_prob': it is mask_probability here"):
        recipe_of("toy", {**RECIPE, "masking": {"mask_prob": 0.1}})
    with pytest.raises(ValueError, match="objective 'even': it must be one of .*mlm.*, odd"):
        get_objective("even")


class WithoutAccuracy(ToyForPreTraining):
    """Its second term has no correct items to count, like a distance between distributions."""

    def forward(self, **inputs):
        outputs = super().forward(**inputs)
        outputs.odd = outputs.odd._replace(correct=None)
        return outputs


def test_a_term_without_correct_items_logs_its_loss_alone(tmp_path):
    recipe = recipe_of("toy", {**RECIPE, "phases": [{"steps": 1, "length": 20, "examples": 5}]})
    run = Run(recipe, tmp_path, {"eval_strategy": "no", "save_strategy": "no", "logging_steps": 1})
    tokenizer = make_tokenizer()
    model = WithoutAccuracy(recipe.model_config(tokenizer))
    trainer = run.trainer(equal_documents(11), equal_documents(11), tokenizer, model)
    trainer.train()
    found = {**trainer.state.log_history[0], **trainer.evaluate()}
    assert {"odd_loss", "eval_odd_loss", "mlm_accuracy", "eval_mlm_accuracy"} <= found.keys()
    assert not {"odd_accuracy", "eval_odd_accuracy"} & found.keys()
    assert found["eval_loss"] == pytest.approx(0.5 * found["eval_mlm_loss"] + 3 * found["eval_odd_loss"])
    with pytest.raises(ValueError, match="loss_weights: WithoutAccuracy has no loss term 'even', only mlm, odd"):
        PreTrainingTrainer(model, run.arguments, loss_weights={"even": 2.0})


def test_a_model_class_that_is_not_written_is_named():
    class Unfinished(ToyConfig):
        AUTO_MAP = {"AutoModelForMaskedLM": "modeling_toy.ToyForMaskedLM"}

    with pytest.raises(ValueError, match="AUTO_MAP.*AutoModelForMaskedLM.*modeling_toy.py.*ToyForMaskedLM"):
        registration.add_family(Unfinished)
