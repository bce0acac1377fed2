"""How often a training step waits for its device: counted on a CPU with tensors that say they are on CUDA.

`tests/accelerator/test_training.py` counts on a GPU.
"""

from collections import Counter

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_encoders.models import encoder_attention
from hf_encoders.models.encoder_losses import _num_correct
from hf_encoders.models.encoder_tokens import places_of
from tests.training import killed_run, launched_steps
from tests.training.on_cuda import CUDA, CountedWaits, OnDevice


STEPS = 4


def sequence_by_sequence(heads, tokens, scaling, dropout):
    """In the place of the kernel on CUDA, to which lengths are given on the host."""
    kernel = torch.nn.functional.scaled_dot_product_attention
    parts = zip(*(x.transpose(0, 1).split(tokens.lengths(), dim=1) for x in heads), strict=True)
    return torch.cat([kernel(*part, scale=scaling, dropout_p=dropout).transpose(0, 1) for part in parts])


class Event:
    """Is reached when the forward pass is; what is waited for is in the queue behind it."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


class CountSteps(TrainerCallback):
    def __init__(self, mode: CountedWaits):
        self.mode, self.steps = mode, []

    def on_step_end(self, *args, **kwargs):
        self.steps.append(Counter(self.mode.waits))
        self.mode.waits.clear()


@pytest.fixture
def on_cuda(monkeypatch):
    """Batches, counts and sums are on CUDA; parameters and gradients stay where they are."""
    monkeypatch.setattr(TrainingArguments, "device", property(lambda self: self._setup_devices and CUDA))
    monkeypatch.setattr(Trainer, "_move_model_to_device", lambda *_: None)
    monkeypatch.setattr(encoder_attention, "attend_without_padding", sequence_by_sequence)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    with CountedWaits() as mode:
        yield mode


def waits_of(trainer: Trainer, mode: CountedWaits) -> list[Counter]:
    trainer.args.logging_strategy = trainer.args.save_strategy = "no"
    trainer.args.max_steps = STEPS
    counts = CountSteps(mode)
    trainer.add_callback(counts)
    trainer.train()
    assert len(counts.steps) == STEPS
    return counts.steps[1:]  # the first one also starts the run


@pytest.mark.parametrize("case", ["nsp", "mlm packed", "dialogue packed accumulated"])
def test_no_step_waits_for_the_device(on_cuda, tmp_path, case):
    """Lengths, checks and numbers of predicted tokens are read from the batch as it was on the CPU."""
    trainer = launched_steps.make_trainer(case, "alone", tmp_path)
    assert waits_of(trainer, on_cuda) == [{}] * (STEPS - 1)


@pytest.mark.parametrize(("examples", "most"), [("replaced tokens", 1), ("permutations", 0)])
def test_what_is_made_on_the_device_is_waited_for_too(on_cuda, tmp_path, examples, most):
    """The tokens that a discriminator reads; the query rows of permutations are counted on the host."""
    for waits in waits_of(killed_run.make_trainer(examples, 0, str(tmp_path)), on_cuda):
        assert waits.total() == most


def test_what_does_not_wait_finds_the_same():
    """Indices of flags, and correct items with ties, of which the first highest score counts."""
    flags, scores, labels = torch.rand(50) < 0.3, torch.randint(4, (50, 5)).float(), torch.randint(5, (50,))
    found = []
    for is_marked in (False, True):
        arguments = (flags, scores, scores.gather(1, labels[:, None]), scores.amax(dim=1, keepdim=True), labels)
        if is_marked:
            arguments = tuple(one.as_subclass(OnDevice) for one in arguments)
        with CountedWaits() as mode:
            indices, correct = places_of(arguments[0], flags), _num_correct(*arguments[1:])
        assert mode.waits.total() == 0
        found.append([one.as_subclass(torch.Tensor).tolist() for one in (indices, correct)])
    assert found[0] == found[1] and 0 < found[0][1] < 50


def test_without_the_copy_each_reading_waits(on_cuda, tmp_path, monkeypatch):
    """So the count counts."""
    monkeypatch.setattr("hf_encoders.objectives.batch.keep_on_host", lambda *batches: None)
    for waits in waits_of(launched_steps.make_trainer("nsp", "alone", tmp_path), on_cuda):
        assert waits["to cpu"] > 5
