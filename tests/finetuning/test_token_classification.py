"""Tags of words: which token carries which label, every word once, and metrics and files of whole sentences."""

from typing import Any

import datasets
import numpy as np
import pytest
from tokenizers import normalizers
from tokenizers.processors import ByteLevel
from transformers import EvalPrediction

from hf_encoders.corpus.labelled_files import read_file
from hf_encoders.finetuning.runs import RunSettings, finetune
from hf_encoders.finetuning.token_classification import entity_metrics, prepare, word_windows
from tests.finetuning.tiny import LENGTH, save_encoder, sentences, splits, tokenizer_of
from tests.hub.tiny_checkpoints import ALBERT, BERT, FAMILIES, ROBERTA, Family


each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "the", "dog", "slept", "all", "day", "long", "."]
TAGS = ["O", "B-X", "I-X", "O", "B-Y", "I-Y", "O", "O", "B-X", "O", "B-Y", "I-Y", "I-Y", "O"]


def tagged(*rows: tuple[list[str], list[Any]]) -> dict[str, list]:
    return {"tokens": [words for words, _ in rows], "ner_tags": [tags for _, tags in rows]}


def perfect_scores(task, split: str) -> np.ndarray:
    """Scores that put every labelled token's label first, padded as `Trainer.predict` pads."""
    rows = task.eval_sets[split]
    longest = max(map(len, rows["input_ids"]))
    scores = np.full((len(rows), longest, len(task.label_names)), -100.0, dtype=np.float32)
    for row, labels in enumerate(rows["labels"]):
        for column, label in enumerate(labels):
            scores[row, column] = np.arange(len(task.label_names)) == label
    return scores


def metrics_of(task, split: str, scores: np.ndarray) -> dict[str, float]:
    return task.compute_metrics(split)(EvalPrediction(predictions=scores, label_ids=None))


@each_family
def test_tokens_of_each_word(family: Family) -> None:
    """Told by the characters; tokens of byte pair encodings are mostly letters here, others are words."""
    tokenizer = tokenizer_of(family)
    [window] = word_windows([["the", "cat", "slept"]], tokenizer, 20)
    whole_words = {0: [1], 1: [2], 2: [3]}
    tokens, words = {
        "wordpiece": ("the cat slept", whole_words),
        "unigram": ("▁the ▁cat ▁slept", whole_words),
        "bpe": ("t he Ġ c a t Ġ s l e p t", {0: [1, 2], 1: [4, 5, 6], 2: [8, 9, 10, 11, 12]}),
        "suffix-bpe": ("t h e</w> c at</w> s l e p t</w>", {0: [1, 2, 3], 1: [4, 5], 2: [6, 7, 8, 9, 10]}),
    }[family.config_class.VOCABULARY_KIND]
    expected = [tokenizer.cls_token, *tokens.split(), tokenizer.sep_token]
    if family.name == "xlnet":  # its <cls> comes last
        expected = [*expected[1:], tokenizer.cls_token]
        words = {word: [column - 1 for column in columns] for word, columns in words.items()}
    assert tokenizer.convert_ids_to_tokens(window.input_ids) == expected
    assert window.words == words


def test_byte_level_tokens_are_those_of_the_text_and_a_blank_before_a_word_belongs_to_no_other() -> None:
    """Given word by word without `add_prefix_space`, every word but the first would lose its blank."""
    tokenizer = tokenizer_of(ROBERTA)
    [window] = word_windows([["cat", "the", "mat"]], tokenizer, 20)
    assert window.input_ids == tokenizer("cat the mat")["input_ids"]
    the = tokenizer.convert_tokens_to_ids("Ġthe")
    assert [window.input_ids[column] for column in window.words[1]] == [the]
    tokenizer.backend_tokenizer.post_processor = ByteLevel(trim_offsets=False)
    assert tokenizer("cat the", return_offsets_mapping=True)["offset_mapping"][3] == (3, 7)  # " the"
    [window] = word_windows([["cat", "the"]], tokenizer, 20)
    assert window.words == {0: [0, 1, 2], 1: [3]}


@each_family
def test_every_word_counts_in_exactly_one_window(family: Family) -> None:
    tokenizer = tokenizer_of(family)
    for max_length, overlap in ((8, 3), (9, 0), (14, 5)):
        rows = [WORDS * 3, WORDS[:2], WORDS]
        windows = list(word_windows(rows, tokenizer, max_length, overlap))
        counted = [(window.sentence, word) for window in windows for word in window.words]
        assert sorted(counted) == [(i, word) for i, words in enumerate(rows) for word in range(len(words))]
        assert max(len(window.input_ids) for window in windows) <= max_length
        assert len(windows) > 8


def test_word_in_two_windows_counts_where_its_border_is_farther() -> None:
    """Windows of 6 words that share 4: w w w w w w | 2.. : each inner word goes to the more central place."""
    windows = list(word_windows([WORDS[:8]], tokenizer_of(BERT), 8, 4))
    assert [list(window.words) for window in windows] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (windows[0].words[3], windows[1].words[4]) == ([4], [3])


def test_labels_exactly() -> None:
    data = splits(train=tagged((["the", "cat", "sat"], ["O", "B-X", "I-X"])))
    first = prepare(data, tokenizer_of(ROBERTA), max_length=LENGTH)
    assert first.label_names == ["B-X", "I-X", "O"]
    assert first.train_set[0]["labels"] == [-100, 2, -100, -100, 0, -100, -100, -100, 1, -100, -100, -100]
    every = prepare(data, tokenizer_of(ROBERTA), max_length=LENGTH, label_all_tokens=True)
    assert every.train_set[0]["labels"] == [-100, 2, 2, -100, 0, 1, 1, -100, 1, 1, 1, -100]
    names = {"B-X": 0, "I-X": 1, "O": 2}
    assert first.config_fields == {"num_labels": 3, "id2label": dict(enumerate(names)), "label2id": names}


@pytest.mark.parametrize(
    ("family", "options"),
    [*((family, {}) for family in FAMILIES), (ROBERTA, {"label_all_tokens": True}), (BERT, {"window_overlap": 0})],
)
def test_right_predictions_give_perfect_metrics(family: Family, options: dict[str, Any]) -> None:
    """Over windows, entities that lie in two of them, and words the tokenizer drops."""
    rows = tagged((WORDS * 2, TAGS * 2), (["dog"], ["B-X"]), ([], []))
    task = prepare(splits(train=rows, test=rows), tokenizer_of(family), max_length=9, **options)
    assert len(task.eval_sets["test"]) >= 5
    metrics = metrics_of(task, "test", perfect_scores(task, "test"))
    assert (metrics["overall_f1"], metrics["overall_accuracy"]) == (1.0, 1.0)
    assert (metrics["X_number"], metrics["Y_number"]) == (5, 4)


def test_every_type_has_metrics_in_every_run() -> None:
    """Of a type that a set does not have, none are found of none: seeds' metrics can be averaged."""
    train, test = tagged((WORDS, TAGS), (["dog"], ["I-A-Z"])), tagged((["the", "cat"], ["O", "B-X"]))
    task = prepare(splits(train=train, test=test), tokenizer_of(BERT), max_length=LENGTH)
    right = perfect_scores(task, "test")
    metrics = [metrics_of(task, "test", scores) for scores in (right, np.zeros_like(right))]
    assert metrics[0].keys() == metrics[1].keys() and len(metrics[0]) == 4 + 3 * 4
    for kind in ("Y", "A-Z"):
        assert [metrics[0][f"{kind}_{name}"] for name in ("precision", "recall", "f1", "number")] == [0.0] * 3 + [0]
    assert (metrics[0]["X_f1"], metrics[0]["X_number"]) == (1.0, 1)


def test_a_type_called_overall_is_not_taken_for_all_types() -> None:
    names = ["O", "B-overall", "B-PER"]
    metrics = entity_metrics([["B-PER", "O"]], [["B-PER", "B-overall"]], names)
    without = entity_metrics([["B-PER"]], [["B-PER"]], names)
    assert metrics.keys() == without.keys() and len(metrics) == 4 + 2 * 4
    assert metrics["overall_f1"] == pytest.approx(2 / 3) and metrics["overall__f1"] == 0.0


def test_one_wrong_word_is_one_wrong_word() -> None:
    rows = tagged((WORDS, TAGS))
    task = prepare(splits(train=rows, validation=rows), tokenizer_of(BERT), max_length=9, window_overlap=4)
    scores = perfect_scores(task, "validation")
    # Wherever "slept" stands, the tenth word; only the one that counts matters.
    slept = tokenizer_of(BERT).convert_tokens_to_ids("slept")
    for row, ids in enumerate(task.eval_sets["validation"]["input_ids"]):
        for column, token in enumerate(ids):
            if token == slept:
                scores[row, column] = np.arange(len(task.label_names)) == task.label_names.index("B-X")
    metrics = metrics_of(task, "validation", scores)
    assert metrics["overall_accuracy"] == pytest.approx(13 / 14)
    assert metrics["overall_precision"] == pytest.approx(4 / 5)  # one entity too many, of 5
    assert metrics["overall_recall"] == 1.0


def test_words_without_a_token_count_too() -> None:
    """A normaliser that drops control characters turns a word of them into nothing."""
    tokenizer = tokenizer_of(BERT)
    tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer()
    dropped = "\u200b"
    rows = tagged((["the", dropped, "cat"], ["O", "B-X", "O"]), ([dropped], ["O"]), (["dog"], ["B-X"]))
    task = prepare(splits(train=rows, test=rows), tokenizer, max_length=LENGTH)
    assert task.train_set["words"][:] == [[0, 2], [], [0]]
    assert task.plan[1].endswith("2 words have no token")
    metrics = metrics_of(task, "test", perfect_scores(task, "test"))
    assert metrics["overall_accuracy"] == pytest.approx(4 / 5)
    assert metrics["overall_recall"] == pytest.approx(1 / 2)


def test_tags_of_no_entity_scheme_have_accuracy() -> None:
    rows = tagged((["the", "cat", "slept"], ["DET", "NOUN", "VERB"]), (["a", "dog"], ["DET", "NOUN"]))
    task = prepare(splits(train=rows, test=rows), tokenizer_of(BERT), max_length=LENGTH)
    assert task.main_metric == "accuracy"
    scores = perfect_scores(task, "test")
    assert metrics_of(task, "test", scores) == {"accuracy": 1.0, "f1_macro": 1.0}
    scores[1, 1] = [0, 1, 0]  # "a" as NOUN
    assert metrics_of(task, "test", scores)["accuracy"] == pytest.approx(4 / 5)


def prepared(*train: tuple[list[str], list[Any]], test: dict[str, list] | None = None, **options: Any):
    data = splits(train=tagged(*train), **({} if test is None else {"test": test}))
    return prepare(data, tokenizer_of(BERT), max_length=LENGTH, **options)


def of_classes(names: list[str], tags: list[int]) -> datasets.Dataset:
    """Words whose tags are numbers of classes with names."""
    tag_lists = datasets.List(datasets.ClassLabel(names=names))
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "ner_tags": tag_lists})
    return datasets.Dataset.from_dict({"tokens": [["a", "dog"]], "ner_tags": [tags]}, features=features)


def test_the_plan_says_which_metrics_there_are_and_why() -> None:
    def line(tags, **options):
        return prepared((["a", "dog"], tags), **options).plan[-1]

    assert line(["O", "B-X"]) == "metrics: precision, recall and F1 of entities, since the tags have prefixes"
    assert line(["O", "PER"]).startswith("metrics: accuracy over words and macro-averaged F1 over tags, since no tag ")
    assert line(["O", "PER"]).endswith("tags such as B-PER, I-PER and O would give F1 of entities")
    assert "since few tags have a prefix, such as 's-attr'; " in line(["NN", "s-attr"])
    assert line(["O", "B-X"], word_metrics=True).endswith("as --word-metrics says")


def test_lower_case_prefixes_are_prefixes() -> None:
    rows = tagged((["a", "dog", "cat"], ["o", "b-per", "i-per"]), (["a"], ["O"]))
    task = prepare(splits(train=rows, test=rows), tokenizer_of(ROBERTA), max_length=LENGTH, label_all_tokens=True)
    assert (task.label_names, task.main_metric) == (["B-per", "I-per", "O"], "overall_f1")
    assert set(task.train_set[0]["labels"]) == {-100, 0, 1, 2}
    assert task.plan[-1].endswith("since the tags have prefixes; 'b-per' is read as 'B-per'")
    metrics = metrics_of(task, "test", perfect_scores(task, "test"))
    assert (metrics["overall_f1"], metrics["per_number"]) == (1.0, 1)


@pytest.mark.parametrize(
    ("tags", "main_metric", "names"),
    [
        (["DT", "NN", "s-attr", "O"], "accuracy", ["DT", "NN", "O", "s-attr"]),  # one looks like that of an entity
        ([-1, 0, 1, 1], "accuracy", ["-1", "0", "1"]),
        ([10, 9, 9, 9], "accuracy", ["9", "10"]),
        (["O ", "B-X", "\u00a0B-X", "O"], "overall_f1", ["B-X", "O"]),  # spaces do not count
    ],
)
def test_tags_are_read_as_they_are(tags: list[Any], main_metric: str, names: list[str]) -> None:
    task = prepared((["a", "dog", "ran", "on"], tags))
    assert (task.main_metric, task.label_names) == (main_metric, names)


@pytest.mark.parametrize("wrong", ["0", "B-"])
def test_one_wrong_tag_does_not_change_the_metrics(wrong: str) -> None:
    entities = (["a", "dog", "cat"], ["O", "B-X", "I-X"])
    rows = ((["a", "dog"], ["O", "B-X"]), (["a", "cat"], ["O", wrong]))
    with pytest.raises(ValueError, match=f"test data, row 1: .*'cat' has '{wrong}' in ner_tags.*--word-metrics"):
        prepared(entities, test=tagged(*rows))
    task = prepared(*rows, word_metrics=True)
    assert task.main_metric == "accuracy" and wrong in task.label_names
    with pytest.raises(ValueError, match=f"train data, row 0: .*'a' has '{wrong}'"):  # on most words
        prepared((["a", "dog", "cat", "ran", "on"], [wrong, "B-X", "I-X", wrong, wrong]))


def test_a_wrong_tag_of_a_file_has_a_line(tmp_path) -> None:
    path = tmp_path / "train.conll"
    path.write_text("# x = y\na\tO\ndog\tB-X\n\n\n-DOCSTART-\tO\n\na\tO\ncat\t0\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"train data, row 1 \(line 9\): the word 'cat' has '0'"):
        prepare(datasets.DatasetDict(train=read_file(path)), tokenizer_of(BERT), max_length=LENGTH)


def test_a_class_that_no_word_has_needs_no_prefix() -> None:
    rows = of_classes(["O", "B-X", "I-X", "_"], [0, 1])
    task = prepare(datasets.DatasetDict(train=rows, test=rows), tokenizer_of(BERT), max_length=LENGTH)
    assert (task.main_metric, task.label_names) == ("overall_f1", ["O", "B-X", "I-X", "_"])
    assert task.train_set[0]["labels"] == [-100, 0, 1, -100]
    scores = perfect_scores(task, "test")
    right = metrics_of(task, "test", scores)
    assert right["overall_f1"] == 1.0 and {name.rpartition("_")[0] for name in right} == {"overall", "X"}
    scores[0, 1] = [0, 0, 0, 1]  # predicted all the same
    assert metrics_of(task, "test", scores).keys() == right.keys()


@pytest.mark.parametrize("tag", [-100, None, "-100", float("nan")])
def test_a_word_without_a_tag_is_refused(tag: Any) -> None:
    tags = ["0", tag, "1"] if tag is None or isinstance(tag, str) else [0, tag, 1]
    with pytest.raises(ValueError, match="train data, row 0: the word 'dog' has no tag in ner_tags"):
        prepared((["a", "dog", "cat"], tags))
    with pytest.raises(ValueError, match=r"row 0: the word 'dog' has no tag in ner_tags \(-1\)"):
        prepare(datasets.DatasetDict(train=of_classes(["O", "B-X"], [0, -1])), tokenizer_of(BERT), max_length=LENGTH)


def test_a_tag_of_an_evaluation_set_alone_is_a_class() -> None:
    """A rare `I-` tag that training never shows counts as missed, and is no reason to stop."""
    task = prepared((["a", "dog"], ["O", "B-X"]), test=tagged((["a", "dog"], ["B-X", "I-X"])))
    assert task.label_names == ["B-X", "I-X", "O"]


def test_predictions_are_written_as_conll(tmp_path) -> None:
    rows = tagged((["the", "new cat", "sat"], ["O", "B-X", "I-X"]), ([], []), (["dog"], ["O"]))
    task = prepare(splits(train=rows, test=rows), tokenizer_of(BERT), max_length=LENGTH)
    scores = perfect_scores(task, "test")
    scores[0, 1] = [1, 0, 0]  # "the" as B-X
    task.write_predictions(tmp_path / "predictions-test", "test", scores)
    text = (tmp_path / "predictions-test.conll").read_text()
    assert text == "the\tO\tB-X\nnew_cat\tB-X\tB-X\nsat\tI-X\tI-X\n\n\ndog\tO\tO\n\n"


def test_padding_is_at_the_end_whatever_the_tokenizer_prefers() -> None:
    tokenizer = tokenizer_of(BERT)
    tokenizer.padding_side = "left"
    rows = tagged((["a"], ["O"]), (["the", "dog"], ["O", "B-X"]))
    task = prepare(splits(train=rows), tokenizer, max_length=LENGTH)
    columns = ("input_ids", "attention_mask", "labels")
    batch = task.data_collator([{name: row[name] for name in columns} for row in task.train_set])
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert batch["labels"].tolist() == [[-100, 1, -100, -100], [-100, 1, 0, -100]]
    assert tokenizer.padding_side == "left"


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (tagged((["a"], ["O", "O"])), {}, "train data, row 0: 1 tokens, but 2 ner_tags"),
        (tagged((["a", "dog"], ["O", "O"])), {}, "ner_tags has one class"),
        ({"tokens": ["a dog"], "ner_tags": ["O O"]}, {}, "must be lists"),
        ({"tokens": [[1, 2]], "ner_tags": [["O", "X"]]}, {}, "tokens has 1, not text"),
        (tagged((["a"], ["O"])), {"tokens_column": "words"}, "--tokens-column words"),
        (tagged((["a", "a"], ["O", "X"])), {"window_overlap": 22}, "--window-overlap 22.*0 to 21"),
    ],
)
def test_wrong_data_is_refused(rows: dict[str, list], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare(splits(train=rows), tokenizer_of(BERT), max_length=LENGTH, **options)


def cat_and_dog(count: int, seed: int = 0) -> dict[str, list]:
    """Every `cat` is an X, every `dog` a Y."""
    rows = [text.split() for text in sentences(count, seed)]
    return tagged(*((words, [{"cat": "B-X", "dog": "B-Y"}.get(word, "O") for word in words]) for words in rows))


@pytest.mark.slow
@pytest.mark.parametrize("family", [ALBERT, BERT, ROBERTA], ids=lambda family: family.name)
def test_it_learns_what_two_words_are(family: Family, tmp_path) -> None:
    data = splits(train=cat_and_dog(60), test=cat_and_dog(30, seed=1))
    task = prepare(data, tokenizer_of(family), max_length=LENGTH)
    training = {"max_steps": 120, "learning_rate": 3e-3, "per_device_train_batch_size": 16, "disable_tqdm": True}
    settings = RunSettings(str(save_encoder(family, tmp_path / "encoder")), checkpoint="last", training=training)
    result = finetune(task, tokenizer_of(family), settings, 0, tmp_path / "run")
    assert result.metrics["test"]["overall_f1"] > 0.7
