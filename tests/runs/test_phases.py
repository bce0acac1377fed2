"""A run as one data set: the same examples a step however it is divided; every example once an epoch; new draws."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import TrainerState, get_scheduler

from hf_encoders import DataCollatorForMaskedLM, DocumentChunks, SentenceBlocks
from hf_encoders.runs.recipe import Phase, load_recipe
from hf_encoders.runs.run import PhaseExamples, RunExamples, divide, training_arguments
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


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_batch_that_rises_reads_every_example_once(micro_batches):
    """Eight steps of 2, 2, 3, 3, 4, 4, 5, 5 examples of 28: the first epoch is that of a batch that does not rise."""
    blocks = SentenceBlocks(equal_documents(28), 20, False)
    phases = (Phase(8, 20, 5, rising_from=2), Phase(2, 20, 5))
    run = RunExamples([PhaseExamples(phase, blocks) for phase in phases], micro_batches)
    steps = [
        [key for i in range(micro_batches) for key in keys_of(run[step * micro_batches + i])] for step in range(10)
    ]
    assert [len(keys) for keys in steps] == [2, 2, 3, 3, 4, 4, 5, 5, 5, 5]
    even = RunExamples([PhaseExamples(Phase(7, 20, 4), blocks)], 1)
    assert sum(steps[:8], []) == sum((keys_of(even[step]) for step in range(7)), [])
    assert run.phases[0].epochs == 1.0 and not set(steps[8]) & set(steps[0])


def test_modernbert_base_rises_by_the_thresholds_of_flexbert():
    """A size ends at its share of 50 billion tokens: the sum of the sizes up to it over that of all (768 to 4,608)."""
    phase = load_recipe("modernbert-base").phases[0]
    sizes, taken = np.arange(768, 4609), np.diff(phase.bounds)
    thresholds = sizes.cumsum() / sizes.sum() * 50e9
    before = phase.bounds[:-1] * phase.length
    assert abs(phase.bounds[-1] * phase.length / 50e9 - 1) < 1e-4
    # The last step of a size begins below its threshold, and the next one at or above it; the recipe's whole number of
    # steps moves thresholds by up to 1.3e-5.
    ends = thresholds[taken - 768]
    assert (before <= ends * (1 + 1.3e-5)).all()
    larger = taken[1:] > taken[:-1]
    assert (before[1:][larger] >= ends[:-1][larger] * (1 - 1.3e-5)).all() and larger.sum() == len(sizes) - 1


PHASED = {  # peak, warm-up, and the end, first and last rate of each part
    "modernbert-base": (8e-4, 2763, [(371_865, 8e-4, 8e-4), (424_845, 3e-4, 3e-4), (435_445, 3e-4, 3e-7)]),
    "modernbert-large": (5e-4, 1453, [(180_001, 5e-4, 5e-4), (388_076, 5e-5, 5e-5), (397_857, 5e-5, 5e-8)]),
    "ettin-17m": (3e-3, 4142, [(379_199, 3e-3, 3e-3), (433_459, 3e-3, 1.5e-3), (444_311, 1.5e-3, 6e-5)]),
}


@pytest.mark.parametrize("name", PHASED)
def test_a_schedule_of_phases_at_ten_points(name):
    """Linear warm-up, constant, and falls by `last + (first - last) (1 - sqrt(progress))`."""
    recipe = load_recipe(name)
    peak, warmup, parts = PHASED[name]
    training = recipe.training
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    options = training.get("lr_scheduler_kwargs")
    schedule = get_scheduler(training["lr_scheduler_type"], optimizer, warmup, recipe.steps, options)
    recipe.phase_changes(recipe.config_class(), training["learning_rate"]).change_schedule(schedule, warmup)
    (factor,) = schedule.lr_lambdas

    def expected(step):
        begin = 0
        for end, first, last in parts:
            if step < end:
                rate = last + (first - last) * (1 - math.sqrt((step - begin) / (end - begin)))
                return rate * min(step / warmup, 1)
            begin = end

    edges = [end for end, *_ in parts]
    points = [0, 1, warmup // 2, warmup, edges[0] - 1, edges[0], edges[1], edges[1] + 1, edges[2] - 5000, edges[2] - 1]
    assert recipe.steps == edges[-1] and recipe.warmup_steps == warmup
    for step in points:
        assert peak * factor(step) == pytest.approx(expected(step), rel=1e-12, abs=1e-300), step


def test_phases_that_are_shortened_keep_their_shares():
    recipe = load_recipe("modernbert-base").of_steps(4354)
    assert [phase.steps for phase in recipe.phases] == [182, 3536, 530, 106]
    assert np.diff(recipe.phases[0].bounds)[[0, -1]].tolist() == pytest.approx([768, 4608], rel=0.01)


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"rising_from": 0}, "rising_from=0 must be a whole number, at least 1"),
        ({"rising_from": 9}, "rising_from=9 must be below examples=8"),
        ({"learning_rate": [0.1]}, r"learning_rate=\[0.1\] must be a number above 0"),
        ({"learning_rate": [0.1, 0]}, r"learning_rate=\[0.1, 0\] must be a number above 0"),
        ({"weight_decay": "x"}, "weight_decay='x' must be a number above 0"),
    ],
)
def test_wrong_fields_of_a_phase(fields, named):
    with pytest.raises(ValueError, match=named):
        Phase(4, 16, 8, **fields)


def test_a_phase_has_its_weight_decay_where_the_run_has_one(tmp_path):
    """A step of SGD without a gradient multiplies weights by 1 - rate x decay; biases and norms have none."""
    phases = (Phase(1, 16, 2, weight_decay=0.5), Phase(1, 16, 2))
    recipe = replace(load_recipe("bert-minutes"), phases=phases)
    with pytest.raises(ValueError, match="weight_decay=0, and a phase has one: give"):
        training_arguments(recipe, divide(recipe, 1), tmp_path, {"weight_decay": 0})
    changes = recipe.phase_changes(recipe.config_class(), 0.1)
    weight, bias = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    groups = [{"params": [weight], "weight_decay": 0.25}, {"params": [bias], "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    arguments = training_arguments(recipe, divide(recipe, 1), tmp_path, {"weight_decay": 0.25})
    model, state = torch.nn.Module(), TrainerState()
    model.config = recipe.config_class()
    for state.global_step, expected in ((0, 0.95), (1, 0.95 * 0.975)):
        changes.on_step_begin(arguments, state, None, model, optimizer)
        weight.grad = bias.grad = torch.zeros(2)
        optimizer.step()
        assert torch.allclose(weight, torch.full((2,), expected)) and torch.equal(bias, torch.ones(2))
