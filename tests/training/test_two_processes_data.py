"""P4 over two processes: who gets which examples of an epoch, and that they are those of a single process."""

from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch

from tests import processes
from tests.training import two_ranks
from tests.training.two_ranks import BATCH, KINDS, STEPS, make_data_set, make_trainer


pytestmark = pytest.mark.processes
EXAMPLES = 26


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two processes found: 8 steps of 4 examples a process, 64 examples of 26 an epoch."""
    folder = tmp_path_factory.mktemp("two")
    for ended in processes.run_all(two_ranks.train_on_each_kind, 2, folder):
        assert ended.status == 0, ended.told
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def keys_of_epoch(kind, epoch):
    is_stored = kind in ("stored", "groups")
    data_set = make_data_set(kind, **({} if is_stored else {"repeat": False}))
    data_set.set_epoch(epoch)
    examples = [data_set.examples(np.arange(len(data_set)))] if is_stored else data_set
    return set(chain.from_iterable(one.keys.tolist() for one in examples))


@pytest.mark.parametrize("epoch", [0, 1])
def test_processes_share_an_epoch_of_a_stored_corpus(ranks, epoch):
    """26 = 3 rounds of 8 examples and one of 2, which accelerate fills up with the 6 that came first."""
    expected = keys_of_epoch("stored", epoch)
    assert len(expected) == EXAMPLES
    seen = [[key for key, _ in rank["stored"] if key in expected] for rank in ranks]
    assert [len(keys) for keys in seen] == [16, 16]
    assert not set(seen[0][:12]) & set(seen[1][:12])
    assert set(seen[0]) | set(seen[1]) == expected
    rounds = list(zip(seen[0], seen[1], strict=True))
    assert Counter(Counter(chain.from_iterable(rounds)).values()) == {1: 20, 2: 6}


@pytest.mark.parametrize("epoch", [0, 1])
def test_processes_share_an_epoch_of_groups(ranks, epoch):
    """26 examples in 7 groups of up to 4 and one to spare: four steps of two processes, each example once."""
    expected = keys_of_epoch("groups", epoch)
    assert expected == keys_of_epoch("stored", epoch)
    seen = [[key for key, _ in rank["groups"] if key in expected] for rank in ranks]
    assert Counter(chain(*seen)) == dict.fromkeys(expected, 1)
    assert min(map(len, seen)) >= 4 * 2


@pytest.mark.parametrize("epoch", [0, 1])
def test_processes_share_an_epoch_of_a_stream(ranks, epoch):
    """By windows: of 5 windows of 5, 5, 5, 5 and 6, three for the first and two for the second process."""
    expected = keys_of_epoch("streamed", epoch)
    seen = [[key for key, _ in rank["streamed"] if key in expected] for rank in ranks]
    assert Counter(chain(*seen)) == dict.fromkeys(expected, 1)
    assert [len(keys) for keys in seen] == [16, 10]
    assert min(len(rank["streamed"]) for rank in ranks) >= BATCH * STEPS


@pytest.mark.parametrize("epoch", [0, 1])
def test_accelerate_shares_a_stream_under_the_stock_trainer(ranks, epoch):
    expected = keys_of_epoch(KINDS[2], epoch)
    seen = [[key for key, _ in rank[KINDS[2]] if key in expected] for rank in ranks]
    assert Counter(chain(*seen)) == dict.fromkeys(expected, 1)
    assert abs(len(seen[0]) - len(seen[1])) <= BATCH


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_make_the_examples_that_one_makes(ranks, kind, tmp_path):
    alone = make_trainer(kind, str(tmp_path), max_steps=2 * STEPS)
    alone.train()
    expected = dict(alone.data_collator.found)
    both = [dict(rank[kind]) for rank in ranks]
    for found in both:
        common = found.keys() & expected.keys()
        assert len(common) > 20 and all(found[key] == expected[key] for key in common)
    wanted = keys_of_epoch(kind, 0) | keys_of_epoch(kind, 1)
    assert wanted <= expected.keys() and wanted <= both[0].keys() | both[1].keys()


def test_what_several_processes_cannot_do_is_refused(ranks):
    for rank in ranks:
        evaluating, sending, grouped, predicting = rank["refusals"]
        assert "prepare_corpus" in evaluating and "dispatch_batches=True" in sending
        assert "evaluate on the dataset that it groups" in grouped and "compute_metrics" in predicting
