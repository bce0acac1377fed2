"""P4: killed and resumed equals never killed, bit for bit."""

import signal
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerState
from transformers.trainer_utils import get_last_checkpoint

from hf_encoders import DocumentChunks, EpochCallback
from tests import processes
from tests.training import killed_run
from tests.training.killed_run import LENGTH, make_documents, make_trainer


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory, one_thread):
    """Parameters after 18 steps in one go, of each kind of examples; on one thread, as in the other processes."""
    found = {}

    def parameters(examples):
        if examples not in found:
            trainer = make_trainer(examples, 0, str(tmp_path_factory.mktemp(examples)))
            trainer.train()
            assert trainer.data_collator.calls == 18
            found[examples] = trainer.model.state_dict()
        return found[examples]

    return parameters


@pytest.mark.processes
@pytest.mark.parametrize(
    ("examples", "workers"),
    [
        *(("chunks", 0), ("blocks", 2), ("dialogues", 2), ("translations", 2)),
        *(("replaced tokens", 2), ("permutations", 2)),
    ],
)
def test_a_killed_run_resumes_as_if_it_had_not_been(never_killed, tmp_path, examples, workers):
    """Killed at step 13, in the third epoch; the last checkpoint is that of step 10, in the second."""
    run = tmp_path / "run"
    ended = processes.run(killed_run.train, run, examples, workers, kill_at=13)
    assert ended.status == -signal.SIGKILL, ended.told
    checkpoint = get_last_checkpoint(str(run))
    assert checkpoint.endswith("checkpoint-10")
    resumed = make_trainer(examples, workers, str(run))
    resumed.train(resume_from_checkpoint=checkpoint)
    expected, weights = never_killed(examples), resumed.model.state_dict()
    assert weights.keys() == expected.keys()
    assert [name for name, value in expected.items() if not torch.equal(value, weights[name])] == []
    # 8 batches are left; in processes of their own, workers count for themselves.
    assert resumed.data_collator.calls == (8 if workers == 0 else 0)


def test_an_epoch_of_millions_of_steps_is_not_announced_before_it_begins():
    """Resumed at its last step but one, it is still the epoch that it was."""
    data_set = DocumentChunks(make_documents(), LENGTH)
    state = TrainerState(epoch=3 + 1_999_999 / 2_000_000)
    loader = SimpleNamespace(dataset=data_set)
    EpochCallback().on_epoch_begin(None, state, None, train_dataloader=loader)
    assert data_set.epoch == 3
