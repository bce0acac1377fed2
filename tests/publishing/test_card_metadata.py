"""Cards are refused here for what the Hub refuses, and huggingface_hub reads back what was written."""

import json
from dataclasses import replace

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

from hf_encoders.loading import read_config
from hf_encoders.publishing.files import load_source, saved_head
from hf_encoders.publishing.publish import metadata_problems, plan_publication
from hf_encoders.publishing.record import TASK_OF_HEAD, TrainingRecord, make_model_card, name_of_checkpoint
from tests.hub.tiny_checkpoints import BERT, make_model, save_checkpoint
from tests.publishing.saved import ALL_HEADS, RECORD, name_of, save


def test_metadata_that_the_hub_refuses_has_one_problem_that_names_it():
    for metadata in (
        {},
        {"license": "apache-2.0", "language": ["en", "zh", "yue", "multilingual"]},
        {"license": "other", "license_name": "my-licence"},
        {"datasets": ["wikitext", "owner/name.1"], "base_model": ["google-bert/bert-base-uncased"]},
    ):
        assert metadata_problems(metadata) == []
    for metadata, words in (
        ({"license": "Apache 2.0"}, "use one such as 'apache-2.0'"),
        ({"license": ["mit", "MINE"]}, "license 'MINE'"),
        ({"license": "other"}, "license_name"),
        ({"language": "EN"}, "language 'EN'"),
        ({"language": ["en", "xx"]}, "language 'xx'"),
        ({"datasets": ["my corpus"]}, "datasets 'my corpus'"),
        ({"base_model": "/home/me/model"}, "base_model"),
    ):
        (problem,) = metadata_problems(metadata)
        assert words in problem


@pytest.mark.parametrize("case", ALL_HEADS, ids=name_of)
def test_cards_of_all_heads_are_valid_have_their_task_and_are_those_that_are_published(case, tmp_path):
    """A saved `auto_map` is sorted, and two Auto classes may have one model class."""
    model = make_model(*case)
    card = make_model_card(model, RECORD, "me/encoder")
    metadata = ModelCard(str(card)).data.to_dict()
    assert metadata_problems(metadata) == []
    assert metadata.get("pipeline_tag") == TASK_OF_HEAD.get(case[1])
    assert (case[1] == "AutoModelForNextSentencePrediction") == ("pipeline_tag" not in metadata)
    assert f"import AutoTokenizer, {case[1]}\n" in str(card)
    folder = save_checkpoint(model, case[0], tmp_path)
    loaded = load_source(folder, saved_head(read_config(folder)))
    assert str(make_model_card(model, RECORD, "me/x")) == str(make_model_card(loaded, RECORD, "me/x"))


def first_use(card: str) -> str:
    """The first block of code on a card."""
    return card.partition("```python\n")[2].partition("```")[0]


@pytest.mark.parametrize(
    ("head", "result"),
    [
        ("AutoModelForMaskedLM", "sequence"),
        ("AutoModelForPreTraining", "sequence"),
        ("AutoModelForSequenceClassification", "score"),
        ("AutoModelForTokenClassification", "entity_group"),
    ],
)
def test_a_card_begins_with_a_use_that_runs(head, result, tmp_path, monkeypatch):
    folder = save(BERT, head, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    code = first_use(str(make_model_card(make_model(BERT, head), RECORD, "model")))
    seen = {}
    exec(code.replace("\npipe(", "\nfound = pipe("), seen)
    assert result in seen["found"][0] and folder.name in code


def test_a_model_that_fills_no_masks_and_one_with_modules_have_another_use(tmp_path, monkeypatch):
    save(BERT, "AutoModelForMaskedLM", tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    model, seen = make_model(BERT, "AutoModelForMaskedLM"), {}
    record = TrainingRecord(fills_masks=False)
    exec(first_use(str(make_model_card(model, record, "model"))).replace("\npipe(", "\nfound = pipe("), seen)
    assert len(seen["found"][0][0]) == 36
    card = make_model_card(model, TrainingRecord(), "model", has_modules=True)
    assert card.data.pipeline_tag == "sentence-similarity"
    pytest.importorskip("sentence_transformers")
    exec(first_use(str(card)), seen)
    assert seen["embeddings"].shape == (2, 36)
    # Multiple choice has no pipeline.
    card = str(make_model_card(make_model(BERT, "AutoModelForMultipleChoice"), RECORD, "model"))
    assert "import AutoTokenizer" in first_use(card)


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
    data = ModelCard(str(card)).data
    results = data.eval_results
    assert data.library_name == "transformers"
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


def test_a_card_names_the_origin_of_a_folder(tmp_path):
    """An extended checkpoint, adapted and then fine-tuned: the Hub's name, and what was done last."""
    TrainingRecord(base_model="owner/encoder").save(tmp_path)
    extended = name_of_checkpoint(str(tmp_path))
    assert extended == f"{tmp_path.name} (a local folder, from owner/encoder)"
    run = tmp_path / "adapted" / "model"
    run.mkdir(parents=True)
    TrainingRecord(base_model=extended).save(run)
    assert name_of_checkpoint(str(run)) == "model (a local folder, from owner/encoder)"
    (run.parent / "run.json").write_text("{}")
    adapted = name_of_checkpoint(str(run))
    assert adapted == "adapted (a local folder, from owner/encoder)"
    for head, how in (("AutoModelForMaskedLM", "Adapted"), ("AutoModelForTokenClassification", "Fine-tuned")):
        card = make_model_card(make_model(BERT, head), TrainingRecord(base_model=adapted), "me/encoder")
        assert card.data.base_model == "owner/encoder" and f"\n{how} from `{adapted}`.\n" in str(card)
    TrainingRecord(base_model="start (a local folder)").save(run)
    local = name_of_checkpoint(str(run))
    assert local == "adapted (a local folder, from start (a local folder))"
    card = make_model_card(make_model(BERT, head), TrainingRecord(base_model=local), "me/encoder")
    assert card.data.base_model is None
    (tmp_path / "x.csv").write_text("text,label\n")
    assert name_of_checkpoint(str(tmp_path / "x.csv")) == "x.csv (a local file)"


def test_the_origin_can_be_stated(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_encoders.publishing.publish.check_loading", lambda directories, trust: [])
    folder = save(BERT, "AutoModelForMaskedLM", tmp_path / "model")
    replace(RECORD, base_model="start (a local folder)").save(folder)
    card, record = (plan_publication(folder, "me/encoder", base_model="owner/encoder").texts[name]
                    for name in ("README.md", "training_record.json"))  # fmt: skip
    assert "\nbase_model: owner/encoder\n" in card and "Adapted from `owner/encoder`." in card
    assert json.loads(record)["base_model"] == "owner/encoder"
    with pytest.raises(ValueError, match="base_model='not a name' is not a name on the Hub: use owner/name"):
        plan_publication(folder, "me/encoder", base_model="not a name")


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
