"""Sources of a run: baselines, phases of their own, the stock `Trainer`."""

import math

import numpy as np
import pytest
from transformers import Trainer, set_seed

from hf_encoders import (
    DataCollatorForMaskedLM,
    EpochCallback,
    HfeBertConfig,
    HfeBertForMaskedLM,
    MixedExamples,
    SentenceBlocks,
)
from hf_encoders.runs.plan import make_plan
from hf_encoders.runs.recipe import recipe_of
from hf_encoders.runs.run import Run, unigrams
from hf_encoders.runs.sources import Source, Sources
from tests.corpus.corpora import TINY_MODEL, equal_documents, make_dataset
from tests.training.tiny import make_tokenizer, training_arguments


MINIMAL = {
    "family": "bert",
    "objective": "mlm",
    "model": {"num_hidden_layers": 1, "hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 20},
    "tokenizer": {"vocab_size": 100},
    "training": {"learning_rate": 0.001},
    "phases": [
        {"steps": 3, "length": 20, "examples": 4, "sources": {"alpha": 1.0}},
        {"steps": 2, "length": 20, "examples": 4},
        {"steps": 2, "length": 20, "examples": 4, "sources": {"alpha": 1.0}},
    ],
    "sources": {"alpha": 0.3},
}


def sources(**sizes):
    return Sources({name: Source(equal_documents(size)) for name, size in sizes.items()})


def make_run(**changed) -> Run:
    return Run(recipe_of("mine", {**MINIMAL, **changed}), "nowhere", {"use_cpu": True})


def test_phases_of_another_mixture_repeat_no_random_number():
    """Passes are counted from 0 in each mixture; the third phase has further epochs of the first one."""
    examples = make_run().examples(sources(en=30, de=9))
    first, second, third = (part.dataset for part in examples.phases)
    assert first is third and first is not second and first.shares != second.shares
    keys = [example.key for step in range(len(examples)) for example in examples[step]]
    assert len(keys) == 7 * 4 and len(set(keys)) == len(keys)
    assert sum(examples.passes.values()) == pytest.approx(
        sum(mixture.passes[name] * epochs for mixture, epochs in examples.mixtures for name in ("en", "de"))
    )


def test_held_out_documents_that_give_no_example_are_named():
    run = make_run(objective="nsp", sources={"alpha": 1.0}, phases=[{"steps": 1, "length": 12, "examples": 2}])
    message = "2 held-out documents: .* two sentences.* Or hold out more, with --validation-share"
    with pytest.raises(ValueError, match=message):
        run.held_out_examples(make_dataset([[[5, 6]], [[7]]]))


def test_unigram_baselines_by_hand():
    """Two sources of two tokens each; the mixture reads the first once and the second twice."""
    train = {
        "a": Source(make_dataset([[[5, 5, 5, 6]]] * 2), ("en",)),
        "b": Source(make_dataset([[[6, 7, 7, 7]]]), ("en",)),
    }
    held_out = {"a": Source(make_dataset([[[5, 6]]]), ("en",)), "b": Source(make_dataset([[[7, 7, 7, 7]]]), ("en",))}
    run = make_run(sources={"weights": {"a": 1, "b": 1}}, phases=[{"steps": 1, "length": 6, "examples": 2}])
    examples = run.examples(train)
    passes = examples.phases[0].dataset.passes
    over_all, of_source = unigrams(examples, run.held_out_examples(held_out), train, held_out, vocab_size=8)
    counts = {"a": np.array([0, 0, 0, 0, 0, 6, 2, 0]) + 0.0, "b": np.array([0, 0, 0, 0, 0, 0, 1, 3]) + 0.0}

    def nats(counts, token):
        return -math.log((counts[token] + 1) / (counts + 1).sum())

    assert of_source["a"] == pytest.approx((nats(counts["a"], 5) + nats(counts["a"], 6)) / 2)
    assert of_source["b"] == pytest.approx(nats(counts["b"], 7))
    mixture = passes["a"] * counts["a"] + passes["b"] * counts["b"]
    tokens = [5, 6, 7, 7, 7, 7]
    assert over_all == pytest.approx(sum(nats(mixture, token) for token in tokens) / 6)


def test_pairs_that_are_left_out_are_in_the_plan():
    pairs = make_dataset([[[5] * 4, [6] * 4]] * 6 + [[[5] * 40, [6] * 4]] * 2)
    text = {**sources(en=20), "en-zh": Source(pairs, ("en", "zh"))}
    run, tokenizer = make_run(phases=[{"steps": 3, "length": 20, "examples": 4}]), make_tokenizer()
    plan = make_plan(run, run.examples(text), run.collator(tokenizer, text), run.model_config(tokenizer, text))
    assert "phase 1, source en-zh: left out: 2 of 8 pairs, too long" in str(plan)


def test_a_mixture_under_the_stock_trainer(tmp_path):
    """Two epochs; every example of a source as often as the shares say, and no key twice."""
    seen = []
    collator = DataCollatorForMaskedLM(make_tokenizer())

    def collate(examples):
        seen.extend(example.key for example in examples)
        return collator(examples)

    blocks = {name: SentenceBlocks(equal_documents(size), 20, False) for name, size in (("en", 10), ("de", 2))}
    mixed = MixedExamples(blocks, alpha=0.5)
    set_seed(0)
    trainer = Trainer(
        model=HfeBertForMaskedLM(HfeBertConfig(**TINY_MODEL)),
        args=training_arguments(tmp_path, num_train_epochs=2, per_device_train_batch_size=4, save_strategy="no"),
        train_dataset=mixed,
        data_collator=collate,
        callbacks=[EpochCallback()],
    )
    trainer.train()
    assert trainer.state.global_step == 6 and len(seen) == len(set(seen)) == 24
    expected = {example.key for epoch in (0, 1) for example in mixed.at_epoch(epoch)[:]}
    assert set(seen) == expected
