"""A record names the optimizer, schedule and precision that there were, whoever chose them."""

import pytest
import torch
from transformers import Trainer

from hf_encoders import HfeBertConfig, HfeBertForMaskedLM
from hf_encoders.training.optimizers import optimization_facts, optimizer_class
from tests.corpus.corpora import TINY_MODEL
from tests.training.tiny import training_arguments


def facts(folder, own=None, lamb=False, **fields):
    """Of a stock run of three steps."""
    model = HfeBertForMaskedLM(HfeBertConfig(**TINY_MODEL))
    given = {"max_steps": 3, "learning_rate": 2e-3, "per_device_train_batch_size": 3, **fields}
    arguments = training_arguments(folder, save_strategy="no", **given)
    rows = [{"input_ids": [2, 7, 8, 3], "labels": [-100, 7, 8, -100]}] * 12
    chosen = {"optimizer_cls_and_kwargs": optimizer_class("lamb", arguments)} if lamb else {}
    if own is not None:
        chosen = {"optimizers": own(model.parameters())}
    trainer = Trainer(model, arguments, train_dataset=rows, **chosen)
    trainer.train()
    return optimization_facts(trainer)


@pytest.mark.parametrize(("optim", "name"), [("adamw_torch", "AdamW"), ("adafactor", "Adafactor")])
def test_the_optimizer_is_the_one_that_ran(tmp_path, optim, name):
    assert facts(tmp_path, optim=optim)["optimizer"] == name


def test_lamb_is_named_where_it_ran(tmp_path):
    found = facts(tmp_path, lamb=True, weight_decay=0.02)
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
