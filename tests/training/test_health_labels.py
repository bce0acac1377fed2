"""`HealthCallback` in the stock `Trainer`, over all forms of labels: token figures are for predicted tokens alone."""

import pytest
import torch
import transformers
from transformers import Trainer

import hf_encoders
from hf_encoders import HealthCallback
from hf_encoders.training.health_checks import NonFiniteLossError
from tests.training.test_health import SIZES, training_logs
from tests.training.tiny import training_arguments


ROWS, LENGTH, CHOICES = 3, 5, 2
# Head, labels of a row, fields of the configuration. Five labels: as many as a row has tokens.
FORMS = {
    "classes": ("ForSequenceClassification", {"labels": 2}, {"num_labels": 3}),
    # More classes than ids, so that no count of tokens has room for them.
    "many classes": ("ForSequenceClassification", {"labels": 69}, {"num_labels": 70}),
    "numbers": ("ForSequenceClassification", {"labels": 0.25}, {"num_labels": 1}),
    "several numbers": ("ForSequenceClassification", {"labels": [0.5] * 5}, {"num_labels": 5}),
    "flags": (
        "ForSequenceClassification",
        {"labels": [0.0, 1.0, 1.0, 0.0, 1.0]},
        {"num_labels": 5, "problem_type": "multi_label_classification"},
    ),
    "classes of tokens": ("ForTokenClassification", {"labels": [-100, 0, 69, 1, -100]}, {"num_labels": 70}),
    "answers": ("ForQuestionAnswering", {"start_positions": 1, "end_positions": 2}, {}),
    "choices": ("ForMultipleChoice", {"labels": 1}, {}),
}


def make_trainer(tmp_path, family, head, labels, fields, **model_options):
    config_class, model_class = (getattr(family[0], f"{family[1]}{name}") for name in ("Config", head))
    torch.manual_seed(1)
    model = model_class(config_class(**SIZES, **fields))
    shape = (CHOICES, LENGTH) if head == "ForMultipleChoice" else (LENGTH,)
    mask = torch.ones(shape, dtype=torch.long)
    mask[..., -1] = 0
    row = {"input_ids": torch.randint(5, 60, shape), "attention_mask": mask}
    row |= {name: torch.tensor(value) for name, value in labels.items()}
    args = training_arguments(
        tmp_path, max_steps=2, per_device_train_batch_size=ROWS, logging_steps=1, save_strategy="no"
    )
    trainer = Trainer(model, args, train_dataset=[row] * 6)
    HealthCallback().attach(trainer)
    return trainer


@pytest.mark.parametrize(
    ("family", "form"),
    [*(((hf_encoders, "HfeBert"), form) for form in FORMS), ((transformers, "Bert"), "many classes")],
    ids=str,
)
def test_tokens_are_counted_and_labels_are_no_tokens(tmp_path, family, form):
    head, labels, fields = FORMS[form]
    trainer = make_trainer(tmp_path, family, head, labels, fields)
    trainer.train()
    sequences = ROWS * (CHOICES if head == "ForMultipleChoice" else 1)
    first, second = training_logs(trainer)
    assert second["tokens_seen"] == 2 * first["tokens_seen"] == 2 * sequences * (LENGTH - 1)
    assert first["padding_share"] == pytest.approx(1 / LENGTH) and first["mfu"] > 0
    assert "mask_rate" not in first and "pair_label_1_share" not in first


def test_a_loss_that_is_not_finite_is_seen_without_token_ids(tmp_path):
    trainer = make_trainer(tmp_path, (hf_encoders, "HfeBert"), *FORMS["numbers"])
    row = {"inputs_embeds": torch.full((LENGTH, SIZES["hidden_size"]), torch.nan), "labels": torch.tensor(0.5)}
    trainer.train_dataset = [row] * 6
    with pytest.raises(NonFiniteLossError):
        trainer.train()
