import datasets
import pytest
import torch

from hf_encoders.benchmark.rows import Row, make_batch, make_pool, spans
from hf_encoders.corpus.flat_corpus import FlatCorpus
from tests.benchmark.tiny import tiny_corpus, tiny_setting


# Tokens 0-15: a document of five sentences (2, 3, 1, 2, 1 tokens) and one of a single sentence of seven.
DOCUMENTS = [[[5, 6], [7, 8, 9], [10], [11, 12], [13]], [[14, 15, 16, 17, 18, 19, 20]]]


@pytest.fixture
def store() -> FlatCorpus:
    return FlatCorpus.of(datasets.Dataset.from_dict({"input_ids": DOCUMENTS}))


@pytest.mark.parametrize(
    ("examples", "expected"),
    [
        ("sentences", [(0, 2), (2, 5), (5, 6), (6, 8), (8, 9), (9, 15)]),
        ("paragraphs", [(0, 6), (8, 9), (9, 15)]),
        ("documents", [(0, 6), (9, 15)]),
        ("full", [(0, 6), (6, 12)]),
    ],
)
def test_rows_of_each_kind_are_cut_at_the_length(store, examples, expected):
    begin, end = spans(store, examples, length=8)
    assert list(zip(begin.tolist(), end.tolist(), strict=True)) == expected


def row(length: int, predicted: int) -> Row:
    labels = torch.full((length,), -100)
    labels[:predicted] = 7
    return {"input_ids": torch.full((length,), 6), "attention_mask": torch.ones(length).long(), "labels": labels}


def test_padding_share_of_a_batch_counted_by_hand():
    batch = make_batch([row(5, 1), row(2, 0), row(3, 2)], padding_id=0)
    assert batch.tensors["input_ids"].tolist() == [[6, 6, 6, 6, 6], [6, 6, 0, 0, 0], [6, 6, 6, 0, 0]]
    assert batch.tensors["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]
    assert (batch.tokens, batch.positions, batch.predicted, batch.lengths) == (10, 15, 3, [5, 2, 3])
    assert padding_share([batch]) == pytest.approx(1 / 3)
    assert padding_share([batch, make_batch([row(5, 0)], padding_id=0)]) == pytest.approx(1 / 4)


def test_inference_sees_the_tokens_before_masking():
    masked = {"input_ids": torch.tensor([1, 4, 8]), "labels": torch.tensor([-100, 7, -100])}
    batch = make_batch([row(3, 0) | masked], padding_id=0, trains=False)
    assert batch.tensors["input_ids"].tolist() == [[1, 7, 8]]
    assert set(batch.tensors) == {"input_ids", "attention_mask"}


def padding_share(batches) -> float:
    return 1 - sum(batch.tokens for batch in batches) / sum(batch.positions for batch in batches)


def as_lists(batches) -> list[tuple[list[int], list[int]]]:
    return sorted((r["input_ids"].tolist(), r["labels"].tolist()) for batch in batches for r in batch.rows)


def test_both_orders_hold_the_same_masked_rows_and_grouping_takes_the_padding_away(tokenizer):
    pool = make_pool(tiny_corpus(), tokenizer, tiny_setting())
    assert as_lists(pool.plain) == as_lists(pool.grouped)
    assert sum(b.predicted for b in pool.plain) == sum(b.predicted for b in pool.grouped) > 0
    assert len(pool.plain) == len(pool.grouped) == 22
    assert padding_share(pool.grouped) < 0.1 < padding_share(pool.plain)
    longest = [max(batch.lengths) for batch in pool.grouped]
    assert longest == sorted(longest, reverse=True)


def test_full_rows_have_no_padding(tokenizer):
    pool = make_pool(tiny_corpus(), tokenizer, tiny_setting(examples="full"))
    assert padding_share(pool.plain) == 0
    assert {length for batch in pool.plain for length in batch.lengths} == {13}


def test_rows_and_masks_follow_from_the_seed(tokenizer):
    first, again, other = (
        make_pool(tiny_corpus(), tokenizer, tiny_setting(seed=seed)).plain[0].tensors for seed in (1, 1, 2)
    )
    assert torch.equal(first["input_ids"], again["input_ids"]) and torch.equal(first["labels"], again["labels"])
    assert first["labels"].tolist() != other["labels"].tolist()


@pytest.mark.parametrize("objective", ["mlm", "nsp"])
def test_text_too_short_for_a_batch_is_refused(tokenizer, objective):
    setting = tiny_setting(objective=objective, batch_size=500)
    with pytest.raises(ValueError, match=r"the text gives \d+ rows .* batch of 500"):
        make_pool(tiny_corpus(), tokenizer, setting)
