"""A record names the optimizer, schedule and precision that there were, whoever chose them."""

import pytest
import torch
from transformers import Trainer

from hf_encoders import HfeBertConfig, HfeBertForMaskedLM
from hf_encoders.training.optimizers import optimization_facts, optimizer_class
from tests.corpus.corpora import TINY_MODEL
from tests.training.tiny import training_arguments


def facts(folder, own=None, optimizer=None, **fields):
    """Of a stock run of three steps."""
    model = HfeBertForMaskedLM(HfeBertConfig(**TINY_MODEL))
    given = {"max_steps": 3, "learning_rate": 2e-3, "per_device_train_batch_size": 3, **fields}
    arguments = training_arguments(folder, save_strategy="no", **given)
    rows = [{"input_ids": [2, 7, 8, 3], "labels": [-100, 7, 8, -100]}] * 12
    chosen = {"optimizer_cls_and_kwargs": optimizer_class(optimizer, arguments)} if optimizer else {}
    if own is not None:
        chosen = {"optimizers": own(model.parameters())}
    trainer = Trainer(model, arguments, train_dataset=rows, **chosen)
    trainer.train()
    return optimization_facts(trainer)


@pytest.mark.parametrize(("optim", "name"), [("adamw_torch", "AdamW"), ("adafactor", "Adafactor")])
def test_the_optimizer_is_the_one_that_ran(tmp_path, optim, name):
    assert facts(tmp_path, optim=optim)["optimizer"] == name


def test_lamb_is_named_where_it_ran(tmp_path):
    found = facts(tmp_path, optimizer="lamb", weight_decay=0.02)
    assert (found["optimizer"], found["weight decay"]) == ("LAMB", 0.02)


def test_an_optimizer_and_schedule_of_the_user_s_own(tmp_path):
    def own(parameters):
        optimizer = torch.optim.NAdam(parameters, lr=0.3, weight_decay=0.125)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)

    found = facts(tmp_path, own)
    assert found["optimizer"] == "NAdam" and found["schedule after warm-up"] == "StepLR"
    assert (found["peak learning rate"], found["weight decay"]) == (0.3, 0.125)
    # Their own schedule has whatever warm-up it has.
    assert "warm-up steps" not in found


def test_the_schedule_is_told_with_its_options(tmp_path):
    found = facts(
        tmp_path, lr_scheduler_type="polynomial", lr_scheduler_kwargs={"power": 2.0}, warmup_steps=0.34,
        gradient_accumulation_steps=2,
    )  # fmt: skip
    assert found["schedule after warm-up"] == "polynomial (power=2.0)" and found["warm-up steps"] == 2
    assert (found["peak learning rate"], found["rows per step on each device"]) == (2e-3, 6)
    assert facts(tmp_path)["schedule after warm-up"] == "linear to 0"


@pytest.mark.parametrize(
    ("fields", "precision"),
    [({}, "float32"), ({"bf16": True}, "float32, autocast to bfloat16"), ({"fp16": True}, "float32")],
)
def test_the_precision_is_what_was_computed_with(tmp_path, fields, precision):
    """On a CPU `Trainer` takes fp16 and computes in float32."""
    assert facts(tmp_path, **fields)["precision"] == precision


def test_a_run_that_did_not_train_has_no_facts(tmp_path):
    model = HfeBertForMaskedLM(HfeBertConfig(**TINY_MODEL))
    assert optimization_facts(Trainer(model, training_arguments(tmp_path))) == {}


def test_stable_adamw_is_adamw_with_a_rate_for_each_tensor(tmp_path):
    """Wortsman et al. 2023, algorithm 2, for 100 steps of growing gradients."""
    arguments = training_arguments(tmp_path, learning_rate=0.01, adam_beta2=0.95, adam_epsilon=1e-6)
    kind, options = optimizer_class("stable_adamw", arguments)
    start = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    parameter = torch.nn.Parameter(start.clone())
    optimizer = kind([{"params": [parameter], "weight_decay": 0.1}], **options)
    value, mean, square = start.double(), torch.zeros(4, 3).double(), torch.zeros(4, 3).double()
    for step in range(1, 101):
        gradient = torch.randn(4, 3, generator=torch.Generator().manual_seed(step)) * 1.1**step
        parameter.grad = gradient.clone()
        optimizer.step()
        gradient = gradient.double()
        first, second = (beta * (1 - beta ** (step - 1)) / (1 - beta**step) for beta in (0.9, 0.95))
        mean, square = first * mean + (1 - first) * gradient, second * square + (1 - second) * gradient**2
        rms = (gradient**2 / square.clamp(min=1e-6**2)).mean().sqrt()
        rate = 0.01 / max(1.0, rms.item())
        value = value * (1 - rate * 0.1) - rate * mean / (square.sqrt() + 1e-6)
    torch.testing.assert_close(parameter.double(), value, rtol=1e-6, atol=1e-6)


def test_stable_adamw_runs_without_a_package_of_its_own(tmp_path):
    assert facts(tmp_path, optimizer="stable_adamw")["optimizer"] == "StableAdamW"
