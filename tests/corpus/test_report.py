"""Counts of a corpus, and the warnings that they give."""

import pytest

from hf_encoders import corpus_statistics, warnings_for
from hf_encoders.corpus import flat_corpus
from hf_encoders.corpus.report import CorpusStatistics
from tests.corpus.corpora import DOCUMENTS, make_dataset, random_documents


def test_exact_counts(tokenizer):
    unknown = tokenizer.unk_token_id
    documents = [[[5, 6], [7]], [[5], [6, 7]], [[unknown, 8, 9, 9]], [[7], [6, 5]], [[5, 6, 7]], [[9, 9]]]
    expected = CorpusStatistics(
        documents=6,
        sentences=9,
        tokens=18,
        one_sentence_documents=3,
        longest_sentence_tokens=4,
        duplicate_documents=2,
        unknown_share=1 / 18,
    )
    assert corpus_statistics(make_dataset(documents), tokenizer) == expected
    assert corpus_statistics(make_dataset(documents)).unknown_share is None
    tokenizer.unk_token = None
    assert corpus_statistics(make_dataset(documents), tokenizer).unknown_share == 0


@pytest.mark.parametrize("step", [1, 64])
def test_steps_do_not_change_the_counts(tokenizer, monkeypatch, step):
    documents = random_documents(200, seed=1)
    # Same tokens, other sentences: a copy. Another order: not one. Empty documents: copies of each other.
    documents += [[[t for s in d for t in s]] for d in documents[:7]] + [d[::-1] for d in documents if len(d) == 2]
    documents += [[], [], []]
    unique = {tuple(t for s in d for t in s) for d in documents}
    tokens = [t for d in documents for s in d for t in s]
    monkeypatch.setattr(flat_corpus, "DOCUMENTS_PER_STEP", step)
    tokenizer.unk_token = "w7"
    statistics = corpus_statistics(make_dataset(documents), tokenizer)
    assert statistics.duplicate_documents == len(documents) - len(unique)
    assert statistics.unknown_share == tokens.count(7) / len(tokens)


def test_a_corpus_without_a_document():
    statistics = corpus_statistics(make_dataset(DOCUMENTS).select([]))
    assert statistics == CorpusStatistics(0, 0, 0, 0, 0, 0)
    assert "0 document(s)" in warnings_for(statistics)[0]


def test_warnings_name_the_remedy():
    numbers = {
        "documents": 100,
        "sentences": 900,
        "tokens": 9000,
        "longest_sentence_tokens": 60,
        "unknown_share": 0.01,
    }
    numbers |= {"one_sentence_documents": 3, "duplicate_documents": 1, "unknown_share": 0.01}
    for changes, expected in (
        ({}, []),
        ({"documents": 1, "one_sentence_documents": 0, "duplicate_documents": 0}, ["blank line"]),
        ({"documents": 80, "tokens": 4_000_000}, ["boundaries between documents"]),
        ({"documents": 80, "tokens": 3_999_999}, []),
        ({"tokens": 10**9}, []),
        ({"dropped_duplicates": 1000}, []),
        ({"one_sentence_documents": 50, "duplicate_documents": 10, "unknown_share": 0.05}, []),
        ({"one_sentence_documents": 51}, ["split_sentences"]),
        ({"duplicate_documents": 11}, ["Remove duplicates"]),
        ({"unknown_share": 0.051}, ["Train a tokenizer"]),
        ({"unknown_share": None}, []),
        ({"unknown_share": 0.5, "duplicate_documents": 90}, ["Remove duplicates", "Train a tokenizer"]),
    ):
        warnings = warnings_for(CorpusStatistics(**(numbers | changes)))
        assert len(warnings) == len(expected), changes
        assert all(remedy in warning for remedy, warning in zip(expected, warnings, strict=True))
