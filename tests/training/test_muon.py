"""Muon: which weights it has, its steps beside torch's own optimizers, its state, and what is refused."""

import dataclasses
import io
import re

import pytest
import torch
from torch.optim import AdamW
from transformers import Trainer, TrainingArguments

import hf_encoders
from hf_encoders.objectives.objective import objectives
from hf_encoders.registration import configurations
from hf_encoders.runs.recipe import load_recipe
from hf_encoders.runs.run import divide, training_arguments
from hf_encoders.training.muon import Muon, parts_of_matrices, set_muon_groups
from hf_encoders.training.optimizers import optimizer_class
from tests.models.tiny import tiny_model


OWN_MATRICES = {"modernbert": 4, "xlnet": 7}  # of a layer, where not six
SHARING = ("albert",)  # one layer for all
# Tables, biases, norms, heads, poolers, the projection of a narrow table, and RetroMAE's decoder, which is no layer.
NOT_MATRICES = r"^decoder\.|emb|bias|norm|pooler|cls|head|predictions|classifier|vocab|pred_layer"


@pytest.mark.parametrize("config_class", configurations(), ids=lambda config: config.model_type)
def test_muon_has_the_matrices_of_layers_and_nothing_else(config_class):
    family, seen = config_class.model_type, 0
    shipped = [each for each in objectives().values() if type(each).__module__.startswith("hf_encoders.")]
    for objective in shipped:  # and not those of other tests
        try:
            model_class = objective.model_class(config_class)
        except ValueError:  # the family has not the heads
            continue
        with torch.device("meta"):
            model = model_class(config_class(num_hidden_layers=2))
        trained = getattr(model, "trained_models", (model,)) if objective.name == "rtd" else (model,)
        parts = parts_of_matrices(model)
        layers = sum(1 if family in SHARING else each.config.num_hidden_layers for each in trained)
        assert len(parts) == layers * OWN_MATRICES.get(family, 6)
        assert not [name for name in parts if re.search(NOT_MATRICES, name)]
        others = [name for name, weight in model.named_parameters() if weight.dim() > 1 and name not in parts]
        assert all(re.search(NOT_MATRICES, name) for name in others)
        fused = {"Wqkv.weight": 3, "Wi.weight": 2}
        assert all(count == fused.get(".".join(name.split(".")[-2:]), 1) for name, count in parts.items())
        seen += 1
    assert seen


def make_weights():
    generator = torch.Generator().manual_seed(0)
    shapes = {"Wqkv": (24, 8), "Wo": (8, 12), "cube": (8, 2, 4), "table": (30, 8), "norm": (8,)}
    return {name: torch.nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}


def make_muon(weights):
    groups = [
        {"params": [weights["Wqkv"]], "parts": 3, "weight_decay": 0.1},
        {"params": [weights["Wo"], weights["cube"]], "parts": 1, "weight_decay": 0.1},
        {"params": [weights["table"]], "parts": 0, "weight_decay": 0.1},
        {"params": [weights["norm"]], "parts": 0, "weight_decay": 0.0},
    ]
    return Muon(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-6)


def take_step(optimizer, weights, step, rate):
    generator = torch.Generator().manual_seed(step)
    for weight in weights.values():
        weight.grad = torch.randn(weight.shape, generator=generator)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()


def test_a_step_is_that_of_torchs_own_optimizers():
    """Queries, keys and values are orthogonalised by themselves; the rate of a schedule is that of all."""
    weights, expected = make_weights(), make_weights()
    optimizer = make_muon(weights)
    matrices = [torch.nn.Parameter(block.clone()) for block in expected["Wqkv"].detach().chunk(3)]
    matrices += [expected["Wo"], torch.nn.Parameter(expected["cube"].detach().reshape(8, 8).clone())]
    reference = [
        torch.optim.Muon(matrices, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        AdamW([expected["table"]], betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1, fused=True),
        AdamW([expected["norm"]], betas=(0.9, 0.95), eps=1e-6, weight_decay=0.0, fused=True),
    ]
    for step, rate in enumerate([0.01, 0.02, 0.005]):
        take_step(optimizer, weights, step, rate)
        gradients = [*weights["Wqkv"].grad.chunk(3), weights["Wo"].grad, weights["cube"].grad.reshape(8, 8)]
        for matrix, gradient in zip(matrices, gradients, strict=True):
            matrix.grad = gradient
        for name in ("table", "norm"):
            expected[name].grad = weights[name].grad
        for part in reference:
            part.param_groups[0]["lr"] = rate
            part.step()
    assert torch.equal(weights["Wqkv"], torch.cat(matrices[:3]))
    assert torch.equal(weights["cube"], matrices[-1].view(8, 2, 4))
    for name in ("Wo", "table", "norm"):
        assert torch.equal(weights[name], expected[name]), name


def test_an_optimizer_that_is_loaded_goes_on_bit_for_bit():
    weights = make_weights()
    optimizer = make_muon(weights)
    take_step(optimizer, weights, 0, 0.01)
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "weights": weights}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    resumed = make_muon(saved["weights"])
    resumed.load_state_dict(saved["optimizer"])
    assert [group["lr"] for group in resumed.param_groups] == [0.01] * 4
    fresh = make_weights()
    other = make_muon(fresh)
    for step in (1, 2):
        take_step(optimizer, weights, step, 0.01)
        take_step(resumed, saved["weights"], step, 0.01)
        take_step(other, fresh, step, 0.01)
    for name, weight in weights.items():
        assert torch.equal(weight, saved["weights"][name]), name
        assert not torch.equal(weight, fresh[name]), name


def test_a_weight_without_a_gradient_stays():
    weights = make_weights()
    optimizer = make_muon(weights)
    take_step(optimizer, weights, 0, 0.01)
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    optimizer.zero_grad()
    optimizer.step()
    assert all(torch.equal(weight, before[name]) for name, weight in weights.items())


def test_muon_trains_the_matrices_of_a_trainer_s_model(tmp_path):
    """Norms and biases do not decay; without groups for it, Muon is refused."""
    recipe = dataclasses.replace(load_recipe("bert-minutes"), optimizer="muon")
    model = tiny_model(hf_encoders.HfeBertForPreTraining)
    blocks = [[7, 8, 9]] * 8
    arguments = training_arguments(recipe, divide(recipe, 1), tmp_path, {"eval_strategy": "no"})
    trainer = Trainer(model, arguments, train_dataset=blocks)
    trainer.optimizer_cls_and_kwargs = optimizer_class("muon", trainer.args)
    set_muon_groups(trainer)
    optimizer = trainer.create_optimizer()
    kinds = {
        name: type(inner).__name__
        for inner, group in zip(optimizer.inner, optimizer.param_groups, strict=True)
        for name, weight in model.named_parameters()
        if any(weight is each for each in group["params"])
    }
    assert {name for name, kind in kinds.items() if kind == "Muon"} == parts_of_matrices(model).keys()
    assert kinds.keys() == dict(model.named_parameters()).keys()
    decays = {id(weight): group["weight_decay"] for group in optimizer.param_groups for weight in group["params"]}
    decayed = {name for name, weight in model.named_parameters() if decays[id(weight)] > 0}
    assert decayed == set(trainer.get_decay_parameter_names(model)) & kinds.keys()
    with pytest.raises(ValueError, match="no group has parts above 0"):
        Muon([{"params": list(model.parameters())}], 0.1, (0.9, 0.9), 1e-6)


def test_what_muon_refuses(tmp_path, monkeypatch):
    arguments = TrainingArguments(tmp_path, use_cpu=True)
    arguments.fsdp = ["full_shard"]
    with pytest.raises(ValueError, match="muon .* fsdp.*: use DDP"):
        optimizer_class("muon", arguments)
    arguments.fsdp = []
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(ValueError, match=r"muon needs torch 2\.9"):
        optimizer_class("muon", arguments)
