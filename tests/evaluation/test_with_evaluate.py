"""`evaluate.combine` and `evaluate.evaluator` with our metrics and models."""

import datasets
import evaluate
import pytest

from hf_encoders import F1, Accuracy, Correlation, Seqeval
from tests.hub.tiny_checkpoints import BERT, FAMILIES, make_model, make_tokenizer


WORDS = [["the", "cat", "sat"], ["a", "dog", "slept", "all", "day"], ["mat"]]
TAGS = ["O", "B-ANIMAL", "I-ANIMAL"]


def test_combined_metrics_are_one_dictionary(tmp_path):
    cache = {"cache_dir": str(tmp_path)}
    combined = evaluate.combine([Accuracy(**cache), F1(**cache), Correlation("classes", **cache)])
    combined.add_batch(predictions=[0, 1], references=[0, 1])
    combined.add(prediction=1, reference=0)
    assert combined.compute() == pytest.approx({"accuracy": 2 / 3, "f1": 2 / 3, "matthews_correlation": 0.5})
    named = evaluate.combine({"first": Accuracy(**cache), "second": Accuracy(**cache)})
    assert named.compute(predictions=[0], references=[0]) == {"first_accuracy": 1.0, "second_accuracy": 1.0}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_text_classification_evaluator(family, tmp_path):
    model, tokenizer = make_model(family, "AutoModelForSequenceClassification"), make_tokenizer(family)
    texts = [" ".join(words) for words in WORDS]
    predicted = [model(**tokenizer(text, return_tensors="pt")).logits.argmax().item() for text in texts]
    labels = [predicted[0], predicted[1], (predicted[2] + 1) % 3]
    found = evaluate.evaluator("text-classification").compute(
        model_or_pipeline=model,
        tokenizer=tokenizer,
        data=datasets.Dataset.from_dict({"text": texts, "label": labels}),
        metric=evaluate.combine([Accuracy(cache_dir=str(tmp_path)), Correlation("classes", cache_dir=str(tmp_path))]),
        label_mapping=model.config.label2id,
    )
    assert found["accuracy"] == 2 / 3
    assert "matthews_correlation" in found and found["samples_per_second"] > 0


def test_evaluator_gives_bootstrap_intervals(tmp_path):
    metrics = evaluate.evaluator("text-classification").compute(
        model_or_pipeline=make_model(BERT, "AutoModelForSequenceClassification"),
        tokenizer=make_tokenizer(BERT),
        data=datasets.Dataset.from_dict({"text": ["cat", "dog sat", "mat", "the dog"] * 2, "label": [0, 1, 2, 0] * 2}),
        metric=Accuracy(cache_dir=str(tmp_path), keep_in_memory=True),
        label_mapping={"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
        strategy="bootstrap",
        n_resamples=10,
        random_state=0,
    )
    low, high = metrics["accuracy"]["confidence_interval"]
    assert 0 <= low <= metrics["accuracy"]["score"] <= high <= 1


# evaluate finds a word by where its first token begins, and tokens of DeBERTa's tokenizer begin with the space before.
WITH_OFFSETS = [family for family in FAMILIES if family.name != "deberta-v2"]


@pytest.mark.parametrize("family", WITH_OFFSETS, ids=lambda family: family.name)
def test_token_classification_evaluator(family, tmp_path):
    names = {"id2label": dict(enumerate(TAGS)), "label2id": {tag: i for i, tag in enumerate(TAGS)}, "num_labels": 3}
    model, tokenizer = make_model(family, "AutoModelForTokenClassification", **names), make_tokenizer(family)
    kinds = {"tokens": datasets.Value("string"), "ner_tags": datasets.ClassLabel(names=TAGS)}
    features = datasets.Features({name: datasets.List(kind) for name, kind in kinds.items()})
    rows = {"tokens": WORDS, "ner_tags": [[0, 1, 0], [0, 1, 2, 0, 0], [0]]}
    found = evaluate.evaluator("token-classification").compute(
        model_or_pipeline=model,
        tokenizer=tokenizer,
        data=datasets.Dataset.from_dict(rows, features=features),
        metric=Seqeval(cache_dir=str(tmp_path)),
    )
    predicted = [predicted_tags(model, tokenizer, words) for words in WORDS]
    references = [[TAGS[tag] for tag in tags] for tags in rows["ner_tags"]]
    expected = Seqeval(cache_dir=str(tmp_path)).compute(predictions=predicted, references=references)
    assert {name: found[name] for name in expected} == expected


def predicted_tags(model, tokenizer, words: list[str]) -> list[str]:
    """The tag of each word's first token."""
    encoded = tokenizer(" ".join(words), return_offsets_mapping=True, return_tensors="pt")
    offsets = encoded.pop("offset_mapping")[0].tolist()
    tags = model(**encoded).logits[0].argmax(dim=-1).tolist()
    starts = [len(" ".join(words[:i])) + (i > 0) for i in range(len(words))]
    first = {}
    for (begin, end), tag in zip(offsets, tags, strict=True):
        if end > begin:
            first.setdefault(begin, TAGS[tag])
    return [first[start] for start in starts]
