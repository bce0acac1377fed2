"""Several sources in one dataset: shares, whole passes, random numbers of their own."""

import math
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from hf_encoders import (
    DataCollatorForMaskedLM,
    DataCollatorForNextSentencePrediction,
    DocumentChunks,
    SentenceBlocks,
)
from hf_encoders.objectives.dataset import EpochDataset, Example
from hf_encoders.objectives.mixture import MixedExamples, passes_table, passes_warnings, source_seed
from tests.corpus.corpora import equal_documents, make_dataset, random_documents


SIZES = {"a": 1_000_000, "b": 300_000, "c": 50_000, "d": 2_000}
# Shares and passes an epoch by alpha: share ** alpha of XLM's `set_sampling_probs` on these sizes.
TABLE = {
    1.0: ([0.7396, 0.2219, 0.0370, 0.0015], [1, 1, 1, 1]),
    0.7: ([0.6385, 0.2749, 0.0784, 0.0082], [0.863, 1.239, 2.120, 5.569]),
    0.5: ([0.5506, 0.3016, 0.1231, 0.0246], [0.744, 1.359, 3.329, 16.65]),
    0.3: ([0.4427, 0.3085, 0.1802, 0.0686], [0.599, 1.390, 4.873, 46.38]),
}


class Numbered(EpochDataset):
    """A dataset of so many examples that gives (name, pass, example), without a corpus."""

    def __init__(self, size, name=""):
        super().__init__(seed=0, redraw=True)
        self.size, self.name = size, name

    def __len__(self):
        return self.size

    def example(self, index):
        return Example([np.array([self.epoch, index])], self.key(index), languages=[self.name])


def blocks(count: int, seed: int = 0, documents: int = 0) -> SentenceBlocks:
    """As many blocks of one document each."""
    texts = random_documents(count, documents, (3, 4), (6, 7))
    return SentenceBlocks(make_dataset(texts), 20, cross_documents=False, seed=seed)


def mixture(**options) -> MixedExamples:
    return MixedExamples({"en": blocks(11), "de": blocks(5, documents=1), "gsw": blocks(2, documents=2)}, **options)


def drawn(mixed: MixedExamples, epoch: int) -> dict[str, list[tuple[int, int]]]:
    """(pass, example) of each source in an epoch."""
    found = {name: [] for name in mixed.sources}
    for example in mixed.at_epoch(epoch)[:]:
        found[example.languages[0]].append(tuple(example.segments[0].tolist()))
    return found


@pytest.mark.parametrize("alpha", TABLE)
def test_shares_and_passes_of_the_table(alpha):
    mixed = MixedExamples({name: Numbered(size) for name, size in SIZES.items()}, alpha=alpha)
    shares, passes = TABLE[alpha]
    assert [round(share, 4) for share in mixed.shares.values()] == shares
    for found, expected in zip(mixed.passes.values(), passes, strict=True):
        assert float(f"{found:.4g}") == pytest.approx(expected, abs=0.0006 if expected < 10 else 0.006)
    counts = mixed.counts_before(1)
    assert counts.sum() == sum(SIZES.values()) == len(mixed)
    assert np.abs(counts - np.array(list(mixed.shares.values())) * len(mixed)).max() < 1
    warned = passes_warnings(mixed.passes)
    assert [f"{passes[-1]:.1f} times" in one for one in warned] == [True] * (alpha <= 0.5)
    last = passes_table([(mixed, 3.0), (mixed, 1.0)]).splitlines()[-1].split()
    assert last[0] == "d" and float(last[-1]) == pytest.approx(4 * passes[-1], rel=0.005)


@pytest.mark.parametrize(
    ("options", "length"), [({"alpha": 0.3}, 7), ({"weights": {"en": 1, "de": 2.5, "gsw": 0.7}}, 50), ({}, None)]
)
def test_whole_passes_and_exact_counts_over_epochs(options, length):
    """After any number of epochs, examples of a source differ by one in how often they came, and never in a pass."""
    sizes = {"en": 11, "de": 5, "gsw": 3}
    mixed = MixedExamples({n: Numbered(s, n) for n, s in sizes.items()}, examples_per_epoch=length, **options)
    came = {name: [] for name in sizes}
    for epoch in range(6):
        for name, found in drawn(mixed, epoch).items():
            came[name] += found
        assert sum(map(len, came.values())) == (epoch + 1) * len(mixed)
        for name, share in mixed.shares.items():
            assert abs(len(came[name]) - share * (epoch + 1) * len(mixed)) < 1
            assert len(set(came[name])) == len(came[name])  # no example twice in a pass
            often = np.bincount([example for _, example in came[name]], minlength=sizes[name])
            assert often.max() - often.min() <= 1


def test_a_pass_has_an_order_of_its_own():
    mixed = MixedExamples({"en": Numbered(40, "en")}, examples_per_epoch=40)
    orders = [[example for _, example in drawn(mixed, epoch)["en"]] for epoch in range(3)]
    assert all(sorted(order) == list(range(40)) for order in orders)
    assert len(set(map(tuple, orders))) == 3 and orders[0] != list(range(40))


def test_other_sources_change_no_random_number_of_a_source():
    sources = {"en": blocks(11), "de": blocks(5, documents=1)}
    mixed, turned = MixedExamples(sources), MixedExamples(dict(reversed(sources.items())))
    more = MixedExamples({**sources, "a": blocks(4, documents=3)})
    for one in (mixed, turned, more):
        one.set_epoch(1)
    keys = [[(example.languages[0], example.key) for example in dataset[:]] for dataset in (mixed, turned, more)]
    assert keys[0] == keys[1] == [key for key in keys[2] if key[0] != "a"] and len(keys[2]) == 20


def test_sources_share_no_random_number_though_their_text_and_seed_are_the_same():
    mixed = MixedExamples({"one": blocks(9, seed=3), "two": blocks(9, seed=3)}, seed=3)
    keys = [example.key for epoch in range(3) for example in mixed.at_epoch(epoch)[:]]
    assert len(set(keys)) == len(keys) == 54
    seeds = {source_seed(seed, name) for seed in range(20) for name in ("en", "de", "EN", "", "ab", "a")}
    assert len(seeds) == 120 and all(0 <= seed < 2**63 for seed in seeds)


def test_a_batch_is_the_same_in_parts_and_in_any_order(tokenizer):
    mixed, collator = mixture(alpha=0.5), DataCollatorForMaskedLM(tokenizer, pad_to_multiple_of=20)
    mixed.set_epoch(2)
    order = np.random.default_rng(0).permutation(len(mixed))
    whole = collator(mixed[order])
    halves = [collator(mixed[part]) for part in (order[:7], order[7:])]
    for name, value in whole.items():
        assert torch.equal(value, torch.cat([half[name] for half in halves]))
        assert torch.equal(value, collator(mixed[:])[name][torch.from_numpy(order)])
    assert [len(mixed[index]) for index in (slice(3, 9), [-1, 0])] == [6, 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_any_process_that_reads_an_example_reads_the_same(workers):
    """In workers, pickled, or a copy in another epoch."""
    mixed = mixture(alpha=0.4, languages={"gsw": "de"})
    mixed.set_epoch(1)
    mixed[:]
    copies = [mixed, pickle.loads(pickle.dumps(mixed)), mixture(alpha=0.4, languages={"gsw": "de"}).at_epoch(1)]
    mixed.at_epoch(4)[:]
    loader = DataLoader(mixed, batch_size=4, num_workers=workers, collate_fn=lambda examples: examples)
    keys = [[example.key for examples in loader for example in examples]]
    keys += [[example.key for example in dataset[:]] for dataset in copies]
    assert all(other == keys[0] for other in keys)
    assert "".join(example.languages[0][0] for example in mixed[:]).count("e") == int(mixed.counts_before(1)[1])


def test_pairs_stay_within_a_source(tokenizer):
    """Tokens below 30 in one source, above in the other: no pair has both, also with a random second segment."""
    texts = {"low": (5, 30), "high": (30, 60)}
    sources = {}
    for name, (first, last) in texts.items():
        generator = np.random.default_rng(first)
        documents = [[generator.integers(first, last, 4).tolist() for _ in range(6)] for _ in range(12)]
        sources[name] = DocumentChunks(make_dataset(documents), 24)
    mixed = MixedExamples(sources, weights={"low": 3, "high": 1})
    collator = DataCollatorForNextSentencePrediction(
        tokenizer, mask_replace_probability=0, random_replace_probability=0
    )
    labels = []
    for epoch in range(3):
        batch = collator(mixed.at_epoch(epoch)[:])
        labels += batch["next_sentence_label"].tolist()
        for row in batch["input_ids"].tolist():
            text = [i for i in row if i >= 5]
            assert max(text) < 30 or min(text) >= 30
    assert {0, 1} <= set(labels)


def test_weights_of_zero_leave_a_source_out():
    mixed = mixture(weights={"en": 1, "de": 0, "gsw": 1})
    mixed.set_epoch(0)
    assert {example.languages[0] for example in mixed[:]} == {"en", "gsw"}
    assert len(mixed) == 13, "a source that is left out does not lengthen the epoch"
    assert mixed.passes == {"de": 0.0, "en": 6.5 / 11, "gsw": 6.5 / 2}


def test_evaluation_is_always_that_of_the_first_epoch():
    mixed = mixture(redraw=False)
    first = [example.key for example in mixed[:]]
    mixed.set_epoch(3)
    assert [example.key for example in mixed[:]] == first


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"alpha": 0.3, "weights": {"en": 1}}, "alpha=0.3 and weights={'en': 1}: give one of them"),
        ({"alpha": 0}, r"alpha=0 must be in \(0, 1\]"),
        ({"alpha": math.nan}, r"alpha=nan must be in \(0, 1\]"),
        ({"weights": {}}, "weights={} must name each source"),
        ({"weights": {"en": -1, "de": 1, "gsw": 1}}, "weights: en=-1 must be a number of at least 0"),
        ({"weights": {"en": 0, "de": 0, "gsw": 0}}, "one of them must be above 0"),
        ({"weights": {"en": 1, "de": 1}}, "weights: source 'gsw' has none: the sources are de, en, gsw"),
        ({"weights": {"en": 1, "fr": 1}}, "weights: there is no source 'fr': the sources are de, en, gsw"),
        ({"languages": {"fr": "fr"}}, "languages: there is no source 'fr'"),
        ({"weights": {"en": 1, "de": 1, "gsw": 0.01}}, "source 'gsw' has 0.09 of the 18 examples of an epoch: raise"),
        ({"examples_per_epoch": 0.5}, "examples_per_epoch=0.5 must be a whole number"),
        ({"examples_per_epoch": 3}, "source 'de' has 0.83 of the 3 examples of an epoch"),
    ],
)
def test_wrong_options(options, said):
    with pytest.raises(ValueError, match=said):
        mixture(**options)


def test_wrong_sources():
    for sources, said in (
        ({}, "give one dataset for each name"),
        ([blocks(3)], "give one dataset for each name"),
        ({"en": equal_documents(3)}, "'en' is a Dataset: give names"),
        ({1: blocks(3)}, "sources: 1 is a SentenceBlocks: give names"),
        ({"en": mixture()}, "'en' is a MixedExamples"),
        ({"en": Numbered(0)}, "'en' is a Numbered: .* with examples"),
        ({"en": SentenceBlocks(equal_documents(3), 20, redraw=False)}, "'en' has redraw=False, so all passes"),
    ):
        with pytest.raises(ValueError, match=said):
            MixedExamples(sources)
    with pytest.raises(ValueError, match="epoch of the dataset was not set"):
        mixture()[0]
