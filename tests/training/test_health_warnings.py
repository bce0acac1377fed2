"""Warnings: each threshold on made-up logs, and each defect in a run that has it."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from hf_encoders import HealthCallback, HfeBertConfig, HfeBertForMaskedLM, HfeBertForPreTraining, NonFiniteLossError
from hf_encoders.training import health as health
from hf_encoders.training.health_checks import FiniteLossWatch, WarningContext, new_warnings
from tests import processes
from tests.training import spoilt_rank
from tests.training.test_health import SIZES, Clock, collate, make, training_logs
from tests.training.three_steps import collate_packed


CONTEXT = WarningContext(warmup_steps=100, max_steps=1000, unigram_cross_entropy=7.0, num_workers=2)


def log_of(number, first_step=110, **values):
    """Entries every ten steps; a list of values is one an entry."""
    return [
        {
            "step": first_step + 10 * i,
            "loss": 1.0,
            **{k: v[i] if isinstance(v, list) else v for k, v in values.items()},
        }
        for i in range(number)
    ]


def warned_at(log, context=CONTEXT):
    """Steps at which each warning is first given, as the callback asks: after every entry."""
    found = {}
    for end in range(1, len(log) + 1):
        for name in new_warnings(log[:end], context):
            found.setdefault(name, log[end - 1]["step"])
    return found


@pytest.mark.parametrize(
    ("losses", "warned"),
    [
        ([7.0] * 12, {"unigram_plateau": 200}),  # ten logs after warm-up
        ([6.80] * 12, {"unigram_plateau": 200}),  # 2.9 % below
        ([6.78] * 12, {}),  # 3.1 % below
        ([7.20] * 12, {"unigram_plateau": 200}),  # 2.9 % above
        ([7.22] * 12, {"above_unigram": 200}),  # 3.1 % above
        ([10.3] * 12, {"above_unigram": 200}),  # has learned nothing
        ([10.3] * 12 + [9.9, 9.4, 8.8, 8.2, 7.8, 7.4] + [7.0] * 10, {"above_unigram": 200, "unigram_plateau": 380}),
        ([9.0 - 0.2 * i for i in range(20)], {}),  # passes through
        ([7.2 - 0.005 * i for i in range(12)], {"unigram_plateau": 200}),
        ([7.0] * 5 + [6.7] * 10, {}),
        ([7.0 + 0.3 * i for i in range(11)], {"rising_loss": 200}),
        ([7.0 + 0.03 * i for i in range(30)], {"unigram_plateau": 200, "rising_loss": 270}),  # slowly
        ([4.0] * 12 + [7.5] * 10, {"rising_loss": 260}),
        ([4.0] * 12 + [6.0] * 10, {}),  # went up, and knows something still
        ([7.0] * 5 + [10.3 - 0.3 * i for i in range(12)], {"rising_loss": 200}),  # then falls
        ([7.0] + [10.3 - 0.3 * i for i in range(12)], {}),  # fell again before there were ten logs
    ],
)
def test_a_loss_that_does_not_fall_below_the_unigram_cross_entropy(losses, warned):
    assert warned_at(log_of(len(losses), mlm_loss=losses)) == warned


def test_a_loss_that_was_lower_in_warmup_has_risen():
    assert warned_at(log_of(20, 10, mlm_loss=[7.0] * 8 + [10.3] * 12)) == {"rising_loss": 200}


def test_batches_that_differ_are_not_a_run_that_diverges():
    """Logs of single steps, of a run that falls from 9.2 to 7.0; a standard deviation of 0.2 between its batches."""
    random = np.random.default_rng(0)
    for _ in range(100):
        trend = 7.0 + 2.2 * np.exp(-np.arange(60) / 6)
        log = log_of(60, 10, mlm_loss=(trend + random.normal(0, 0.2, 60)).tolist())
        context = WarningContext(warmup_steps=40, max_steps=600, unigram_cross_entropy=6.85)
        assert "rising_loss" not in warned_at(log, context)
        risen = log_of(60, 10, mlm_loss=(trend + random.normal(0, 0.2, 60) + np.linspace(0, 4, 60)).tolist())
        assert "rising_loss" in warned_at(risen, context)


@pytest.mark.parametrize("is_trained", [False, True])
def test_the_advice_for_a_trained_encoder_is_not_that_for_new_weights(is_trained):
    log = log_of(20, mlm_loss=7.0)
    context = WarningContext(100, 1000, 7.0, is_trained=is_trained)
    message = new_warnings(log, context)["unigram_plateau"]
    assert ("initializer_range" in message) is not is_trained
    assert ("A new head needs thousands of steps" in message) is is_trained


@pytest.mark.parametrize("steps", [12, 30])
def test_a_short_run_that_has_hardly_begun_is_told_so(steps):
    """Every step logged, ln(30,000) all the way."""
    log = [{"step": step, "loss": 10.31, "mlm_loss": 10.31} for step in range(1, steps + 1)]
    context = WarningContext(warmup_steps=1, max_steps=steps, unigram_cross_entropy=7.0)
    assert list(warned_at(log, context)) == ["above_unigram"]
    message = new_warnings(log, context)["above_unigram"]
    assert "10.310" in message and f"after {steps} steps" in message and "More steps" in message
    assert "plateau" not in message and f"warm-up (1 of {steps} steps)" in message


def test_the_plateau_needs_warmup_to_be_over_a_share_of_the_run_and_something_to_compare_with():
    log = log_of(12, mlm_loss=7.0)
    assert warned_at(log_of(20, 10, mlm_loss=7.0)) == {"unigram_plateau": 200}
    assert warned_at(log, WarningContext(100, 10_000, 7.0)) == {}
    assert warned_at(log, WarningContext(100, 1000, None)) == {}


@pytest.mark.parametrize(
    ("accuracies", "step"),
    [
        ([0.5] * 25, 300),
        ([0.48, 0.56] * 12, 300),  # noise around 0.52
        ([0.5, 0.58] * 12, None),  # around 0.54
        ([0.5] * 14 + [0.6] * 10, None),
    ],
)
def test_pairs_that_are_guessed(accuracies, step):
    found = warned_at(log_of(len(accuracies), pair_accuracy=accuracies))
    assert found == ({"pairs_at_chance": step} if step else {})
    even = log_of(len(accuracies), pair_accuracy=accuracies, pair_label_1_share=0.5)
    assert warned_at(even) == found


@pytest.mark.parametrize(
    ("share", "accuracies", "step"),
    [
        (0.62, [0.62] * 25, 300),  # says 1 of every pair
        (0.62, [0.64] * 25, 300),
        (0.62, [0.66] * 25, None),
        (0.38, [0.62] * 25, 300),  # says 0
        (0.38, [0.66] * 25, None),
        ([0.54] * 15 + [0.69] * 10, [0.54] * 15 + [0.69] * 10, 300),  # a phase of longer examples
        ([0.44, 0.56] * 13, [0.54] * 26, None),  # few pairs a log: the more frequent label changes, neither is
    ],
)
def test_pairs_of_labels_that_are_not_as_frequent(share, accuracies, step):
    found = warned_at(log_of(len(accuracies), pair_accuracy=accuracies, pair_label_1_share=share))
    assert found == ({"pairs_at_chance": step} if step else {})


@pytest.mark.parametrize(
    ("shares", "step"),
    [([0.2, 0.2, 0.11, 0.11], 40), ([0.2, 0.2, 0.09, 0.2, 0.2], None), ([0.9, 0.05, 0.05, 0.05], None)],
)
def test_steps_that_wait(shares, step):
    """The log of step 10 is of workers that have just started."""
    found = warned_at(log_of(len(shares), 10, data_wait_share=shares), WarningContext(100, 1000))
    assert found == ({"data_starvation": step} if step else {})


def test_each_is_given_once_with_its_reason_and_remedy():
    log = log_of(25, mlm_loss=7.1, pair_accuracy=0.5, data_wait_share=0.3)
    found = new_warnings(log, CONTEXT)
    assert "7.100" in found["unigram_plateau"] and "learning_rate" in found["unigram_plateau"]
    assert "0.500" in found["pairs_at_chance"] and "more steps" in found["pairs_at_chance"]
    assert "30%" in found["data_starvation"] and "dataloader_num_workers (now 2)" in found["data_starvation"]
    for loss, name, parts in (
        ([10.3] * 25, "above_unigram", ("10.300", "raise learning_rate")),
        ([7.0] * 15 + [9.0] * 10, "rising_loss", ("9.000", "from 7.000", "lower learning_rate")),
    ):
        message = new_warnings(log_of(25, mlm_loss=loss), CONTEXT)[name]
        assert all(part in message for part in parts) and "plateau" not in message
    log[-1]["health_warnings"] = found
    assert new_warnings([*log, log[-2]], CONTEXT) == {}


def random_pairs():
    """Tokens, half of them predicted, and pair labels, all drawn: there is nothing to learn."""
    generator = torch.Generator().manual_seed(0)
    examples = []
    for _ in range(1000):
        ids = torch.randint(5, 61, (16,), generator=generator)
        masked = torch.rand(16, generator=generator) < 0.5
        label = int(torch.randint(2, (), generator=generator))
        examples.append(
            {"input_ids": ids.masked_fill(masked, 4), "labels": ids.masked_fill(~masked, -100),
             "next_sentence_label": label}
        )  # fmt: skip
    return examples


@pytest.mark.slow
@pytest.mark.parametrize("health_callback", [True, HealthCallback(unigram_cross_entropy=math.log(56))])
def test_a_run_that_has_nothing_to_learn_is_told_so(tmp_path, caplog, health_callback):
    """With the cross-entropy given, and estimated from the labels: all 56 tokens are as frequent."""
    model = HfeBertForPreTraining(HfeBertConfig(**SIZES))
    trainer = make(
        tmp_path, model, examples=random_pairs(), max_steps=60, logging_steps=2, warmup_steps=4, learning_rate=1e-3,
        per_device_train_batch_size=16, health=health_callback,
    )  # fmt: skip
    trainer.train()
    given = [(name, entry["step"]) for entry in training_logs(trainer) for name in entry.get("health_warnings", ())]
    wanted = [(name, step) for name, step in given if name != "data_starvation"]
    assert sorted(name for name, _ in wanted) == ["pairs_at_chance", "unigram_plateau"]
    assert min(step for _, step in wanted) >= 24
    texts = [record.message for record in caplog.records if record.name == health.__name__]
    assert len([text for text in texts if "unigram plateau" in text]) == 1
    assert len([text for text in texts if "chance" in text]) == 1


@pytest.mark.slow
def test_a_run_that_waits_for_its_data_is_told_so(tmp_path, monkeypatch):
    class SlowLoader(Clock):
        def collate(self, examples):
            self.now += 1.0
            return super().collate(examples)

    for clock_class, expected in ((SlowLoader, ["data_starvation"]), (Clock, ["data_starvation"]), (None, [])):
        clock = (clock_class or Clock)()
        monkeypatch.setattr(health, "time", SimpleNamespace(perf_counter=clock.perf_counter))
        model = clock.attach(HfeBertForMaskedLM(HfeBertConfig(**SIZES)))
        collator = clock.collate if clock_class else collate
        trainer = make(tmp_path, model, data_collator=collator, max_steps=40, logging_steps=5)
        trainer.train()
        found = [name for entry in training_logs(trainer) for name in entry.get("health_warnings", ())]
        assert found == expected


POISON = 60


def poisoned_examples():
    """The last example of the fifth step of four is to predict two tokens that no other has."""
    generator = torch.Generator().manual_seed(0)
    examples = []
    for number in range(40):
        ids = torch.randint(5, POISON, (6,), generator=generator)
        if number == 19:
            ids[:2] = POISON
        examples.append({"input_ids": ids, "labels": torch.where(torch.arange(6) < 2, ids, -100)})
    return examples


@pytest.mark.slow
@pytest.mark.parametrize(("data_collator", "accumulation"), [(collate, 2), (collate_packed, 1)])
def test_a_loss_that_is_not_finite_stops_the_run_before_the_step(tmp_path, data_collator, accumulation):
    def run(**settings):
        torch.manual_seed(0)
        model = HfeBertForMaskedLM(HfeBertConfig(**SIZES, tie_word_embeddings=False))
        with torch.no_grad():
            model.get_output_embeddings().bias[POISON] = -3e38  # the losses of two such tokens overflow
        return make(
            tmp_path, model, examples=poisoned_examples(), data_collator=data_collator, learning_rate=0.01,
            per_device_train_batch_size=4 // accumulation, gradient_accumulation_steps=accumulation,
            lr_scheduler_type="constant", weight_decay=0.0, **settings,
        )  # fmt: skip

    four_steps = run(max_steps=4)
    four_steps.train()
    trainer = run(max_steps=9)
    with pytest.raises(NonFiniteLossError, match="the loss of step 5 is not finite.*weights are still good") as error:
        trainer.train()
    assert trainer.state.global_step == 4
    for one, other in zip(four_steps.model.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(one, other)

    path = tmp_path / "_not_finite-step-5-process-0.safetensors"
    assert str(path) in str(error.value)
    expected = data_collator(poisoned_examples()[16 + 4 - 4 // accumulation : 20])
    saved = load_file(path)
    assert saved.keys() == expected.keys()
    assert all(torch.equal(saved[name], torch.as_tensor(value)) for name, value in expected.items())
    with safe_open(path, "pt") as file:
        assert file.metadata()["step"] == "5"


def test_a_gradient_that_is_not_finite_stops_the_run_too(tmp_path):
    model = HfeBertForMaskedLM(HfeBertConfig(**SIZES))
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    model.bert.pooler = None
    weight = model.get_input_embeddings().weight
    weight.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor([7]), float("inf")))
    trainer = make(tmp_path, model, gradient_accumulation_steps=2)
    with pytest.raises(NonFiniteLossError, match="a gradient, though not the loss, of step 1"):
        trainer.train()
    assert all(torch.equal(before[name], weight) for name, weight in model.named_parameters() if name in before)
    assert {"0.input_ids", "1.input_ids"} <= load_file(tmp_path / "_not_finite-step-1-process-0.safetensors").keys()


def test_weights_that_are_spoilt_already_are_named(tmp_path):
    model = HfeBertForMaskedLM(HfeBertConfig(**SIZES))
    with torch.no_grad():
        model.get_input_embeddings().weight[9, 3] = float("nan")
    with pytest.raises(NonFiniteLossError, match="1 weight tensors are not finite.*resume from a checkpoint before"):
        make(tmp_path, model).train()


@pytest.mark.processes
def test_all_processes_stop_at_the_loss_of_one(tmp_path):
    """Nothing ends process 0 but itself: it neither waits for process 1 nor saves what that one's batch has spoilt."""
    both = processes.run_all(spoilt_rank.train_with_ddp_and_fsdp, 2, tmp_path / "runs")
    assert [ended.status for ended in both] == [0, 0], both
    assert both[0].told.count("the loss of step 3 is not finite in another process") == 2
    assert both[1].told.count("the loss of step 3 is not finite. The batch is saved in ") == 2
    assert both[1].told.count("The weights are still good.") == 2
    for mode in ("ddp", "fsdp"):
        run = tmp_path / "runs" / mode
        assert {path.name for path in run.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-2"}
        assert [path.name for path in run.glob("_not_finite*")] == ["_not_finite-step-3-process-1.safetensors"]
        saved = load_file(run / "_not_finite-step-3-process-1.safetensors")
        assert (saved["input_ids"] == spoilt_rank.POISON).sum() == 2


def test_a_batch_that_cannot_be_saved_does_not_hide_the_loss(tmp_path):
    (tmp_path / "run").write_text("a file where the folder should be")
    watch = FiniteLossWatch()
    watch.see({"input_ids": torch.tensor([[7]])}, torch.tensor(float("nan")))
    with pytest.raises(NonFiniteLossError, match="the loss of step 3 is not finite. The batch could not be saved in"):
        watch.check(torch.nn.Linear(1, 1), 2, tmp_path / "run")


def test_a_flag_on_its_way_from_the_gpu_is_waited_for(tmp_path):
    """A stand-in for the event: the flag is only right after it."""
    flag = torch.tensor(True)
    watch = FiniteLossWatch()
    watch._seen = [({}, flag, SimpleNamespace(synchronize=lambda: flag.fill_(False)))]
    with pytest.raises(NonFiniteLossError):
        watch.check(torch.nn.Linear(1, 1), 2, tmp_path)


@pytest.mark.parametrize(
    ("shares", "step"),
    [([0.02] * 3, 130), ([0.0, 0.01, 0.5, 0.02, 0.02, 0.0], 160), ([0.05] * 9, None), ([0.01] * 2, None)],
)
def test_hardly_any_pair_has_a_label(shares, step):
    assert warned_at(log_of(len(shares), pair_share=shares)) == ({"few_pairs": step} if step else {})
