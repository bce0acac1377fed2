"""The result of a pre-training: a folder of model, tokenizer and code, with record, curve and card of the run."""

import argparse
from typing import Any

import datasets
import numpy as np

from hf_encoders.data.corpus.report import corpus_statistics
from hf_encoders.publishing.model_card import make_model_card
from hf_encoders.recipes.run import Run
from hf_encoders.records.curves import Curve
from hf_encoders.records.plots import draw_runs
from hf_encoders.records.training_record import TrainingRecord, command_of, facts_of_this_process
from hf_encoders.redaction import published_path
from hf_encoders.saved_files import CARD_FILE, CURVE_FILE
from hf_encoders.training.optimizers import optimization_facts
from hf_encoders.training.trainer import PreTrainingTrainer
from hf_encoders.writing import replaced_folder


def save_pretrained_folder(run: Run, trainer: PreTrainingTrainer, *facts: Any) -> None:
    """Save a trained model with its record, curve and card in the run's folder; a collective operation.

    A model that is there is replaced when the new one is complete. Arguments as those of `pretraining_record`.
    """
    directory = run.output / "model"
    if trainer.args.process_index != 0:
        trainer.save_model(str(directory), _internal_call=True)  # gathers shards; the first process writes
        return
    with replaced_folder(directory) as folder:
        # `_internal_call` keeps `Trainer` from pushing a card of its own.
        trainer.save_model(str(folder), _internal_call=True)
        record = pretraining_record(run, trainer, *facts)
        record.save(folder)
        draw_runs(
            [Curve("training", trainer.state.log_history)],
            folder / CURVE_FILE,
            run.recipe.name,
            baselines=run.objective.loss_baselines(trainer.health.unigram_cross_entropy),
            phases=[(phase.steps, f"{phase.length} tokens") for phase in run.recipe.phases],
        )
        model = trainer.accelerator.unwrap_model(trainer.model)
        name = trainer.hub_model_id if trainer.args.push_to_hub else published_path(str(directory))
        make_model_card(model, record, name=name, has_curve=True).save(folder / CARD_FILE)


def pretraining_record(
    run: Run,
    trainer: PreTrainingTrainer,
    corpus_name: str,
    documents: datasets.Dataset,
    after: dict[str, float],
    arguments: argparse.Namespace,
) -> TrainingRecord:
    """The facts of a finished run, restarts included.

    Args:
        run (`Run`): The run.
        trainer (`PreTrainingTrainer`): Its trainer, whose `health` counted tokens and seconds.
        corpus_name (`str`): Name of the training text.
        documents (`datasets.Dataset`): Tokenised documents of the training text.
        after (`dict`): Metrics of the last evaluation.
        arguments (`argparse.Namespace`): Of the command that started the run, with `language`.
    """
    unigram = trainer.health.unigram_cross_entropy
    recipe, logged = run.recipe, logged_means(trainer.state.log_history)
    held_out = {"dataset": "held-out documents of the corpus"}
    rates = () if recipe.mask_rate is None else (recipe.mask_rate(0.0), recipe.mask_rate(1.0))
    statistics = corpus_statistics(documents)
    counts = {name: getattr(statistics, name) for name in ("documents", "sentences", "tokens")}
    return TrainingRecord(
        objectives=run.objective.describe(trainer.data_collator, rates, recipe.examples, logged),
        corpus={"name": corpus_name, **counts},
        schedule={
            "optimizer steps": trainer.state.global_step,
            "recipe": recipe.name,
            "phases": ", ".join(map(str, recipe.phases)),
            # For `Trainer` an example is a micro-batch, so its batch size is left out.
            **{name: fact for name, fact in optimization_facts(trainer).items() if not name.startswith("rows")},
            "seed": trainer.args.seed,
        },
        losses=run.objective.losses(after),
        **facts_of_this_process(),
        seconds=trainer.health.training_seconds,
        tokens_per_second=trainer.health.tokens_seen / trainer.health.training_seconds,
        evaluation=[{**held_out, **result} for result in run.objective.results(after, unigram)],
        command=command_of(arguments),
        language=[arguments.language],
    )


def logged_means(log_history: list[dict[str, Any]]) -> dict[str, float]:
    """Means over a run of the shares and rates that `HealthCallback` logged, each since the last log.

    Weighted by the tokens of those steps. A step that a resumed run logged again counts once.

    >>> log = [{"step": 1, "tokens_seen": 30, "mask_rate": 0.2}, {"step": 2, "tokens_seen": 40, "mask_rate": 0.4}]
    >>> logged_means(log)
    {'mask_rate': 0.25}
    """
    by_step = {entry["step"]: entry for entry in log_history if "tokens_seen" in entry}
    names = {name for entry in by_step.values() for name in entry if name.endswith(("mask_rate", "_share"))}
    found = {}
    for name in sorted(names):
        logs = [by_step[step] for step in sorted(by_step) if name in by_step[step]]
        tokens = np.diff([0, *(entry["tokens_seen"] for entry in logs)])
        found[name] = float(np.average([entry[name] for entry in logs], weights=tokens))
    return found
