"""The learning rate of a run whose new weights learn alone at first."""

import pytest

from hf_encoders import HfeBertConfig, HfeBertForPreTraining, PreTrainingTrainer
from hf_encoders.training.callbacks import HeadWarmUpCallback
from tests.corpus.corpora import TINY_MODEL
from tests.training.tiny import training_arguments


def rates(folder, *callbacks, steps=20, **arguments) -> list[float]:
    """Of each step, with a peak of 1."""
    model = HfeBertForPreTraining(HfeBertConfig(**TINY_MODEL))
    settings = training_arguments(folder, max_steps=steps, learning_rate=1.0, **arguments)
    trainer = PreTrainingTrainer(model, settings, callbacks=list(callbacks), health=False)
    trainer.create_optimizer_and_scheduler(steps)
    trainer.create_scheduler(steps)  # Trainer may ask again for what it has
    found = []
    for _ in range(steps):
        found.append(trainer.lr_scheduler.get_last_lr()[0])
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    return found


def test_the_other_weights_have_a_warm_up_of_their_own(tmp_path):
    alone = HeadWarmUpCallback(["pooler.dense.bias"], steps=6)
    found = rates(tmp_path, alone, warmup_steps=4)
    linear = [min(step / 4, (20 - step) / 16) for step in range(20)]
    second = [1.0] * 6 + [1 / 5, 2 / 5, 3 / 5, 4 / 5] + [1.0] * 10
    assert found == pytest.approx([one * other for one, other in zip(linear, second, strict=True)])


@pytest.mark.parametrize("arguments", [{"warmup_steps": 0}, {"warmup_steps": 4}], ids=["no warm-up", "no new weights"])
def test_else_the_schedule_is_that_of_trainer(arguments, tmp_path):
    callbacks = [] if arguments["warmup_steps"] else [HeadWarmUpCallback(["pooler.dense.bias"], steps=6)]
    warmup = arguments["warmup_steps"]
    found = rates(tmp_path, *callbacks, **arguments)
    assert found == pytest.approx(
        [min(step / warmup if warmup else 1, (20 - step) / (20 - warmup)) for step in range(20)]
    )


def test_a_schedule_that_depends_on_the_metric_stays_as_it_is(tmp_path):
    alone = HeadWarmUpCallback(["pooler.dense.bias"], steps=6)
    model = HfeBertForPreTraining(HfeBertConfig(**TINY_MODEL))
    settings = training_arguments(
        tmp_path, max_steps=20, warmup_steps=4, lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="steps"
    )
    trainer = PreTrainingTrainer(model, settings, callbacks=[alone], health=False, eval_dataset=[{}])
    trainer.create_optimizer_and_scheduler(20)
    assert trainer.lr_scheduler.get_last_lr() == [settings.learning_rate] * 2  # with and without weight decay
