"""Scores that are not computed while training: whoever reads them is told how to have them."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, Trainer, TrainingArguments

from tests.models.tiny import LM_HEADS, MASKED_LM, PRETRAINING, right_padded, tiny_model


LM = (*MASKED_LM, *PRETRAINING, *LM_HEADS)


def training_batch(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    batch = right_padded(model.config)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    if "plm" in model.loss_terms:
        batch["order"] = torch.arange(7).expand(3, 7)
        labels[:, 0] = -100
    return {**batch, "labels": labels}


class OwnLoss(Trainer):
    """A subclass as in transformers' documentation of `Trainer`."""

    options: dict[str, Any] = {}

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        labels = inputs.get("labels")
        outputs = model(**inputs, **self.options)
        logits = outputs.get("prediction_logits" if "prediction_logits" in outputs.__dict__ else "logits")
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("model_class", LM)
def test_a_trainer_that_reads_them_is_told_the_remedy(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    model = tiny_model(model_class)
    batch = training_batch(model)
    rows = [{name: value[row] for name, value in batch.items()} for row in range(3)]
    arguments = TrainingArguments(str(tmp_path), max_steps=1, use_cpu=True, report_to="none", save_strategy="no")
    trainer = OwnLoss(model, arguments, train_dataset=rows)
    with pytest.raises(KeyError, match="return_logits=True"):
        trainer.train()
    trainer.options = {"return_logits": True}
    assert trainer.train().training_loss > 0


@pytest.mark.parametrize("model_class", LM)
def test_everything_else_reads_the_output_as_before(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class).train()
    batch = training_batch(model)
    output = model(**batch)
    name = "prediction_logits" if hasattr(output, "prediction_logits") else "logits"
    with pytest.raises(KeyError, match="return_logits=True"):
        output[name]
    assert getattr(output, name) is None and name not in output
    assert output.get(name, None) is None and output.get(name, default=0) == 0 and output.get("other") is None
    assert output.get("loss", default=None) is output.loss
    assert output[:1] == (output.loss,) and output[1:] == output.to_tuple()[1:]
    with pytest.raises(KeyError, match="'other'"):
        output["other"]
    assert torch.equal(output["loss"], output.loss) and torch.equal(output[0], output.get("loss"))
    assert len(output.to_tuple()) == len(output)
    leaves, tree = torch.utils._pytree.tree_flatten(output)
    assert list(torch.utils._pytree.tree_unflatten(leaves, tree)) == list(output)
    detached = type(output)(**{key: value.detach() for key, value in output.items() if torch.is_tensor(value)})
    for one in (pickle.loads(pickle.dumps(detached)), copy.deepcopy(detached)):
        assert type(one) is type(output) and torch.equal(one.loss, output.loss) and one.get(name, None) is None
    output = model.eval()(**batch)
    assert output[name].shape == (3, 7, model.config.vocab_size)
    assert output.get(name) is output[name] and output[:1] == (output.loss,) and output.get("other", default=0) == 0
