import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hf_encoders import student_from, with_teacher
from hf_encoders.benchmark.implementations import model_class, stock_config
from hf_encoders.benchmark.measuring import needed_flops
from hf_encoders.benchmark.rows import make_batch
from hf_encoders.publishing.hardware import forward_flops, measure_gemm_rate, training_flops
from tests.benchmark.tiny import tiny_config, tiny_setting
from tests.objectives.distilled_tiny import make_teacher


def batch_of(lengths: list[int], predicted: int):
    rows = [{"input_ids": torch.full((length,), 6), "labels": torch.full((length,), -100)} for length in lengths]
    rows[0]["labels"][:predicted] = 7
    return make_batch(rows, padding_id=0)


def test_bert_counted_by_hand():
    # Two layers of 4 * 24 * 24 + 2 * 24 * 37 weights; head 24 * 24 + 24 * 60; 8 real tokens of 5 and 3.
    weights = 2 * (2304 + 1776)
    attention = 4 * 2 * 24 * (25 + 9)
    assert forward_flops(tiny_config("bert"), [5, 3]) == 2 * weights * 8 + attention == 137_088
    assert forward_flops(tiny_config("bert"), [5, 3], predicted=2) == 137_088 + 2 * 2 * (576 + 1440)
    assert forward_flops(tiny_config("bert"), [5, 3], pairs=2) == 137_088 + 2 * 2 * (576 + 48)


def test_albert_counts_repeated_layers_and_the_narrow_head():
    # A token passes 4 groups of 2 layers; projection 10 -> 24; head 24 * 10 + 10 * 60.
    expected = 2 * (8 * 4080 + 240) * 3 + 4 * 8 * 24 * 9 + 2 * (240 + 600)
    assert forward_flops(tiny_config("albert"), [3], predicted=1) == expected


def test_training_needs_three_times_the_forward_pass_and_inference_no_head():
    config, batch = tiny_config("bert"), batch_of([5, 3], predicted=2)
    assert needed_flops(config, batch, tiny_setting()) == 3 * forward_flops(config, [5, 3], 2)
    assert needed_flops(config, batch, tiny_setting(task="inference")) == forward_flops(config, [5, 3])
    assert needed_flops(config, batch, tiny_setting(objective="nsp")) == 3 * forward_flops(config, [5, 3], 2, 2)


@pytest.mark.parametrize(
    ("family", "objective"),
    [("bert", "mlm"), ("roberta", "mlm"), ("albert", "mlm"), ("bert", "nsp"), ("albert", "sop")],
)
def test_torch_counts_the_same_for_a_stock_model_without_padding_and_with_all_tokens_predicted(family, objective):
    config = tiny_config(family)
    auto = model_class(tiny_setting(objective=objective))
    # Of the kernels, torch's counter knows the plain products only.
    model = auto.from_config(stock_config(config), attn_implementation="eager").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.full((4, 7), 6))
    pairs = 0 if objective == "mlm" else 4
    assert counter.get_total_flops() == forward_flops(config, [7] * 4, predicted=28, pairs=pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gemm_rate_is_a_rate(dtype):
    assert 1e6 < measure_gemm_rate(dtype, torch.device("cpu"), side=64) < 1e15


def test_measuring_the_rate_leaves_the_random_generator_alone():
    before = torch.get_rng_state()
    measure_gemm_rate(torch.float32, torch.device("cpu"), side=8, most_seconds=0.0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_teacher_adds_a_forward_pass_and_soft_targets_their_projections():
    teacher = make_teacher()
    for soft_targets, projected in (("predicted", 2), ("all", 8)):
        student = with_teacher(student_from(teacher, [0, 2]), teacher, soft_targets=soft_targets)
        own, of_teacher = (forward_flops(one.config, [5, 3], projected) for one in (student, teacher))
        assert training_flops(student, 8, 34, 2) == 3 * own + of_teacher
    assert training_flops(teacher, 8, 34, 2) == 3 * forward_flops(teacher.config, [5, 3], 2)
