import datasets
import numpy as np
import pytest
from transformers import BertTokenizer, ByT5Tokenizer

from hf_encoders import tokenize_documents
from hf_encoders.corpus import preparation
from hf_encoders.corpus.documents import one_sentence_per_line
from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.preparation import prepare_corpus
from hf_encoders.corpus.report import CorpusReport, corpus_statistics
from hf_encoders.corpus.units import (
    LEARNED,
    PHRASES_FILE,
    Units,
    learn_phrases,
    mark_phrases,
    read_entries,
    unit_warnings,
)
from hf_encoders.corpus.word_starts import UnitStart, WordStarts
from tests.corpus.prepared import Killed, columns, killed, texts, write_text


W, P, E, L = UnitStart
ENTRIES = ["w5 w6", "w7", "w8 w9 w10", "w11 w12"]


def starts(directory) -> list[list[list[int]]]:
    return datasets.load_from_disk(str(directory))["word_starts"][:]


def collocated(num_documents: int, seed: int = 0) -> list[str]:
    """Documents in which w20 w21 and w30 w31 w32 are always together, and all else is random."""
    generator = np.random.default_rng(seed)
    runs = ["w20 w21", "w30 w31 w32", *(f"w{token}" for token in range(5, 18))]

    def line() -> str:
        return " ".join(runs[number] for number in generator.integers(0, len(runs), 12))

    return [
        f"w{40 + i % 20} w{40 + i // 20 % 20}\n" + "\n".join(line() for _ in range(4)) for i in range(num_documents)
    ]


class TestBits:
    def test_a_corpus_with_all_levels(self, tokenizer, tmp_path):
        (tmp_path / "a.txt").write_text("w13 w5 w6 w14 w15\nw7 w16\n\nw14 w15 w5\n")
        options = {"lexicon": ENTRIES, "phrases": ["w14 w15", "w6 w14"], "sentence_splitter": one_sentence_per_line}
        prepare_corpus([tmp_path / "a.txt"], tmp_path / "out", tokenizer, workers=1, **options)
        one = W | P | E
        assert starts(tmp_path / "out") == [
            [[one, one | L, W, one, W | E], [one | L, one]],
            [[one, W | E, one]],
        ]

    def test_words_sentences_and_parts_of_sentences_bound_entities(self, tokenizer):
        def bits(sentences: list[str], **options) -> list[list[int]]:
            return tokenize_documents([sentences], tokenizer, **{"lexicon": ENTRIES, **options})["word_starts"][0]

        segmented = {"word_segmenter": lambda sentence: ["w5w6", "w7"]}
        assert bits(["w5 w6 w7"] * 2, lexicon=["w5", "w6 w7", "w7"], **segmented) == [[W | E, 0, W | E | L]] * 2
        assert bits(["w5 w6 w7"] * 2, lexicon=["w5 w6 w7"], **segmented) == [[W | E | L, 0, W]] * 2
        assert bits(["w8 w9 w10", "w7"], max_sentence_tokens=2) == [[W | E | L, W], [W | E], [W | E | L]]
        assert bits(["w5", "w6"]) == [[W | E], [W | E]]

    def test_levels_are_nested_and_a_phrase_never_cuts_an_entity(self, tokenizer):
        generator = np.random.default_rng(0)
        for _ in range(50):
            lists = [[" ".join(f"w{t}" for t in generator.integers(5, 10, 2)) for _ in range(5)] for _ in range(2)]
            units = Units(tokenizer, False, *lists)
            ids, lengths = generator.integers(5, 10, 40).astype(np.int32), np.array([15, 1, 24])
            bits = units.mark(ids, lengths, None)
            bits = mark_phrases(FlatCorpus.from_lengths(ids, lengths, np.array([3]), bits), units.phrases).word_starts
            begins = np.isin(np.arange(40), [0, 15, 16])
            assert ((bits & (W | P | E) == W | P | E) | ~begins).all()
            assert (bits & W != 0)[bits != 0].all()
            is_phrase_start, is_entity_start = bits & P != 0, bits & E != 0
            assert (is_entity_start | ~is_phrase_start).all()  # a token inside an entity begins no phrase
            assert is_phrase_start[bits & L != 0].all()
            # After an entity something else begins, also among the phrases.
            listed = np.flatnonzero(bits & L)
            ends = [next((i for i in range(one + 1, 40) if is_entity_start[i]), 40) for one in listed]
            assert all(is_phrase_start[end] for end in ends if end < 40)

    def test_readers_of_words_see_the_same_words(self, tokenizer):
        documents = [text.splitlines() for text in texts(20)]
        (store,) = FlatCorpus.steps(tokenize_documents(documents, tokenizer, lexicon=ENTRIES))
        begins = np.isin(np.arange(len(store.tokens)), store.sentence_offsets)
        assert ((store.word_starts != 0) == WordStarts(tokenizer)(store.tokens, begins)).all()

    def test_without_lists_nothing_changes(self, tokenizer, tmp_path):
        file = write_text(tmp_path / "a.txt", texts(3))
        prepare_corpus([file], tmp_path / "out", tokenizer, workers=1)
        assert datasets.load_from_disk(tmp_path / "out").column_names == ["input_ids"]
        assert not {"lexicon", "phrases"} & CorpusReport.load(tmp_path / "out").settings.keys()


class TestSameCorpus:
    @pytest.fixture(autouse=True)
    def _small_units(self, monkeypatch):
        monkeypatch.setattr(preparation, "BYTES_PER_WORKER", 1)
        monkeypatch.setattr(preparation, "BYTES_PER_BATCH", 400)

    @pytest.mark.processes
    def test_any_number_of_workers_and_a_killed_run(self, tokenizer, tmp_path, monkeypatch):
        file = write_text(tmp_path / "a.txt", collocated(60))
        options = {"lexicon": ENTRIES, "phrases": True}
        for workers in (1, 3):
            prepare_corpus([file], tmp_path / str(workers), tokenizer, workers=workers, **options)
        expected, phrases = columns(tmp_path / "1"), (tmp_path / "1" / PHRASES_FILE).read_text()
        assert columns(tmp_path / "3") == expected
        assert (tmp_path / "3" / PHRASES_FILE).read_text() == phrases
        with monkeypatch.context() as broken, pytest.raises(Killed):
            broken.setattr(preparation, "corpus_statistics", killed)
            prepare_corpus([file], tmp_path / "killed", tokenizer, workers=1, **options)
        report = prepare_corpus([file], tmp_path / "killed", tokenizer, workers=2, **options)
        assert report.statistics.units == CorpusReport.load(tmp_path / "1").statistics.units
        assert columns(tmp_path / "killed") == expected
        assert (tmp_path / "killed" / PHRASES_FILE).read_text() == phrases

    def test_learned_phrases_given_again(self, tokenizer, tmp_path):
        file = write_text(tmp_path / "a.txt", collocated(60))
        prepare_corpus([file], tmp_path / "learned", tokenizer, workers=1, phrases=True)
        entries = read_entries(tmp_path / "learned" / PHRASES_FILE)
        assert set(entries) == {"w20 w21", "w30 w31", "w31 w32", "w30 w31 w32"}
        prepare_corpus([file], tmp_path / "given", tokenizer, workers=1, phrases=entries)
        assert columns(tmp_path / "given") == columns(tmp_path / "learned")
        assert not (tmp_path / "given" / PHRASES_FILE).exists()

    def test_other_lists_are_other_settings(self, tokenizer, tmp_path):
        file = write_text(tmp_path / "a.txt", collocated(10))
        prepare_corpus([file], tmp_path / "out", tokenizer, workers=1, lexicon=ENTRIES, phrases=["w20 w21"])
        made = (tmp_path / "out" / "corpus.json").stat().st_mtime_ns
        same = {"lexicon": ENTRIES[::-1] + ENTRIES, "phrases": ["w20  w21 "]}
        prepare_corpus([file], tmp_path / "out", tokenizer, workers=1, **same)
        assert (tmp_path / "out" / "corpus.json").stat().st_mtime_ns == made
        with pytest.raises(ValueError, match="(?s)lexicon: .* there, .* now.*phrases: .* there, .*least_count.* now"):
            prepare_corpus([file], tmp_path / "out", tokenizer, workers=1, lexicon=ENTRIES[:2], phrases=True)
        with pytest.raises(ValueError, match="phrases: .* there, None now"):
            prepare_corpus([file], tmp_path / "out", tokenizer, workers=1, lexicon=ENTRIES)
        prepare_corpus([file], tmp_path / "out", tokenizer, workers=1, overwrite=True)


class TestCollocations:
    def learn(self, sentences: list[str], tokenizer, lexicon=None, **options) -> dict[str, tuple[int, float]]:
        corpus = tokenize_documents([sentences], tokenizer, lexicon=lexicon or ["w59"])
        text = FlatCorpus.of(corpus)
        learned = learn_phrases(text, tokenizer, **options)
        return {phrase.text: (phrase.count, round(phrase.score, 3)) for phrase in learned}

    def test_normalised_mutual_information(self, tokenizer):
        # 12 words: w5 w6 are together 3 times of 3 and 4: ln((3/12) / (3/12 * 4/12)) / -ln(3/12).
        sentences = ["w5 w6 w7", "w8 w5 w6", "w9 w5 w6", "w6 w7 w8"]
        assert self.learn(sentences, tokenizer, least_count=3) == {"w5 w6": (3, round(np.log(3) / np.log(4), 3))}
        assert self.learn(sentences, tokenizer, least_count=3, least_score=0.8) == {}
        assert self.learn(sentences, tokenizer, least_count=4) == {}

    def test_rounds_join_pairs(self, tokenizer):
        sentences = ["w5 w6 w7 w8 w9"] * 4 + ["w10 w11 w12 w13 w14 w15 w16"]
        pairs = {f"w{i} w{i + 1}" for i in range(5, 9)}
        assert self.learn(sentences, tokenizer, least_count=4, rounds=1).keys() == pairs
        # From left to right w5 w6 and w7 w8 are joined, then these two, and the second with w9.
        more = {"w5 w6 w7 w8", "w7 w8 w9"}
        assert self.learn(sentences, tokenizer, least_count=4, rounds=2).keys() == pairs | more

    def test_no_phrase_over_a_sentence_end_an_entity_or_a_mark(self, tokenizer):
        sentences = ["w5", "w6"] * 20 + ["w7 w8", "w10 ."] * 20
        assert self.learn(sentences, tokenizer, lexicon=["w8"]) == {}
        assert self.learn(sentences, tokenizer).keys() == {"w7 w8"}

    def test_only_words_with_a_letter(self):
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", ".", "12", "e"]
        tokenizer = BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})
        sentences = ["a ."] * 20 + ["12 b"] * 20 + ["c e"] * 20
        assert self.learn(sentences, tokenizer, lexicon=["12 b c"]).keys() == {"c e"}

    def test_of_large_corpora_every_nth_document_is_read(self, tokenizer, tmp_path, monkeypatch):
        file = write_text(tmp_path / "a.txt", [f"w20 w2{1 + i % 2}" for i in range(60)])
        options = {"phrases": True, "keep_duplicates": True, "workers": 1}
        monkeypatch.setitem(LEARNED, "most_tokens", 60)  # of 120
        prepare_corpus([file], tmp_path / "out", tokenizer, **options)
        assert (tmp_path / "out" / PHRASES_FILE).read_text().splitlines()[1:] == ["w20 w21\t30\t1.000"]


class TestReport:
    def test_counts(self, tokenizer, tmp_path):
        (tmp_path / "a.txt").write_text("w5 w6 w7 w14 w15\nw7 w13\n\nw14 w15 w5 w6")
        options = {"lexicon": ENTRIES, "phrases": ["w14 w15"], "sentence_splitter": one_sentence_per_line}
        report = prepare_corpus([tmp_path / "a.txt"], tmp_path / "out", tokenizer, workers=1, **options)
        assert report.statistics.units == {
            "entities": {
                "number": 4,
                "distinct": 2,
                "token_share": 6 / 11,
                "by_tokens": {"1": 2, "2": 2},
                "most_frequent": [["w5 w6", 2], ["w7", 2]],
            },
            "phrases": {
                "number": 2,
                "distinct": 1,
                "token_share": 4 / 11,
                "by_tokens": {"2": 2},
                "most_frequent": [["w14 w15", 2]],
            },
        }
        assert CorpusReport.load(tmp_path / "out") == report
        printed = str(report)
        for part in ("4, 2 different, 54.5% of the tokens", "1: 50%, 2: 50%", "w5 w6 2, w7 2", "w14 w15 2"):
            assert part in printed
        documents = datasets.load_from_disk(str(tmp_path / "out"))
        assert corpus_statistics(documents, tokenizer).units == report.statistics.units

    def test_a_list_that_does_not_fit_is_warned_of(self, tokenizer, tmp_path):
        (tmp_path / "a.txt").write_text("w20 w21\n\nw22")
        lists = {"lexicon": ["w40", "w41 zz", "yy", "xx", "vv"], "phrases": ["w50 w51"]}
        report = prepare_corpus([tmp_path / "a.txt"], tmp_path / "out", tokenizer, workers=1, **lists)
        warnings = [warning for warning in report.warnings if "entr" in warning]
        assert len(warnings) == 3
        assert warnings[0].startswith("No entry of the lexicon is in the text: masking entities is masking words.")
        assert warnings[1].startswith("No entry of the phrases is in the text")
        assert warnings[2].startswith("4 entries of the lexicon have a character that is unknown to the tokenizer")
        assert "'w41 zz', 'yy', 'xx', ..." in warnings[2]
        units = {"entities": {"number": 1, "token_share": 0.0001}}
        assert "Only 0.01% of the tokens are in entities" in unit_warnings(units, {})[0]
        assert unit_warnings({"entities": {"number": 1, "token_share": 0.01}}, {}) == []


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"lexicon": ["", " "]}, "lexicon has no entry"),
        ({"phrases": []}, "phrases has no entry"),
        ({"lexicon": "names.txt"}, "lexicon='names.txt' is not a list of str"),
        ({"lexicon": True}, "lexicon=True is not a list of str"),
        ({"lexicon": [5]}, "is not a list of str"),
        ({"phrases": ["zz", "w5 yy"]}, "phrases: the tokenizer has characters of none of the 2 entries"),
    ],
)
def test_wrong_lists_are_refused_before_any_work(tokenizer, tmp_path, lists, message):
    (tmp_path / "a.txt").write_text("w5")
    with pytest.raises(ValueError, match=message):
        prepare_corpus([tmp_path / "a.txt"], tmp_path / "out", tokenizer, **lists)
    assert not (tmp_path / "out").exists()


def test_a_slow_tokenizer_and_text_without_collocations_are_refused(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("w5 w6\n\nw7 w8")
    with pytest.raises(ValueError, match="no words occur together 10 times"):
        prepare_corpus([tmp_path / "a.txt"], tmp_path / "out", tokenizer, workers=1, phrases=True)
    for lists in ({"lexicon": ["w5"]}, {"phrases": True}):
        with pytest.raises(ValueError, match="ByT5Tokenizer"):
            prepare_corpus([tmp_path / "a.txt"], tmp_path / "out", ByT5Tokenizer(), **lists)
