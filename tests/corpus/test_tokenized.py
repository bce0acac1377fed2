import logging
import os
import pickle

import datasets
import pyarrow as pa
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import CanineTokenizer, PreTrainedTokenizerFast

from hf_encoders import DocumentTokenizer, split_train_validation, tokenize_documents
from hf_encoders.corpus import tokenized
from tests.corpus.corpora import DOCUMENTS, as_text, make_dataset, random_documents


@pytest.fixture
def transformers_log(caplog):
    """Warnings of transformers, which keeps its records from the root logger."""
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    level = logger.level
    logger.setLevel(logging.WARNING)  # commands that other tests ran in this process have made it quiet
    yield caplog
    logger.setLevel(level)
    logger.removeHandler(caplog.handler)


class TestTokenizeDocuments:
    def test_rows_are_documents_and_lists_sentences(self, tokenizer):
        dataset = tokenize_documents(as_text(DOCUMENTS), tokenizer)
        assert dataset["input_ids"][:] == DOCUMENTS
        assert dataset.column_names == ["input_ids"]
        assert dataset.data.column("input_ids").type == pa.list_(pa.list_(pa.int32()))
        assert [os.path.isfile(file["filename"]) for file in dataset.cache_files] == [True]

    @pytest.mark.parametrize("block_size", [1, 7])
    def test_any_batching_gives_the_same(self, tokenizer, monkeypatch, block_size):
        monkeypatch.setattr(tokenized, "SENTENCES_PER_CALL", block_size)
        documents = random_documents(50)
        assert tokenize_documents(iter(as_text(documents)), tokenizer)["input_ids"][:] == documents

    def test_nothing_is_left_of_what_gives_no_token(self, tokenizer):
        documents = [["", "w5", " "], [" ", "\t"], [], ["w6 w7", ""]]
        assert tokenize_documents(documents, tokenizer)["input_ids"][:] == [[[5]], [[6, 7]]]
        assert tokenize_documents(documents, tokenizer, max_sentence_tokens=1)["input_ids"][:] == [[[5]], [[6], [7]]]

    def test_long_sentences_are_divided(self, tokenizer):
        documents = [["w5 w6 w7 w8 w9", "w5"], ["w5 w6"], ["w5 w6 w7 w8"]]
        assert tokenize_documents(documents, tokenizer, max_sentence_tokens=2)["input_ids"][:] == [
            [[5, 6], [7, 8], [9], [5]],
            [[5, 6]],
            [[5, 6], [7, 8]],
        ]
        pieces = tokenize_documents([["w5 " * 100_000]], tokenizer, max_sentence_tokens=512)[0]["input_ids"]
        assert [len(piece) for piece in pieces] == [512] * 195 + [160]

    def test_a_text_without_sentences_is_tokenized_in_calls_of_limited_size(self, tokenizer, monkeypatch):
        text, whole = " ".join(f"w{5 + i % 50}" for i in range(400)), []
        expected = tokenize_documents([[text, "w5"], [text]], tokenizer)["input_ids"][:]
        encode = DocumentTokenizer._encode_call
        monkeypatch.setattr(tokenized, "CHARACTERS_PER_PART", 100)
        monkeypatch.setattr(
            DocumentTokenizer,
            "_encode_call",
            lambda self, call: whole.append(sum(map(len, call))) or encode(self, call),
        )
        assert tokenize_documents([[text, "w5"], [text]], tokenizer)["input_ids"][:] == expected
        assert len(whole) > 10 and max(whole) <= 300

    def test_tokenizer_state_and_length_do_not_matter_and_do_not_change(self, tokenizer, transformers_log):
        tokenizer.model_max_length = 3
        tokenizer.backend_tokenizer.enable_truncation(2)
        tokenizer.backend_tokenizer.enable_padding(length=4)
        dataset = tokenize_documents([["w5 w6 w7 w8 w9", "w5"]], tokenizer)
        assert dataset["input_ids"][:] == [[[5, 6, 7, 8, 9], [5]]]
        assert not transformers_log.records
        assert tokenizer.backend_tokenizer.truncation["max_length"] == 2
        assert tokenizer.backend_tokenizer.padding["length"] == 4
        assert tokenizer.backend_tokenizer.encode_special_tokens is False

    def test_names_of_special_tokens_in_the_text_stay_text(self):
        vocabulary = {token: i for i, token in enumerate(["[UNK]", "[MASK]", "[", "]", "mask", "[url]"])}
        backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer()
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", mask_token="[MASK]")
        tokenizer.add_tokens([AddedToken("[url]", special=False)])
        assert tokenizer("[MASK]", add_special_tokens=False)["input_ids"] == [1]
        assert tokenize_documents([["[MASK] [url]"]], tokenizer)["input_ids"][:] == [[[2, 4, 3, 5]]]

    def test_a_tokenizer_without_a_fast_version(self, transformers_log):
        tokenizer = CanineTokenizer(model_max_length=10)
        dataset = tokenize_documents([["ab", "", "c" * 3000]], tokenizer)
        assert dataset["input_ids"][:] == [[[97, 98], [99] * 3000]]
        assert not transformers_log.records
        tokenizer("c" * 3000)
        assert "longer than the specified maximum" in transformers_log.text, "the warning that was kept away"

    def test_lone_surrogates_do_not_stop_the_tokenizer(self, tokenizer):
        unknown = tokenizer.unk_token_id
        assert tokenize_documents([["w5 \ud800 w6"]], tokenizer)["input_ids"][:] == [[[5, unknown, 6]]]

    def test_corpora_in_one_folder_do_not_mix(self, tokenizer, tmp_path):
        texts = [["w5"], ["w6"], ["w5"]]
        made = [tokenize_documents([text, ["w7"]], tokenizer, cache_dir=tmp_path) for text in texts]
        assert [corpus["input_ids"][:] for corpus in made] == [[[[5]], [[7]]], [[[6]], [[7]]], [[[5]], [[7]]]]
        assert len(list(tmp_path.iterdir())) == len({corpus._fingerprint for corpus in made}) == 3

    def test_an_interrupted_run_leaves_nothing(self, tokenizer, tmp_path):
        def generate():
            yield from as_text(random_documents(3000))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tokenize_documents(generate(), tokenizer, cache_dir=tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_wrong_input_is_refused(self, tokenizer):
        with pytest.raises(ValueError, match="max_sentence_tokens=0"):
            tokenize_documents([["w5"]], tokenizer, max_sentence_tokens=0)
        for documents in ([["w5"], "w6 w7"], [["w5"], ["w6", None]], "w5 w6"):
            with pytest.raises(ValueError, match="document . is .*not a list of str"):
                tokenize_documents(documents, tokenizer)
        with pytest.raises(ValueError, match="word_segmenter gives 'w5' for 'w5', a str"):
            tokenize_documents([["w5"]], tokenizer, word_segmenter=str)
        for documents in ([], [[]], [["", " "]]):
            with pytest.raises(ValueError, match="no sentence that gives a token"):
                tokenize_documents(documents, tokenizer)


class TestDocumentTokenizer:
    rows = {"text": ["w5 w6. w7", " ", "w8\nw9"], "talk": [["w5", " ", "w6"], [], [" "]]}

    def columns(self, tokenizer, **options):
        """Of a stored dataset, after a check that a stream gives the same, also to a loader's processes."""
        dataset = datasets.Dataset.from_dict(self.rows)
        options = {"batched": True, "remove_columns": ["text", "talk"]} | options
        mapped = dataset.map(tokenizer, **options)
        stream = dataset.to_iterable_dataset().map(pickle.loads(pickle.dumps(tokenizer)), **options)
        assert list(stream) == mapped.to_list()
        return mapped.to_dict()

    def test_text(self, tokenizer):
        assert self.columns(DocumentTokenizer(tokenizer)) == {"input_ids": [[[5, 3], [7]], [[8], [9]]]}
        one_call = DocumentTokenizer(tokenizer, max_sentence_tokens=1, lexicon=["w7", "w9"])
        assert self.columns(one_call) == {
            "input_ids": [[[5], [3], [7]], [[8], [9]]],
            "word_starts": [[[5], [5], [13]], [[5], [13]]],
        }

    def test_turns_keep_their_places(self, tokenizer):
        assert self.columns(DocumentTokenizer(tokenizer, turns_column="talk")) == {"input_ids": [[[5], [], [6]]]}


class TestSplit:
    def rows(self, part) -> list[int]:
        return [document[0][0] for document in part["input_ids"][:]]

    def test_every_document_is_in_one_part_in_order_and_the_seed_decides(self):
        dataset = make_dataset([[[i]] for i in range(50)])
        parts = list(map(self.rows, split_train_validation(dataset, 0.2, seed=0)))
        assert parts[1] == [2, 3, 4, 18, 20, 23, 24, 26, 34, 36]
        assert parts[0] == [i for i in range(50) if i not in parts[1]]
        assert parts[1] != self.rows(split_train_validation(dataset, 0.2, seed=1)[1])

    @pytest.mark.parametrize(
        ("documents", "share", "sizes"), [(2, 0.001, (1, 1)), (2, 0.99, (1, 1)), (5, 0.5, (3, 2))]
    )
    def test_both_parts_get_a_document(self, documents, share, sizes):
        dataset = make_dataset([[[i]] for i in range(documents)])
        assert tuple(map(len, split_train_validation(dataset, share, 0))) == sizes

    def test_wrong_input_is_refused(self):
        for share in (0, 1.5):
            with pytest.raises(ValueError, match=f"validation_share={share}"):
                split_train_validation(make_dataset(DOCUMENTS), share, 0)
        with pytest.raises(ValueError, match=r"1 document\(s\)"):
            split_train_validation(make_dataset(DOCUMENTS[:1]), 0.5, 0)
