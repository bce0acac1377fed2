"""Recipes: every shipped one makes the model of its paper and a run that can be planned; wrong ones are refused."""

import numpy as np
import pytest
import torch
import yaml
from transformers import TrainingArguments

from hf_encoders import get_objective
from hf_encoders.registration import config_class_of
from hf_encoders.runs.recipe import Phase, load_recipe, recipe_names, recipe_of
from hf_encoders.runs.run import Run, divide, training_arguments
from hf_encoders.training.callbacks import MaskRate
from hf_encoders.training.optimizers import albert_lamb, optimizer_class
from tests.families import has_field
from tests.training.tiny import make_tokenizer


MINIMAL = {
    "family": "bert",
    "objective": "nsp",
    "model": {"num_hidden_layers": 1, "hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 20},
    "tokenizer": {"vocab_size": 100},
    "phases": [{"steps": 6, "length": 24, "examples": 4}],
}
PHASE = {"steps": 6, "length": 24, "examples": 4}


# Steps, longest example, tokens a step of the last phase, peak rate: BERT A.2, RoBERTa table 9, ALBERT 4.1.
@pytest.mark.parametrize(
    ("name", "steps", "length", "tokens", "rate", "beta2", "layers", "width"),
    [
        ("bert-base", 1_000_000, 512, 256 * 512, 1e-4, 0.999, 12, 768),
        ("bert-large", 1_000_000, 512, 256 * 512, 1e-4, 0.999, 24, 1024),
        ("macbert-base", 1_000_000, 512, 512 * 512, 1e-4, 0.999, 12, 768),
        ("ernie-base", 1_000_000, 128, 64 * 128, 1e-4, 0.999, 12, 768),
        ("roberta-base", 500_000, 512, 8192 * 512, 6e-4, 0.98, 12, 768),
        ("roberta-large", 500_000, 512, 8192 * 512, 4e-4, 0.98, 24, 1024),
        ("albert-base", 125_000, 512, 4096 * 512, 1.76e-3, 0.999, 12, 768),
        ("albert-large", 125_000, 512, 4096 * 512, 1.76e-3, 0.999, 24, 1024),
        ("albert-xlarge", 125_000, 512, 4096 * 512, 1.76e-3, 0.999, 24, 2048),
        ("albert-xxlarge", 125_000, 512, 4096 * 512, 1.76e-3, 0.999, 12, 4096),
        ("xlmr-base", 1_500_000, 512, 8192 * 512, 6e-4, 0.98, 12, 768),
        ("xlm-base", 250_000, 256, 4096 * 256, 1e-4, 0.98, 12, 1024),
        ("xlnet-base", 500_000, 512, 8192 * 512, 4e-4, 0.999, 12, 768),
        ("modernbert-base", 435_445, 8192, 576 * 8192, 8e-4, 0.98, 22, 768),
        ("modernbert-large", 397_857, 8192, 624 * 8192, 5e-4, 0.98, 28, 1024),
        ("ettin-17m", 444_311, 7999, 576 * 7999, 3e-3, 0.98, 7, 256),
        ("ettin-32m", 440_526, 7999, 576 * 7999, 3e-3, 0.98, 10, 384),
        ("ettin-68m", 436_742, 7999, 576 * 7999, 3e-3, 0.98, 19, 512),
        ("ettin-150m", 432_958, 7999, 576 * 7999, 8e-4, 0.98, 22, 768),
        ("electra-small", 1_000_000, 128, 128 * 128, 5e-4, 0.999, 12, 256),
        ("electra-base", 766_000, 512, 256 * 512, 2e-4, 0.999, 12, 768),
        ("deberta-v3-xsmall", 1_000_000, 512, 64 * 512, 3e-4, 0.999, 12, 384),
        ("deberta-v3-small", 1_000_000, 512, 256 * 512, 1e-4, 0.999, 6, 768),
        ("deberta-v3-base", 1_000_000, 512, 256 * 512, 1e-4, 0.999, 12, 768),
        ("deberta-v3-large", 1_000_000, 512, 256 * 512, 1e-4, 0.999, 24, 1024),
    ],
)
def test_the_papers_settings(name, steps, length, tokens, rate, beta2, layers, width):
    recipe = load_recipe(name)
    last = recipe.phases[-1]
    assert (recipe.steps, last.length, last.length * last.examples) == (steps, length, tokens)
    assert (recipe.training["learning_rate"], recipe.training["adam_beta2"]) == (rate, beta2)
    config = recipe.model_config(make_tokenizer())
    assert (config.num_hidden_layers, config.hidden_size) == (layers, width)
    assert config.vocab_size == 64  # 60 entries, in a table of a multiple of 64 rows
    if has_field(type(config), "max_position_embeddings"):
        rows = 513 if name == "ernie-base" else config_class_of(recipe.family).position_rows(length, 0)
        assert config.max_position_embeddings == rows


def test_macbert_and_ernie_are_what_bert_can_say():
    """Parameters of the released models; sentence order in BERT's pair head; three levels of units."""
    for name, rows, parameters in (("macbert-base", 21128, 102_882_442), ("ernie-base", 18000, 100_477_778)):
        recipe = load_recipe(name)
        config = recipe.model_config(make_tokenizer())
        config.vocab_size = rows
        with torch.device("meta"):
            model = get_objective(recipe.objective).new_model(config)
        assert sum(one.numel() for one in model.parameters()) == parameters
        assert config.model_type == "bert"
    assert (config.hidden_act, config.layer_norm_eps) == ("relu", 1e-5)
    sop = load_recipe("macbert-base")
    assert sop.objective == "sop"
    masked = [{**recipe.masking, **changed}["unit"] for changed in recipe.phase_masking]
    assert masked == ["token", "phrase", "entity"]


def test_every_shipped_recipe_is_read_and_divided():
    for name in recipe_names():
        recipe = load_recipe(name)
        recipe.model_config(make_tokenizer())
        for processes in (1, 2, 8):
            assert min(phase.examples for phase in recipe.phases) >= divide(recipe, processes).micro_batches


def test_phases_keep_their_shares_in_a_shorter_run():
    recipe = load_recipe("roberta-day").of_steps(300)
    assert [phase.steps for phase in recipe.phases] == [80, 200, 20]
    assert recipe.warmup_steps == 60  # a share of 6 % would be 18
    assert recipe.training["lr_scheduler_kwargs"] == {"num_decay_steps": 30}
    with pytest.raises(ValueError, match="max_steps=2 leaves a phase of roberta-day without a step"):
        load_recipe("roberta-day").of_steps(2)


@pytest.mark.parametrize(
    ("name", "steps", "warmup"),
    [
        ("xlnet-minutes", 60, 12),  # a fifth; its share would be 4, at the rate of the whole run
        ("xlnet-minutes", 1000, 100),  # 2 / (1 - 0.98)
        ("xlnet-minutes", 3000, 180),  # its share is longer
        ("bert-base", 10_000, 2000),  # 2 / (1 - 0.999), and a fifth
        ("bert-base", 500_000, 5000),
        ("albert-minutes", 4, 1),
    ],
)
def test_warm_up_of_a_shorter_run_has_a_floor(name, steps, warmup):
    assert load_recipe(name).of_steps(steps).warmup_steps == warmup


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"familly": "bert"}, "'familly' is not a field of a recipe"),
        ({"family": "bart"}, "family 'bart': it must be one of bert, roberta, albert"),
        ({"family": "roberta"}, "roberta has no head for sentence pairs"),
        ({"objective": "prefix-lm"}, "objective 'prefix-lm': it must be one of .*mlm"),
        ({"phases": []}, "phases: a run needs at least one"),
        ({"phases": [{"steps": 0, "length": 24, "examples": 4}]}, "steps=0 must be a whole number, at least 1"),
        ({"phases": [{"steps": 5, "length": 24}]}, "must have the fields steps, length, examples"),
        ({"optimizer": "lam"}, "optimizer 'lam': it must be one of adamw, lamb, .*adafactor"),
        ({"sources": {"alpha": 2}}, r"sources: alpha=2 must be in \(0, 1\]"),
        ({"sources": {}}, r"sources: {} must be {alpha: 0.3} or {weights: {law: 2, web: 1}}"),
        (
            {"phases": [{"steps": 5, "length": 24, "examples": 4, "sources": {"alpha": 0}}]},
            r"phases: sources: alpha=0 must be in \(0, 1\]",
        ),
        ({"mask_rate": [0.3]}, "mask_rate: .* must be two numbers"),
        ({"training": {"max_steps": 5}}, "training: max_steps cannot be set here: use phases"),
        ({"training": {"learning_rte": 5}}, "TrainingArguments has no field 'learning_rte'"),
        ({"masking": {"preset": "BURT_MASKING"}}, "masking: preset 'BURT_MASKING' is not in"),
        ({"model": {"size": "tiny"}}, "model: size 'tiny' is not a named size of bert"),
        ({"model": {"hidden_sise": 12}}, "model: HfeBertConfig has no field 'hidden_sise'"),
        ({"model": {"hidden_size": 12, "num_attention_heads": 5}}, "model: hidden_size=12 is not a multiple"),
        ({"tokenizer": {"vocab_size": "many"}}, "tokenizer: vocab_size='many' must be of type int"),
        (
            {"tokenizer": {"vocab_size": 50, "character_coverage": 1.5}},
            r"tokenizer: character_coverage=1.5 must be in",
        ),
        ({"objective": "mlm", "examples": {"put_back": True}}, "'put_back': its options are .*cross_documents"),
        ({"examples": {"original_code": "on"}}, "examples: original_code='on' must be true or false"),
        ({"masking": {"mask_prob": 0.2}}, "masking: nsp has no option 'mask_prob': it is mask_probability here"),
        ({"masking": {"word_starts": "WordStarts"}}, "masking: word_starts='WordStarts' is set by presets only"),
        (
            {"masking": {"mask_probability": 0.2}, "mask_rate": [0.3, 0.15]},
            "mask_probability does not go with mask_rate",
        ),
        ({"phases": [PHASE, {**PHASE, "masking": {"unit": "words"}}]}, "phases: phase 2: masking: unit='words'"),
        (
            {"masking": {"unit": "word"}, "phases": [{**PHASE, "masking": {"units": {"word": 1.0}}}]},
            "phase 1: masking: unit='word' and units=.*: leave one of them out",
        ),
        ({"phases": [{**PHASE, "learning_rate": 0}]}, "phases: learning_rate=0 must be a number above 0"),
        ({"phases": [{**PHASE, "model": 5}]}, "phases: model=5 must be fields"),
        (
            {"phases": [{**PHASE, "model": {"hidden_size": 5}}]},
            "phases: phase 1: model hidden_size cannot change in a run of bert: none can",
        ),
        ({"training": {"learning_rate": "fast"}}, "training: learning_rate='fast' must be a number"),
        ({"training": {"bf16": "on"}}, "training: bf16='on' must be true or false"),
        ({"model": []}, r"model: \[\] is a list, and must be a dict"),
        ({"layer_decay": "high"}, "layer_decay: 'high' is a str, and must be a float"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changed, said):
    with pytest.raises(ValueError, match=said):
        recipe_of("mine", {**MINIMAL, **changed})


@pytest.mark.parametrize(("field", "rows", "least"), [("vocab_size", 59, 60), ("max_position_embeddings", 23, 24)])
def test_tables_with_too_few_rows(field, rows, least):
    recipe = recipe_of("mine", {**MINIMAL, "model": {**MINIMAL["model"], field: rows}})
    with pytest.raises(ValueError, match=f"model: {field}={rows} must be at least {least} here"):
        recipe.model_config(make_tokenizer())


def test_numbers_as_people_write_them(tmp_path):
    """YAML 1.1 takes `1e-4` for text; and the record of a file tells it from the shipped recipe of its name."""
    file = tmp_path / "bert-day.yaml"
    written = yaml.safe_dump({**MINIMAL, "training": {"adam_epsilon": 1e-6}}).replace("1.0e-06", "1e-6")
    file.write_text(
        f"{written}  learning_rate: 5E-4\nmask_rate: [3e-1, .15]\n".replace("\n", "\r\n"), encoding="utf-8"
    )
    recipe = load_recipe(file)
    assert recipe.training == {"adam_epsilon": 1e-6, "learning_rate": 5e-4}
    assert recipe.mask_rate == MaskRate(0.3, 0.15)
    assert (recipe.name, load_recipe("bert-day").name) == ("bert-day.yaml", "bert-day")


def test_where_lamb_would_be_adam_or_fail(tmp_path, monkeypatch):
    arguments = TrainingArguments(str(tmp_path), use_cpu=True)
    with pytest.raises(ValueError, match="optimizer lamb with weight_decay=0"):
        optimizer_class("lamb", arguments)
    arguments.weight_decay = 0.01
    assert optimizer_class("lamb", arguments)[0] is albert_lamb()
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match="optimizer lamb does not run with fsdp"):
        optimizer_class("lamb", arguments)


def test_an_optimizer_is_lamb_or_any_that_trainer_names(tmp_path):
    for name, field in (("adamw", "adamw_torch_fused"), ("lamb", "adamw_torch_fused"), ("adafactor", "adafactor")):
        recipe = recipe_of("mine", {**MINIMAL, "optimizer": name})
        given = {"learning_rate": 1e-3, "use_cpu": True, "weight_decay": 0.01}
        arguments = training_arguments(recipe, divide(recipe, 1), tmp_path, given)
        assert arguments.optim == field
        assert (optimizer_class(name, arguments) is None) == (name != "lamb")
    recipe = recipe_of("mine", {**MINIMAL, "optimizer": "lion_8bit"})
    with pytest.raises(ValueError, match="optim=lion_8bit: .*bitsandbytes"):
        training_arguments(recipe, divide(recipe, 1), tmp_path, given)


WSD = {"lr_scheduler_type": "warmup_stable_decay"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "learning_rate is missing"),
        ({"learning_rate": 10.0}, "learning_rate=10.0 must be above 0 and at most 1"),
        ({"adam_beta2": 1.0}, "adam_beta2=1.0 must be at least 0 and below 1"),
        ({"weight_decay": 2000.0}, "learning rate .* x weight decay 2000.0: must be below 1"),
        ({"fp16": True, "use_cpu": True}, "fp16: float16 mixed precision needs an accelerator: use bf16"),
        (
            {**WSD, "lr_scheduler_kwargs": {"num_decay_steps": 5}, "warmup_steps": 2},
            "warmup_steps=2 and num_decay_steps=5 do not fit into a run of 6 steps",
        ),
        (WSD, "lr_scheduler_type=warmup_stable_decay .*num_decay_steps"),
        ({"lr_scheduler_kwargs": {"min_rate": 3}}, "lr_scheduler_type=linear .*min_rate"),
        ({"save_strategy": "epoch"}, "save_strategy=epoch: .* use steps"),
        ({"report_to": ["wandb"]}, "report_to=.*wandb"),
        (
            {"load_best_model_at_end": True, "save_steps": 3, "eval_steps": 2},
            "^TrainingArguments: .*multiple of the evaluation steps",
        ),
    ],
)
def test_what_would_be_told_late_or_never_is_refused(given, said, tmp_path):
    recipe = recipe_of("mine", MINIMAL)
    given = given and {"learning_rate": 1e-3, **given}
    with pytest.raises(ValueError, match=said):
        training_arguments(recipe, divide(recipe, 1), tmp_path, {"use_cpu": True, **given})


@pytest.mark.parametrize(
    ("name", "steps", "saved", "logged"),
    [
        ("bert-minutes", 10, 50, 1),  # short runs are not evaluated at every step
        ("bert-minutes", 4000, 400, 40),
        ("bert-base", 1_000_000, 7629, 500),
        ("roberta-large", 500_000, 238, 500),
    ],
)
def test_checkpoints_are_a_tenth_of_the_run_apart_and_at_most_a_billion_tokens(name, steps, saved, logged):
    arguments = Run(load_recipe(name).of_steps(steps), "nowhere", {"use_cpu": True}).arguments
    assert arguments.save_steps == arguments.eval_steps == saved and arguments.logging_steps == logged


@pytest.mark.parametrize(
    ("is_available", "options", "workers"), [(False, {}, 0), (True, {}, 2), (True, {"dataloader_num_workers": 5}, 5)]
)
def test_two_workers_make_the_batches_of_a_gpu(is_available, options, workers, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_available)
    arguments = Run(load_recipe("bert-minutes"), "nowhere", {"use_cpu": True, **options}).arguments
    assert arguments.dataloader_num_workers == workers


def test_a_file_of_ones_own(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("family: bert\nobjective: [", encoding="utf-8")
    with pytest.raises(ValueError, match="mine.yaml is not YAML"):
        load_recipe(file)
    with pytest.raises(ValueError, match="recipe 'nothing': no such file, nor one of the shipped .*bert-base"):
        load_recipe("nothing")


def test_micro_batches_are_as_few_as_go():
    recipe = recipe_of("mine", {**MINIMAL, "phases": [{"steps": 3, "length": 100, "examples": 12}]})
    assert divide(recipe, processes=2, examples=2).accumulation == 3
    assert divide(recipe, processes=2, accumulation=3).examples == 2
    assert divide(recipe, processes=3).micro_batches == 3
    with pytest.raises(ValueError, match="phase 1 has 12 examples per step, .* are 13"):
        divide(recipe, processes=13)
    with pytest.raises(ValueError, match="one of them follows from the other"):
        divide(recipe, 1, examples=2, accumulation=2)
    assert Phase(1, 5, 1).length == 5


def test_a_phase_of_few_examples_limits_how_small_micro_batches_get():
    phases = [{"steps": 3, "length": 32, "examples": 2}, {"steps": 3, "length": 512, "examples": 256}]
    run = Run(recipe_of("mine", {**MINIMAL, "phases": phases}), "nowhere", {"learning_rate": 0.001})
    assert (run.micro_batching.accumulation, run.micro_batching.examples) == (2, 128)
    with pytest.raises(ValueError, match="128 examples of 512 tokens per micro-batch, and half as many .*: phase 1"):
        run.with_half_micro_batches(MemoryError(), True)


def test_lamb_is_that_of_the_original_code():
    """Two steps beside the rule of google-research/albert's lamb_optimizer.py, in float64."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(30, 20, generator=generator, dtype=torch.float64)  # norm 25, over the library's 10
    bias = torch.randn(20, generator=generator, dtype=torch.float64)
    gradients = [[torch.randn_like(p) for p in (weight, bias)] for _ in range(2)]
    parameters = [torch.nn.Parameter(weight.clone()), torch.nn.Parameter(bias.clone())]
    groups = [{"params": parameters[:1], "weight_decay": 0.01}, {"params": parameters[1:], "weight_decay": 0.0}]
    optimizer = albert_lamb()(groups, lr=0.05, betas=(0.9, 0.999), eps=1e-6)
    expected = [weight.numpy().copy(), bias.numpy().copy()]
    moments = [[np.zeros_like(p), np.zeros_like(p)] for p in expected]
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        for i, gradient in enumerate(g.numpy() for g in step):
            first, second = moments[i]
            first[:] = 0.9 * first + 0.1 * gradient
            second[:] = 0.999 * second + 0.001 * gradient**2
            update = first / (np.sqrt(second) + 1e-6)
            ratio = 1.0
            if i == 0:
                update = update + 0.01 * expected[i]
                ratio = np.linalg.norm(expected[i]) / np.linalg.norm(update)
            expected[i] = expected[i] - 0.05 * ratio * update
    for parameter, wanted in zip(parameters, expected, strict=True):
        # The library adds epsilon to the norm in the ratio's denominator, which is about 25 here.
        np.testing.assert_allclose(parameter.detach().numpy(), wanted, rtol=1e-6)


def test_fields_that_are_not_set_are_not_recorded():
    facts = recipe_of("mine", MINIMAL).facts()
    assert "sources" not in facts and "sampling_alpha" not in facts["tokenizer"]
    assert all(set(phase) == {"steps", "length", "examples"} for phase in facts["phases"])
    assert recipe_of("mine", {**MINIMAL, "sources": {"alpha": 0.3}}).facts() == {**facts, "sources": {"alpha": 0.3}}
