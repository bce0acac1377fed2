"""What `HealthCallback` logs, on runs whose tokens are counted by hand and whose clock is the test's."""

from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback

from hf_encoders import HealthCallback, HfeBertConfig, HfeBertForMaskedLM, HfeBertForPreTraining, PreTrainingTrainer
from hf_encoders.publishing.hardware import forward_flops
from hf_encoders.training import health as health
from hf_encoders.training.health import BatchCounts, LabelFrequencies, count_batch
from tests.corpus.corpora import TINY_MODEL
from tests.training.three_steps import collate, collate_packed, make_examples
from tests.training.tiny import training_arguments


SIZES = {**TINY_MODEL, "vocab_size": 61, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
EXAMPLES = make_examples(None)  # 96 of 5 to 24 tokens; none of them special
PAIRED = make_examples("next_sentence_label")
RATE = 1e9  # FLOP/s, where the test says what the machine does


class Clock:
    """Two seconds a forward pass, half a second a batch."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def collate(self, examples):
        self.now += 0.5
        return collate(examples)

    def attach(self, model):
        model.register_forward_pre_hook(lambda *_: setattr(self, "now", self.now + 2.0))
        return model


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(health, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    monkeypatch.setattr(health, "gemm_rate", lambda *_: RATE)
    return clock


def make(folder, model=None, trainer_class=PreTrainingTrainer, examples=EXAMPLES, data_collator=collate, **settings):
    torch.manual_seed(0)
    model = model or HfeBertForMaskedLM(HfeBertConfig(**SIZES))
    options = {name: settings.pop(name) for name in ("health", "callbacks", "eval_dataset") if name in settings}
    defaults = {
        "per_device_train_batch_size": 8, "per_device_eval_batch_size": 5, "max_steps": 12, "logging_steps": 4,
        "save_strategy": "no", "train_sampling_strategy": "sequential", "learning_rate": 0.01,
    }  # fmt: skip
    return trainer_class(
        model=model, args=training_arguments(folder, **{**defaults, **settings}), train_dataset=examples,
        data_collator=data_collator, **options,
    )  # fmt: skip


def training_logs(trainer):
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def lengths(examples):
    return [len(example["input_ids"]) for example in examples]


def predicted(examples):
    return sum(int((example["labels"] != -100).sum()) for example in examples)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_figures_of_each_log_are_those_of_its_examples(clock, tmp_path, accumulation):
    """Padding, accumulation, and an evaluation between the logs, which does not count."""
    model = clock.attach(HfeBertForMaskedLM(HfeBertConfig(**SIZES)))
    trainer = make(
        tmp_path, model, data_collator=clock.collate, gradient_accumulation_steps=accumulation,
        per_device_train_batch_size=8 // accumulation, eval_strategy="steps", eval_steps=8, eval_dataset=EXAMPLES[:9],
    )  # fmt: skip
    trainer.train()
    assert len([entry for entry in trainer.state.log_history if "eval_loss" in entry]) == 2
    size = 8 // accumulation
    for number, entry in enumerate(training_logs(trainer)):
        window = EXAMPLES[32 * number : 32 * (number + 1)]
        cells = sum(size * max(lengths(window[i : i + size])) for i in range(0, 32, size))
        assert entry["tokens_seen"] == sum(lengths(EXAMPLES[: 32 * (number + 1)]))
        assert entry["padding_share"] == pytest.approx(1 - sum(lengths(window)) / cells)
        assert entry["mask_rate"] == pytest.approx(predicted(window) / sum(lengths(window)))
        # The wait for the first step does not count; accelerate reads a batch ahead, so the last one comes for free.
        waits = accumulation * (4 - (number == 0)) - (number == 2)
        seconds = accumulation * 4 * 2.0 + waits * 0.5
        assert entry["tokens_per_second"] == pytest.approx(sum(lengths(window)) / seconds)
        flops = 3 * forward_flops(model.config, lengths(window), predicted(window))
        assert entry["mfu"] == pytest.approx(flops / seconds / RATE)
        if number < 2:
            assert entry["data_wait_share"] == pytest.approx(waits * 0.5 / seconds)
    assert entry["training_seconds"] == pytest.approx(accumulation * (12 * 2.0 + 11 * 0.5) - 0.5)


def test_packed_rows_and_pairs_are_counted_as_padded_ones():
    special = torch.tensor([5, 6, 7])
    terms = {"mlm": "labels", "pair": "next_sentence_label"}
    batches = collate(PAIRED[:7]), collate_packed(PAIRED[:7])
    padded, packed = (BatchCounts.of(count_batch(batch, special, terms)) for batch in batches)
    assert padded.positions == 7 * max(lengths(PAIRED[:7]))
    assert packed.positions == packed.tokens == sum(lengths(PAIRED[:7]))
    padded.positions = packed.positions
    assert padded == packed
    labels = [example["next_sentence_label"] for example in PAIRED[:7]]
    assert padded.labels == [[0, 0, 0], [7, sum(label != -100 for label in labels), labels.count(1)]]
    assert 0 < labels.count(1) < padded.labelled < 7
    assert padded.maskable < padded.tokens and padded.predicted == predicted(PAIRED[:7])


def test_mask_rate_leaves_special_tokens_out_but_not_masked_ones(tokenizer, tmp_path):
    ids = [tokenizer.cls_token_id, tokenizer.mask_token_id, *range(11, 18), tokenizer.sep_token_id]
    labels = [-100, 10, 11, *[-100] * 7]
    trainer = make(tmp_path, examples=[{"input_ids": ids, "labels": labels}] * 16, data_collator=None, max_steps=2)
    trainer.processing_class = trainer.callback_handler.processing_class = tokenizer
    trainer.data_collator = lambda rows: {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
    trainer.args.logging_steps = 2
    trainer.train()
    assert trainer.state.log_history[0]["mask_rate"] == 2 / 8


class Reporter(TrainerCallback):
    """Stands where an integration of `report_to` does."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(dict(logs))


@pytest.mark.parametrize("model_class", [HfeBertForMaskedLM, BertForMaskedLM])
def test_the_stock_trainer_has_the_figures_too(tmp_path, model_class):
    config_class = BertConfig if model_class is BertForMaskedLM else HfeBertConfig
    reporter = Reporter()
    model = model_class(config_class(**SIZES))
    trainer = make(tmp_path, model, Trainer, callbacks=[reporter], max_steps=4)
    HealthCallback().attach(trainer)
    trainer.train()
    for entry in (trainer.state.log_history[0], reporter.logs[0]):
        assert entry["tokens_seen"] == sum(lengths(EXAMPLES[:32]))
        assert 0 < entry["mfu"] < 1 and entry["tokens_per_second"] > 0 and 0 < entry["padding_share"] < 1
    assert not model._forward_hooks


def test_the_trainer_of_pretraining_has_one_unless_told_otherwise(tmp_path):
    mine = HealthCallback(unigram_cross_entropy=4.0)

    def found(**options):
        callbacks = make(tmp_path, **options).callback_handler.callbacks
        assert all(isinstance(callbacks[1], HealthCallback) for one in callbacks if isinstance(one, HealthCallback))
        return [callback for callback in callbacks if isinstance(callback, HealthCallback)]

    assert len(found()) == 1 and found(health=False) == []
    assert found(health=mine) == found(callbacks=[mine]) == found(callbacks=[Reporter(), mine]) == [mine]


def test_a_cross_entropy_must_be_positive():
    with pytest.raises(ValueError, match="unigram_cross_entropy=0"):
        HealthCallback(unigram_cross_entropy=0)


@pytest.mark.slow
def test_a_restarted_run_counts_on(clock, tmp_path):
    """Saved between two logs, and resumed by a trainer that knows nothing else of the run."""
    runs = []
    for checkpoint in (None, str(tmp_path / "checkpoint-6")):
        model = clock.attach(HfeBertForMaskedLM(HfeBertConfig(**SIZES)))
        trainer = make(tmp_path, model, save_strategy="steps", save_steps=6)
        trainer.train(resume_from_checkpoint=checkpoint)
        runs.append(training_logs(trainer))
    assert [entry["tokens_seen"] for entry in runs[0]] == [entry["tokens_seen"] for entry in runs[1]]
    assert runs[1][-1]["tokens_seen"] == sum(lengths(EXAMPLES))
    assert runs[1][-1]["training_seconds"] == pytest.approx(runs[0][-1]["training_seconds"])
    trainer.train()
    assert training_logs(trainer)[0]["tokens_seen"] == sum(lengths(EXAMPLES[:32]))


def test_steps_after_the_last_log_are_part_of_the_run(clock, tmp_path):
    model = clock.attach(HfeBertForMaskedLM(HfeBertConfig(**SIZES)))
    trainer = make(tmp_path, model, max_steps=6)
    trainer.train()
    assert training_logs(trainer)[-1]["tokens_seen"] == sum(lengths(EXAMPLES[:32]))
    assert trainer.health.tokens_seen == sum(lengths(EXAMPLES[:48]))
    assert trainer.health.training_seconds == pytest.approx(6 * 2.0)


def test_counts_are_added_up_on_the_device_that_processes_share(monkeypatch):
    """NCCL refuses tensors of the CPU; a log right after a save of the same step has nothing new to add."""
    devices = []
    monkeypatch.setattr(
        health, "reduce", lambda values, reduction: devices.append(values.device.type) or torch.ones(7)
    )
    callback = HealthCallback()
    callback._processes = 2
    callback.on_step_end(SimpleNamespace(device="meta"), None, SimpleNamespace(should_save=True))
    assert devices == ["meta"]


@pytest.mark.slow
def test_watching_changes_nothing_in_the_run(tmp_path):
    """With dropout, whose masks come from the generator that measuring the machine's rate must leave alone."""
    health.gemm_rate.cache_clear()
    found = []
    for watched in (True, False):
        trainer = make(tmp_path, health=watched, logging_steps=1, max_steps=3)
        trainer.train()
        found.append(trainer.model.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_the_estimated_cross_entropy_is_that_of_the_corpus():
    generator = torch.Generator().manual_seed(0)
    shares = torch.tensor([0.5, 0.25, 0.125, 0.125])
    frequencies = LabelFrequencies(vocab_size=4)
    assert frequencies.cross_entropy() is None
    for _ in range(3):
        labels = torch.multinomial(shares, 4000, replacement=True, generator=generator).view(40, 100)
        frequencies.add(torch.where(torch.rand(40, 100, generator=generator) < 0.5, labels, -100))
    assert frequencies.cross_entropy() == pytest.approx(1.75 * torch.log(torch.tensor(2.0)).item(), rel=0.01)


def test_pairs_are_part_of_the_operations(clock, tmp_path):
    model = clock.attach(HfeBertForPreTraining(HfeBertConfig(**SIZES)))
    trainer = make(tmp_path, model, examples=PAIRED, max_steps=4)
    trainer.train()
    pairs = sum(example["next_sentence_label"] != -100 for example in PAIRED[:32])
    flops = 3 * forward_flops(model.config, lengths(PAIRED[:32]), predicted(PAIRED[:32]), pairs)
    assert trainer.state.log_history[0]["mfu"] == pytest.approx(flops / 8.0 / RATE)
    of_label_1 = sum(example["next_sentence_label"] == 1 for example in PAIRED[:32])
    assert trainer.state.log_history[0]["pair_label_1_share"] == pytest.approx(of_label_1 / pairs) != 0.5
