"""Groups of examples by token budget: which examples they hold, and when they change."""

import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset

from hf_encoders import (
    DataCollatorForMaskedLM,
    DataCollatorForNextSentencePrediction,
    DataCollatorForSentenceOrderPrediction,
    DocumentChunks,
    SentenceBlocks,
    StreamedBlocks,
    StreamedChunks,
    TokenBudget,
)
from hf_encoders.objectives import presets
from hf_encoders.objectives.packing import divided, fill_groups
from tests.corpus.corpora import make_dataset, random_documents


LENGTH = 24
BUDGET = 200
EXAMPLES = {
    "blocks": (SentenceBlocks, DataCollatorForMaskedLM, {}),
    "document blocks": (SentenceBlocks, DataCollatorForMaskedLM, {"cross_documents": False}),
    "chunks for mlm": (DocumentChunks, DataCollatorForMaskedLM, {}),
    "nsp": (DocumentChunks, DataCollatorForNextSentencePrediction, {}),
    "nsp of the paper": (DocumentChunks, DataCollatorForNextSentencePrediction, presets.BERT_CHUNKS),
    "sop": (DocumentChunks, DataCollatorForSentenceOrderPrediction, {}),
}


def make(tokenizer, kind, budget=BUDGET, num_documents=300, packed=True, **options):
    dataset_class, collator_class, rule = EXAMPLES[kind]
    dataset = dataset_class(make_dataset(random_documents(num_documents)), LENGTH, **rule, **options)
    collator = collator_class(tokenizer, packed=packed)
    return TokenBudget(dataset, collator, budget), collator


def keys_of(groups):
    """The keys of every group's examples."""
    return [groups[i].keys.tolist() for i in range(len(groups))]


def keys_in_epoch(dataset):
    """Of every example of the epoch once; more or fewer than the dataset's length where epochs are cut again."""
    if isinstance(dataset, SentenceBlocks):
        return dataset.examples(np.arange(len(dataset))).keys.tolist()
    return dataset._chunks(dataset.draw).keys.tolist()


@pytest.mark.parametrize("kind", sorted(EXAMPLES.keys() - {"nsp of the paper"}))
def test_an_epoch_has_every_example_once_within_the_budget(tokenizer, kind):
    groups, collator = make(tokenizer, kind, seed=3)
    num_groups, seen, natural = len(groups), set(), set()
    for epoch in range(4):
        groups.set_epoch(epoch)
        found = keys_of(groups)
        assert len(found) == len(groups) == num_groups
        expected = keys_in_epoch(groups.dataset)
        assert Counter(key for group in found for key in group) == Counter(expected)
        natural.add(len(expected))
        sizes = [collator([groups[i]])["input_ids"].shape[1] for i in range(num_groups)]
        assert max(sizes) <= BUDGET and sum(sizes) / num_groups / BUDGET > 0.9
        seen.add(tuple(map(tuple, found)))
    assert len(seen) == 4
    # Epochs of chunks really differ in number, which is what the groups have to even out.
    assert (len(natural) > 1) == (groups.dataset.__class__ is DocumentChunks)


def test_epochs_that_differ_much_lose_little(tokenizer):
    """What a random segment replaced begins the next chunk: epochs of 300 documents differ by several per cent."""
    groups, _ = make(tokenizer, "nsp of the paper")
    lost = []
    for epoch in range(6):
        groups.set_epoch(epoch)
        found = Counter(key for group in keys_of(groups) for key in group)
        expected = set(keys_in_epoch(groups.dataset))
        assert set(found.values()) == {1} and found.keys() <= expected
        lost.append(1 - len(found) / len(expected))
    assert lost[0] == 0 and max(lost) < 0.1


def test_groups_are_98_percent_full(tokenizer):
    """A budget of 100 examples' length; the last group and the spare ones are what is missing."""
    groups, collator = make(tokenizer, "nsp", budget=100 * LENGTH, num_documents=20000)
    for epoch in range(2):
        groups.set_epoch(epoch)
        tokens = collator(groups.__getitems__(range(len(groups))))["input_ids"].shape[1]
        assert tokens / (len(groups) * groups.max_tokens) > 0.98


@pytest.mark.parametrize("kind", EXAMPLES)
def test_lengths_told_are_those_of_the_batch(tokenizer, kind):
    groups, collator = make(tokenizer, kind, redraw=False)
    examples = groups.dataset.examples(np.arange(len(groups.dataset)))
    lengths = np.diff(collator([examples])["cu_seq_lens_q"].numpy())
    assert collator.example_lengths(examples).tolist() == lengths.tolist() and len(set(lengths.tolist())) > 3


@pytest.mark.parametrize("kind", ["blocks", "nsp"])
def test_groups_are_a_function_of_seed_and_epoch(tokenizer, kind):
    found = {}
    for seed in (0, 1):
        groups, _ = make(tokenizer, kind, seed=seed)
        for epoch in (2, 0, 1):
            groups.set_epoch(epoch)
            found[seed, epoch] = keys_of(groups)
    assert len({str(keys) for keys in found.values()}) == 6
    again, _ = make(tokenizer, kind, seed=1)
    again.set_epoch(2)
    copied = pickle.loads(pickle.dumps(again))
    assert keys_of(again) == keys_of(copied) == found[1, 2]


def test_examples_that_stay_the_same_are_grouped_again_every_epoch(tokenizer):
    groups, _ = make(tokenizer, "nsp", epochs_per_draw=2)
    epochs = []
    for epoch in (0, 1):
        groups.set_epoch(epoch)
        epochs.append(keys_of(groups))
    flat = [sorted(key for group in epoch for key in group) for epoch in epochs]
    assert flat[0] == flat[1] and epochs[0] != epochs[1]


def test_without_redraw_all_groups_but_one_are_full(tokenizer):
    groups, collator = make(tokenizer, "blocks", redraw=False)
    sizes = [collator([groups[i]])["input_ids"].shape[1] for i in range(len(groups))]
    assert len(sizes) == len(make(tokenizer, "blocks")[0]) - 1
    assert sum(sizes) > (len(groups) - 1.5) * BUDGET


@pytest.mark.parametrize("workers", [0, 2])
def test_groups_through_a_data_loader_are_the_examples_of_padded_batches(tokenizer, workers):
    groups, packed = make(tokenizer, "nsp")
    padded = DataCollatorForNextSentencePrediction(tokenizer)
    loaders = [
        torch.utils.data.DataLoader(
            groups, batch_size=3, collate_fn=collator, num_workers=workers, persistent_workers=workers > 0
        )
        for collator in (packed, padded)
    ]
    for epoch in (0, 1):
        groups.set_epoch(epoch)
        for one, other in zip(*loaders, strict=True):
            is_real = other["attention_mask"].bool()
            assert is_real.shape[0] == len(one["cu_seq_lens_q"]) - 1 > 3
            assert torch.equal(one["input_ids"][0], other["input_ids"][is_real])
            assert torch.equal(one["labels"][0], other["labels"][is_real])
            assert torch.equal(one["next_sentence_label"], other["next_sentence_label"])


def test_the_epoch_has_to_be_set(tokenizer):
    groups, _ = make(tokenizer, "blocks")
    with pytest.raises(ValueError, match="epoch of the dataset was not set"):
        groups[0]


def test_a_corpus_of_fewer_examples_than_groups_gives_some_again(tokenizer):
    """Two examples in a group of their own each; were there one in another epoch, it would come twice."""
    documents = make_dataset([[[7] * 9, [8] * 9], [[9] * 9, [10] * 9]])
    chunks = DocumentChunks(documents, LENGTH)
    groups = TokenBudget(chunks, DataCollatorForSentenceOrderPrediction(tokenizer, packed=True), LENGTH)
    groups.set_epoch(0)
    assert len(groups) == 2
    groups.num_groups = 3
    groups._plan = None
    keys = keys_of(groups)
    assert keys[2] == keys[0] != keys[1]


def test_what_does_not_fit_into_all_groups_is_left_out(tokenizer):
    groups, _ = make(tokenizer, "blocks")
    groups.num_groups -= 5
    groups.set_epoch(0)
    found = Counter(key for group in keys_of(groups) for key in group)
    assert len(keys_of(groups)) == len(groups) and set(found.values()) == {1}
    assert 0 < len(groups.dataset) - len(found) < 5 * BUDGET / 10


def test_groups_are_filled_in_order_and_gaps_with_the_best_in_sight():
    lengths = np.random.default_rng(0).integers(1, 30, 2000)
    order = np.random.default_rng(1).permutation(2000)
    found, counts = fill_groups(order, lengths, 100)
    assert sorted(found.tolist()) == list(range(2000)) and counts.sum() == 2000
    sums = np.add.reduceat(lengths[found], np.cumsum(counts) - counts)
    assert sums.max() <= 100 and sums[:-1].mean() > 99.5
    # Five groups are about 34 examples: the order is kept but for those that fill gaps.
    place = np.empty(2000, dtype=int)
    place[order] = np.arange(2000)
    assert np.corrcoef(place[found], np.arange(2000))[0, 1] > 0.95


def test_division_ends_where_each_group_has_one_example():
    assert divided(np.array([2, 1]), 9).tolist() == [1, 1, 1]
    assert divided(np.array([3, 3]), 2).tolist() == [3, 3]


def test_what_cannot_be_grouped_is_refused(tokenizer):
    corpus, collator = random_documents(30), DataCollatorForMaskedLM(tokenizer, packed=True)
    for stream in (StreamedBlocks(corpus, None, LENGTH), StreamedChunks(corpus, None, LENGTH)):
        with pytest.raises(ValueError, match=f"{type(stream).__name__}.*packed=True.*prepare_corpus"):
            TokenBudget(stream, collator)
    blocks = SentenceBlocks(make_dataset(corpus), LENGTH)
    with pytest.raises(ValueError, match="dataset is a ConcatDataset: give a DocumentChunks or SentenceBlocks"):
        TokenBudget(ConcatDataset([blocks, blocks]), collator)
    with pytest.raises(ValueError, match="collator is a builtin_function_or_method"):
        TokenBudget(blocks, len)
    for budget in (LENGTH - 1, 0, 200.5):
        with pytest.raises(ValueError, match=f"max_tokens={budget} must be a whole number of at least {LENGTH}"):
            TokenBudget(blocks, collator, budget)
    # Of chunks that are shorter so far, but may be longer in another epoch.
    short = DocumentChunks(make_dataset([[[5, 6], [7]], [[8], [9, 10]]]), LENGTH)
    with pytest.raises(ValueError, match=f"max_tokens=20 .* at least {LENGTH}"):
        TokenBudget(short, collator, 20)
    assert len(TokenBudget(blocks, collator, LENGTH)) == len(blocks)
    with pytest.raises(ValueError, match="SentenceBlocks is for DataCollatorForMaskedLM"):
        TokenBudget(blocks, DataCollatorForSentenceOrderPrediction(tokenizer))
