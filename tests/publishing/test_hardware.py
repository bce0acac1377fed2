import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining

from hf_encoders import student_from, with_teacher
from hf_encoders.publishing.export import native_config
from hf_encoders.publishing.hardware import forward_flops, measure_gemm_rate, peak_on_cpu, training_flops
from hf_encoders.registration import config_class_of
from tests.families import fields_of, own_sizes
from tests.objectives.distilled_tiny import make_teacher


def tiny_config(family: str):
    config_class = config_class_of(family)
    own = own_sizes(config_class)
    fields = {"vocab_size": 60, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 37}
    fields |= {"num_hidden_layers": 2 * own.get("num_hidden_groups", 1), "pad_token_id": 0, **own}
    return config_class(**fields_of(config_class, fields))


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


@pytest.mark.parametrize(
    ("family", "auto", "pairs"),
    [
        ("bert", AutoModelForMaskedLM, 0),
        ("roberta", AutoModelForMaskedLM, 0),
        ("albert", AutoModelForMaskedLM, 0),
        ("bert", AutoModelForPreTraining, 4),
        ("albert", AutoModelForPreTraining, 4),
    ],
)
def test_torch_counts_the_same_without_padding_and_with_all_tokens_predicted(family, auto, pairs):
    config = tiny_config(family)
    # Of the kernels, torch's counter knows the plain products only.
    model = auto.from_config(native_config(config), attn_implementation="eager").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.full((4, 7), 6))
    assert counter.get_total_flops() == forward_flops(config, [7] * 4, predicted=28, pairs=pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rate_of_a_matrix_product_leaves_the_random_generator_alone(dtype):
    before = torch.get_rng_state()
    assert 1e6 < measure_gemm_rate(dtype, torch.device("cpu"), side=64, most_seconds=0.0) < 1e15
    assert torch.equal(torch.get_rng_state(), before)


def test_a_teacher_adds_a_forward_pass_and_soft_targets_their_projections():
    teacher = make_teacher()
    for soft_targets, projected in (("predicted", 2), ("all", 8)):
        student = with_teacher(student_from(teacher, [0, 2]), teacher, soft_targets=soft_targets)
        own, of_teacher = (forward_flops(one.config, [5, 3], projected) for one in (student, teacher))
        assert training_flops(student, 8, 34, 2) == 3 * own + of_teacher
    assert training_flops(teacher, 8, 34, 2) == 3 * forward_flops(teacher.config, [5, 3], 2)


def test_peak_is_the_most_bytes_at_a_time():
    def run() -> None:
        first = torch.empty(1_000_000, dtype=torch.uint8)
        second = torch.empty(2_000_000, dtype=torch.uint8)
        del first
        third = torch.empty(500_000, dtype=torch.uint8)
        del second, third

    assert peak_on_cpu(run) == 3_000_000
    layer, inputs = torch.nn.Linear(100, 100, bias=False), torch.ones(50, 100)
    layer.weight.grad = torch.zeros(100, 100)
    # Held at once at the end: the scores, the loss's gradient of them, and the weight's new gradient.
    peak = peak_on_cpu(lambda: layer(inputs).square().sum().backward())
    assert 100 * 100 * 4 < peak < 2 * 100 * 100 * 4 + 5 * 50 * 100 * 4
