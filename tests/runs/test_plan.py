"""The plan's estimates beside what is measured; the bars and intervals of a run."""

import dataclasses
from dataclasses import replace

import pytest
import torch

from hf_encoders import HfeAlbertConfig, HfeAlbertForPreTraining, HfeBertConfig, HfeBertForPreTraining
from hf_encoders.publishing.hardware import forward_flops, peak_on_cpu
from hf_encoders.runs import plan as plans
from hf_encoders.runs.plan import activation_bytes, make_plan
from hf_encoders.runs.recipe import Phase, load_recipe
from hf_encoders.runs.run import Run
from hf_encoders.training.health import BatchCounts
from tests.training.killed_run import make_documents
from tests.training.tiny import make_tokenizer


SMALL = {
    "vocab_size": 700,
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("kind", "sizes", "precision", "recomputes"),
    [
        (HfeBertForPreTraining, {"hidden_size": 64}, torch.float32, False),
        (HfeBertForPreTraining, {"intermediate_size": 512, "vocab_size": 9000}, torch.float32, False),
        (HfeBertForPreTraining, {"hidden_size": 96, "intermediate_size": 384}, torch.bfloat16, False),
        (HfeBertForPreTraining, {"hidden_size": 64}, torch.float32, True),
        (HfeAlbertForPreTraining, {"hidden_size": 64, "embedding_size": 32}, torch.float32, False),
    ],
)
def test_estimated_memory_is_what_a_pass_holds(kind, sizes, precision, recomputes):
    config_class = HfeAlbertConfig if kind is HfeAlbertForPreTraining else HfeBertConfig
    config = config_class(**{**SMALL, **sizes})
    model = kind(config).train()
    if recomputes:
        model.gradient_checkpointing_enable()
    ids = torch.randint(5, config.vocab_size, (24, 40))
    labels = torch.where(torch.rand(24, 40) < 0.2, ids, -100)
    batch = {"input_ids": ids, "labels": labels, model.loss_terms["pair"]: torch.randint(0, 2, (24,))}

    def run():
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()

    run()
    counts = BatchCounts(tokens=960, predicted=int((labels != -100).sum()))
    estimated = activation_bytes(config, counts, precision, recomputes, torch.device("cpu"), 24)
    assert estimated == pytest.approx(peak_on_cpu(run), rel=0.25)


def test_short_sequences_take_memory_of_their_own_on_cuda():
    """Flash attention's backward pass holds a float32 block of 128 rows for each: 0.8 GB of 2,000 at width 768."""
    config, counts = HfeBertConfig(), BatchCounts(tokens=32_000)
    few, many = (activation_bytes(config, counts, torch.bfloat16, False, torch.device("cuda"), n) for n in (63, 2000))
    assert many - few == 1937 * 128 * 768 * 4
    assert activation_bytes(config, counts, torch.float32, False, torch.device("cuda"), 2000) == activation_bytes(
        config, counts, torch.float32, False, torch.device("cuda"), 63
    )


def a_plan(phases, elsewhere=(), options=(), **changed):
    recipe = dataclasses.replace(load_recipe("bert-minutes"), phases=phases, **changed)
    tokenizer, documents = make_tokenizer(), make_documents()
    run, config = Run(recipe, "nowhere", {"seed": 0, **dict(options)}), recipe.model_config(tokenizer)
    return make_plan(run, run.examples(documents), run.collator(tokenizer, documents), config, *elsewhere), config


def test_estimated_time_is_operations_over_a_rate(monkeypatch, tmp_path):
    """Three chunks of 21 tokens a step; at the mean of the mask rates, 0.225 of the 18 tokens that are not special."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plans, "gemm_rate", lambda *arguments: 1e9)
    monkeypatch.setattr(plans, "memory_rate", lambda device: 1e8)
    plan, config = a_plan((Phase(80, 24, 3),), examples={"short_sequence_probability": 0.0})
    highest, half_width = plans.REACHED_SHARES[torch.float32]
    rate = 1e9 * highest * 128 / (128 + half_width)
    predicted = round(0.225 * 54)
    passes = [3 * forward_flops(config, [21] * 3, predicted + more, pairs=3) / rate for more in (-4, 4)]
    update = (plans.BYTES_OF_UPDATE + plans.BYTES_OF_PASS[torch.float32]) * plan.parameters / 1e8
    assert passes[0] < plan.seconds / 80 - update < passes[1]
    assert plan.phases[0].tokens == 80 * 63
    assert "estimated: " in str(plan) and not list(tmp_path.iterdir())


def test_a_text_that_is_read_too_often_is_warned_of():
    documents = len(a_plan((Phase(1, 24, 3),))[0].run.examples(make_documents()).phases[0].dataset)
    within, beyond = (str(a_plan((Phase(times * documents, 24, 1),))[0]) for times in (100, 250))
    assert "warning" not in within
    assert "warning: the text is read 250 times" in beyond and f"({100 * documents:,}: --max-steps)" in beyond


def test_what_is_left_is_of_the_phases_that_are_left():
    plan, _ = a_plan((Phase(10, 24, 3), Phase(30, 24, 3)), options={"save_steps": 0.11})
    assert "a checkpoint every 5 steps, " in str(plan)  # a share of the steps
    phases = [replace(part, seconds=seconds) for part, seconds in zip(plan.phases, (600, 6000), strict=True)]
    plan = replace(plan, phases=phases)
    assert plan.left(4) == "4 of 40 steps are done: 36 are left, 106.0 min"
    assert plan.left(25) == "25 of 40 steps are done: 15 are left, 50.0 min"
    assert plan.left(40) == "40 of 40 steps are done: 0 are left, 0 s"


def test_a_device_that_is_not_here_is_planned_with_a_stated_rate(monkeypatch):
    """Nothing of this machine is measured."""
    monkeypatch.setattr(plans, "gemm_rate", None)
    monkeypatch.setattr(plans, "memory_rate", None)
    half, usual = (a_plan((Phase(80, 24, 3),), elsewhere=("cuda", tflops))[0] for tflops in (9.75, None))
    assert half.seconds == pytest.approx(2 * usual.seconds)
    assert "on each of 1 x cuda" in str(usual) and "assumed: 30% of 19.5 TFLOP/s (an A100's in float32" in str(usual)
    assert "assumed: 30% of 9.75 TFLOP/s (--device-tflops)" in str(half)
