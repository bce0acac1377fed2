"""Learning rates by layer: the share of each parameter, and the step that follows from it."""

from pathlib import Path

import pytest
import torch
from transformers import Trainer, TrainingArguments

from hf_encoders.training.optimizers import check_layer_decay, rate_shares, set_layer_decay
from tests.models.tiny import CLASSIFIERS, NO_DROPOUT, tiny_config


def first_layers(model) -> int:
    """Layers with weights of their own: ALBERT shares its layers within a group."""
    return getattr(model.config, "num_hidden_groups", model.config.num_hidden_layers)


@pytest.mark.parametrize("model_class", CLASSIFIERS, ids=lambda one: one.__name__)
def test_the_head_has_the_whole_rate_and_the_embeddings_the_lowest(model_class):
    model = model_class(tiny_config(model_class.config_class))
    shares, layers = rate_shares(model, 0.5), first_layers(model)
    assert shares.keys() == dict(model.named_parameters()).keys()
    assert set(shares.values()) == {0.5**depth for depth in range(layers + 2)}
    words = {id(parameter) for parameter in model.get_input_embeddings().parameters()}
    for name, parameter in model.named_parameters():
        if id(parameter) in words:
            assert shares[name] == 0.5 ** (layers + 1)
        if not name.startswith(model.base_model_prefix):
            assert shares[name] == 1


def trainer_of(folder: Path, **arguments) -> Trainer:
    torch.manual_seed(0)
    model_class = CLASSIFIERS[0]
    model = model_class(tiny_config(model_class.config_class, classifier_dropout=0.0, **NO_DROPOUT))
    rows = [{"input_ids": [5, 6, 7 + i], "labels": i % 2} for i in range(4)]
    fields = {"max_steps": 1, "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    settings = TrainingArguments(str(folder), report_to="none", use_cpu=True, save_strategy="no", **fields | arguments)
    return Trainer(model, settings, train_dataset=rows)


def change_of_weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    before = {name: value.clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    return {name: value.detach() - before[name] for name, value in trainer.model.named_parameters()}


@pytest.mark.parametrize("optim", ["sgd", "adamw_torch_fused"])
def test_a_step_of_each_parameter_is_its_share(optim, tmp_path: Path):
    plain, decayed = trainer_of(tmp_path, optim=optim), trainer_of(tmp_path, optim=optim)
    set_layer_decay(plain, 1.0)
    assert plain.optimizer_cls_and_kwargs is None
    set_layer_decay(decayed, 0.5)
    expected, shares = change_of_weights(plain), rate_shares(plain.model, 0.5)
    assert any(change.any() for change in expected.values())
    for name, change in change_of_weights(decayed).items():
        torch.testing.assert_close(change, shares[name] * expected[name], atol=1e-6, rtol=1e-4)
    groups = decayed.optimizer.param_groups
    assert {group["weight_decay"] for group in groups} == {0.0, decayed.args.weight_decay}


def test_weights_that_do_not_decay_are_those_of_the_trainer(tmp_path: Path):
    trainer = trainer_of(tmp_path, weight_decay=0.3)
    set_layer_decay(trainer, 0.9)
    names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
    found = {
        names[id(parameter)]
        for group in trainer.create_optimizer().param_groups
        for parameter in group["params"]
        if group["weight_decay"] == 0.3
    }
    assert found == set(trainer.get_decay_parameter_names(trainer.model))


def test_what_cannot_be_is_refused(tmp_path: Path):
    for wrong in (0, 1.5, -0.1):
        with pytest.raises(ValueError, match=rf"--layer-decay {wrong}: it must be in \(0, 1\]"):
            check_layer_decay(wrong, "--layer-decay")
    trainer = trainer_of(tmp_path)
    trainer.optimizer_cls_and_kwargs = torch.optim.SGD, {"params": []}
    with pytest.raises(ValueError, match="layer decay does not go with SGD: use adamw"):
        set_layer_decay(trainer, 0.5)


def test_the_logged_rate_is_that_of_the_heads(tmp_path: Path):
    trainer = trainer_of(tmp_path, optim="sgd", logging_steps=1)
    set_layer_decay(trainer, 0.5)
    trainer.train()
    assert [log["learning_rate"] for log in trainer.state.log_history if "learning_rate" in log] == [0.1]
