"""What a notebook shows of data objects; and what is said to who gives something else in their place."""

import datasets
import numpy as np
import pytest

from hf_encoders import (
    DataCollatorForMaskedLM,
    DataCollatorForNextSentencePrediction,
    DataCollatorForSentenceOrderPrediction,
    DocumentChunks,
    HealthCallback,
    HfeBertConfig,
    SentenceBlocks,
    padded_vocab_size,
    prepare_corpus,
    tokenize_documents,
)
from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.tokenizer_training import train_tokenizer
from hf_encoders.objectives import presets
from tests.corpus.corpora import make_dataset, random_documents


@pytest.fixture
def corpus():
    return make_dataset(random_documents(3000))


class TestReprs:
    def test_datasets_show_sizes_and_options(self, corpus):
        store = FlatCorpus.of(corpus)
        size = f"3,000 documents, {store.num_sentences:,} sentences, {len(store.tokens):,} tokens"
        assert repr(store) == f"FlatCorpus({size})"
        chunks = DocumentChunks(corpus, max_length=24, seed=3, dupe_factor=10)
        assert repr(chunks) == (
            f"DocumentChunks({len(chunks):,} chunks of FlatCorpus({size}), max_length=24, seed=3, redraw=True, "
            "dupe_factor=10)"
        )
        chunks.set_epoch(2)
        assert repr(chunks).endswith("dupe_factor=10, epoch=2)")
        blocks = SentenceBlocks(corpus, max_length=24, cross_documents=False, redraw=False)
        assert repr(blocks) == (
            f"SentenceBlocks({len(blocks):,} blocks of FlatCorpus({size}), max_length=24, cross_documents=False, "
            "sentence_separators=False, cut_long_sentences=True, whole_sentences=True, seed=0, redraw=False)"
        )

    def test_examples_show_their_size(self, corpus):
        for example in (DocumentChunks(corpus, 24, redraw=False)[0], SentenceBlocks(corpus, 24, redraw=False)[0]):
            count, tokens = len(example.segments), sum(map(len, example.segments))
            name = type(example).__name__
            assert repr(example) == f"{name}({count} segments, {tokens} tokens, Key(seed=0, epoch=0, example=0))"

    def test_collators_and_callback_show_their_options(self, tokenizer):
        assert (
            repr(DataCollatorForMaskedLM(tokenizer)) == "DataCollatorForMaskedLM(mask_probability=0.15, unit='token')"
        )
        collator = DataCollatorForSentenceOrderPrediction(tokenizer, 24, packed=True, unit="ngram", max_ngram=2)
        assert repr(collator) == (
            "DataCollatorForSentenceOrderPrediction(max_length=24, packed=True, mask_probability=0.15, unit='ngram', "
            "max_ngram=2)"
        )
        assert "array" not in repr(DataCollatorForMaskedLM(tokenizer, **presets.BERT_MASKING))
        assert repr(HealthCallback(5.25)) == "HealthCallback(unigram_cross_entropy=5.250, tokens_seen=0)"

    def test_the_report_of_a_corpus_is_one_line(self, tokenizer, tmp_path):
        (tmp_path / "a.txt").write_text("w5 w6\nw7\n\nw8\nw9")
        report = prepare_corpus([tmp_path / "a.txt"], tmp_path / "out", tokenizer, workers=1)
        assert repr(report) == "CorpusReport(2 documents, 4 sentences, 5 tokens, 0 warnings)"
        assert len(str(report).splitlines()) > 5


def test_slices_and_lists_of_indices_are_a_batch(corpus, tokenizer):
    collator = DataCollatorForMaskedLM(tokenizer)
    for data in (
        DocumentChunks(corpus, max_length=24, redraw=False),
        SentenceBlocks(corpus, max_length=24, redraw=False),
    ):
        expected = collator([data[i] for i in (1, 3)])["input_ids"]
        for index in (slice(1, 5, 2), [1, 3], np.array([1, 3]), slice(1 - len(data), 5 - len(data), 2)):
            assert collator(data[index])["input_ids"].tolist() == expected.tolist()
        assert len(data[:]) == len(data)
        with pytest.raises(IndexError, match="but there are"):
            data[[0, len(data)]]


class TestWrongObjects:
    @pytest.mark.parametrize(
        "use",
        [
            DataCollatorForMaskedLM,
            DataCollatorForNextSentencePrediction,
            DataCollatorForSentenceOrderPrediction,
            padded_vocab_size,
            lambda name: tokenize_documents([["w5"]], name),
            lambda name: prepare_corpus(datasets.Dataset.from_dict({"text": ["w5"]}), "nowhere", name),
        ],
    )
    def test_a_name_is_not_a_tokenizer(self, use):
        message = r"tokenizer is 'bert-base-uncased': .*AutoTokenizer.from_pretrained\('bert-base-uncased'\)"
        with pytest.raises(ValueError, match=message):
            use("bert-base-uncased")

    @pytest.mark.parametrize("make", [DocumentChunks, SentenceBlocks])
    @pytest.mark.parametrize(
        ("documents", "message"),
        [
            ("c", r"documents is a str, .*datasets.load_from_disk\('c'\)"),
            ([[[5, 6], [7]]], r"documents is a list, .*Dataset.from_dict\({'input_ids': documents}\)"),
            (
                datasets.DatasetDict(train=make_dataset([[[5], [6]]])),
                r"give one split, for example dataset\['train'\]",
            ),
            (make_dataset([[[5], [6]]]).to_iterable_dataset(), "prepare_corpus"),
        ],
    )
    def test_what_is_not_a_corpus_is_refused_with_how_to_make_one(self, make, documents, message):
        with pytest.raises(ValueError, match=message):
            make(documents, max_length=8)

    def test_rows_of_text_are_refused_by_pair_collators(self, tokenizer):
        for collator in (DataCollatorForNextSentencePrediction, DataCollatorForSentenceOrderPrediction):
            with pytest.raises(ValueError, match=r"input_ids is missing, a row of the batch has \['text'\]"):
                collator(tokenizer, max_length=8)([{"text": "w5"}])


def test_a_tokenizer_has_the_published_length_where_none_is_given():
    assert train_tokenizer(["plain words", "and more"], HfeBertConfig, 60).model_max_length == 512
