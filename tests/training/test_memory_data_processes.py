"""Out of memory, data that is not what it was, workers and other processes that die."""

import os
import re
import shutil
import signal

import pytest
import torch
from safetensors.numpy import load_file

from hf_encoders.training.fault_tolerance import is_out_of_memory
from tests import processes
from tests.training import injected, tiny_run
from tests.training.killed_run import make_documents
from tests.training.saved_state import good_steps, is_untouched, newest, resumed


pytestmark = pytest.mark.processes


def test_out_of_memory_says_which_setting_to_lower(untouched, tmp_path):
    run = tmp_path / "run"
    ended = processes.run(injected.out_of_memory, run, 4)
    assert ended.status == 1
    assert "MemoryError: out of memory (" in ended.told and "DefaultCPUAllocator: can't allocate memory" in ended.told
    assert (
        "Lower per_device_train_batch_size=4 to 2 and raise gradient_accumulation_steps=1 to 2, which trains on the "
        "same batches; or set activation_checkpointing=True" in ended.told
    )
    assert (
        f"Training ended after step 3 with RuntimeError. {run}/checkpoint-2 is complete. To resume from it, "
        in ended.told
    )
    assert good_steps(run) == [2] and is_untouched(run, untouched, (2,))


def test_what_was_advised_goes_on_from_the_checkpoint(tmp_path):
    """The same rows a step, so nothing is said; other rows are said."""
    processes.run(injected.out_of_memory, tmp_path / "run", 4)
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    ended = resumed(tmp_path / "run", per_device_train_batch_size=2, gradient_accumulation_steps=2)
    assert ended.status == 0 and "rows of the dataset" not in ended.told
    ended = resumed(tmp_path / "other", per_device_train_batch_size=2)
    assert ended.status == 0
    assert "an optimizer step had 4 rows of the dataset and now has 2" in ended.told


def test_trainer_finds_the_size_itself(tmp_path):
    ended = processes.run(injected.out_of_memory_above, tmp_path / "run", 2)
    assert ended.status == 0, ended.told
    assert "rows 2" in ended.told and newest(tmp_path / "run") == ("checkpoint-8", [])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("Allocation on device"), True),
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."), True),
        (OSError(28, "No space left on device"), False),
        (RuntimeError("shapes cannot be multiplied"), False),
        (KeyError("memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error, expected):
    assert is_out_of_memory(error) is expected


def test_a_killed_worker_of_the_data_loader(untouched, tmp_path):
    """What the system does to workers when memory is short."""
    run = tmp_path / "run"
    ended = processes.run(injected.worker_killed, run, 6)  # the epoch's last batch, made two or three steps ahead
    assert ended.status == 1
    # Which error it is, and whether of a step or of a save, depends on what the process does at that moment.
    assert re.search(r"^RuntimeError: DataLoader worker \(pid|^ConnectionResetError|CheckpointNot", ended.told, re.M)
    assert re.search(f"{run}/checkpoint-[24] is complete. To resume from it, run with the same settings", ended.told)
    assert is_untouched(run, untouched, (2,))


def test_another_corpus_is_refused(untouched, saved, tmp_path):
    """One document less."""
    make_documents().select(range(23)).save_to_disk(tmp_path / "corpus")
    ended = processes.run(injected.on_corpus, saved, tmp_path / "corpus")
    assert ended.status == 1
    (line,) = (line for line in ended.told.splitlines() if line.startswith("ValueError: "))
    assert line.startswith(
        f"ValueError: train_dataset is not the corpus that {saved}/checkpoint-4 was trained on: 24 docu"
    )
    assert "24 documents with 432 tokens (checksum ca98eb74) then, 23 documents with 414 tokens (checksum " in line
    assert line.endswith(f'from_pretrained("{saved}/checkpoint-4") instead of resume_from_checkpoint.')
    assert is_untouched(saved, untouched, (2, 4))


def test_the_same_number_of_other_tokens_is_refused(saved, tmp_path):
    def other(document):
        return {"input_ids": [[token - 1 if token > 40 else token for token in one] for one in document["input_ids"]]}

    make_documents().map(other).save_to_disk(tmp_path / "corpus")
    ended = processes.run(injected.on_corpus, saved, tmp_path / "corpus")
    assert ended.status == 1
    assert (
        "24 documents with 432 tokens (checksum ca98eb74) then, 24 documents with 432 tokens (checksum " in ended.told
    )


def test_the_same_corpus_elsewhere_is_the_same(saved, tmp_path):
    make_documents().save_to_disk(tmp_path / "corpus")
    ended = processes.run(injected.on_corpus, saved, tmp_path / "corpus")
    assert ended.status == 0, ended.told


def test_a_corpus_that_was_cut_short(untouched, saved, tmp_path):
    make_documents().save_to_disk(tmp_path / "corpus")
    (file,) = (tmp_path / "corpus").glob("*.arrow")
    os.truncate(file, file.stat().st_size // 2)
    ended = processes.run(injected.on_corpus, saved, tmp_path / "corpus")
    assert ended.status == 1, ended.told
    print(ended.told)
    assert is_untouched(saved, untouched, (2, 4))


def test_one_of_two_processes_killed(tmp_path):
    """The other ends with an error and says how to go on; it does not wait for ever."""
    run = tmp_path / "run"
    first, second = processes.run_all(injected.one_process_killed, 2, run, 4)
    assert second.status == -signal.SIGKILL and first.status not in (0, None)
    assert f"{run}/checkpoint-2 is complete. To resume from it, " in first.told
    assert newest(run) == ("checkpoint-2", [])


def test_another_number_of_processes_is_said(tmp_path):
    """Without dropout the run is the same, by accumulation in place of the other process."""
    # The gradient of a key's bias is nothing but rounding errors: with a larger epsilon they stay small.
    settings = {"per_device_train_batch_size": 2, "dropout": 0.0, "adam_epsilon": 1e-4}
    both = processes.run_all(tiny_run.train, 2, tmp_path / "whole", **settings)
    assert [one.status for one in both] == [0, 0], both
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    for step in (6, 8):
        shutil.rmtree(tmp_path / "run" / f"checkpoint-{step}")
    ended = resumed(tmp_path / "run", gradient_accumulation_steps=2, **settings)
    assert ended.status == 0, ended.told
    assert (
        "it was written by 2 process(es) and is resumed by 1: examples and masks are those of the uninterrupted run"
        in ended.told
    )
    assert "rows of the dataset" not in ended.told
    one, other = (load_file(tmp_path / name / "checkpoint-8" / "model.safetensors") for name in ("run", "whole"))
    assert max(abs(one[name] - other[name]).max() for name in one) < 1e-6
