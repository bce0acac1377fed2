"""A run as one data set: the same examples a step however it is divided; every example once an epoch; new draws."""

from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader

from hf_encoders import DataCollatorForMaskedLM, DocumentChunks, SentenceBlocks
from hf_encoders.runs.recipe import Phase
from hf_encoders.runs.run import PhaseExamples, RunExamples
from tests.corpus.corpora import equal_documents


def make_run(micro_batches: int, seed: int = 0) -> RunExamples:
    """Two phases: 4 steps of 5 blocks of 20 tokens, 3 steps of 7 blocks of 38."""
    phases = (Phase(4, 20, 5), Phase(3, 38, 7))
    parts = [PhaseExamples(p, SentenceBlocks(equal_documents(11), p.length, False, seed=seed)) for p in phases]
    return RunExamples(parts, micro_batches)


def keys_of(examples: list) -> list:
    return [example.key for example in examples]


@pytest.mark.parametrize("micro_batches", [2, 3, 5])
def test_a_step_has_the_same_examples_however_it_is_divided(micro_batches):
    whole, divided = make_run(1), make_run(micro_batches)
    assert len(divided) == 7 * micro_batches
    for step in range(7):
        parts = [keys_of(divided[step * micro_batches + i]) for i in range(micro_batches)]
        assert [key for part in parts for key in part] == keys_of(whole[step])
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_every_example_once_an_epoch_and_no_draw_twice():
    run = make_run(1)
    drawn = [key for step in range(4) for key in keys_of(run[step])]
    assert len(drawn) == 20 and len(set(drawn)) == 20  # 11 blocks: an epoch and most of the next, other keys
    assert set(drawn[:11]) == set(keys_of(SentenceBlocks(equal_documents(11), 20, False).at_epoch(0)[:]))
    assert drawn[:11] != sorted(drawn[:11])
    later = {key for step in range(4, 7) for key in keys_of(run[step])}
    assert len(later) == 21 and not later & set(drawn)


def test_lengths_follow_the_phases():
    run = make_run(1)
    longest = [max(sum(map(len, example.segments)) for example in run[step]) for step in (0, 6)]
    assert longest == [18, 18]  # every document is its own block
    assert [len(run.items_of(place)) for place in (0, 1)] == [4, 3]
    assert [len(run[step]) for step in range(7)] == [5, 5, 5, 5, 7, 7, 7]
    assert keys_of(run[0]) != keys_of(make_run(1, seed=1)[0])


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_in_different_epochs_do_not_meet(workers):
    chunks = DocumentChunks(equal_documents(11), 24, seed=1)
    run = RunExamples([PhaseExamples(Phase(9, 24, 5), chunks)], 1)
    loader = DataLoader(run, batch_size=1, num_workers=workers, collate_fn=keys_of)
    assert list(loader) == [keys_of(run[step]) for step in range(9)]
    assert int(chunks._epoch) == -1  # the dataset itself is not changed


def masked_run(maskings: tuple[dict, dict, dict]) -> RunExamples:
    """Three phases of two steps of four blocks, of which some have masking of their own."""
    blocks = SentenceBlocks(equal_documents(11), 24, False)
    phases = [Phase(2, 24, 4, masking=masking) for masking in maskings]
    return RunExamples([PhaseExamples(phase, blocks) for phase in phases], 2)


def test_a_phase_is_masked_by_its_own_options(tokenizer):
    """Which micro-batch it is says how it is masked, so a restart masks the same; other examples by the collator's."""
    changed = ({}, {"mask_probability": 0.5}, {"mask_replace_probability": 1.0, "random_replace_probability": 0.0})
    run = masked_run(changed)
    collator = DataCollatorForMaskedLM(tokenizer, phase_masking=changed)
    for item in range(len(run)):
        options = changed[item // 4]
        expected = DataCollatorForMaskedLM(tokenizer, **options)([replace(example, phase=0) for example in run[item]])
        batch = collator(run[item])
        assert batch.keys() == expected.keys()
        assert all(torch.equal(batch[name], expected[name]) for name in batch)
    shares = [float((collator(run[item])["labels"] != -100).float().mean()) for item in (0, 4)]
    assert shares[1] > 2 * shares[0]
    evaluated = SentenceBlocks(equal_documents(11), 24, False, redraw=False).__getitems__(range(4))
    assert torch.equal(collator(evaluated)["labels"], DataCollatorForMaskedLM(tokenizer)(evaluated)["labels"])


def test_phases_that_the_collator_does_not_know_are_refused(tokenizer):
    run = masked_run(({"unit": "word"}, {}, {"unit": "word"}))
    with pytest.raises(ValueError, match="examples of phase 1, but phase_masking has 0"):
        DataCollatorForMaskedLM(tokenizer)(run[0])


def test_at_epoch_is_apart():
    blocks = SentenceBlocks(equal_documents(11), 20)
    blocks.set_epoch(4)
    other = blocks.at_epoch(2)
    assert (blocks.epoch, other.epoch) == (4, 2)
    blocks.set_epoch(5)
    assert other.epoch == 2
    assert blocks[0].key != other[0].key
