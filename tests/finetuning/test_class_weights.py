"""Class weights are what they are documented to be."""

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from hf_encoders.finetuning import sequence_classification, sequence_regression
from hf_encoders.finetuning.labels import balanced_weights, class_weighted_loss, read_class_weights
from tests.finetuning.tiny import LENGTH, labelled, splits, tokenizer_of
from tests.hub.tiny_checkpoints import BERT


def prepared(module=sequence_classification, **options):
    data = labelled(9) if module is sequence_classification else {"text": ["a", "the"], "label": [0, 1]}
    return module.prepare(splits(train=data), tokenizer_of(BERT), max_length=LENGTH, **options)


def test_weighted_loss_is_the_weighted_sum_over_the_count():
    logits = torch.randn(5, 3)
    labels = torch.tensor([0, 2, -100, 1, 2])
    nll = -logits.log_softmax(-1)
    expected = (0.5 * nll[0, 0] + 4 * nll[1, 2] + 2 * nll[3, 1] + 4 * nll[4, 2]) / 4
    loss = class_weighted_loss([0.5, 2.0, 4.0])
    torch.testing.assert_close(loss({"logits": logits}, labels), expected)
    torch.testing.assert_close(loss({"logits": logits}, labels, torch.tensor(8)), expected / 2)


def test_weighted_loss_takes_the_tokens_of_sequences():
    logits, labels = torch.randn(2, 3, 4), torch.tensor([[0, -100, 3], [1, 2, -100]])
    loss = class_weighted_loss([1.0, 1.0, 1.0, 1.0])({"logits": logits}, labels)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))


def test_balanced_weights_are_those_of_scikit_learn():
    labels = [0, 1, 1, 2, 2, 2, 2]
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert balanced_weights(labels, ["a", "b", "c"]) == pytest.approx(expected.tolist())
    assert balanced_weights([[0, -100, 1], [1, 2, 2, 2], [2]], ["a", "b", "c"]) == pytest.approx(expected.tolist())


def test_words_become_weights_in_the_order_of_the_classes():
    task = prepared()
    assert task.label_names == ["cat", "none"]
    assert read_class_weights(["none=0.25"], task) == [1.0, 0.25]
    assert read_class_weights(["balanced"], task) == pytest.approx([9 / (2 * 3), 9 / (2 * 6)])
    assert read_class_weights([], task) is None


@pytest.mark.parametrize(
    ("words", "task", "message"),
    [
        (["dog=2"], prepared, "no class 'dog'; use cat, none"),
        (["cat=x"], prepared, "'x' is not a number"),
        (["cat=-1"], prepared, "must be at least 0"),
        (["cat"], prepared, "no class ''"),
        (["cat=2"], lambda: prepared(multi_label=True), "one class per row or token"),
        (["balanced"], lambda: prepared(sequence_regression), "one class per row or token"),
    ],
)
def test_wrong_weights_are_refused(words, task, message):
    with pytest.raises(ValueError, match=message):
        read_class_weights(words, task())


def test_balanced_weights_need_every_class():
    with pytest.raises(ValueError, match="no training row has b"):
        balanced_weights([0, 0], ["a", "b"])
