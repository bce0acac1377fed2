"""Cards are refused here for what the Hub refuses, and huggingface_hub reads back what was written."""

import json

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

from hf_encoders.publishing.checks import metadata_problems
from hf_encoders.publishing.model_card import TASK_OF_HEAD, make_model_card
from hf_encoders.records.training_record import TrainingRecord
from tests.hub.tiny_checkpoints import BERT, make_model
from tests.publishing.saved import ALL_HEADS, RECORD, name_of


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"license": "apache-2.0", "language": ["en", "zh", "yue", "multilingual"]},
        {"license": "other", "license_name": "my-licence"},
        {"datasets": ["wikitext", "owner/name.1"], "base_model": ["google-bert/bert-base-uncased"]},
    ],
)
def test_valid_metadata_has_no_problems(metadata):
    assert metadata_problems(metadata) == []


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"license": "Apache 2.0"}, "use one such as 'apache-2.0'"),
        ({"license": ["mit", "MINE"]}, "license 'MINE'"),
        ({"license": "other"}, "license_name"),
        ({"language": "EN"}, "language 'EN'"),
        ({"language": ["en", "xx"]}, "language 'xx'"),
        ({"datasets": ["my corpus"]}, "datasets has 'my corpus'"),
        ({"base_model": "/home/me/model"}, "base_model"),
    ],
)
def test_invalid_metadata_has_one_problem_that_names_it(metadata, words):
    (problem,) = metadata_problems(metadata)
    assert words in problem


@pytest.mark.parametrize("case", ALL_HEADS, ids=name_of)
def test_cards_of_all_heads_are_valid_and_have_their_task(case):
    card = make_model_card(make_model(*case), RECORD, "me/encoder")
    metadata = ModelCard(str(card)).data.to_dict()
    assert metadata_problems(metadata) == []
    assert metadata.get("pipeline_tag") == TASK_OF_HEAD.get(case[1])
    assert (case[1] == "AutoModelForNextSentencePrediction") == ("pipeline_tag" not in metadata)
    assert f"import AutoTokenizer, {case[1]}\n" in str(card)


def test_evaluation_survives_the_hubs_form():
    entry = {"task": "text-classification", "dataset": "Bank 77", "dataset_id": "owner/banking", "split": "test"}
    seeds = {"0": 0.80, "1": 0.84, "2": 0.82}
    record = TrainingRecord(
        evaluation=[
            {**entry, "metric": "accuracy", "value": 0.84, "seeds": seeds},
            {"task": "text-classification", "dataset": "日本語 文書", "metric": "f1", "value": 0.5},
            {"task": "text-classification", "dataset": "感情", "metric": "f1", "value": 0.25},
        ]
    )
    card = make_model_card(make_model(BERT, "AutoModelForSequenceClassification"), record, "me/encoder")
    results = ModelCard(str(card)).data.eval_results
    found = [
        (r.task_type, r.dataset_type, r.dataset_name, r.dataset_split, r.metric_type, r.metric_value) for r in results
    ]
    assert len({result.dataset_type for result in results}) == 3
    assert found[:2] == [
        ("text-classification", "owner/banking", "Bank 77", "test", "accuracy", 0.84),
        ("text-classification", "unnamed-ccdbb81e", "日本語 文書", None, "f1", 0.5),
    ]
    assert model_index_to_eval_results(eval_results_to_model_index("me/encoder", results)) == ("me/encoder", results)
    # Sample standard deviation of 0.80, 0.84, 0.82 about their mean: sqrt((0.0004 + 0.0004) / 2) = 0.02.
    assert "| Bank 77, test | accuracy | 0.84 (3 seeds: 0.82 ± 0.02) |" in str(card)


def test_a_fine_tuned_model_names_base_model_and_labels(tmp_path, monkeypatch):
    names = {"id2label": {0: "cat", 1: "dog"}, "label2id": {"cat": 0, "dog": 1}, "num_labels": 2}
    model = make_model(BERT, "AutoModelForSequenceClassification", **names)
    card = make_model_card(model, TrainingRecord(base_model="owner/encoder", dataset_ids=["owner/pets"]), "me/pets")
    assert card.data.base_model == "owner/encoder" and card.data.datasets == ["owner/pets"]
    assert "Fine-tuned from `owner/encoder`." in str(card) and "| labels | `cat`, `dog` |" in str(card)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "model").mkdir(parents=True)
    card = make_model_card(model, TrainingRecord(base_model="runs/model"), "me/pets")
    assert card.data.base_model is None and "Fine-tuned from `runs/model`." in str(card)


def test_missing_facts_are_named():
    assert RECORD.missing_facts() == []
    everything = "objectives corpus schedule losses hardware seconds tokens_per_second software command license"
    assert TrainingRecord().missing_facts() == [*everything.split(), "evaluation", "language"]


def test_what_is_null_in_a_record_is_not_recorded(tmp_path):
    facts = {"corpus": None, "hardware": None, "schedule": {"optimizer steps": 7, "warm-up": None}}
    (tmp_path / "training_record.json").write_text(json.dumps(facts))
    card = str(make_model_card(make_model(BERT, "AutoModelForMaskedLM"), TrainingRecord.load(tmp_path), "me/encoder"))
    for fact in ("corpus", "hardware", "warm-up"):
        assert f"| {fact} | not recorded |" in card
    assert "None" not in card


def test_a_record_that_is_none_is_refused(tmp_path):
    (tmp_path / "training_record.json").write_text('{"corpse": 1}')
    with pytest.raises(ValueError, match="training_record.json is not a training record.*corpse"):
        TrainingRecord.load(tmp_path)
    for entry in ("a string", {"task": "fill-mask", "dataset": "x", "metric": "f1", "value": None}):
        (tmp_path / "training_record.json").write_text(json.dumps({"evaluation": [entry]}))
        with pytest.raises(ValueError, match="training_record.json is not a training record.*without .*value"):
            TrainingRecord.load(tmp_path)
    with pytest.raises(ValueError, match="without task, value"):
        TrainingRecord(evaluation=[{"dataset": "x", "metric": "f1"}])
