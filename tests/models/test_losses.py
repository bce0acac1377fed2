"""Losses with numbers that can be checked on paper."""

import math

import pytest
import torch

from hf_encoders.models.encoder_losses import (
    ObjectiveSums,
    classification_sums,
    infer_problem_type,
    normalised,
    pair_share_of_batch,
    sequence_classification_loss,
    span_loss,
)


LOG_2, LOG_4 = math.log(2), math.log(4)
# Row 0: probabilities 1/2, 1/2. Row 1: 3/4, 1/4. Row 2: 1/4, 3/4.
LOGITS = torch.tensor([[0.0, 0.0], [math.log(3), 0.0], [0.0, math.log(3)]])


def sums(nll: float, count: int) -> ObjectiveSums:
    return ObjectiveSums(torch.tensor(nll), torch.tensor(0), torch.tensor(count))


def test_sums_over_items() -> None:
    """-ln 1/2 - ln 1/4 = 3 ln 2; the ignored row adds nothing; only row 0 is right (the first of two equals)."""
    result = classification_sums(LOGITS, torch.tensor([0, 1, -100]))
    assert result.nll.item() == pytest.approx(3 * LOG_2)
    assert (result.correct.item(), result.count.item()) == (1, 2)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_half_precision_is_summed_in_float32(dtype: torch.dtype, expected: torch.dtype) -> None:
    assert classification_sums(LOGITS.to(dtype), torch.tensor([0, 1, 1])).nll.dtype == expected
    labels = torch.tensor([[0.0, 1.0]] * 3)
    for problem_type in ("regression", "multi_label_classification"):
        assert sequence_classification_loss(LOGITS.to(dtype), labels, problem_type).dtype == expected


def test_no_item_gives_zero_and_zero_gradients() -> None:
    logits = LOGITS.clone().requires_grad_()
    result = classification_sums(logits, torch.full((3,), -100))
    loss = normalised(result.nll, result.count, None)
    loss.backward()
    assert loss.item() == 0.0 and not logits.grad.any()
    assert normalised(torch.tensor(0.0), 0, None).item() == 0.0
    assert normalised(torch.tensor(0.0), 0, torch.tensor(0)).item() == 0.0


@pytest.mark.parametrize("num_items", [8, torch.tensor(8)])
def test_the_whole_batch_is_the_divisor_when_known(num_items: int | torch.Tensor) -> None:
    assert normalised(torch.tensor(6.0), torch.tensor(2), None).item() == 3.0
    assert normalised(torch.tensor(6.0), torch.tensor(2), num_items).item() == 0.75


def test_pairs_are_averaged_over_this_pass_without_a_count_of_predicted_tokens() -> None:
    assert pair_share_of_batch(sums(6.0, 2), sums(0.0, 5), None).item() == 3.0
    assert pair_share_of_batch(sums(6.0, 2), None, 20).item() == 3.0


def test_weights_of_the_pairs_of_all_passes_add_up_to_one() -> None:
    """Four passes with 1, 5, 2 and 12 of 20 predicted tokens: the mean of each is weighted by its share."""
    passes = [(sums(3.0, 3), sums(0.0, predicted)) for predicted in (1, 5, 2, 12)]
    terms = [pair_share_of_batch(pair, mlm, 20).item() for pair, mlm in passes]
    assert terms == pytest.approx([0.05, 0.25, 0.1, 0.6])
    assert sum(terms) == pytest.approx(1.0)


def test_one_label_a_row() -> None:
    """(ln 2 + ln 4 + ln 4) / 3 rows, or over the 10 of the whole batch."""
    labels = torch.tensor([1, 1, 0])
    loss = sequence_classification_loss(LOGITS, labels, "single_label_classification")
    assert loss.item() == pytest.approx((LOG_2 + 2 * LOG_4) / 3)
    loss = sequence_classification_loss(LOGITS, labels[:, None], "single_label_classification", 10)
    assert loss.item() == pytest.approx((LOG_2 + 2 * LOG_4) / 10)


@pytest.mark.parametrize("labels", [torch.tensor([1.0, -1.0]), torch.tensor([[1], [-1]])])
def test_regression_is_the_mean_square(labels: torch.Tensor) -> None:
    """((2 - 1)^2 + (2 + 1)^2) / 2 = 5."""
    logits = torch.tensor([[2.0], [2.0]])
    assert sequence_classification_loss(logits, labels, "regression").item() == pytest.approx(5.0)
    assert sequence_classification_loss(logits, labels, "regression", 4).item() == pytest.approx(2.5)


def test_several_labels_a_row_average_over_all_flags() -> None:
    """Logits of 0 cost ln 2 each; ln 3 with flag 0 costs ln 4, with flag 1 ln 4/3."""
    labels = torch.tensor([[0, 1], [0, 0], [0, 1]])
    expected = 2 * LOG_2 + LOG_4 + LOG_2 + LOG_2 + math.log(4 / 3)
    loss = sequence_classification_loss(LOGITS, labels, "multi_label_classification")
    assert loss.item() == pytest.approx(expected / 6)


@pytest.mark.parametrize(
    ("labels", "num_labels", "expected"),
    [
        (None, 3, None),
        (torch.tensor([1]), 1, "regression"),
        (torch.tensor([0.5]), 1, "regression"),
        (torch.tensor([1]), 3, "single_label_classification"),
        (torch.tensor([1], dtype=torch.int32), 3, "single_label_classification"),
        (torch.tensor([[1.0, 0.0, 1.0]]), 3, "multi_label_classification"),
        (torch.tensor([[True, False, True]]), 3, "multi_label_classification"),
    ],
)
def test_problem_type_is_inferred_as_in_transformers(
    labels: torch.Tensor | None, num_labels: int, expected: str | None
) -> None:
    assert infer_problem_type(labels, num_labels) == expected


@pytest.mark.parametrize(
    ("problem_type", "shape", "needed"),
    [
        ("single_label_classification", (2,), r"\(3,\)"),
        ("single_label_classification", (3, 2), r"\(3,\)"),
        ("multi_label_classification", (3,), r"\(3, 2\)"),
        ("regression", (3, 3), r"\(3, 2\)"),
    ],
)
def test_labels_that_do_not_fit_the_scores_are_refused(problem_type: str, shape: tuple, needed: str) -> None:
    labels = torch.zeros(shape, dtype=torch.long)
    with pytest.raises(ValueError, match=rf"labels has shape .*{problem_type} with num_labels=2 needs {needed}"):
        sequence_classification_loss(LOGITS, labels, problem_type)


def test_span_loss_averages_start_and_end() -> None:
    """Start: column 1 costs ln 2, the second row is beyond the end. End: columns 1 and 0 cost ln 4 and ln 4."""
    start_logits, end_logits = LOGITS[[0, 1]], LOGITS[[1, 2]]
    loss = span_loss(start_logits, end_logits, torch.tensor([1, 2]), torch.tensor([1, 0]))
    assert loss.item() == pytest.approx((LOG_2 + LOG_4) / 2)
    squeezed = span_loss(start_logits, end_logits, torch.tensor([[1], [99]]), torch.tensor([[1], [0]]))
    assert squeezed.item() == pytest.approx(loss.item())


def test_negative_positions_are_the_first_column() -> None:
    """As in transformers, which clamps them."""
    minus, zero = (span_loss(LOGITS, LOGITS, p, p) for p in (torch.tensor([-3, 1, 1]), torch.tensor([0, 1, 1])))
    assert minus.item() == zero.item() > 0


def test_a_hook_on_the_mlm_head_runs_in_training_and_its_result_counts() -> None:
    from hf_encoders import HfeBertConfig, HfeBertForMaskedLM

    model = HfeBertForMaskedLM(
        HfeBertConfig(vocab_size=40, hidden_size=12, num_attention_heads=2, num_hidden_layers=1, intermediate_size=20)
    ).train()
    ids = torch.arange(5, 15).view(2, 5)
    model.cls.predictions.register_forward_hook(lambda module, inputs, output: output * 0.0)
    assert model(input_ids=ids, labels=ids).loss.item() == pytest.approx(math.log(40))
