"""Evaluation of several datasets by name: each by itself, and over all of their items."""

import pytest
import torch
from transformers import set_seed

from hf_encoders import (
    DataCollatorForMaskedLM,
    HfeBertConfig,
    HfeBertForMaskedLM,
    MixedExamples,
    PreTrainingTrainer,
    SentenceBlocks,
)
from tests import processes
from tests.corpus.corpora import TINY_MODEL, make_dataset, random_documents
from tests.training.tiny import NO_DROPOUT, make_tokenizer, training_arguments


SIZES = {"en": 13, "de": 4, "gsw": 1}  # blocks; batches of 3 over two processes leave remainders


def make_trainer(folder, **arguments) -> PreTrainingTrainer:
    set_seed(0)
    parts = {}
    for number, (name, size) in enumerate(SIZES.items()):
        documents = make_dataset(random_documents(size, number, (3, 4), (2, 8)))
        blocks = SentenceBlocks(documents, 24, cross_documents=False)
        parts[name] = MixedExamples({name: blocks}, redraw=False)
    return PreTrainingTrainer(
        model=HfeBertForMaskedLM(HfeBertConfig(**TINY_MODEL, **NO_DROPOUT)),
        args=training_arguments(folder, per_device_eval_batch_size=3, **arguments),
        train_dataset=SentenceBlocks(make_dataset(random_documents(9)), 24),
        eval_dataset=parts,
        data_collator=DataCollatorForMaskedLM(make_tokenizer(), mask_probability=0.3),
    )


def evaluate_in_two(folder) -> None:
    torch.set_num_threads(1)
    trainer = make_trainer(str(folder))
    metrics = trainer.evaluate()
    torch.save(metrics, folder / f"{trainer.args.process_index}.pt")
    processes.end_together()


def counts_of(trainer, dataset) -> int:
    return int((trainer.data_collator(dataset[:])["labels"] != -100).sum())


def test_over_all_is_the_mean_over_items_and_in_one_log(tmp_path):
    trainer = make_trainer(tmp_path)
    metrics = trainer.evaluate()
    counts = {name: counts_of(trainer, dataset) for name, dataset in trainer.eval_dataset.items()}
    for value in ("loss", "accuracy"):
        of_sources = sum(metrics[f"eval_{name}_mlm_{value}"] * count for name, count in counts.items())
        assert metrics[f"eval_mlm_{value}"] == pytest.approx(of_sources / sum(counts.values()), rel=1e-6)
    assert metrics["eval_loss"] == metrics["eval_mlm_loss"]
    (entry,) = trainer.state.log_history
    assert {name: entry[name] for name in metrics if name in entry} == {n: metrics[n] for n in metrics if n in entry}
    assert {"eval_loss", "eval_perplexity", "eval_gsw_mlm_loss", "eval_gsw_perplexity"} <= entry.keys()
    # Each source alone has the same loss, and evaluating again adds nothing up.
    alone = trainer.evaluate(trainer.eval_dataset["de"])
    assert alone["eval_mlm_loss"] == pytest.approx(metrics["eval_de_mlm_loss"], rel=1e-6)
    again = trainer.evaluate()
    assert again["eval_mlm_loss"] == metrics["eval_mlm_loss"]


def test_other_datasets_and_prefixes(tmp_path):
    trainer = make_trainer(tmp_path)
    found = trainer.evaluate({"a": trainer.eval_dataset["gsw"]}, metric_key_prefix="test")
    assert found["test_mlm_loss"] == found["test_a_mlm_loss"] and len(trainer.state.log_history) == 1


def test_the_best_model_is_that_over_all(tmp_path):
    """`Trainer` alone would not find `eval_loss` of several datasets."""
    trainer = make_trainer(
        tmp_path, max_steps=4, eval_strategy="steps", eval_steps=2, save_steps=2, load_best_model_at_end=True
    )
    trainer.train()
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(losses) == 2 and trainer.state.best_metric == min(losses)


@pytest.mark.processes
def test_two_processes_count_no_example_twice(tmp_path, one_thread):
    expected = make_trainer(tmp_path / "one").evaluate()
    folder = tmp_path / "two"
    for ended in processes.run_all(evaluate_in_two, 2, folder):
        assert ended.status == 0, ended.told
    for rank in (0, 1):
        found = torch.load(folder / f"{rank}.pt", weights_only=True)
        for name, value in expected.items():
            if name.endswith(("_loss", "_accuracy", "_perplexity")):
                assert found[name] == pytest.approx(value, rel=1e-5), name
