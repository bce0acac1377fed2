"""P4 over two processes: who gets which examples of an epoch, and that they are those of a single process."""

from collections import Counter
from itertools import chain

import pytest
import torch

from tests import processes
from tests.training import two_ranks
from tests.training.two_ranks import STEPS, make_data_set, make_trainer


pytestmark = pytest.mark.processes
EXAMPLES = 26


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two processes saw: 8 steps of 4 examples a process, 64 examples of 26 an epoch."""
    folder = tmp_path_factory.mktemp("two")
    for ended in processes.run_all(two_ranks.train, 2, folder):
        assert ended.status == 0, ended.told
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def keys_of_epoch(epoch):
    data_set = make_data_set()
    data_set.set_epoch(epoch)
    return {tuple(example.key) for example in data_set[:]}


@pytest.mark.parametrize("epoch", [0, 1])
def test_processes_share_an_epoch(ranks, epoch):
    """26 = 3 rounds of 8 examples and one of 2, which accelerate fills up with the 6 that came first."""
    expected = keys_of_epoch(epoch)
    assert len(expected) == EXAMPLES
    seen = [[key for key, _ in rank["examples"] if key in expected] for rank in ranks]
    assert [len(keys) for keys in seen] == [16, 16]
    assert not set(seen[0][:12]) & set(seen[1][:12])
    assert set(seen[0]) | set(seen[1]) == expected
    rounds = list(zip(seen[0], seen[1], strict=True))
    assert Counter(Counter(chain.from_iterable(rounds)).values()) == {1: 20, 2: 6}


def test_two_processes_make_the_examples_that_one_makes(ranks, tmp_path):
    alone = make_trainer(str(tmp_path), max_steps=2 * STEPS)
    alone.train()
    expected = dict(alone.data_collator.seen)
    both = [dict(rank["examples"]) for rank in ranks]
    for examples in both:
        common = examples.keys() & expected.keys()
        assert len(common) > 20 and all(examples[key] == expected[key] for key in common)
    wanted = keys_of_epoch(0) | keys_of_epoch(1)
    assert wanted <= expected.keys() and wanted <= both[0].keys() | both[1].keys()


def test_packed_outputs_of_several_processes_are_refused(ranks):
    assert all("compute_metrics" in rank["refusal"] for rank in ranks)
