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


each_family = pytest.mark.parametrize(
    ("family", "classes"),
    [*((family, "hf_encoders") for family in FAMILIES), (BERT, "transformers")],
    ids=lambda value: getattr(value, "name", value),
)


def labelled_head(folder, family, classes="hf_encoders", names=("no", "so", "yes")):
    """A fine-tuned model, its folder and configuration."""
    encoder = str(save_encoder(family, folder / "encoder"))
    config = load_config(encoder, classes)
    tuned = load_model(encoder, AutoModelForSequenceClassification, config, class_fields(list(names), "label"))
    tuned.save_pretrained(folder / "tuned")
    return tuned, str(folder / "tuned"), load_config(str(folder / "tuned"), classes)


def load(folder, config, names, **options):
    return load_model(
        folder, AutoModelForSequenceClassification, config, class_fields(list(names), "label"), **options
    )


@each_family
def test_the_same_labels_in_another_order_keep_what_they_mean(tmp_path, family, classes):
    tuned, folder, config = labelled_head(tmp_path, family, classes)
    other = load(folder, config, ["yes", "no", "so"])
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        before, after = (model.eval()(input_ids=ids)["logits"] for model in (tuned, other))
    torch.testing.assert_close(after, before[:, [2, 0, 1]])


def test_classes_have_the_order_of_their_numbers_and_not_that_in_config_json(tmp_path):
    """Where keys are sorted as text, 10 comes before 2."""
    names = [f"class {number}" for number in range(12)]
    tuned, folder, _ = labelled_head(tmp_path, BERT, names=names)
    path = tmp_path / "tuned" / "config.json"
    fields = json.loads(path.read_text())
    fields["id2label"] = dict(sorted(fields["id2label"].items()))
    path.write_text(json.dumps(fields))
    other = load(folder, load_config(folder), names[::-1])
    torch.testing.assert_close(other.classifier.weight, tuned.classifier.weight.flip(0))


@each_family
def test_a_new_head_on_the_same_encoder(tmp_path, family, classes):
    tuned, folder, config = labelled_head(tmp_path, family, classes)
    before, prefix = tuned.state_dict(), f"{tuned.base_model_prefix}."
    with pytest.raises(ValueError, match="--model .* cannot be loaded as .*--new-head"):
        load(folder, config, ["no", "yes"])
    for names in (["no", "yes"], ["glad", "sad", "other"]):
        model = load(folder, config, names, new_head=True)
        assert model.num_labels == len(names)
        for name, weight in model.state_dict().items():
            is_kept = weight.shape == before[name].shape and torch.equal(weight, before[name])
            assert is_kept == name.startswith(prefix) or not weight.any(), name  # new biases are 0, as the old ones


@pytest.mark.parametrize("classes", ["hf_encoders", "transformers"])
def test_a_classifier_of_three_classes_can_become_a_model_for_questions(tmp_path, classes):
    """Which has two scores for each token, and not one for each class."""
    _, folder, config = labelled_head(tmp_path, BERT, classes)
    rows = {"question": ["a"], "context": ["the cat"], "answers": [{"text": ["cat"], "answer_start": [4]}]}
    task = question_answering.prepare(splits(train=rows), tokenizer_of(BERT), max_length=LENGTH)
    model = load_model(folder, task.auto_class, config, task.config_fields)
    assert model.config.num_labels == 2
    assert model(input_ids=torch.tensor([[5, 6, 7, 8]]))["start_logits"].shape == (1, 4)
