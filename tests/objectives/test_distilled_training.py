"""A student under Trainer: predictions, and P4: stopped and resumed is never stopped."""

import json
import shutil
from pathlib import Path

import torch
from transformers import Trainer

from tests.training.three_steps import SPLITS, make_trainer


def test_the_stock_trainer_predicts_without_the_sums_of_the_losses(tmp_path: Path) -> None:
    trainer = make_trainer("distilled: predicted", SPLITS["whole"], tmp_path, Trainer)
    scores = trainer.predict(trainer.train_dataset).predictions
    assert not isinstance(scores, tuple) and len(scores)


def test_stopped_and_resumed_is_never_stopped_bit_for_bit(tmp_path: Path) -> None:
    split = SPLITS["accumulated"]
    options = {
        "max_steps": 4,
        "optim": "adamw_torch",
        "learning_rate": 0.01,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    whole = make_trainer("distilled: all", split, tmp_path / "whole", **options)
    whole.train()
    first = make_trainer("distilled: all", split, tmp_path / "stopped", **options)
    first.train()
    saved = tmp_path / "stopped" / "checkpoint-2"
    shutil.rmtree(tmp_path / "stopped" / "checkpoint-4")
    names = json.loads((saved / "config.json").read_text())["architectures"]
    assert names == ["DistilBertForMaskedLM"]
    resumed = make_trainer("distilled: all", split, tmp_path / "stopped", **options)
    resumed.train(resume_from_checkpoint=str(saved))
    assert resumed.state.global_step == 4
    for name, parameter in whole.model.named_parameters():
        assert torch.equal(parameter, resumed.model.get_parameter(name)), name
    optimizers = [trainer.optimizer.state_dict()["state"] for trainer in (whole, resumed)]
    assert len(optimizers[0]) == len(list(whole.model.parameters()))
    for key, state in optimizers[0].items():
        assert torch.equal(state["exp_avg"], optimizers[1][key]["exp_avg"])
