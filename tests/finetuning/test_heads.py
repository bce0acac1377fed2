"""The head of a fine-tuned model: it is kept, put into another order, or initialised again."""

import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from hf_encoders.finetuning import question_answering
from hf_encoders.finetuning.labels import class_fields
from hf_encoders.finetuning.runs import load_model
from hf_encoders.loading import load_config
from tests.finetuning.tiny import LENGTH, save_encoder, splits, tokenizer_of
from tests.hub.tiny_checkpoints import BERT, FAMILIES


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    return {family.name: save_encoder(family, tmp_path_factory.mktemp(family.name)) for family in FAMILIES}


def labelled_head(encoders, tmp_path, family, classes, names=("no", "so", "yes")):
    """A fine-tuned model, its folder and configuration."""
    fields = fields_of(names)
    config = load_config(str(encoders[family.name]), classes)
    tuned = load_model(str(encoders[family.name]), AutoModelForSequenceClassification, config, fields)
    tuned.save_pretrained(tmp_path / "tuned")
    return tuned, str(tmp_path / "tuned"), load_config(str(tmp_path / "tuned"), classes)


def fields_of(names):
    return class_fields(list(names), "label")


each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
each_kind = pytest.mark.parametrize("classes", ["hf_encoders", "transformers"])


@each_family
@each_kind
def test_the_same_labels_in_another_order_keep_what_they_mean(encoders, tmp_path, family, classes):
    tuned, folder, config = labelled_head(encoders, tmp_path, family, classes)
    other = load_model(folder, AutoModelForSequenceClassification, config, fields_of(["yes", "no", "so"]))
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        before, after = (model.eval()(input_ids=ids)["logits"] for model in (tuned, other))
    torch.testing.assert_close(after, before[:, [2, 0, 1]])


def test_classes_are_told_by_their_numbers_and_not_by_their_places_in_config_json(encoders, tmp_path):
    """Where keys are sorted as text, 10 comes before 2."""
    names = [f"class {number}" for number in range(12)]
    tuned, folder, _ = labelled_head(encoders, tmp_path, BERT, "hf_encoders", names)
    path = tmp_path / "tuned" / "config.json"
    fields = json.loads(path.read_text())
    fields["id2label"] = dict(sorted(fields["id2label"].items()))
    path.write_text(json.dumps(fields))
    other = load_model(folder, AutoModelForSequenceClassification, load_config(folder), fields_of(names[::-1]))
    torch.testing.assert_close(other.classifier.weight, tuned.classifier.weight.flip(0))


@each_family
@each_kind
@pytest.mark.parametrize("names", [("no", "yes"), ("glad", "sad", "other")])
def test_a_new_head_on_the_same_encoder(encoders, tmp_path, family, classes, names):
    tuned, folder, config = labelled_head(encoders, tmp_path, family, classes)
    arguments = (folder, AutoModelForSequenceClassification, config, fields_of(names))
    if len(names) == 2:
        with pytest.raises(ValueError, match="--model .* cannot be loaded as .*--new-head"):
            load_model(*arguments)
    model = load_model(*arguments, new_head=True)
    assert model.num_labels == len(names)
    prefix = f"{model.base_model_prefix}."
    weights, before = model.state_dict(), tuned.state_dict()
    for name, weight in weights.items():
        is_kept = weight.shape == before[name].shape and torch.equal(weight, before[name])
        assert is_kept == name.startswith(prefix) or not weight.any(), name  # new biases are 0, as the old ones


@each_kind
def test_a_classifier_of_three_classes_can_become_a_model_for_questions(encoders, tmp_path, classes):
    """Which has two scores for each token, and not one for each class."""
    _, folder, config = labelled_head(encoders, tmp_path, BERT, classes)
    rows = {"question": ["a"], "context": ["the cat"], "answers": [{"text": ["cat"], "answer_start": [4]}]}
    task = question_answering.prepare(splits(train=rows), tokenizer_of(BERT), max_length=LENGTH)
    model = load_model(folder, task.auto_class, config, task.config_fields)
    assert model.config.num_labels == 2
    assert model(input_ids=torch.tensor([[5, 6, 7, 8]]))["start_logits"].shape == (1, 4)
